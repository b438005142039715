"""The timeline of a run as a trace that opens in Perfetto (https://ui.perfetto.dev) and in Chrome's tracing.

The format is the documented JSON trace format: it needs no package (the protobuf bindings of Perfetto would pin
protobuf, which training environments pin too), and a reader can look into it. Events are written as they are read, so
that memory stays bounded; ``timeline.sql`` says what they are drawn from.

Tracks: the trainer's steps and what it waited; weight syncs by worker; generation by worker; trajectories, each a bar
named by the versions that sampled it, so that equal versions have equal colours; counters of staleness, of trajectories
in flight and queued.
"""

from __future__ import annotations

import gzip
import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

import duckdb
import orjson
import pyarrow as pa

from staleness_audit.api import AuditResult
from staleness_audit.errors import AuditError
from staleness_audit.report.terminal.words import interval, version_name
from staleness_audit.whole import whole_file

Event = dict[str, Any]
MOST_TRAJECTORIES = 20_000
MOST_POINTS = 4_000
"""Points of each counter."""
LONGEST_TEXT = 300

MOST_SYNCS = 50_000
"""Weight syncs beyond which those of all workers are drawn as one."""
_FETCHED = 5_000

_FIRST = 10
"""Number of the first track of a process: one with the number of its process would be called its main thread."""
_SMALL = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")

COUNTERS, TRAINER, SYNCS, WORKERS, TRAJECTORIES = 1, 2, 3, 4, 5
_PROCESSES = {
    COUNTERS: "Counters",
    TRAINER: "Trainer",
    SYNCS: "Weight syncs",
    WORKERS: "Generation by worker",
    TRAJECTORIES: "Trajectories by version",
}


@dataclass(frozen=True)
class Drawn:
    """What a trace holds: trajectories drawn, of those there are (others have no times, or were too many), events."""

    trajectories: int
    of_trajectories: int
    events: int

    def __str__(self) -> str:
        """``all 120 trajectories``, ``96 of 127 trajectories``, ``no trajectory, as none has a name in the logs``."""
        if not self.of_trajectories:
            return "no trajectory, as none has a name in the logs"
        share = "all" if self.trajectories == self.of_trajectories else f"{self.trajectories:,} of"
        return f"{share} {self.of_trajectories:,} trajectories"


@dataclass
class Lanes:
    """Tracks of one kind on which bars never overlap: a bar takes the first track that is free when it begins.

    Bars must come in the order in which they begin. ``names`` fills as tracks are opened.
    """

    process: int
    first: int
    title: str
    _busy: list[tuple[int, int]] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)
    opened: int = 0

    def place(self, since: int, until: int) -> int:
        """Return the track for a bar from ``since`` to ``until``."""
        while self._busy and self._busy[0][0] <= since:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        if self._free:
            track = heapq.heappop(self._free)
        else:
            track = self.first + self.opened
            self.opened += 1
        heapq.heappush(self._busy, (until, track))
        return track

    def heads(self) -> Iterator[Event]:
        """Yield the events that name the tracks."""
        for number in range(self.opened):
            name = self.title if number == 0 else f"{self.title} ({number + 1})"
            yield _meta("thread_name", self.process, self.first + number, name=name)
            yield _meta("thread_sort_index", self.process, self.first + number, sort_index=self.first + number)


def write_trace(result: AuditResult, path: Path, most: int = MOST_TRAJECTORIES) -> Drawn:
    """Write the trace of an audited run; compressed if the name ends in ``.gz``.

    Args:
        result: the audited run.
        path: the file to write.
        most: trajectories that are drawn at most: the worst violations first, then a sample that is the same every
            time. Counters and steps are always those of all.

    Raises:
        AuditError: the logs hold no times, or the file cannot be written.
    """
    with result.rebuilt.connect() as connection:
        total = _prepare(connection, result, most)
        origin = _origin(connection)
        if origin is None:
            raise AuditError(
                f"{result.data['run']['path']}: the logs hold no times, so there is no timeline; "
                "--format csv or parquet exports what they hold."
            )
        try:
            with whole_file(path) as aside, aside.open("wb") as plain:
                if path.suffix != ".gz":
                    return _write(plain, connection, result.data, origin, total)
                with gzip.GzipFile(fileobj=plain, mode="wb", compresslevel=6) as packed:
                    return _write(packed, connection, result.data, origin, total)
        except OSError as error:
            raise AuditError(f"{path}: cannot be written ({error.strerror}); choose another --output.") from error


