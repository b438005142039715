"""RLVR without spans: from dumps, pickles, boards, console and metrics, who and how many, and how old at most."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from staleness_audit.parser import Era, Sink
from staleness_parsers.roll.known import Done, Known, Row, constrain, era, everywhere, masked, window
from staleness_parsers.roll.rows import Interval, Rows
from staleness_parsers.roll.sampled import Sampled

_GROUPS: Final = re.compile(
    r"ItemsGroup (\d{1,18}): len\(self\.running_prompts\)=(\d{1,18}) len\(self\.finished_prompts\)=(\d{1,18})"
)


@dataclass(frozen=True)
class _Facts:
    """What the rows of a batch depend on; ``own``: versions of the first row's domain, ``others``: of any other."""

    batch: Sampled
    attempt: int
    step: int
    size: int
    own: Interval
    others: Interval
    masked: bool


def _write_batch(facts: _Facts, rows: Rows) -> None:
    attempt, step = facts.attempt, facts.step
    first = facts.batch[0]["domain"]
    cells: dict[str, Any] = {"loss_tokens_lo": 0} if facts.masked else {}
    for index, row in enumerate(facts.batch):
        key = row["key"] or f"step{step}[{row['place']}]"
        group = f"step{step}/{index // facts.size}" if facts.size else f"step{step}/{row['grp']}"
        tokens = row["tokens"]
        rows.trajectory(row, key, group, attempt)
        versions = facts.own if row["domain"] == first else facts.others
        rows.span(row, key, 0, (1 if tokens is None else tokens, tokens), versions)
        rows.add("uses", row, trajectory_id=key, attempt=attempt, step=step, evidence="recorded", **cells)


