"""What the control cost and what throughput resulted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from staleness_audit.report.terminal.histogram import bar
from staleness_audit.report.terminal.page import Page
from staleness_audit.report.terminal.words import is_exact, is_zero, number, percent, percent_interval, times_as_long

REASONS = {
    "stale": "too stale",
    "group": "went with their group",
    "zero_advantage": "no advantage",
    "filtered": "filtered",
    "surplus": "surplus",
    "overload": "overload",
    "error": "error",
    "rolled_back": "rolled back by a restart",
    "unknown": "reason unknown",
}
BAR = 24


def show_waste(data: Mapping[str, Any], page: Page) -> None:
    """Show where the generated tokens went; the parts add up to all."""
    tokens, waste = data["tokens"], data["waste"]
    generated = tokens["generated"]
    if is_zero(generated):
        return
    page.section("Where the generated tokens went")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="dim")
    table.add_column(no_wrap=True, overflow="crop")
    whole = generated["lo"] if is_exact(generated) else None
    parts = _parts(tokens, page)
    known = [part for part in parts if page.interval(part[1]) != "unknown"]
    rows = [
        (Text(name), page.interval(value), percent(value["lo"] / whole) if whole and is_exact(value) else "")
        for name, value, _ in known
    ]
    in_all = (Text("generated in all", "bold"), Text(page.interval(generated), "bold"), "")
    # Where no upper end of the whole is known, a part's may lie far beyond its lower one.
    scale = max(value[end] or 0 for value in (generated, *(part[1] for part in known)) for end in ("lo", "hi"))
    length = page.room(BAR, [*rows, in_all])
    for row, (_, value, style) in zip(rows, known, strict=True):
        table.add_row(*row, bar((value["lo"] or 0, value["hi"]), scale, page.glyphs, style, length))
    table.add_row(*in_all, "")
    page.print(table, 2)
    unknown = [name for name, value, _ in parts if page.interval(value) == "unknown"]
    if unknown:
        page.print(Text(f"not known: {', '.join(unknown)}", "dim"), 2)
    page.print()
    page.facts(
        [
            ("wasted", _ratio(waste["ratio"], page)),
            ("doomed", _doomed(waste["doomed_tokens"], page)),
            ("needless drops", _needless(waste["needless_drop_tokens"], page)),
            ("length bias", _bias(waste["length_bias"])),
        ]
    )


def _parts(tokens: Mapping[str, Any], page: Page) -> list[tuple[str, Mapping[str, Any], str]]:
    parts = [("trained", tokens["trained_distinct"], "green"), ("masked out of the loss", tokens["masked"], "yellow")]
    for kind in ("dropped", "cancelled", "lost"):
        for reason, value in tokens[kind].items():
            parts.append((f"{kind} ({_reason(reason, page)})", value, "red"))
    parts += [("pending at the end", tokens["pending"], "blue"), ("unaccounted", tokens["unaccounted"], "magenta")]
    return [part for part in parts if not is_zero(part[1])]


def _reason(reason: str, page: Page) -> str:
    return REASONS.get(reason) or page.plain(reason.removeprefix("other:"), 60)


def _ratio(ratio: Mapping[str, Any], page: Page) -> str:
    shown = percent_interval(ratio, page.glyphs)
    return (
        "the logs can't tell how much"
        if shown == "unknown"
        else f"{shown} of the generated tokens were never trained on"
    )


def _doomed(doomed: Mapping[str, Any] | None, page: Page) -> str:
    if doomed is None or is_zero(doomed) or page.interval(doomed) == "unknown":
        return ""
    one = doomed["lo"] == doomed["hi"] == 1
    return (
        f"{page.count(doomed, 'token')} sampled when {'its' if one else 'their'} trajectory was already beyond the "
        f"bound; cancelling in flight would have saved {'it' if one else 'them'}"
    )


def _needless(needless: Mapping[str, Any] | None, page: Page) -> str:
    if needless is None or is_zero(needless) or page.interval(needless) == "unknown":
        return ""
    return f"{page.count(needless, 'token')} dropped as stale although still within the bound"


def _bias(bias: Mapping[str, float | None]) -> str:
    ratio, longest = bias["mean_ratio"], bias["longest_decile_trained_share"]
    if ratio is None or longest is None or (abs(ratio - 1) < 0.005 and longest > 0.995):
        return ""
    return (
        f"trained trajectories are {times_as_long(ratio)} as all finished ones on average; "
        f"{percent(longest)} of the longest tenth were trained"
    )


def show_throughput(data: Mapping[str, Any], page: Page) -> None:
    """Show rates, who waited for whom, and what was under way on average."""
    numbers = data["throughput"]
    if not numbers["wall_s"]:
        return
    rates = [
        f"{number(numbers[key])} {name}"
        for key, name in (
            ("generated_tokens_per_s", "generated"),
            ("trained_tokens_per_s", "trained"),
            ("in_bound_tokens_per_s", "trained within the bound"),
        )
        if numbers[key] is not None
    ]
    trainer = [
        f"{percent(numbers[key])} {name}"
        for key, name in (("trainer_busy", "busy"), ("trainer_waiting", "waiting for data"))
        if numbers[key] is not None
    ]
    under_way = [
        f"{number(numbers[key])} {name}"
        for key, name in (("mean_in_flight", "being generated"), ("mean_queued", "queued"))
        if numbers[key] is not None
    ]
    if rates or trainer or under_way:
        page.section("Throughput")
        page.facts(
            [
                ("tokens per second", ", ".join(rates)),
                ("trainer", ", ".join(trainer)),
                ("trajectories", ", ".join(under_way) + " on average" if under_way else ""),
            ]
        )