def _prepare(connection: duckdb.DuckDBPyConnection, result: AuditResult, most: int) -> int:
    """Choose the trajectories and create the views; return how many trajectories there are."""
    worst = dict.fromkeys(str(row["trajectory_id"]) for row in result.data["violations"]["worst"] or ())
    connection.register("worst", pa.table({"trajectory_id": pa.array(list(worst), pa.string())}))
    connection.execute(f"SET VARIABLE most = {int(most)}")
    connection.execute(f"SET VARIABLE most_points = {MOST_POINTS}")
    connection.execute(f"SET VARIABLE each_worker = (SELECT count(*) <= {MOST_SYNCS} FROM syncs)")
    connection.execute(
        """
        CREATE TEMP TABLE wanted AS
        SELECT trajectory_id, CASE WHEN worst.trajectory_id IS NOT NULL THEN 'worst' ELSE 'sample' END AS why
        FROM named_trajectories LEFT JOIN worst USING (trajectory_id)
        WHERE NOT anonymous
        ORDER BY why DESC, md5(trajectory_id)
        LIMIT getvariable('most')
        """
    )
    connection.execute((resources.files(__package__) / "timeline.sql").read_text())
    (total,) = connection.execute("SELECT count(*) FROM named_trajectories WHERE NOT anonymous").fetchall()[0]
    return int(total)


def _origin(connection: duckdb.DuckDBPyConnection) -> int | None:
    """Return the first moment of the run in microseconds since 1970; None if nothing has a time."""
    (first,) = connection.execute(
        """
        SELECT min(moment) FROM (
            SELECT min(least(started, waiting_since)) AS moment FROM drawn_steps
            UNION ALL SELECT min(started) FROM drawn_syncs
            UNION ALL SELECT min(since) FROM drawn_trajectories
            UNION ALL SELECT min(moment) FROM drawn_counters
        )
        """
    ).fetchall()[0]
    return None if first is None else int(first)


def _write(
    file: BinaryIO | gzip.GzipFile,
    connection: duckdb.DuckDBPyConnection,
    data: Mapping[str, Any],
    origin: int,
    total: int,
) -> Drawn:
    drawn = events = 0
    file.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
    for event in _events(connection, data):
        if "ts" in event:
            event["ts"] -= origin
        drawn += event.get("cat") == "trajectory"
        file.write(b",\n" if events else b"")
        file.write(orjson.dumps(event))
        events += 1
    about = {
        "tool": f"staleness-audit {data['tool']['version']}",
        "framework": data["run"]["framework"],
        "verdict": data["verdict"],
        "bound": data["bound"]["value"],
        "unit of versions": data["staleness"]["unit"],
        "zero is (microseconds since 1970)": origin,
        "trajectories drawn": drawn,
        "trajectories in all": total,
    }
    file.write(b'\n], "otherData": ' + orjson.dumps({key: _text(value) for key, value in about.items()}) + b"}\n")
    return Drawn(drawn, total, events)


def _events(connection: duckdb.DuckDBPyConnection, data: Mapping[str, Any]) -> Iterator[Event]:
    for order, (process, name) in enumerate(_PROCESSES.items()):
        yield _meta("process_name", process, 0, name=name)
        yield _meta("process_sort_index", process, 0, sort_index=order)
    yield from _trainer(connection, data)
    yield from _syncs(connection)
    yield from _workers(connection)
    yield from _trajectories(connection)
    for row in _rows(connection, "SELECT * FROM drawn_counters"):
        yield _counter(row["counter"], row["moment"], {row["counter"]: row["level"]})


def _trainer(connection: duckdb.DuckDBPyConnection, data: Mapping[str, Any]) -> Iterator[Event]:
    per_step = {(row["attempt"], row["step"]): row for row in data["per_step"]}
    running, waiting = Lanes(TRAINER, _FIRST, "training steps"), Lanes(TRAINER, _FIRST + 10_000, "waiting for data")
    for row in _rows(connection, "SELECT * FROM drawn_steps"):
        found = per_step.get((row["attempt"], row["step"]), {})
        facts = {
            "attempt": row["attempt"],
            "trains from": version_name(row["v_train_lo"], row["v_train_hi"]),
            "updates": row["updates"],
            "counts for certain": row["certain"],
            **{
                name: interval(found[name])
                for name in ("trajectories", "tokens", "max", "mean", "violations")
                if found.get(name) is not None
            },
        }
        since, until = row["started"], max(row["ended"] or row["started"], row["started"])
        if row["waiting_since"] is not None and row["waiting_since"] < since:
            track = waiting.place(row["waiting_since"], since)
            yield _bar("waiting", "wait", TRAINER, track, row["waiting_since"], since, {"before step": row["step"]})
        yield _bar(f"step {row['step']}", "step", TRAINER, running.place(since, until), since, until, facts)
        if found.get("max"):
            yield _counter("staleness of the step", since, _staleness(found))
    yield from running.heads()
    yield from waiting.heads()


def _staleness(step: Mapping[str, Any]) -> dict[str, float]:
    """Return what is certain and, where that is limited, what is possible."""
    ends = {"largest, proven": step["max"]["lo"], "largest, possible": step["max"]["hi"], "mean": step["mean"]["lo"]}
    return {name: value for name, value in ends.items() if value is not None}