class Batches:
    """RLVR from dumps, pickles, boards, console and metrics: who and how many, and how old at most."""

    def __init__(self, known: Known, rows: Rows, completed: Done, sink: Sink) -> None:
        self.known, self.rows, self.completed, self.sink = known, rows, completed, sink

    def write(self) -> None:
        """Write the batches' rows, and what the console says of steps without any."""
        known = self.known
        self._deleted()
        boards: dict[int, list[Row]] = defaultdict(list)
        launches = Counter(home.step for home in known.time.steps)
        for board in known.boards:
            # A step that was run again has the files of each time.
            if launches[board["step"]] < 2:
                boards[board["step"]].append(board)
        self._write_eras()
        for step, batch in sorted(known.rows.items()):
            self._batch(step, batch, boards.get(step, []))
        by_step = {(row["step"]): row for row in self._taken()}
        for home in known.time.steps:
            step = home.step
            if step in known.rows and known.time.last(step) in (home, None):
                continue
            window(known, self.rows, home)
            count = by_step.get(step)
            size = known.metrics.get(step, {}).get("system/batch_size")
            if count is not None:
                constrain(self.rows, count, home.attempt, step, "trajectories", count["count"])
                if count["oldest"] is not None:
                    oldest = known.pushes.version(count["oldest"], known.time.first.get(home.attempt, 0))[0]
                    constrain(self.rows, count, home.attempt, step, "staleness_max", max(step - oldest, 0), op="le")
            elif size is not None:
                constrain(self.rows, size, home.attempt, step, "trajectories", int(size["value"]))
            elif boards.get(step):
                total = sum(board["samples"] for board in boards[step])
                constrain(self.rows, boards[step][0], home.attempt, step, "trajectories", total)
            else:
                constrain(self.rows, home.place, home.attempt, step, "trajectories", 1, op="ge")
            if boards.get(step) and not masked(known, home.attempt, step):
                tokens = sum(board["tokens"] for board in boards[step])
                constrain(self.rows, boards[step][0], home.attempt, step, "loss_tokens", tokens)
            elif not masked(known, home.attempt, step):
                # A finished response has at least its last token.
                constrain(self.rows, home.place, home.attempt, step, "loss_tokens", 1, op="ge")

    def _deleted(self) -> None:
        """Write what the scheduler of before v0.2.0 threw away of a window's oldest step; its sizes are told."""
        samples = self.known.settings.whole_number("num_return_sequences_in_group")
        for row in self.known.lines:
            if row["kind"] != "deleted" or not row["value"]:
                continue
            home = self.known.time.last(row["step"])
            attempt = home.attempt if home else max(self.known.time.attempts)
            key = f"deleted@{row['source']}:{row['line']}"
            count = (row["value"] * (samples or 1), row["value"] * samples if samples else None)
            size = {"multiplicity_lo": count[0], "multiplicity_hi": count[1]}
            about = {"trajectory_id": key, "attempt": attempt}
            self.rows.add("trajectories", row, **about, role="train", anonymous=True, **size, evidence="recorded")
            self.rows.span(row, key, 0, (0, None), (0, self.known.pushes.version(row["step"], 0)[1]))
            # Whoever was still being generated was deleted like those that were finished.
            for kind in ("dropped", "cancelled"):
                fate = {"kind": kind, "reason": "surplus", "step": row["step"], "multiplicity": count[0]}
                self.rows.add("events", row, **about, **fate, evidence="inferred")

    def _write_eras(self) -> None:
        """Write the trajectories of the batches, step by step."""
        shared = everywhere(self.known)
        facts = {era(self._attempt(step), step): self._facts(step, batch) for step, batch in self.known.rows.items()}
        eras = [Era(number, len(told.batch), repr((shared, told))) for number, told in sorted(facts.items())]

        def write(numbers: Sequence[int], sink: Sink) -> None:
            rows = Rows(sink)
            for number in numbers:
                _write_batch(facts[number], rows)
            rows.close()

        self.sink.write_eras(eras, write)

    def _attempt(self, step: int) -> int:
        home = self.known.time.last(step)
        return home.attempt if home else max(self.known.time.attempts)

    def _facts(self, step: int, batch: Sampled) -> _Facts:
        known = self.known
        attempt = self._attempt(step)
        first = known.time.first.get(attempt, 0)
        # The batch is ordered by start step, so its first row is the oldest of its domain.
        start = batch[0]["first_start"]
        most = known.settings.window
        floor = max(step - most, 0) if most is not None else 0
        versions: list[Interval] = [(None, None), (None, None)]
        if not known.mocked:
            high = known.pushes.version(step, first)[1]
            oldest = floor if start is None else max(floor, start)
            versions = [(known.pushes.version(low, first)[0], high) for low in (oldest, floor)]
        size = known.settings.whole_number("num_return_sequences_in_group") or 0
        return _Facts(batch, attempt, step, size, versions[0], versions[1], masked(known, attempt, step))

    def _batch(self, step: int, batch: Sampled, boards: Sequence[Row]) -> None:
        known = self.known
        home, attempt = known.time.last(step), self._attempt(step)
        every = sum(board["samples"] for board in boards)
        if batch[-1]["kind"] == "pickle" and (len(known.domains) > 1 or every > len(batch)):
            # Every domain writes its pickle over the others', whose rows are nowhere.
            stated = known.metrics.get(step, {}).get("system/batch_size")
            if home is not None:
                window(known, self.rows, home)
            if stated is not None or boards:
                count = every if stated is None else int(stated["value"])
                constrain(self.rows, stated or boards[0], attempt, step, "trajectories", count)
            else:
                constrain(self.rows, batch[0], attempt, step, "trajectories", len(batch), op="ge")
            return
        if self.completed.get((attempt, step)) is not None:
            constrain(self.rows, batch[0], attempt, step, "trajectories", len(batch))

    def _taken(self) -> Iterator[dict[str, Any]]:
        """Per step the samples that the scheduler says it collected, and the oldest group that still held some."""
        step: int | None = None
        oldest: int | None = None
        for row in self.known.lines:
            if row["kind"] == "taking":
                step = row["step"]
                held = [int(k) for k, run, done in _GROUPS.findall(row["text"] or "") if int(run) + int(done)]
                oldest = min((k for k in held if k >= row["value"]), default=step)
            elif row["kind"] == "taken" and step is not None:
                yield {**row, "step": step, "count": row["value"], "oldest": oldest}
                step = None
