"""What an audit found, one by one, for the formats that machines show beside the lines they are about.

SARIF, JUnit and GitHub's annotations say the same findings in their own ways; the rules are described once, here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from staleness_audit.report.terminal.conditions import condition_lines, condition_words
from staleness_audit.report.terminal.verdict import bound_line, why
from staleness_audit.report.terminal.verdict import violation_lines as count_lines
from staleness_audit.report.terminal.words import Words, class_words, place, step_words
from staleness_audit.report.terminal.worst import CONTROLS

Data = Mapping[str, Any]
Level = Literal["error", "warning", "note"]
WORDS = Words()
MOST_STORIES = 10
"""Violations that the story of a run tells."""


@dataclass(frozen=True)
class Rule:
    """A kind of finding: ``summary`` in one sentence, ``meaning`` in a few, ``remedy``: what to do about it."""

    id: str
    name: str
    level: Level
    summary: str
    meaning: str
    remedy: str


RULES: tuple[Rule, ...] = (
    Rule(
        "staleness-bound",
        "StalenessBoundViolated",
        "error",
        "A trained token is staler than the bound allows.",
        "The logs prove that a training step took tokens into its loss which a policy version had sampled that was "
        "older than the bound allows, counted back from the version the step started from (v_train - v_gen > bound).",
        "The message names the controls that could have stopped it: L1 admission, L2 cancelling in flight, L3 dropping "
        "or waiting at the training input. `staleness-audit explain RUN TRAJECTORY` shows the whole life of the "
        "trajectory, each entry with its log line.",
    ),
    Rule(
        "possible-violation",
        "PossibleViolation",
        "warning",
        "A trained token may be staler than the bound allows.",
        "The logs narrow the staleness of these tokens down only to an interval that reaches beyond the bound; nothing "
        "proves either side.",
        "Record more: the end of the terminal report names the setting that would tell, if the framework has one.",
    ),
    Rule(
        "unread-training-data",
        "UnreadTrainingData",
        "warning",
        "A part of the logs that may hold training data could not be read, or contradicts itself.",
        "As trained tokens may have gone unread, no count has an upper end and the verdict cannot be `pass`.",
        "Restore the file from where the run wrote it, or audit the steps before the damage with --steps.",
    ),
    Rule(
        "damaged-log",
        "DamagedLog",
        "warning",
        "A part of the logs could not be read, or contradicts itself.",
        "It can hold no trained tokens, so the verdict stands, but counts of what was dropped or lost may be larger.",
        "Restore the file from where the run wrote it.",
    ),
    Rule(
        "figure-disagrees",
        "FrameworkFigureDisagrees",
        "note",
        "A figure that the framework logged about itself contradicts what its logs prove.",
        "Such figures often measure something else than their name says: at pull time instead of training time, the "
        "last token instead of the first, a mean of maxima.",
        "Trust the rebuilt figure; `staleness-audit frameworks NAME` says what each framework's own figures measure.",
    ),
    Rule(
        "failed-condition",
        "GateConditionFailed",
        "error",
        "A condition under which the run fails is true.",
        "The condition was given with --fail-if and is true whatever the unread parts of the logs hold.",
        "The message says which figure it is and what is known of it.",
    ),
    Rule(
        "undecided-condition",
        "GateConditionUndecided",
        "warning",
        "The logs don't tell whether a condition under which the run fails is true.",
        "What is known of the figure allows both.",
        "Record more, or accept it with --allow-inconclusive.",
    ),
    Rule(
        "no-guarantee",
        "BoundNotGuaranteed",
        "note",
        "The framework's mechanism does not guarantee the bound.",
        "Whatever this run did, another schedule of the same configuration may train staler tokens.",
        "`staleness-audit frameworks NAME` lists the modes of the framework with the limit that each really sets.",
    ),
)
BY_ID = {rule.id: rule for rule in RULES}


@dataclass(frozen=True)
class Finding:
    """One finding. ``places``: where the logs say it (``source``, ``line``, ``locator``, ``what``), chief one first.

    ``identity`` tells it from all others of its rule and stays the same when the run is audited again.
    """

    rule: str
    level: Level
    title: str
    message: str
    identity: tuple[str, ...]
    places: tuple[Mapping[str, Any], ...] = ()
    subject: str | None = None
    step: tuple[int, int] | None = field(default=None)


def findings(data: Data) -> Iterator[Finding]:
    """Yield what a document says that someone may have to act on, gravest first."""
    yield from _violations(data)
    yield from _conditions(data)
    yield from _diagnostics(data)
    yield from _guarantee(data)
    yield from _reported(data)


def violation_story(row: Mapping[str, Any], bound: int | None, words: Words = WORDS) -> str:
    """One violation in two sentences: who, how stale, since when, and what could have stopped it."""
    group = ""
    if row["group_id"] and row["group_id"] != row["trajectory_id"]:
        group = f" of group {words.plain(row['group_id'], 120)}"
    who = f" ({about})" if (about := class_words(row.get("multiplicity"), words.glyphs)) else ""
    first = row.get("first_step")
    where = f"{'by' if first is None else 'in'} {step_words(row['step'], first)}"
    age = f"{'is' if row.get('proven', True) else 'may be'} {words.interval(row['staleness'])} versions old"
    parts = f"{words.interval(row['in_flight'])} in flight, {words.interval(row['in_queue'])} in the queue"
    story = (
        f"{words.plain(row['trajectory_id'], 120)}{who}{group}, trained {where}: its oldest trained token "
        f"{age} ({parts}), the bound is {bound}; {words.count(row['tokens'], 'token')} beyond it."
    )
    stops = "; or at ".join(CONTROLS[level] for level in row["stoppable_at"])
    return story + (f" Could have been stopped at {stops}." if stops else "")


def violation_lines(row: Mapping[str, Any], bound: int | None, words: Words = WORDS) -> Iterator[str]:
    """One violation, and below it where the logs say so."""
    yield violation_story(row, bound, words)
    for item in row["evidence"]:
        where = place(item, words.glyphs)
        if where:
            yield f"    {item.get('what', 'evidence')}: {where} ({item.get('known', 'recorded')})"


def run_story(data: Data, words: Words = WORDS) -> Iterator[str]:
    """What became of the bound in a few lines: verdict, bound, counts, conditions, worst violations, what to record."""
    yield why(data, words)
    yield f"bound: {bound_line(data, words)}"
    if data["bound"]["value"] is not None:
        proven, possible = count_lines(data, words)
        yield f"proven: {proven}"
        yield f"possible: {possible}"
    for name, text in condition_lines(data, words):
        yield f"{name}: {text}"
    for row in (data["violations"]["worst"] or ())[:MOST_STORIES]:
        yield from violation_lines(row, data["bound"]["value"], words)
    if data["verdict"] in ("inconclusive", "no-bound"):
        for hint in data.get("hints") or ():
            yield f"not told: {words.plain(hint['missing'], 300)} -> {words.plain(hint['remedy'], 300)}"


def _violations(data: Data) -> Iterator[Finding]:
    bound = data["bound"]["value"]
    # What the gate allows or the baseline forgives is worth showing, but fails nothing.
    tolerated = not any(
        condition["fails"] == "yes" and condition["kind"] == "violations" for condition in data["gate"]["conditions"]
    )
    for row in data["violations"]["worst"] or ():
        proven = row.get("proven", True)
        rule = "staleness-bound" if proven else "possible-violation"
        yield Finding(
            rule,
            "error" if proven and not tolerated else "warning",
            f"Staleness {WORDS.interval(row['staleness'])}, bound {bound}" + ("" if proven else " (possible)"),
            f"Trajectory {violation_story(row, bound)}",
            (str(row["attempt"]), str(row["step"]), str(row["trajectory_id"])),
            tuple(item for item in row["evidence"] if item.get("source") is not None),
            str(row["trajectory_id"]),
            (row["attempt"], row["step"]),
        )


def _conditions(data: Data) -> Iterator[Finding]:
    for condition in data["gate"]["conditions"]:
        if condition["fails"] == "no" or condition["kind"] == "violations":
            continue  # the violations have findings of their own
        sure = condition["fails"] == "yes"
        text = WORDS.plain(condition["condition"], 200)
        yield Finding(
            "failed-condition" if sure else "undecided-condition",
            "error" if sure else "warning",
            f"Fails if {text}" if sure else f"Can't tell whether {text}",
            f"The run fails if {text}: {condition_words(condition, WORDS)}.",
            (str(condition["condition"]),),
        )


def _diagnostics(data: Data) -> Iterator[Finding]:
    for item in data["diagnostics"]["items"]:
        if item["severity"] == "note":
            continue
        training = item["opens"] == "training"
        rule = BY_ID["unread-training-data" if training else "damaged-log"]
        yield Finding(
            rule.id,
            rule.level,
            WORDS.plain(str(item["code"]).replace("-", " "), 80),
            WORDS.plain(item["message"], 2000),
            tuple(str(item[key]) for key in ("code", "source", "line", "locator")),
            (item,) if item["source"] is not None else (),
        )


def _guarantee(data: Data) -> Iterator[Finding]:
    if data["guarantee"]["strict"] is not False:
        return
    limit = data["guarantee"]["limit"]
    reach = "it sets no limit" if limit == "none" else f"its limit is {limit}"
    yield Finding(
        "no-guarantee",
        "note",
        "The bound is not guaranteed",
        f"The mechanism does not guarantee the bound {data['bound']['value']} ({reach}): "
        f"{WORDS.plain(data['guarantee']['reason'], 2000)}",
        ("guarantee",),
    )


def _reported(data: Data) -> Iterator[Finding]:
    for row in data["reported"]:
        if row["agrees"] is False:
            raw = WORDS.plain(row.get("raw_name") or row["name"], 80)
            yield Finding(
                "figure-disagrees",
                "note",
                f"{raw} disagrees",
                f"Step {row['step']}: the framework reports {raw} = {WORDS.plain(row['reported'], 40)}, its logs prove "
                f"{WORDS.interval(row['rebuilt'])}.",
                (str(row.get("attempt")), str(row["step"]), str(row.get("raw_name")), str(row["name"])),
                (row,) if row.get("source") is not None else (),
            )


def file_of(data: Data, source: str | None, base: Path) -> str:
    """Path of a file of the run, or of the run itself: relative to ``base`` if it is below, with forward slashes.

    The run may be one file, which is then its own only source.
    """
    run = Path(data["run"]["path"])
    path = run if source is None or source == run.name else run / source
    # Names from logs may hold '..'; only what they spell is normalised, no link is followed.
    whole = Path(os.path.normpath(path))
    return whole.relative_to(base).as_posix() if whole.is_relative_to(base) else whole.as_posix()


def run_name(data: Data, base: Path) -> str:
    """Path of the run as it is called in reports."""
    return file_of(data, None, base)