def _syncs(connection: duckdb.DuckDBPyConnection) -> Iterator[Event]:
    lanes: dict[str, Lanes] = {}
    for row in _rows(connection, "SELECT * FROM drawn_syncs"):
        name, since = _label(row["version_lo"], row["version_hi"]), row["started"]
        until = max(row["ended"] or since, since)
        track = _lane(lanes, SYNCS, row["worker"], since, until)
        yield _bar(name, "sync", SYNCS, track, since, until, {"attempt": row["attempt"]})
    for lane in lanes.values():
        yield from lane.heads()


def _workers(connection: duckdb.DuckDBPyConnection) -> Iterator[Event]:
    lanes: dict[str, Lanes] = {}
    query = "SELECT * FROM drawn_phases WHERE phase = 'generate' AND worker IS NOT NULL ORDER BY since, trajectory_id"
    for row in _rows(connection, query):
        since, until = row["since"], row["until"]
        track = _lane(lanes, WORKERS, row["worker"], since, until)
        facts = {"trajectory": row["trajectory_id"], "tokens": row["tokens"]}
        yield _bar(_label(row["version_lo"], row["version_hi"]), "generate", WORKERS, track, since, until, facts)
    for lane in lanes.values():
        yield from lane.heads()


def _lane(lanes: dict[str, Lanes], process: int, name: str, since: int, until: int) -> int:
    if name not in lanes:
        # Room for ten thousand bars at once on each.
        lanes[name] = Lanes(process, _FIRST + 10_000 * len(lanes), _text(name))
    return lanes[name].place(since, until)


def _trajectories(connection: duckdb.DuckDBPyConnection) -> Iterator[Event]:
    """Yield the bars of trajectories, then those of their phases on the same tracks."""
    lanes = Lanes(TRAJECTORIES, _FIRST, "trajectories")
    tracks: dict[str, int] = {}
    for row in _rows(connection, "SELECT * FROM drawn_trajectories"):
        since, until = row["since"], max(row["until"], row["since"])
        tracks[row["trajectory_id"]] = track = lanes.place(since, until)
        facts = {
            "trajectory": row["trajectory_id"],
            "group": row["group_id"],
            "attempt": row["attempt"],
            "fate": row["fate"],
            "tokens": row["tokens_lo"],
            "sampled by": version_name(row["oldest_lo"], row["v_end_hi"]),
            "staleness": None
            if row["staleness_lo"] is None
            else interval({"lo": row["staleness_lo"], "hi": row["staleness_hi"]}),
            "drawn as": "one of the worst violations" if row["why"] == "worst" else None,
        }
        name = _label(row["oldest_lo"], row["oldest_hi"])
        yield _bar(name, "trajectory", TRAJECTORIES, track, since, until, facts)
    for row in _rows(connection, "SELECT * FROM drawn_phases"):
        since, until, track = row["since"], row["until"], tracks[row["trajectory_id"]]
        facts = {"tokens": row["tokens"], "worker": row["worker"], "attempt": row["attempt"]}
        if row["logged_until"] != until:
            facts["logged to last (us)"] = row["logged_until"] - since
        yield _bar(_phase_name(row), row["phase"], TRAJECTORIES, track, since, until, facts)
    yield from lanes.heads()


def _phase_name(row: Mapping[str, Any]) -> str:
    version = _label(row["version_lo"], row["version_hi"])
    return {"generate": version, "queue": "queued", "train": f"step {row['step']}"}[row["phase"]]


# ------------------------------------------------------------------------------------------------- events


def _bar(name: str, category: str, process: int, track: int, since: int, until: int, facts: Mapping[str, Any]) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": track,
        "ts": since,
        "dur": until - since,
        "args": {key: _text(value) for key, value in facts.items() if value is not None},
    }


def _counter(name: str, moment: int, values: Mapping[str, float]) -> Event:
    return {"ph": "C", "name": name, "pid": COUNTERS, "ts": moment, "args": dict(values)}


def _meta(what: str, process: int, track: int, **facts: Any) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": track, "args": facts}


def _label(low: int | None, high: int | None) -> str:
    """Name of a bar of a version: Perfetto takes the colour from a name without its digits, but knows no small ones."""
    return version_name(low, high).translate(_SMALL)


def _text(value: Any) -> Any:
    """Numbers as they are; text from logs shortened, and without what no encoder takes."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)[:LONGEST_TEXT].encode("utf-8", "replace").decode()


def _rows(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a query, a few thousand in memory at a time."""
    cursor = connection.execute(query)
    names = [column[0] for column in cursor.description or []]
    while rows := cursor.fetchmany(_FETCHED):
        for row in rows:
            yield dict(zip(names, row, strict=True))
