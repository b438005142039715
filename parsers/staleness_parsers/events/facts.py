"""What the headers and the steps say of the run as a whole."""

from __future__ import annotations

from typing import Any

import polars as pl

from staleness_audit.discovery import RunFile
from staleness_audit.parser import Attempt, Bound, Guarantee, Hint, RunFacts, Sign, Sink, Staged
from staleness_parsers.events.columns import FORMAT, whole_number
from staleness_parsers.events.numbering import intact, pieces_by_writer

FATES = frozenset({"dropped", "cancelled", "lost", "pending"})


def facts(staged: Staged, headers: list[tuple[RunFile, dict[str, Any]]], files: int, sink: Sink) -> RunFacts:
    """Take bound, configuration and attempts from the headers; ``files`` is how many files there are."""
    first = headers[0][1] if headers else {}
    _report_headers(headers, sink)
    _report_no_training(staged, sink)
    _report_missing_attempts(headers, sink)
    stated = [whole_number(header.get("bound")) for _, header in headers]
    bounds = {bound for bound in stated if bound is not None and bound >= 0}
    if len(bounds) > 1:
        sink.diagnose(
            "warning", "bounds-differ", f"The headers state different bounds {sorted(bounds)}; the smallest is used."
        )
    bound = min(bounds, default=None)
    framework = str(first.get("framework") or "events")
    config = first.get("config") if isinstance(first.get("config"), dict) else {}
    whole = len(headers) == files and intact(staged, headers)
    attempts = _attempts(staged, headers, whole, sink)
    if len(headers) < files:
        # The file may be that of another attempt, which would have rolled back any step.
        attempts.append(Attempt(max(attempt.attempt for attempt in attempts) + 1, None, -1))
    return RunFacts(
        framework=framework,
        unit=str(first.get("unit") or "training steps"),
        dialect=str(first.get("format") or FORMAT),
        config=config or {},
        bound=Bound(
            bound,
            "bound" if bound is not None else None,
            bound,
            "as stated: v_train - v_gen <= bound" if bound is not None else None,
        ),
        guarantee=Guarantee(None, "an event log says what happened, not which mechanism was at work"),
        attempts=attempts,
        signs=_signs(staged, headers),
        unseen=_unseen(headers, sink),
        undone=not whole,
        hints=[Hint("which bound was wanted", 'write "bound" into the header, or give --bound')]
        if bound is None
        else [],
        groups_per_step=whole_number(first.get("groups_per_step")),
        replay=True,
    )


def _report_no_training(staged: Staged, sink: Sink) -> None:
    """Say where trajectories are told of and no training: the trainer's file may be missing."""
    if staged.has("trajectories") and not (staged.has("steps") or staged.has("uses")):
        sink.diagnose(
            "warning",
            "no-training-recorded",
            "No line tells of a training step; if the trainer wrote a file of its own, it is missing: add it.",
            opens="training",
        )


def _report_missing_attempts(headers: list[tuple[RunFile, dict[str, Any]]], sink: Sink) -> None:
    """Say where files of a later attempt are there and none of an earlier one."""
    numbers = {max(whole_number(header.get("attempt")) or 0, 0) for _, header in headers}
    missing = next((place for place, number in enumerate(sorted(numbers)) if number > place), None)
    if missing is not None:
        sink.diagnose(
            "error",
            "attempt-missing",
            f"No file is of attempt {missing}, though there is one of attempt {max(numbers)}; add it.",
            opens="training",
        )


def _report_headers(headers: list[tuple[RunFile, dict[str, Any]]], sink: Sink) -> None:
    """Say which header fields are no whole numbers; what they would have said is not known."""
    for file, header in headers:
        for name, lowest in (("bound", 0), ("attempt", 0), ("resumed_after", -1), ("groups_per_step", 1)):
            number = whole_number(header.get(name))
            if header.get(name) is not None and (number is None or number < lowest):
                sink.diagnose(
                    "error",
                    "bad-header",
                    f"The header's {name} is no whole number from {lowest} on; it was left out.",
                    source=file.source,
                    line=1,
                    opens="training",
                )


def _unseen(headers: list[tuple[RunFile, dict[str, Any]]], sink: Sink) -> frozenset[str]:
    """Fates that some writer says the log does not show."""
    found: set[str] = set()
    for file, header in headers:
        stated = header.get("unseen")
        words = {str(word) for word in stated} if isinstance(stated, list) else set()
        if stated is not None and (not isinstance(stated, list) or words - FATES):
            sink.diagnose(
                "warning",
                "bad-header",
                f"The header's unseen is no list of {', '.join(sorted(FATES))}; it was taken for all of them.",
                source=file.source,
                line=1,
            )
            words = set(FATES)
        found |= words
    return frozenset(found)


def _stated_attempts(headers: list[tuple[RunFile, dict[str, Any]]], sink: Sink) -> dict[int, set[int]]:
    """By attempt, the steps after which headers say that it resumed; not every writer says so."""
    stated: dict[int, set[int]] = {}
    for file, header in headers:
        attempt, resumed = whole_number(header.get("attempt")), whole_number(header.get("resumed_after"))
        if attempt is not None:
            steps = stated.setdefault(attempt, set())
            if resumed is not None:
                steps.add(resumed)
            if len(steps) > 1:
                sink.diagnose(
                    "error",
                    "attempts-differ",
                    f"Headers of attempt {attempt} say that it resumed after different steps: {sorted(steps)}.",
                    source=file.source,
                    line=1,
                    opens="training",
                )
    return stated


def _attempts(staged: Staged, headers: list[tuple[RunFile, dict[str, Any]]], whole: bool, sink: Sink) -> list[Attempt]:
    """Attempts by the headers (``attempt``, ``resumed_after``), else by the first step that each one is seen to take."""
    stated = _stated_attempts(headers, sink)
    seen: dict[int, tuple[int | None, float | None, float | None]] = {}
    if staged.has("attempt_steps"):
        frame = (
            staged.scan("attempt_steps")
            .group_by("attempt")
            .agg(pl.col("first_step").min(), pl.col("started").min(), pl.col("ended").max())
        )
        seen = {row[0]: (row[1], row[2], row[3]) for row in frame.collect().iter_rows()}
    attempts = []
    for number in sorted({0, *stated, *seen}):
        first_step, started, ended = seen.get(number, (None, None, None))
        resumed = max(stated.get(number, ()), default=None)
        certain = min(stated.get(number, ()), default=None)
        if resumed is None and number > 0 and first_step is not None:
            # The first step seen proves that the attempt resumed before it, however many lines are missing.
            resumed, certain = first_step - 1, (first_step - 1 if whole else -1)
        attempts.append(
            Attempt(number, resumed, certain if certain != resumed else None, _moment(started), _moment(ended))
        )
    return attempts


def _signs(staged: Staged, headers: list[tuple[RunFile, dict[str, Any]]]) -> list[Sign]:
    """A run is over when every writer, in the last of its files, has said so."""
    pieces = pieces_by_writer(staged, headers) if staged.has("numbering") else None
    if pieces is None:
        return []
    ends = pieces.filter(pl.col("n_end").is_not_null())
    if not ends.height or ends["writer"].n_unique() < pieces["writer"].n_unique():
        return []
    last = ends.row(-1, named=True)
    return [Sign("finished", None, "every writer closed its log with an end line", last["source"], last["last_line"])]


def _moment(seconds: float | None) -> Any:
    return None if seconds is None else pl.Series([round(seconds * 1e6)]).cast(pl.Datetime("us", "UTC")).item()
