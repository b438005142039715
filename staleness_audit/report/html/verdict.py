"""First question: was the bound kept, how is that known, and is it guaranteed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from staleness_audit.report.html.figure import WORDS
from staleness_audit.report.terminal.conditions import condition_lines
from staleness_audit.report.terminal.verdict import (
    bound_line,
    dialect_of,
    forgiven,
    gate_line,
    promise_lines,
    violation_lines,
    why,
)
from staleness_audit.report.terminal.words import duration, is_zero, moment, percent

Data = Mapping[str, Any]

TITLES = {
    "pass": "Bound kept",
    "fail": "Bound broken",
    "inconclusive": "The logs can't tell",
    "no-bound": "No bound to judge by",
}
MARKS = {"pass": "✓", "fail": "✗", "inconclusive": "?", "no-bound": "–"}


@dataclass(frozen=True)
class Tile:
    """One figure in large type: what it is, its value, and a sentence on it."""

    title: str
    value: str
    note: str
    tone: str = ""


@dataclass(frozen=True)
class Verdict:
    """What stands on top of the page."""

    tone: str
    mark: str
    title: str
    name: str
    sentence: str
    tiles: tuple[Tile, ...]
    coverage: tuple[tuple[str, float, str], ...]
    coverage_words: str
    facts: tuple[tuple[str, str], ...]
    run: tuple[tuple[str, str], ...]


def verdict(data: Data) -> Verdict:
    """Say the verdict and what it rests on; ``data`` is the document of DESIGN section 5."""
    promise, reason = promise_lines(data, WORDS)
    facts = [("Bound", bound_line(data, WORDS))]
    if data["bound"]["value"] is not None:
        proven, possible = violation_lines(data, WORDS)
        if proven == possible == "none":
            facts.append(("Violations", "none, and none possible"))
        else:
            facts += [("Proven violations", proven), ("Possible besides", possible)]
    facts += [("Observed and guaranteed", f"{promise}: {reason}"), ("Gate", gate_line(data))]
    facts += [(name.capitalize(), text) for name, text in condition_lines(data, WORDS)]
    segments, words = _coverage(
        data["coverage"], any(item["opens"] == "training" for item in data["diagnostics"]["items"])
    )
    return Verdict(
        tone=data["verdict"],
        mark=MARKS[data["verdict"]],
        title=TITLES[data["verdict"]] + (f", {word}" if (word := forgiven(data)) else ""),
        name=WORDS.plain(f"{data['run']['framework']} {WORDS.glyphs.dot} {data['run']['path']}"),
        sentence=why(data, WORDS),
        tiles=_tiles(data),
        coverage=segments,
        coverage_words=words,
        facts=tuple(facts),
        run=tuple(pair for pair in _run(data) if pair[1]),
    )


def _tiles(data: Data) -> tuple[Tile, ...]:
    bound, largest, limit = data["bound"]["value"], data["staleness"]["max"], data["guarantee"]["limit"]
    unit = WORDS.plain(data["staleness"]["unit"], 80)
    observed = WORDS.interval(largest)
    tone, note = "", f"versions count {unit}"
    if is_zero(data["trajectories"]["trained"]) or observed == "unknown":
        observed, note = (
            "–",
            "nothing was trained on" if is_zero(data["trajectories"]["trained"]) else "the logs don't tell",
        )
    elif bound is not None:
        beyond, least = (largest["lo"] or 0) - bound, "" if largest["lo"] == largest["hi"] else "at least "
        within = largest["hi"] is not None and largest["hi"] <= bound
        tone = "fail" if beyond > 0 else "pass" if within else "inconclusive"
        note = (
            f"{least}{WORDS.count({'lo': beyond, 'hi': beyond}, 'version')} beyond the bound"
            if beyond > 0
            else "within the bound"
            if within
            else "may lie beyond the bound"
        )
    satisfied = data["staleness"]["smallest_satisfied_bound"]["hi"]
    guaranteed = {"none": "no limit", None: "not known"}.get(limit, str(limit))
    strict = data["guarantee"]["strict"]
    promised = {
        True: "in every possible schedule: the bound is guaranteed",
        False: "the mechanism does not guarantee the bound",
        None: "what the mechanism lets through at most",
    }[strict]
    return (
        Tile("Bound", "none" if bound is None else str(bound), _bound_note(data["bound"])),
        Tile("Largest staleness observed", observed, note, tone),
        Tile("Guaranteed limit", guaranteed, promised, "pass" if strict else "inconclusive" if strict is False else ""),
        Tile(
            "This run kept every bound from",
            "–" if satisfied is None else str(satisfied),
            "the smallest bound it would have passed" if satisfied is not None else "no upper end is proven",
        ),
    )


def _bound_note(bound: Mapping[str, Any]) -> str:
    if bound["source"] == "cli":
        return "given with --bound"
    if bound["source"] == "config":
        return f"from the run's configuration: {WORDS.plain(bound['key'] or 'stated there', 80)}"
    return "none configured, none given"


def _coverage(coverage: Mapping[str, float | None], lost: bool) -> tuple[tuple[tuple[str, float, str], ...], str]:
    """Segments of the bar (name, share, tone) and the same in words."""
    shares = (
        ("known exactly", coverage["tokens_exact"], "exact"),
        ("known within limits", coverage["tokens_bounded"], "bounded"),
        ("not known", coverage["tokens_unknown"], "unknown"),
    )
    segments = tuple((name, share, tone) for name, share, tone in shares if share)
    if not segments:
        return (), "No trained token was seen, so there is nothing whose staleness could be known."
    words = (
        "Staleness of the trained tokens: " + ", ".join(f"{percent(share)} {name}" for name, share, _ in segments) + "."
    )
    words = words.removesuffix(".") + (", of those that could be read." if lost else ".")
    identified = coverage["trajectories_identified"]
    if identified is not None and identified < 1:
        words += (
            f" {percent(identified)} of the trained trajectories have a name in the logs; the others are only counted."
            if identified
            else " The logs name none of the trained trajectories; they are only counted."
        )
    return segments, words


def _run(data: Data) -> list[tuple[str, str]]:
    run, health = data["run"], data["run"]["health"]
    version = f" {WORDS.plain(run['framework_version'], 40)}" if run["framework_version"] else ""
    dialect = f" · {WORDS.plain(form, 200)}" if (form := dialect_of(run)) else ""
    times = ""
    if run["started"] and run["ended"]:
        wall = data["throughput"]["wall_s"]
        times = f"{moment(run['started'])} to {moment(run['ended'])}" + (f" ({duration(wall)})" if wall else "")
    attempts = "" if run["attempts"] == 1 else f", in {run['attempts']} attempts"
    state = {"unknown": "the logs don't say how it ended", "running": "still running"}.get(
        health["state"], health["state"]
    )
    since = f"; last entry {moment(health['since'])}" if health["since"] else ""
    waiting = f"; waiting for {WORDS.plain(health['waiting_for'], 200)}" if health["waiting_for"] else ""
    return [
        ("Run", WORDS.plain(run["path"])),
        ("Framework", WORDS.plain(run["framework"], 60) + version + dialect),
        ("Training steps", WORDS.count(run["steps"], "step") + f" completed{attempts}"),
        (
            "Trained",
            f"{WORDS.count(data['trajectories']['trained'], 'trajectory')} of "
            f"{WORDS.interval(data['trajectories']['seen'])} seen, {WORDS.count(data['tokens']['trained'], 'token')}",
        ),
        ("Times", times),
        ("How it ended", state + since + waiting),
        ("Read as", f"{WORDS.plain(run['parser'], 60)}: {WORDS.plain('; '.join(run.get('detected_by', [])[:2]), 200)}"),
    ]
