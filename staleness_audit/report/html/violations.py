"""Fourth question: which were the worst violations, what is the story of each, and where do the logs say so."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from staleness_audit.check.story import Story
from staleness_audit.report.html.figure import WORDS, Cell, StepNames, Table, cells, columns, version_colour
from staleness_audit.report.terminal.story import (
    MARKS,
    MEANINGS,
    age_of,
    fate_name,
    joined_spans,
    life_rows,
    place_of,
    seconds_since,
    subtraction,
    what_happened,
    worst_use,
)
from staleness_audit.report.terminal.words import class_size, class_words, moment, place, step_words
from staleness_audit.report.terminal.worst import CONTROLS

Data = Mapping[str, Any]

ENTRIES = 200
"""Log entries that a story shows at most."""


@dataclass(frozen=True)
class LifeRow:
    """A row of the drawing of a life: so many tokens of a version, or what happened at it. Widths are percentages."""

    label: str
    what: str
    tokens: str
    age: str
    beyond: bool
    colour: str
    certain: float
    possible: float


@dataclass(frozen=True)
class Telling:
    """One violation as the page tells it."""

    anchor: str
    proven: bool
    name: str
    headline: str
    actors: str
    life: tuple[LifeRow, ...]
    ages: str
    conclusion: tuple[str, ...]
    proof: tuple[tuple[str, str], ...]
    log: Table | None
    legend: str


def anchor_of(row: Mapping[str, Any]) -> str:
    """Return the address of a violation on the page: the same whenever the same run is audited."""
    identity = f"{row['trajectory_id']}\0{row['attempt']}\0{row['step']}"
    return "violation-" + hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:10]


def anchors_of(worst: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], str]:
    """By (attempt, step), the address of the worst violation that is told."""
    found: dict[tuple[int, int], str] = {}
    for row in worst:
        found.setdefault((row["attempt"], row["step"]), anchor_of(row))
    return found


def worst_table(data: Data) -> Table | None:
    """The listed violations as a table whose rows lead to their stories; None without any."""
    worst, name = data["violations"]["worst"] or [], StepNames.of(data)
    if not worst:
        return None
    rows = [
        cells(
            Cell("proven" if row["proven"] else "possible", None, "fail" if row["proven"] else "possible"),
            Cell(WORDS.plain(row["trajectory_id"], 120), f"#{anchor_of(row)}", "id"),
            Cell(WORDS.plain(row["group_id"], 120) if row["group_id"] else "", None, "id"),
            class_size(row.get("multiplicity"), WORDS.glyphs) or "1",
            name(row),
            WORDS.interval(row["staleness"]),
            WORDS.interval(row["in_flight"]),
            WORDS.interval(row["in_queue"]),
            WORDS.interval(row["tokens"]),
            " ".join(row["stoppable_at"]),
            Cell(place(row["evidence"][0]) if row["evidence"] else "", None, "place"),
        )
        for row in worst
    ]
    total = WORDS.interval(data["violations"]["trajectories"])
    listed = f"The {len(worst)} most stale uses, proven ones first; violating trajectories in all: {total}."
    return Table(
        "worst",
        "The worst violations: what was trained too stale, and where the logs say so",
        columns(
            "certainty",
            "trajectory",
            "group",
            "trajectories#",
            "step#",
            "staleness#",
            "in flight#",
            "in queue#",
            "tokens beyond#",
            "stop at",
            "oldest tokens logged at",
        ),
        tuple(rows),
        note=listed + " List more with --worst\N{NO-BREAK SPACE}N.",
        filterable=True,
        choices=tuple(
            kind for kind in ("proven", "possible") if any(row["proven"] == (kind == "proven") for row in worst)
        ),
    )


def tellings(data: Data, stories: Mapping[str, Story]) -> tuple[Telling, ...]:
    """Tell each listed violation; ``stories`` by trajectory."""
    name, bound = StepNames.of(data), data["bound"]["value"]
    told = [row for row in data["violations"]["worst"] or [] if row["trajectory_id"] in stories]
    return tuple(_telling(row, stories[row["trajectory_id"]], bound, name.in_words(row)) for row in told)


def _telling(row: Mapping[str, Any], story: Story, bound: int, step: str) -> Telling:
    name, age = WORDS.plain(row["trajectory_id"], 120), WORDS.count(row["staleness"], "version")
    verb = "is" if row["proven"] else "may be"
    controls = "; or at ".join(CONTROLS[level] for level in row["stoppable_at"])
    uses = [use for use in story.uses if (use.attempt, use.step) == (row["attempt"], row["step"])] or list(story.uses)
    begin = next((entry.ts for entry in story.entries if entry.ts is not None), None)
    return Telling(
        anchor=anchor_of(row),
        proven=row["proven"],
        name=name,
        headline=f"{verb} {age} old in {step}",
        actors=_actors(story),
        life=_life(story),
        ages=f"Age: staleness of these tokens in {step_words(used.step, used.first_step)}."
        if (used := worst_use(story.uses))
        else "",
        conclusion=(
            *(subtraction(use, bound, WORDS).plain for use in uses),
            f"It could have been stopped at {controls}." if controls else "",
        ),
        proof=tuple(
            (WORDS.plain(item.get("what", "evidence"), 80), place(item) + _known(item)) for item in row["evidence"]
        ),
        log=_log(story, anchor_of(row)),
        legend=" ".join(
            ([f"Times in seconds from {moment(begin.isoformat())}."] if begin else [])
            + [
                f"{mark} {known}: {MEANINGS[known]}."
                for known, mark in MARKS.items()
                if any(entry.evidence == known for entry in story.entries)
            ]
        ),
    )


def _known(item: Mapping[str, Any]) -> str:
    known = item.get("known")
    return f" ({WORDS.plain(known, 40)})" if known and known != "recorded" else ""


def _actors(story: Story) -> str:
    group = f"of group {WORDS.plain(story.group_id, 120)}, " if story.group_id else ""
    fates = [fate_name(fate, WORDS) for fate in story.fates]
    fate = ("fate: " if len(fates) < 2 else "fate is one of: ") + (", ".join(fates) or "not known")
    tokens = WORDS.count(story.tokens.json(), "sampled token")
    who = class_words(story.multiplicity.json(), WORDS.glyphs) if story.multiplicity else "this trajectory"
    return f"Let T be {who}: {group}admitted by attempt {story.attempt}, {tokens}, {fate}."


def _life(story: Story) -> tuple[LifeRow, ...]:
    spans = joined_spans([entry for entry in story.entries if entry.kind == "span"])
    rows = life_rows(spans, story.uses, WORDS)
    scale = max((row.tokens.hi or row.tokens.lo or 0 for row in rows if row.tokens), default=0) or 1
    worst = worst_use(story.uses)
    drawn = []
    for row in rows:
        if row.tokens is None:
            drawn.append(LifeRow(row.label, row.what, "", "", False, "", 0, 0))
            continue
        age, beyond = age_of(row.version, worst, story.bound, WORDS, alone=len(spans) == 1)
        low = row.tokens.lo or 0
        high = low if row.tokens.hi is None else row.tokens.hi
        exact = row.version is not None and row.version.is_exact and row.version.lo is not None
        drawn.append(
            LifeRow(
                row.label,
                "",
                WORDS.count(row.tokens.json(), "token"),
                age,
                beyond,
                version_colour(int(row.version.lo))
                if exact and row.version and row.version.lo is not None
                else version_colour(None),
                100 * low / scale,
                100 * (high - low) / scale,
            )
        )
    return tuple(drawn)


def _log(story: Story, anchor: str) -> Table | None:
    if not story.entries:
        return None
    begin = next((entry.ts for entry in story.entries if entry.ts is not None), None)
    shown = story.entries[:ENTRIES]
    rows = [
        cells(
            seconds_since(entry.ts, begin),
            "" if entry.version is None else WORDS.version(entry.version),
            what_happened(entry, WORDS).plain,
            Cell(place_of(entry, WORDS), None, "place mono"),
        )
        for entry in shown
    ]
    left = len(story.entries) - len(shown)
    return Table(
        f"{anchor}-log",
        f"What the logs say of {WORDS.plain(story.trajectory_id, 60)}, in order",
        columns("time#", "version", "what happened", "where it says so"),
        tuple(rows),
        note=f"{left:,} more entries; staleness-audit explain shows them all." if left else "",
    )


def no_violations(data: Data) -> str:
    """Say why no violation is listed."""
    if data["bound"]["value"] is None:
        return "Without a bound there is nothing to violate. Give one with --bound N."
    total = data["violations"]["trajectories"]
    if total["hi"] == 0:
        return "There are none: every trained token was within the bound."
    if total["lo"]:
        return f"None can be named: {WORDS.count(total, 'violating trajectory')} follow from sums that the logs state."
    some = (
        "an unknown number of trajectories"
        if total["hi"] is None
        else f"up to {WORDS.count({'lo': total['hi'], 'hi': total['hi']}, 'trajectory')}"
    )
    return f"None can be named: {some} may violate the bound, but the logs identify none of them."
