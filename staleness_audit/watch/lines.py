"""A watch in lines: plain words for a pipe or a file, or JSON; one for every change."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

from staleness_audit.report.terminal.words import UNICODE, Glyphs, count, interval, place, plain, step_number
from staleness_audit.watch.state import State, record


class Lines:
    """Writes a line whenever the run has changed, or what is wrong with reading it."""

    def __init__(self, write: Callable[[str], None], *, as_json: bool, glyphs: Glyphs = UNICODE) -> None:
        self._write = write
        self._json = as_json
        self._glyphs = glyphs
        self._trouble: str | None = None
        self._told: set[tuple[str, int, int]] = set()

    def __call__(self, state: State) -> None:
        """Write what is new."""
        if not state.changed and state.trouble == self._trouble:
            return
        self._trouble = state.trouble
        if self._json:
            self._write(json.dumps(record(state), default=str))
            return
        self._write(self._line(state))
        for row in state.newest:
            key = (row["trajectory_id"], row["attempt"], row["step"])
            if key not in self._told:
                self._write(f"          violation: {violation_words(row, self._glyphs)}")
        self._told = {(row["trajectory_id"], row["attempt"], row["step"]) for row in state.newest}

    def _line(self, state: State) -> str:
        at = datetime.fromtimestamp(state.at, UTC).strftime("%H:%M:%S")
        if state.trouble is not None:
            return f"{at}  not readable at the moment: {plain(state.trouble, self._glyphs)}"
        data, glyphs = state.data, self._glyphs
        bound = data["bound"]["value"]
        last = data["per_step"][-1]["step"] if data["per_step"] else None
        in_flight, queued = (interval(count, glyphs) for count in state.under_way)
        parts = [
            "no step yet" if last is None else f"step {last}",
            verdict_words(state),
            f"staleness {interval(data['staleness']['max'], glyphs)}" + ("" if bound is None else f" (bound {bound})"),
            f"trained {count(data['tokens']['trained'], 'token', glyphs)}",
            f"in flight {in_flight}, waiting {queued}",
        ]
        if bound is not None:
            parts.insert(3, f"violations {interval(data['violations']['trajectories'], glyphs)}")
        return f"{at}  " + "  ".join(parts)


def verdict_words(state: State) -> str:
    """Say what is known so far: only a violation is final before the run has ended."""
    verdict = state.data["verdict"]
    if verdict == "fail":
        return "FAIL"
    if verdict == "no-bound":
        return "NO BOUND"
    if state.over:
        return str(verdict).upper()
    return "no violation proven so far"


def violation_words(row: dict[str, object], glyphs: Glyphs) -> str:
    """A proven violation in one line, with the place that proves it."""
    evidence = row["evidence"]
    assert isinstance(evidence, list)
    where = f"  {place(evidence[0], glyphs)}" if evidence else ""
    stale = interval(row["staleness"], glyphs)  # type: ignore[arg-type]
    return f"{plain(row['trajectory_id'], glyphs, 60)} in step {step_number(row, glyphs)}, staleness {stale}{where}"
