"""Launches of the run on one clock: attempts, steps, weight updates and evaluations (guide sections 3, 5.3, 5.4, 8).

The console tells local time, the trainer's spans count from the start of their process, sessions and TensorBoard use
the epoch. A local clock differs from UTC by whole quarters of an hour, so one pair of times fixes it; a span that must
hold a dated line fixes the other. All times below are microseconds since 1970, UTC.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any

import polars as pl

from staleness_audit.readers import agreement
from staleness_audit.readers.agreement import strangers
from staleness_audit.readers.numbers import micros

QUARTER = 900_000_000
CLOCKS = 20_000
"""How far two clocks of one machine may disagree about the same moment, in microseconds."""
EVALUATED = 50_000
"""An evaluation takes longer than this, in microseconds; where none was due, its span is there all the same."""
FOREVER = 1 << 62

Row = dict[str, Any]
Window = tuple[int, int]


@dataclass
class Step:
    """A training step of one launch. ``windows``: per rank, when its batch was collected. ``values``: its statistics.

    ``printed``: they come from the console's table, with five digits. ``updated``: when its weights were in force.
    """

    number: int
    windows: dict[int, Window] = field(default_factory=dict)
    trained: Window | None = None
    paused: int | None = None
    updated: int | None = None
    done: int | None = None
    values: dict[str, float] = field(default_factory=dict)
    printed: bool = False
    wall: Window | None = None
    proof: tuple[str, int] | None = None
    stats_at: tuple[str, int] | None = None

    def seconds(self, name: str) -> int:
        """Return a duration of ``timeperf/*`` in microseconds, 0 if not logged."""
        return micros(self.values.get(f"timeperf/{name}")) or 0


@dataclass
class Launch:
    """One launch of the trainer; it starts from version ``first`` and its first step has that number.

    ``pauses``: from an update of the weights to the next collection nothing is started or handed over. ``breaks_off``:
    when its log ends although other files show that it went on; what its tasks did afterwards is not known.
    """

    number: int
    first: int | None = None
    log: list[Row] = field(default_factory=list)
    spans: dict[int, list[Row]] = field(default_factory=dict)
    scalars: list[Row] = field(default_factory=list)
    sessions: list[Row] = field(default_factory=list)
    steps: dict[int, Step] = field(default_factory=dict)
    evaluations: list[Window] = field(default_factory=list)
    pauses: list[Window] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    started: int | None = None
    dated: bool = True
    breaks_off: int | None = None

    @property
    def start_version(self) -> int:
        """Version of the weights it began with."""
        return self.first or 0

    def version_lo(self, at: int | None) -> int:
        """Oldest version that may have been in force at a time; the first one if the time is not known."""
        return self.start_version + (0 if at is None else bisect_right(self.marks, at - CLOCKS))

    def version_hi(self, at: int | None) -> int:
        """Newest version that may have been in force at a time; the last one if the time is not known."""
        return self.start_version + (len(self.marks) if at is None else bisect_left(self.marks, at + CLOCKS))

    def unseen(self, step: Step) -> bool:
        """Whether the log breaks off before the step's batch was complete."""
        return self.breaks_off is not None and any(end > self.breaks_off for _, end in step.windows.values())

    def evaluating(self, at: int | None) -> bool:
        """Whether a time lies inside an evaluation; no training task starts shortly before one either.

        Ask for it when all evaluations are known.
        """
        if at is None or not self.evaluations:
            return False
        begins, ends = self._evaluated
        place = bisect_right(begins, at + 3 * CLOCKS)
        return place > 0 and at <= ends[place - 1] + CLOCKS

    @cached_property
    def _evaluated(self) -> tuple[Sequence[int], Sequence[int]]:
        """Beginnings of the evaluations in order, and beside each the latest end so far."""
        known = sorted(self.evaluations)
        return [begin for begin, _ in known], [*accumulate((end for _, end in known), max)]


def columns(rows: Sequence[Row], *names: str) -> pl.DataFrame:
    """Return whole numbers of many rows, to look at them all at once."""
    return pl.DataFrame({name: [row[name] for row in rows] for name in names}, schema=dict.fromkeys(names, pl.Int64))


def of_other_runs(log: Sequence[Row], scalars: Sequence[Row], sessions: Sequence[Row]) -> set[str]:
    """Return event files and session records that date the console's steps and tasks as no file of its run can."""
    done, begun = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    for row in log:
        if row["us"] is not None and row["kind"] in ("done", "submitted"):
            number, known = (row["number"] - 1, done) if row["kind"] == "done" else (row["number"], begun)
            known[number].append(row["us"] / 1e6)
    dated: dict[str, dict[int, list[float]]] = {}
    for row in scalars:
        if row["wall"] is not None and row["step"] is not None:
            dated.setdefault(row["source"], {}).setdefault(row["step"], []).append(row["wall"] / 1e6)
    files = groupby(sorted(sessions, key=itemgetter("source")), key=itemgetter("source"))
    others = {source for source, rows in files if not _of_one_run(begun, columns([*rows], "task", "submit"))}
    return strangers(done, dated, in_turn=True) | others


def _of_one_run(begun: Mapping[int, Sequence[float]], samples: pl.DataFrame) -> bool:
    """Tell what ``agreement.of_one_run`` does, of so many records that it is asked of all at once."""
    told = [(number, at) for number, times in begun.items() for at in times]
    lines = pl.DataFrame(told, schema={"task": pl.Int64, "here": pl.Float64}, orient="row")
    pairs = samples.drop_nulls().join(lines, on="task").with_columns(apart=pl.col("submit") / 1e6 - pl.col("here"))
    pairs = pairs.with_columns(quarters=(pl.col("apart") / agreement.QUARTER).round())
    close = (pl.col("apart") - pl.col("quarters") * agreement.QUARTER).abs() < agreement.CLOSE
    agreeing = pairs.filter(close).group_by("quarters").agg(pl.col("task").n_unique())["task"].to_list()
    return 2 * max(agreeing, default=0) >= pairs["task"].n_unique()


def launches(
    log: Sequence[Row], perf: Sequence[Row], scalars: Sequence[Row], sessions: Sequence[Row], beside: Sequence[Row] = ()
) -> tuple[list[Launch], bool]:
    """Sort everything by launch and put it on one clock; the second result: whether the console's zone is known.

    ``beside``: lines of other logs with the console's clock.
    """
    events = _event_files(row for row in scalars if not row["printed"])
    segments = _segments(perf)
    runs = _session_runs(sessions)
    found = _from_log(log)
    if not found:
        count = max(1, len(events), max((len(parts) for parts in segments.values()), default=0))
        count = max(count, 1 if events or segments else len(runs))
        found = [Launch(number) for number in range(count)]
    tables = [row for row in scalars if row["printed"]]
    for launch, end in zip(found, [*(other.log[0]["line"] for other in found[1:] if other.log), None], strict=False):
        begin = launch.log[0]["line"] if launch.log else 0
        launch.scalars = [row for row in tables if begin <= row["commit"] and (end is None or row["commit"] < end)]
    shift = _zone(found, events, runs)
    for row in [*log, *beside]:
        row["us"] = None if row["us"] is None else row["us"] + (shift or 0)
    found += _after_the_log(found, events, runs) if shift is not None else []
    _give(found, events, lambda launch, rows: launch.scalars.extend(rows), lambda rows: rows[0]["wall"])
    _give(found, runs, lambda launch, rows: launch.sessions.extend(rows), lambda rows: rows[0]["submit"])
    for launch in found:
        _read_statistics(launch)
    for rank, parts in segments.items():
        for launch, part in zip(found, _align(found, parts), strict=True):
            if part:
                launch.spans[rank] = part
    for launch in found:
        # A console whose clock can't be compared with that of sessions or statistics says nothing together with them.
        others = bool(launch.sessions) or any(row["wall"] is not None for row in launch.scalars)
        launch.dated = shift is not None or not (log and others)
        _settle(launch)
    return found, shift is not None or not log


def superseded(found: Sequence[Launch], number: int, step: int) -> bool:
    """Whether a launch after the given one is known to have gone back behind a step: then it counts nowhere."""
    return any(later.first is not None and later.first <= step for later in found[number + 1 :])


# ------------------------------------------------------------------------------- cutting into launches


def _from_log(log: Sequence[Row]) -> list[Launch]:
    """Cut the console at the lines a process prints first, and where steps start again without such a line."""
    found: list[Launch] = []
    seen = _Opening(_ranks(log))
    last_step = -1
    for row in log:
        if not found or seen.again(row):
            found.append(Launch(len(found)))
            seen, last_step = _Opening(seen.ranks), -1
        seen.add(row)
        launch = found[-1]
        if row["kind"] == "recovering":
            launch.first = row["number"]
        elif row["kind"] == "fresh":
            launch.first = 0
        elif row["kind"] == "done":
            if row["number"] <= last_step:
                launch = _cut_silently(found)
            if launch.first is None:
                launch.first = row["number"] - 1
            last_step = row["number"]
        launch.log.append(row)
    return found


def _ranks(log: Sequence[Row]) -> int:
    """Return how many trainers share the log: several ranks of one launch print their first lines one after another."""
    rows = [row for row in log if row["kind"] in ("tracer", "submitted", "old_submit")]
    return 1 if any(row["controller"] for row in rows) else max(1, len({row["rank"] for row in rows}))


@dataclass
class _Opening:
    """What the trainers of a launch printed so far. ``worked``: ranks that did anything but begin."""

    ranks: int
    first: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    tracers: set[int] = field(default_factory=set)
    worked: set[int] = field(default_factory=set)
    stepped: bool = False

    def again(self, row: Row) -> bool:
        """Whether a line can only be of a process that started anew."""
        if row["kind"] == "tracer":
            return self.stepped or row["rank"] in self.worked | self.tracers
        if row["kind"] not in ("recovering", "fresh"):
            return False
        # These lines do not say whose they are: each rank has one, of the same step.
        told = (row["kind"], row["number"])
        early = self.first.total() < self.ranks and self.first.total() == self.first[told]
        return self.stepped or not early or len(self.worked) >= self.ranks

    def add(self, row: Row) -> None:
        """Note a line."""
        if row["kind"] == "tracer":
            self.tracers.add(row["rank"])
        elif row["kind"] in ("recovering", "fresh"):
            self.first[row["kind"], row["number"]] += 1
        else:
            self.worked.add(row["rank"])
            self.stepped |= row["kind"] == "done"


def _cut_silently(found: list[Launch]) -> Launch:
    """Begin a launch at the last task 0 that was submitted after the last finished step, or right here."""
    old, new = found[-1], Launch(len(found))
    last_done = max((index for index, row in enumerate(old.log) if row["kind"] == "done"), default=-1)
    begins = [
        index
        for index, row in enumerate(old.log)
        if index > last_done and row["kind"] in ("submitted", "old_submit") and row["number"] == 0
    ]
    if begins:
        old.log, new.log = old.log[: begins[-1]], old.log[begins[-1] :]
    found.append(new)
    return new


def _after_the_log(
    found: Sequence[Launch], events: Sequence[Sequence[Row]], runs: Sequence[Sequence[Row]]
) -> list[Launch]:
    """Launches that began after the log ends, as event files or session records tell; none if there is no log."""
    log = [row["us"] for launch in found for row in launch.log if row["us"] is not None]
    if not log:
        return []
    begun = _first_time(found[-1]) or max(log)
    more = 0
    for firsts in ([rows[0]["wall"] for rows in events], [rows[0]["submit"] for rows in runs]):
        later = sum(at > max(log) for at in firsts)
        # The first of them may be the last launch's own.
        own = any(begun - 2_000_000 <= at <= max(log) for at in firsts)
        more = max(more, later - (not own))
    return [Launch(len(found) + index) for index in range(more)]


def _event_files(scalars: Iterable[Row]) -> list[list[Row]]:
    """Scalars per event file, in the order of their first wall time: each launch begins a file of its own."""
    files = [list(rows) for _, rows in groupby(scalars, key=lambda row: row["source"])]
    return sorted(files, key=lambda rows: (rows[0]["wall"], rows[0]["source"]))


def _segments(perf: Sequence[Row]) -> dict[int, list[list[Row]]]:
    """Cut the spans of each rank at the metadata of a new process, or where the clock runs backwards."""
    found: dict[int, list[list[Row]]] = {}
    for _, rows in groupby(perf, key=lambda row: row["source"]):
        parts: list[list[Row]] = []
        latest, rank = -1, 0
        for row in rows:
            spoken = bool(parts and parts[-1])
            if not parts or (row["name"] == "start" and spoken) or (row["end"] is not None and row["end"] < latest):
                parts.append([])
                latest = -1
            if row["name"] == "start":
                continue
            rank = row["rank"]
            latest = max(latest, row["end"] if row["end"] is not None else -1)
            parts[-1].append(row)
        found.setdefault(rank, []).extend(part for part in parts if part)
    return found


def _session_runs(sessions: Sequence[Row]) -> list[list[Row]]:
    """Session records per launch: in the order of beginning, session ids only fall when a process starts again."""
    pieces: list[list[list[Row]]] = []
    for _, rows in groupby(sorted(sessions, key=itemgetter("source")), key=itemgetter("source")):
        parts: list[list[Row]] = []
        last = -1
        for row in _as_begun([row for row in rows if row["submit"] is not None]):
            session = row["session"] if row["session"] is not None else last
            # Records of the same moment may be out of order by a few.
            if not parts or session < last - 64 or (session == 0 and last > 0):
                parts.append([])
                last = -1
            parts[-1].append(row)
            last = session if session > last else last
        pieces.append(parts)
    runs: list[list[Row]] = []
    for index in range(max((len(parts) for parts in pieces), default=0)):
        runs.append([row for parts in pieces if index < len(parts) for row in parts[index]])
    return runs


def _as_begun(rows: Sequence[Row]) -> list[Row]:
    """Session records in the order in which they began, by their ids where that was at once."""
    order = columns(rows, "submit", "session").with_row_index().with_columns(pl.col("session").fill_null(0))
    return [rows[index] for index in order.sort("submit", "session", "index")["index"].to_list()]


# ------------------------------------------------------------------------------------------- one clock


def _zone(found: Sequence[Launch], events: Sequence[Sequence[Row]], runs: Sequence[Sequence[Row]]) -> int | None:
    """Microseconds to add to the console's times, from pairs of times of one moment; None if there is no pair."""
    votes: Counter[int] = Counter()
    done = [(row["number"] - 1, row["us"]) for launch in found for row in launch.log if row["kind"] == "done"]
    wall: dict[int, list[int]] = {}
    for rows in events:
        first: dict[int, int] = {}
        for row in rows:
            first[row["step"]] = min(row["wall"], first.get(row["step"], row["wall"]))
        for step, at in first.items():
            wall.setdefault(step, []).append(at)
    begun = [(row["number"], row["us"]) for launch in found for row in launch.log if row["kind"] == "submitted"]
    begun = begun[:5000]
    submits: dict[int, list[int]] = {number: [] for number, _ in begun}
    for rows in runs:
        for row in rows:
            if row["task"] in submits:
                submits[row["task"]].append(row["submit"])
    for pairs, known in ((done, wall), (begun, submits)):
        for number, local in pairs:
            for moment in known.get(number, ()) if local is not None else ():
                quarters = round((moment - local) / QUARTER)
                if abs(moment - local - quarters * QUARTER) < 2_000_000 and abs(quarters) <= 60:
                    votes[quarters] += 1
    for launch, rows in zip(found, runs, strict=False) if not votes else ():
        # The first sample is started within a quarter of an hour after the tracer is set up.
        ready = [row["us"] for row in launch.log if row["kind"] == "tracer" and row["us"] is not None]
        if ready and rows:
            votes[(rows[0]["submit"] - ready[0] + 5_000_000) // QUARTER] += 1
    return votes.most_common(1)[0][0] * QUARTER if votes else None


def _give(found: Sequence[Launch], parts: Sequence[list[Row]], put: Any, when: Any) -> None:
    """Give each part to its launch: one each where the numbers agree, else by time."""
    if len(parts) == len(found):
        for launch, rows in zip(found, parts, strict=True):
            put(launch, rows)
        return
    starts = [_first_time(launch) for launch in found]
    for rows in parts:
        at = when(rows)
        later = [index for index, start in enumerate(starts) if start is not None and start <= at + 2_000_000]
        put(found[later[-1] if later else 0], rows)


def _first_time(launch: Launch) -> int | None:
    return next((row["us"] for row in launch.log if row["us"] is not None), None)


def _read_statistics(launch: Launch) -> None:
    """Gather the statistics of each step; ``v_theta`` names the step where the logger's own count has moved on."""
    for row in launch.log:
        if row["kind"] == "done":
            step = launch.steps.setdefault(row["number"] - 1, Step(row["number"] - 1))
            step.done, step.proof = row["us"], (row["source"], row["line"])
    commits: dict[tuple[str, int, int], list[Row]] = {}
    for row in launch.scalars:
        commits.setdefault((row["source"], row["commit"], row["step"]), []).append(row)
    for (source, _, number), rows in sorted(commits.items(), key=lambda item: item[1][0]["printed"], reverse=True):
        values = {row["name"]: row["value"] for row in rows}
        theta = values.get("version_stats/v_theta")
        exact = theta is not None and theta.is_integer() and 0 <= theta < 1e5
        if not exact and not {"n_seqs", "n_valid_tokens", "timeperf/train_step"} & values.keys():
            continue  # an evaluation's or another role's figures
        step = launch.steps.setdefault(int(theta) if exact and theta is not None else number, Step(number))
        step.number = int(theta) if exact and theta is not None else number
        printed = rows[0]["printed"]
        step.values = {**step.values, **values}
        step.printed = printed
        step.stats_at = (source, rows[0]["line"])
        step.proof = step.proof or step.stats_at
        walls = [row["wall"] for row in rows if row["wall"] is not None]
        step.wall = (min(walls), max(walls)) if walls else step.wall


def _align(found: Sequence[Launch], parts: list[list[Row]]) -> list[list[Row]]:
    """Give the spans of one rank to launches: one each where the numbers agree, else by the steps they name.

    A launch that ended before its first step left no spans, so one that shares the steps comes before one without any.
    """
    if len(parts) == len(found):
        return parts
    aligned: list[list[Row]] = [[] for _ in found]
    free = 0
    for part in parts:
        steps = {row["step"] for row in part if row["step"] is not None}
        fits = [
            index
            for index in range(free, len(found))
            if (not found[index].steps or steps & found[index].steps.keys() or not steps)
            and (found[index].first is None or not steps or min(steps) >= found[index].start_version)
        ]
        if fits:
            best = max(
                fits,
                key=lambda index: (len(steps & set(found[index].steps)), -len(steps ^ set(found[index].steps)), -index),
            )
            aligned[best] = part
            free = best + 1
    return aligned


# ------------------------------------------------------------------------- what a launch did, and when


def _settle(launch: Launch) -> None:
    """Date the spans, then derive windows of collection, weight updates and evaluations."""
    for rank, spans in launch.spans.items():
        anchor = _anchor(launch, rank, spans)
        launch.dated = launch.dated and anchor is not None
        for row in spans:
            if row["step"] is not None:
                _take_span(launch, rank, row, anchor or 0)
    if launch.first is None and launch.steps:
        launch.first = min(launch.steps)
    times = [row["us"] for row in launch.log if row["us"] is not None]
    launch.started = min([*times, *(row["submit"] for row in launch.sessions)], default=None)
    _windows_without_spans(launch)
    for number, step in launch.steps.items():
        after = launch.steps.get(number + 1)
        if step.paused is not None:
            resumed = min((begin for begin, _ in after.windows.values()), default=FOREVER) if after else FOREVER
            launch.pauses.append((step.paused, resumed))
    launch.breaks_off = _breaks_off(launch, times)
    before = launch.start_version
    for number in sorted(launch.steps):
        step = launch.steps[number]
        at = step.updated or step.done or (step.wall[1] if step.wall else None)
        if at is not None:
            # A step that left no trace pushed its weights before this one did.
            launch.marks.extend([at] * (number + 1 - before))
            before = max(before, number + 1)


def _breaks_off(launch: Launch, log: Sequence[int]) -> int | None:
    """When the log ends, if the launch collected, trained or sampled after that; None for a whole log, or none."""
    if not log or not launch.dated:
        return None
    finished = {row["number"] - 1 for row in launch.log if row["kind"] == "done"}
    later = [row["submit"] for row in launch.sessions]
    for step in launch.steps.values():
        later += [end for _, end in step.windows.values()]
        if step.number not in finished:
            # Its own line is missing, and what the line would follow is told elsewhere.
            later += [window[0] for window in (step.trained, step.wall) if window is not None]
    return max(log) if max(later, default=0) > max(log) + CLOCKS else None


def _take_span(launch: Launch, rank: int, row: Row, anchor: int) -> None:
    step = launch.steps.setdefault(row["step"], Step(row["step"]))
    begin, end = row["begin"] + anchor, row["end"] + anchor
    if row["name"] == "train.rollout":
        step.windows[rank] = (begin, end)
    elif row["name"] == "train.ppo_update":
        step.trained = (begin, end)
        step.proof = step.proof or (row["source"], row["line"])
    elif row["name"] == "train.update_weights":
        step.paused, step.updated = begin, end
    elif row["name"] == "train.eval" and end - begin > EVALUATED:
        launch.evaluations.append((begin, end))
    elif row["name"] == "train.log_stats" and step.done is None:
        step.done = end


def _anchor(launch: Launch, rank: int, spans: Sequence[Row]) -> int | None:
    """When the tracer of a rank was configured: its own line, within what dated lines inside its spans allow."""
    low, high = -(1 << 62), 1 << 62
    for row in spans:
        step = launch.steps.get(row["step"]) if row["name"] == "train.log_stats" else None
        if step is None:
            continue
        for first, last in ((step.done, step.done), step.wall or (None, None)):
            if first is not None and last is not None:
                low, high = max(low, last - row["end"] - CLOCKS), min(high, first - row["begin"] + CLOCKS)
    lines = [row for row in launch.log if row["kind"] == "tracer" and row["us"] is not None]
    own = [row["us"] for row in lines if row["rank"] == rank] or [row["us"] for row in lines]
    if own and (low > high or low - 1_000_000 <= own[0] <= high + 1_000_000):
        return int(own[0])
    if low > high or low == -(1 << 62):
        return None
    return (low + high) // 2


def _windows_without_spans(launch: Launch) -> None:
    """Without spans a batch is collected from the end of the step before, for ``timeperf/rollout`` seconds."""
    if any(step.windows for step in launch.steps.values()):
        return
    end_of_last = launch.started
    for number in sorted(launch.steps):
        step = launch.steps[number]
        # The statistics are written after the line, and collecting begins after both.
        ended = max((at for at in (step.done, step.wall[1] if step.wall else None) if at is not None), default=None)
        took = step.seconds("rollout")
        if end_of_last is not None and ended is not None:
            # The first batch is collected after a start-up of unknown length; it ends before training does.
            rest = sum(
                step.seconds(name) for name in ("train_step", "update_weights", "recompute_logp", "save", "eval")
            )
            latest = ended - rest
            step.windows[0] = (
                end_of_last,
                min(end_of_last + took, latest) if took and number != launch.first else latest,
            )
        if ended is not None:
            quiet = sum(step.seconds(name) for name in ("eval", "save", "checkpoint_for_recover"))
            step.paused = ended - quiet - step.seconds("update_weights") // 2
            if end_of_last is not None and took and number != launch.first:
                work = ("recompute_logp", "compute_advantage", "train_step", "update_weights")
                step.paused = min(ended, end_of_last + took + sum(step.seconds(name) for name in work))
            if step.seconds("eval") > EVALUATED:
                launch.evaluations.append((step.paused, ended))
        end_of_last = ended if ended is not None else end_of_last
