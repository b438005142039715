"""One audit on a terminal: verdict first, then the few figures that matter, what proves them and what is missing."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from staleness_audit.check.reported import CANONICAL
from staleness_audit.report.terminal.comparison import apart
from staleness_audit.report.terminal.conditions import condition_lines
from staleness_audit.report.terminal.cost import show_throughput, show_waste
from staleness_audit.report.terminal.histogram import bins, show_histogram, sparkline
from staleness_audit.report.terminal.page import Page
from staleness_audit.report.terminal.verdict import (
    STYLES,
    bound_line,
    dialect_of,
    gate_line,
    headline,
    promise_lines,
    violation_lines,
    why,
)
from staleness_audit.report.terminal.words import duration, is_exact, is_zero, moment, percent, place, shorten
from staleness_audit.report.terminal.worst import show_worst

Data = Mapping[str, Any]
FEW = 5


def notebook_html(data: Data) -> str:
    """Return the report as an element of a page, for notebooks; text from logs is escaped."""
    console = Console(
        record=True, file=io.StringIO(), width=100, force_jupyter=False, force_terminal=True, color_system="standard"
    )
    render_audit(data, console)
    element = '<pre style="line-height: 1.25; overflow-x: auto">{code}</pre>'
    return console.export_html(inline_styles=True, code_format=element)


def render_audit(data: Data, console: Console, *, verbose: bool = False) -> None:
    """Show one audit: ``data`` is the JSON document of DESIGN section 5, whose text from logs cannot steer the console.

    ``verbose``: list every diagnostic and every differing figure.
    """
    page = Page(console)
    _verdict(data, page)
    _run(data, page)
    _staleness(data, page)
    show_worst(data, page)
    show_waste(data, page)
    show_throughput(data, page)
    _reported(data, page, verbose)
    _diagnostics(data, page, verbose)
    _hints(data, page)


def render_summary(documents: Sequence[Data], console: Console) -> None:
    """Show several audits side by side, one line each."""
    page = Page(console)
    page.section("Summary")
    shared, paths = apart([str(data["run"]["path"]) for data in documents])
    if shared:
        page.print(Text(f"in {page.plain(shared)}", "dim"), 2)
    rows = [
        (
            shorten(page.plain(path), 60, page.glyphs),
            page.plain(data["run"]["framework"], 20),
            Text(headline(data), STYLES[data["verdict"]].rpartition(" ")[2]),
            "none" if data["bound"]["value"] is None else str(data["bound"]["value"]),
            page.interval(data["staleness"]["max"]),
            "not judged"
            if data["violations"][data["gate"]["count"]] is None
            else page.interval(data["violations"][data["gate"]["count"]]),
            str(data["gate"]["exit"]),
        )
        for path, data in zip(paths, documents, strict=True)
    ]
    columns = (
        "run",
        "framework",
        ("verdict", "keep"),
        ("bound", "right"),
        ("largest", "right"),
        ("violations", "right"),
        ("exit", "right"),
    )
    page.table(columns, rows)


# ------------------------------------------------------------------------------------------------- verdict and run


def _verdict(data: Data, page: Page) -> None:
    run = data["run"]
    version = f" {page.plain(run['framework_version'], 40)}" if run["framework_version"] else ""
    head = Text.assemble((f" {headline(data)} ", STYLES[data["verdict"]]))
    head.append(f"  {page.plain(run['framework'], 60)}{version}", "bold")
    dialect = page.plain(dialect_of(run), 200)
    fits = head.cell_len + len(dialect) + 3 <= page.width
    if dialect and fits:
        head.append(f" {page.glyphs.dot} {dialect}", "dim")
    page.print()
    page.print(head)
    if dialect and not fits:
        page.print(Text(dialect, "dim"), 2)
    page.print(Text(page.plain(run["path"]), "dim"), 2)
    page.print()
    page.print(Text(why(data, page), "bold"), 2)
    promise, reason = promise_lines(data, page)
    unit = page.plain(data["staleness"]["unit"], 80)
    page.print(
        Text(
            "Staleness of a token: how many policy versions it is older than the weights that train on it "
            f"(v_train - v_gen; versions count {unit}).",
            "dim",
        ),
        2,
    )
    page.print()
    facts: list[tuple[str, str | Text]] = [("bound", bound_line(data, page)), ("largest", _largest(data, page))]
    if data["bound"]["value"] is not None:
        proven, possible = violation_lines(data, page)
        if proven == possible == "none":
            facts.append(("violations", "none, and none possible"))
        else:
            facts += [("proven", Text(proven, "red" if proven != "none" else "")), ("possible", possible)]
    facts += [("guarantee", f"{promise}: {reason}"), ("gate", gate_line(data)), *condition_lines(data, page)]
    page.facts(facts)


def _largest(data: Data, page: Page) -> str:
    largest, bound = data["staleness"]["max"], data["bound"]["value"]
    if largest["lo"] is None and largest["hi"] is None:
        return "nothing was trained on" if is_zero(data["trajectories"]["trained"]) else "not known"
    shown = page.interval(largest)
    if shown == "unknown":
        return "not known"
    if bound is not None and (largest["lo"] or 0) > bound:
        least = "" if largest["lo"] == largest["hi"] else "at least "
        shown += f", {least}{largest['lo'] - bound} beyond the bound"
    satisfied = data["staleness"]["smallest_satisfied_bound"]["hi"]
    if satisfied is not None and (bound is None or satisfied != bound):
        shown += f" (the run satisfies every bound from {satisfied} on)"
    return shown


def _run(data: Data, page: Page) -> None:
    run, trained = data["run"], data["trajectories"]["trained"]
    page.section("The run")
    attempts = "" if run["attempts"] == 1 else f", in {run['attempts']} attempts"
    times = ""
    if run["started"] and run["ended"]:
        first, last, wall = moment(run["started"]), moment(run["ended"]), data["throughput"]["wall_s"]
        # What both share is said once: the time zone or clock, and the day.
        _, space, shared = first.partition(" by ") if " by " in first else first.rpartition(" ")
        times = f"{first.removesuffix(space + shared)} to {last.split(' ', 1)[1] if first[:10] == last[:10] else last}"
        if wall:
            times += f" ({duration(wall)} from first to last step)"
    tokens, distinct = data["tokens"]["trained"], data["tokens"]["trained_distinct"]
    twice = "" if distinct == tokens else f" ({page.interval(distinct)} of them different ones)"
    page.facts(
        [
            ("steps", page.count(run["steps"], "step") + f" completed{attempts}"),
            (
                "trained",
                f"{page.count(trained, 'trajectory')}{_of_seen(data['trajectories']['seen'], page)}, "
                f"{page.count(tokens, 'token')}{twice}",
            ),
            ("times", times),
            ("evidence", _coverage(data["coverage"], trained)),
            (
                "read as",
                f"{page.plain(run['parser'], 60)}: {page.plain('; '.join(run.get('detected_by', [])[:1]), 160)}",
            ),
            ("health", _health(run["health"], page)),
        ]
    )


def _of_seen(seen: Mapping[str, Any], page: Page) -> str:
    shown = page.interval(seen)
    return "" if shown == "unknown" else f" of {shown} seen"


def _coverage(coverage: Mapping[str, float | None], trained: Mapping[str, Any]) -> str:
    """How well the staleness of the trained tokens is known, in words."""
    exact, bounded, unknown = coverage["tokens_exact"], coverage["tokens_bounded"], coverage["tokens_unknown"]
    if exact is None or bounded is None or unknown is None:
        return "how many tokens were trained is not known" if trained["lo"] else "no trained token was seen"
    if exact == 1:
        words = "the staleness of every trained token read is known exactly"
    else:
        shares = ((exact, "exactly"), (bounded, "within limits"), (unknown, "not at all"))
        words = "staleness of trained tokens known: " + ", ".join(
            f"{percent(share)} {how}" for share, how in shares if share
        )
    identified = coverage["trajectories_identified"]
    if identified is None or identified == 1:
        return words
    return words + (
        f"; {percent(identified)} of the trained trajectories have a name"
        if identified
        else "; no trained trajectory has a name"
    )


def _health(health: Mapping[str, Any], page: Page) -> str | Text:
    since = f" {moment(health['since'])}" if health["since"] else ""
    waiting = f", waiting for {page.plain(health['waiting_for'], 200)}" if health["waiting_for"] else ""
    state = health["state"]
    if state == "finished":
        return "finished" + (f"; last entry{since}" if since else "")
    if state in ("crashed", "stuck"):
        return Text(
            state + (f", last sign of life{since}" if state == "crashed" else f" since{since}") * bool(since) + waiting,
            "red",
        )
    if state == "running":
        return "still running" + waiting
    return "the logs don't say how it ended" + (f"; last entry{since}" if since else "") + waiting


# ------------------------------------------------------------------------------------------------- staleness


def _staleness(data: Data, page: Page) -> None:
    staleness, bound = data["staleness"], data["bound"]["value"]
    total = data["tokens"]["trained"]
    found = bins(staleness["token_histogram"], "tokens", bound, total, data["violations"]["tokens"])
    if not found:
        return
    page.section("Staleness of the trained tokens")
    show_histogram(page, found, "tokens", bound, total)
    if any(
        row.get("or_more") and row["tokens"]["hi"] is None and not row["tokens"]["lo"]
        for row in staleness["token_histogram"]
    ):
        page.print(Text("Any number of tokens more, of any staleness, may be missing from the logs.", "dim"), 2)
    optimizer = staleness["optimizer_steps"]
    facts: list[tuple[str, Text | str]] = [
        ("on average", _averages(staleness, page)),
        ("of that", _parts(staleness, page)),
        ("optimizer steps", _optimizer(optimizer, page) if optimizer else ""),
        ("over time", _over_time(data, page)),
    ]
    if any(value for _, value in facts):
        page.print()
        page.facts(facts)


def _averages(staleness: Mapping[str, Any], page: Page) -> str:
    mean = page.interval(staleness["token_mean"])
    if mean == "unknown":
        return ""
    names = (("token_p50", "half of the tokens"), ("token_p90", "90%"), ("token_p99", "99%"))
    shares = [
        f"{name} at most {page.interval({**staleness[key], 'lo': staleness[key]['hi']})}"
        for key, name in names
        if staleness[key]["hi"] is not None
    ]
    return "; ".join([mean, ", ".join(shares)] if shares else [mean])


def _parts(staleness: Mapping[str, Any], page: Page) -> str:
    flight, queue = page.interval(staleness["in_flight_mean"]), page.interval(staleness["in_queue_mean"])
    if flight == queue == "unknown":
        return ""
    below = staleness["in_flight_mean"]["lo"]
    older = "; below 0 if it ended on an engine with older weights" if below is None or below < 0 else ""
    return (
        f"{flight} arose in flight (while its trajectory was generated{older}), {queue} in the queue (waiting to be "
        "trained)"
    )


def _optimizer(optimizer: Mapping[str, Any], page: Page) -> str:
    per_step = optimizer.get("updates_per_step")
    shown = f"largest {page.interval(optimizer['max'])}, mean {page.interval(optimizer['token_mean'])}"
    return shown + (f" ({per_step} updates to a step)" if per_step else "")


def _over_time(data: Data, page: Page) -> Text | str:
    rows = data["per_step"]
    values = [row["max"]["lo"] for row in rows]
    if len(rows) < 3 or not any(values):
        return ""
    drawn = sparkline(values, data["bound"]["value"], page.glyphs)
    exact = all(row["max"]["lo"] == row["max"]["hi"] for row in rows)
    which = "largest" if exact else "largest that is certain"
    # Several rows may train from one version (sub-steps): then there are more of them than steps completed.
    most = data["run"]["steps"]["hi"]
    row = "trainer update" if most is not None and len(rows) > most else "step"
    drawn.append(f"\n{which} in each {row}, {rows[0]['step']} to {rows[-1]['step']}", "dim")
    return drawn


# ------------------------------------------------------------------------------------------------- doubts


def _reported(data: Data, page: Page, verbose: bool) -> None:
    """Show the framework's own figures that contradict the rebuilt ones, by name."""
    differing: dict[str, list[Mapping[str, Any]]] = {}
    compared: dict[str, int] = {}
    for row in data["reported"]:
        if row["agrees"] is not None:
            compared[row["name"]] = compared.get(row["name"], 0) + 1
        if row["agrees"] is False:
            differing.setdefault(row["name"], []).append(row)
    if not differing:
        return
    page.section("The framework's own figures that disagree")
    for name, cases in differing.items():
        raw = page.plain(cases[0].get("raw_name") or name, 60)
        page.print(
            Text.assemble(
                (raw, "bold"),
                f" ({CANONICAL.get(name, page.plain(name, 60))}): {len(cases)} of {compared[name]} differ",
            ),
            2,
        )
        if cases[0].get("explanation"):
            page.print(Text(f"it is {page.plain(cases[0]['explanation'])}", "dim"), 4)
        for case in cases if verbose else cases[:2]:
            reported, rebuilt = _told_apart(case, page)
            where = place(case, page.glyphs)
            page.print(f"step {case['step']}: reported {reported}, rebuilt {rebuilt}  {where}".rstrip(), 4)


