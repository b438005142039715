"""One trajectory's life: the actors, a drawing over policy versions, a line per event, the subtraction that decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from rich.console import Console
from rich.table import Table
from rich.text import Text

from staleness_audit.check.intervals import Interval
from staleness_audit.check.story import Entry, Story, StoryUse
from staleness_audit.report.terminal.cost import REASONS
from staleness_audit.report.terminal.histogram import bar
from staleness_audit.report.terminal.page import Page
from staleness_audit.report.terminal.words import Words, class_words, is_exact, moment, number, place, step_words
from staleness_audit.report.terminal.worst import CONTROLS

BAR = 24
WHAT = {
    "admitted": "admitted",
    "started": "generation starts",
    "paused": "generation pauses",
    "resumed": "generation resumes",
    "finished": "generation is over",
    "enqueued": "queued for training",
    "sampled": "taken into a batch",
    "trained": "trained",
    "dropped": "dropped",
    "cancelled": "cancelled",
    "requeued": "queued again",
    "lost": "lost",
    "pending": "left over when the logs end",
    "span": "generated",
}


def render_story(story: Story, console: Console, *, stoppable: Mapping[int, Sequence[str]] | None = None) -> None:
    """Show the life of one trajectory; text from logs in the story cannot steer the console.

    ``stoppable``: by training step, the controls that could have stopped it (``stoppable_at`` of the audit), where they
    are known better than the story alone gives them.
    """
    page = Page(console)
    _actors(story, page)
    _drawing(story, page)
    _events(story, page)
    _ending(story, page, stoppable or {})


def _actors(story: Story, page: Page) -> None:
    page.print()
    words = class_words(story.multiplicity.json() if story.multiplicity else None, page.glyphs)
    page.print(
        Text.assemble(
            f"Let T be {'' if words else 'trajectory '}",
            (page.plain(story.trajectory_id), "bold"),
            f", {words}." if words else ".",
        )
    )
    group = f"T belongs to group {page.plain(story.group_id, 200)}" if story.group_id else "No group of T is logged"
    tokens = page.count(story.tokens.json(), "sampled token")
    fates = [fate_name(fate, page) for fate in story.fates]
    fate = ("Its fate: " if len(fates) < 2 else "Its fate is one of: ") + (", ".join(fates) or "not known")
    page.print(f"{group}; attempt {story.attempt} of the run admitted it; it has {tokens}. {fate}.")


def fate_name(fate: str, words: Words) -> str:
    """Return a fate, ``kind:reason``, in words."""
    kind, _, reason = fate.partition(":")
    if kind == "pending":
        return "pending (unfinished or unused when the logs end)"
    return kind + (f" ({REASONS.get(reason) or words.plain(reason.removeprefix('other:'), 60)})" if reason else "")


# ------------------------------------------------------------------------------------------------- the drawing


@dataclass(frozen=True)
class Row:
    """One row of the drawing: a version (or interval, or run of versions), and what happened then."""

    label: str
    what: str
    tokens: Interval | None = None
    version: Interval | None = None
    trains: bool = False


def _drawing(story: Story, page: Page) -> None:
    spans = joined_spans([entry for entry in story.entries if entry.kind == "span"])
    worst = worst_use(story.uses)
    rows = life_rows(spans, story.uses, page)
    if not rows:
        return
    page.section("Its life over policy versions")
    scale = max((int(row.tokens.hi or row.tokens.lo or 0) for row in rows if row.tokens), default=0)
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(4):
        table.add_column(no_wrap=True)
    ages = [
        ("", False) if row.tokens is None else age_of(row.version, worst, story.bound, page, alone=len(spans) == 1)
        for row in rows
    ]
    counts = ["" if row.tokens is None else page.count(row.tokens.json(), "token") for row in rows]
    length = page.room(BAR, [(row.label, count, age) for row, count, (age, _) in zip(rows, counts, ages, strict=True)])
    for row, count, (age, beyond) in zip(rows, counts, ages, strict=True):
        if row.tokens is None:
            quiet = "bold" if row.trains else "dim"
            table.add_row(Text(row.label, "bold"), Text(row.what, quiet), "", "")
            continue
        style = "red" if beyond else "green" if worst is not None and story.bound is not None else "cyan"
        tokens = (int(row.tokens.lo or 0), None if row.tokens.hi is None else int(row.tokens.hi))
        drawn = bar(tokens, scale, page.glyphs, style, length)
        table.add_row(Text(row.label, "bold"), drawn, count, Text(age, style))
    page.print(table, 2)
    if worst is not None:
        page.print(Text(f"age: staleness of these tokens in {step_words(worst.step, worst.first_step)}", "dim"), 2)


def joined_spans(spans: Sequence[Entry]) -> list[tuple[Interval, Interval]]:
    """Versions and tokens of consecutive spans; those of equal version are one."""
    joined: list[tuple[Interval, Interval]] = []
    for span in spans:
        version, tokens = span.version or Interval(None, None), span.tokens or Interval(None, None)
        if joined and joined[-1][0] == version:
            joined[-1] = (version, joined[-1][1] + tokens)
        else:
            joined.append((version, tokens))
    return joined


def life_rows(spans: Sequence[tuple[Interval, Interval]], uses: Sequence[StoryUse], words: Words) -> list[Row]:
    """Return the drawing: a row per run of tokens of one version, per wait between them, and per training step."""
    rows: list[Row] = []
    last: Interval | None = None
    for version, tokens in spans:
        if last is not None:
            rows += _gap(last, version, "no token sampled", words)
        rows.append(Row(words.version(version), "", tokens, version))
        last = version
    for use in uses:
        if last is not None:
            rows += _gap(last, use.v_train, "waits in the queue" if use is uses[0] else "", words)
        trained = words.count(use.loss_tokens.json(), "token")
        doubt = "" if use.certain else " (not confirmed)"
        rows.append(
            Row(
                words.version(use.v_train),
                f"{step_words(use.step, use.first_step)} trains on {trained}{doubt}",
                trains=True,
            )
        )
        last = use.v_train
    return rows


def _gap(before: Interval, after: Interval, what: str, words: Words) -> list[Row]:
    """Return a row for the versions that passed between two; none if that is not known for certain."""
    if not (before.is_exact and after.is_exact) or before.hi is None or after.lo is None or after.lo - before.hi < 2:
        return []
    passed = Interval(before.hi + 1, after.lo - 1)
    return [Row(words.version(passed), f"{words.glyphs.down} {what}".rstrip())]


def age_of(
    version: Interval | None, use: StoryUse | None, bound: int | None, words: Words, *, alone: bool = False
) -> tuple[str, bool]:
    """Staleness of a span's tokens in a use, and whether it is certainly beyond the bound.

    ``alone``: the span holds all tokens, so that none of them is older than the staleness of the use.
    """
    if version is None or use is None or use.v_train.hi is None or version.hi is None:
        return "", False
    low = (use.v_train.lo or 0) - version.hi
    high = use.v_train.hi - (version.lo or 0)
    if low < high:
        low = max(low, 0)
        if alone and use.staleness.hi is not None:
            high = max(min(high, use.staleness.hi), low)
    return f"age {words.interval(Interval(low, high).json())}", bound is not None and low > bound


def worst_use(uses: Sequence[StoryUse]) -> StoryUse | None:
    """Return the most stale use, those that count for certain first; None if there is none."""
    return max(uses, key=lambda use: (use.certain, use.staleness.lo or 0), default=None)


# ------------------------------------------------------------------------------------------------- the events


def _events(story: Story, page: Page) -> None:
    if not story.entries:
        return
    page.section("What the logs say, in order")
    begin = next((entry.ts for entry in story.entries if entry.ts is not None), None)
    rows = [
        (
            seconds_since(entry.ts, begin),
            "" if entry.version is None else page.version(entry.version),
            what_happened(entry, page),
            place_of(entry, page),
        )
        for entry in story.entries
    ]
    page.table((("time", "right"), "version", "what happened", "where it says so"), rows)
    if begin is not None:
        page.print(Text(f"time in seconds from {moment(begin.isoformat())}", "dim"), 2)
        times = [entry.ts for entry in story.entries if entry.ts is not None]
        if any(later < earlier for earlier, later in pairwise(times)):
            page.print(
                Text("a time below an earlier one comes from a coarser clock; causes go before effects", "dim"), 2
            )
    seen = {entry.evidence for entry in story.entries}
    for known, mark in MARKS.items():
        if known in seen:
            page.print(Text(f"{mark} {known}: {MEANINGS[known]}", "dim"), 2)


def seconds_since(ts: datetime | None, begin: datetime | None) -> str:
    """Seconds to a tenth from the first time of a life; empty without a time."""
    return "" if ts is None or begin is None else f"{(ts - begin).total_seconds():.1f}"


def what_happened(entry: Entry, words: Words) -> Text:
    """Say what an entry tells, with its step, tokens and reason."""
    text = Text(WHAT.get(entry.kind) or words.plain(entry.kind, 40))
    if entry.step is not None:
        step = step_words(entry.step, entry.first_step)
        by = "by" if entry.first_step is None else "in"
        text.append(f" {by} {step}" if entry.kind == "trained" else f" ({step})")
    if entry.kind in ("span", "trained") and entry.tokens is not None:
        text.append(f": {words.count(entry.tokens.json(), 'token')}")
    if entry.reason:
        text.append(f" - {REASONS.get(entry.reason) or words.plain(entry.reason.removeprefix('other:'), 80)}")
    text.stylize({"dropped": "yellow", "cancelled": "yellow", "lost": "red", "trained": "bold"}.get(entry.kind, ""))
    return text


def place_of(entry: Entry, words: Words) -> str:
    """Say where an entry is logged, marked if that is not simply recorded there."""
    where = place({"source": entry.source, "line": entry.line, "locator": entry.locator}, words.glyphs)
    return where + (f" {MARKS[entry.evidence]}" if entry.evidence in MARKS else "")


MARKS = {"derived": "*", "inferred": "?", "assumed": "!"}
MEANINGS = {
    "derived": "follows from what is recorded by the framework's rules",
    "inferred": "only narrowed down",
    "assumed": "as --assume says",
}


# ------------------------------------------------------------------------------------------------- what follows


def _ending(story: Story, page: Page, stoppable: Mapping[int, Sequence[str]]) -> None:
    page.section("What follows")
    if not story.uses:
        page.print("No step that counts trained on T, so it has no staleness and violates nothing.", 2)
    for use in story.uses:
        page.print(subtraction(use, story.bound, page), 2)
        if story.bound is not None and (use.staleness.lo or 0) > story.bound:
            levels = stoppable.get(use.step) or (["L2"] if (use.in_flight.lo or 0) > story.bound else []) + ["L3"]
            page.print(f"Could have been stopped at {'; or at '.join(CONTROLS[level] for level in levels)}.", 2)
    known: dict[str, int] = {}
    for entry in story.entries:
        known[entry.evidence or "unknown"] = known.get(entry.evidence or "unknown", 0) + 1
    counted = ", ".join(f"{number(times)} {page.plain(how, 20)}" for how, times in sorted(known.items()))
    page.print(Text(f"Evidence: of {number(len(story.entries))} lines, {counted}.", "dim"), 2)


def subtraction(use: StoryUse, bound: int | None, words: Words) -> Text:
    """Say what a use implies: the versions, their difference, and how it compares with the bound."""
    step = step_words(use.step, use.first_step)
    step = step[0].upper() + step[1:]
    if use.loss_tokens.hi == 0:
        return Text(f"{step} takes T, but the loss masks all of its tokens: it has no staleness there.")
    train, oldest = words.version(use.v_train), words.version(use.oldest)
    stale = words.interval(use.staleness.json())
    text = Text(f"{step} trains from {train}; the oldest trained token of T is {oldest}. ")
    if is_exact(use.v_train.json()) and is_exact(use.oldest.json()):
        text.append(f"{number(use.v_train.lo or 0)} - {number(use.oldest.lo or 0)} = {stale}", "bold")
    else:
        text.append(f"Its staleness is {stale}", "bold")
    if bound is not None:
        text.append(*_judged(use, bound, words))
    flight, queue = words.interval(use.in_flight.json()), words.interval(use.in_queue.json())
    text.append(f": {flight} in flight, {queue} in the queue.")
    if use.narrowed is not None:
        loose = words.interval(use.narrowed.json())
        text.append(f" The versions alone would allow {loose}; the logs say more of its staleness.")
    if not use.certain:
        text.append(" The step is not confirmed to count, so this proves nothing.")
    return text


def _judged(use: StoryUse, bound: int, words: Words) -> tuple[str, str]:
    """Return how the staleness compares with the bound, and the style to say it in."""
    if (use.staleness.lo or 0) > bound:
        return f" > {bound}, beyond the bound", "bold red"
    if use.staleness.hi is not None and use.staleness.hi <= bound:
        return f" {words.glyphs.at_most} {bound}, within the bound", "bold green"
    return f", which may exceed the bound of {bound}", "bold yellow"