def _told_apart(case: Mapping[str, Any], page: Page) -> tuple[str, str]:
    """The reported and the rebuilt figure, with more digits where the usual three would make them look the same."""
    reported, rebuilt = {"lo": case["reported"], "hi": case["reported"]}, case["rebuilt"]
    shown = page.interval(reported), page.interval(rebuilt)
    if shown[0] != shown[1] or not is_exact(rebuilt):
        return shown
    return f"{case['reported']:.6g}", f"{rebuilt['lo']:.6g}"


def _diagnostics(data: Data, page: Page, verbose: bool) -> None:
    diagnostics = data["diagnostics"]
    items = diagnostics["items"]
    if not verbose:
        items = [item for item in items if item["severity"] != "note"]
    if not items:
        return
    noted = [
        f"{diagnostics[key]} {key if diagnostics[key] != 1 else key[:-1]}"
        for key in ("errors", "warnings")
        if diagnostics[key]
    ]
    page.section("What could not be read, or contradicts itself" + (f": {', '.join(noted)}" if noted else ""))
    shown = items if verbose else items[:FEW]
    for item in shown:
        line = Text(item["severity"], {"error": "red", "warning": "yellow"}.get(item["severity"], "dim"))
        where = place(item, page.glyphs)
        line.append(f"  {where}  " if where else "  ", "bold" if where else "")
        line.append(page.plain(item["message"]))
        if item["opens"] == "training":
            line.append(" (may have held training data)", "dim")
        page.print(line, 2)
    hidden = len(diagnostics["items"]) - len(shown)
    if hidden:
        page.print(Text(f"{hidden} more with --verbose", "dim"), 2)


def _hints(data: Data, page: Page) -> None:
    hints = data.get("hints") or []
    if not hints:
        return
    page.section("What the logs could not tell, and what to switch on")
    for hint in hints:
        page.print(Text(page.plain(hint["missing"], 600)), 2)
        page.items([(page.glyphs.more, Text(page.plain(hint["remedy"], 600), "cyan"))], 4)
