"""From files to staged rows: which files are ours, and what one piece of each says (guide 5).

Staged tables (``folder`` = the directory that holds ``request.jsonl`` and its siblings, relative to the run):

==================  =====================================================================================
``dryrun_request``  a row of ``request.jsonl``
``dryrun_train``    a row of ``train.jsonl``
``dryrun_rollout``  a piece of ``rollout_step.jsonl``: rows, tokens decoded, last time
``dryrun_instance`` where a row of ``instance/<i>.jsonl`` lies in its file, and its time
``dryrun_config``   a resolved configuration, as JSON text
``dryrun_console``  a line of ``run.log`` or of a console capture that the guide names
``dryrun_damage``   a line that could not be read
==================  =====================================================================================

Instance streams grow with instances x requests x events and can be far larger than all others, but only their rows at
weight updates count. Which those are only ``request.jsonl`` knows, so a unit notes each row's time and place and
``finish`` reads the few rows it wants (``read_rows``).
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

import orjson
import polars as pl
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFile, RunFiles, natural
from staleness_audit.errors import UnreadableInput
from staleness_audit.parser import Sink, Unit
from staleness_audit.readers.config import UnreadableConfig, read_config
from staleness_audit.readers.console import undecorate
from staleness_audit.readers.json_lines import BadLine, read_json_lines
from staleness_audit.readers.lines import BLOCK_BYTES, DamagedStream, blocks, numbered_lines

_INT: Final = pa.int64()
_FLOAT: Final = pa.float64()
_TEXT: Final = pa.string()

REQUEST: Final = pa.schema(
    [
        ("t", _FLOAT),
        ("event", _TEXT),
        ("rid", _INT),
        ("instance_id", _INT),
        ("admit_time", _FLOAT),
        ("complete_time", _FLOAT),
        ("consume_version", _INT),
        ("prompt_len", _INT),
        ("target_len", _INT),
        ("generated", _INT),
        ("v_traj", _INT),
        ("v_min", _INT),
        ("v_max", _INT),
        ("staleness_true", _INT),
        ("staleness_reported", _INT),
    ]
)
TRAIN: Final = pa.schema(
    [
        ("t", _FLOAT),
        ("start", _FLOAT),
        ("end", _FLOAT),
        ("version", _INT),
        ("n_reqs", _INT),
        ("total_tokens", _INT),
        ("n_dropped_step", _INT),
        ("n_inflight", _INT),
        ("n_ready", _INT),
    ]
)
ROLLOUT: Final = pa.schema([("t", _FLOAT), ("n_decode", _INT), ("n_prefill", _INT)])

EVENTS: Final = ("admit", "complete", "drop", "consume")
LATEST: Final = 1e10
"""Seconds; a simulated time beyond this (three centuries) is damage, and would not fit the tables."""

_STREAMS: Final = {
    "request.jsonl": ("request", b'"v_traj"'),
    "train.jsonl": ("train", b'"n_dropped_step"'),
    "rollout_step.jsonl": ("rollout", b'"saturated_steps"'),
}
_INSTANCE: Final = re.compile(r"(?:.*/)?instance/(\d{1,9})\.jsonl\Z")
_INSTANCE_MARK: Final = b'"running_len"'
_START_MARK: Final = b"Starting simulation: policy="
_CONFIG_MARKS: Final = (b"livelock_rounds:", b"n_versions:")
_HEAD_BYTES: Final = 1 << 16
_ROW_START: Final = re.compile(rb'\s*\{\s*"t"\s*:\s*([-+0-9.eE]+)\s*,')
_CONSOLE_PATTERNS: Final = ("*.log", "*.txt", "*.out", "stdout", "stderr")


@dataclass
class Found:
    """The files of DryRun-RL in a run: streams by folder, configurations, consoles; ``clues`` say how they were known.

    ``copies``: (read, passed over) where a file lies there both compressed and not, or its bytes in two folders.
    """

    streams: list[tuple[str, str, RunFile]] = field(default_factory=list)
    configs: list[RunFile] = field(default_factory=list)
    consoles: list[RunFile] = field(default_factory=list)
    clues: list[str] = field(default_factory=list)
    copies: list[tuple[str, str]] = field(default_factory=list)


def find(run: RunFiles) -> Found:
    """List our files by name and first bytes. A stream is ours if it, or a stream beside it, begins like one.

    ``streams`` holds (folder, kind, file) in natural order of names.
    """
    found = Found()
    named: list[tuple[str, str, RunFile]] = []
    sure: set[str] = set()
    for file in run.files:
        kind, folder, mark = _stream(file.name)
        if kind:
            named.append((folder, kind, file))
            if mark in run.head(file.source, _HEAD_BYTES):
                sure.add(folder)
                found.clues.append(f"{file.source} begins like DryRun-RL's {kind} stream.")
    found.configs = run.match("config.yaml")
    for config in found.configs:
        head = run.head(config.source, _HEAD_BYTES)
        if all(mark in head for mark in _CONFIG_MARKS):
            found.clues.append(f"{config.source} configures a simulation (rollout.livelock_rounds).")
    found.consoles = sorted(
        {file.source: file for p in _CONSOLE_PATTERNS for file in run.match(p)}.values(), key=_by_name
    )
    for console in run.match("run.log"):
        if _START_MARK in run.head(console.source, _HEAD_BYTES):
            found.clues.append(f"{console.source} says `Starting simulation: policy=`.")
    # An empty stream is legal; without any clue beside it, the folder's name must vouch for it.
    ours = [entry for entry in named if entry[0] in sure or PurePosixPath(entry[0]).name == "logs"]
    kinds: dict[str, set[str]] = defaultdict(set)
    for folder, kind, _ in ours:
        kinds[folder].add(kind)
    seen: dict[str, RunFile] = {}
    kept: dict[tuple[str, int], list[tuple[str, RunFile]]] = defaultdict(list)
    ours = _leave_out_copies(run, ours, found)
    # The folders with most kinds of streams first.
    for folder, kind, file in sorted(ours, key=lambda entry: (entry[2].compressed, -len(kinds[entry[0]]))):
        # A stream that somebody kept a second time, without those beside it, is no second simulation.
        alike = kept[PurePosixPath(file.name).name, file.bytes]
        lone = [one for other, one in alike if kinds[folder] < kinds[other]]
        copied = (one for one in lone if file.bytes and run.digest(one.source) == run.digest(file.source))
        first = next(copied, seen.setdefault(file.name, file))
        alike.append((folder, file))
        if first is file:
            found.streams.append((folder, kind, file))
        else:
            found.copies.append((first.source, file.source))
    found.streams.sort(key=lambda entry: natural(entry[2].name))
    return found


def _leave_out_copies(
    run: RunFiles, ours: Sequence[tuple[str, str, RunFile]], found: Found
) -> list[tuple[str, str, RunFile]]:
    """Return the streams less those of copied folders, and take what lies beside those from ``found``."""
    copies = _copied_folders(run, ours, [*found.configs, *found.consoles])
    for folder, other in copies.items():
        passed = next(file.source for name, _, file in ours if name == folder)
        found.copies.append((other + passed.removeprefix(folder), passed))
        if (root := _root(folder)) != _root(other):
            found.configs = [file for file in found.configs if not file.source.startswith(root)]
            found.consoles = [file for file in found.consoles if not file.source.startswith(root)]
    return [entry for entry in ours if entry[0] not in copies]


def _copied_folders(
    run: RunFiles, streams: Sequence[tuple[str, str, RunFile]], beside: Sequence[RunFile]
) -> dict[str, str]:
    """Find folders all of whose streams another one has, byte by byte: a copy is no second simulation.

    Of such folders the outermost is kept. What lies ``beside`` them must not differ either: simulations that were
    configured otherwise may leave the same streams.
    """
    folders: dict[str, dict[str, RunFile]] = defaultdict(dict)
    for folder, _, file in streams:
        folders[folder][file.source.removeprefix(folder)] = file
    names = {file.source for file in beside}
    kept: dict[tuple[tuple[str, int], ...], list[str]] = defaultdict(list)
    copies: dict[str, str] = {}
    for folder in sorted(folders, key=lambda name: (name.count("/"), len(name), name)):
        files = folders[folder]
        alike = kept[tuple(sorted((name, file.bytes) for name, file in files.items()))]
        for other in alike:
            root = _root(folder)
            pairs = [(folders[other][name].source, file.source) for name, file in files.items()]
            twins = ((_root(other) + name.removeprefix(root), name) for name in names if name.startswith(root))
            pairs += [pair for pair in twins if pair[0] in names]
            if not any(file.bytes for file in files.values()):
                continue
            if all(run.digest(one) == run.digest(two) for one, two in pairs):
                copies[folder] = other
                break
        else:
            alike.append(folder)
    return copies


def _root(folder: str) -> str:
    """Return the output folder that holds a folder of streams, with a slash behind unless it is the run itself."""
    return _folder(PurePosixPath(folder).parent) + "/" if "/" in folder else ""


def _by_name(file: RunFile) -> str:
    return file.name


def _stream(name: str) -> tuple[str, str, bytes]:
    """Return kind, folder and mark of a stream's name; an empty kind if it is none."""
    path = PurePosixPath(name)
    if path.name in _STREAMS:
        kind, mark = _STREAMS[path.name]
        return kind, _folder(path.parent), mark
    if _INSTANCE.match(name):
        return "instance", _folder(path.parent.parent), _INSTANCE_MARK
    return "", "", b""


def _folder(path: PurePosixPath) -> str:
    return "" if str(path) == "." else str(path)


def units(run: RunFiles) -> Iterator[Unit]:
    """One unit per piece of a stream and per configuration and console file."""
    found = find(run)
    for folder, kind, file in found.streams:
        yield from (Unit(kind, (piece,), {"folder": folder}) for piece in run.split(file.source))
    yield from (Unit("config", (run.whole(file.source),)) for file in found.configs)
    yield from (Unit("console", (piece,)) for file in found.consoles for piece in run.split(file.source))


def read(unit: Unit, run: RunFiles, sink: Sink) -> None:
    """Stage what one unit says."""
    reader = _Reader(run, unit.pieces[0], str(unit.options.get("folder", "")), unit.kind, sink)
    {
        "request": reader.requests,
        "train": reader.train,
        "rollout": reader.rollout,
        "instance": reader.instance,
        "config": reader.config,
        "console": reader.console,
    }[unit.kind]()


class _Reader:
    """Reads one piece; everything it could not read goes to ``dryrun_damage``, to be judged beside the rest."""

    def __init__(self, run: RunFiles, piece: Piece, folder: str, kind: str, sink: Sink) -> None:
        self._run = run
        self._piece = piece
        self._folder = folder
        self._kind = kind
        self._sink = sink

    def _bad(self, bad: BadLine) -> None:
        row = {"line": [bad.line], "why": [bad.why], "cut": [bad.cut], "rest": [bad.rest], "kind": [self._kind]}
        self._stage("dryrun_damage", pl.DataFrame(row))

    def _stage(self, table: str, rows: pl.DataFrame) -> None:
        place = [pl.lit(self._folder).alias("folder"), pl.lit(self._piece.source).alias("source")]
        self._sink.write(table, rows.with_columns(place))

    def _tables(self, schema: pa.Schema) -> Iterator[pl.DataFrame]:
        for table in read_json_lines(self._run, self._piece, schema, self._bad):
            frame = pl.from_arrow(table)
            assert isinstance(frame, pl.DataFrame)
            yield frame

    def _sound(self, rows: pl.DataFrame, wanted: pl.Expr, why: str) -> pl.DataFrame:
        """Keep the rows with what nothing can be done without; the others are damage."""
        wanted = wanted.fill_null(value=False)
        for line in rows.filter(~wanted)["line"]:
            self._bad(BadLine(line, why, ""))
        return rows.filter(wanted)

    def requests(self) -> None:
        """Stage rows of ``request.jsonl`` that say who, what and when."""
        usable = _time("t") & (pl.col("rid") >= 0) & pl.col("event").is_in(EVENTS)
        usable &= (pl.col("event") != "consume") | pl.col("consume_version").is_between(0, 1 << 30)
        for rows in self._tables(REQUEST):
            self._stage(
                "dryrun_request", self._sound(rows, usable, "t, event, rid or consume_version is missing or absurd")
            )

    def train(self) -> None:
        """Stage rows of ``train.jsonl`` that say which step and when."""
        usable = _time("t") & _time("start") & _time("end") & pl.col("version").is_between(1, 1 << 30)
        for rows in self._tables(TRAIN):
            self._stage("dryrun_train", self._sound(rows, usable, "start, end or version is missing or absurd"))

    def rollout(self) -> None:
        """Stage sums: no row of this stream belongs to a request."""
        for rows in self._tables(ROLLOUT):
            sums = rows.select(
                pl.len().cast(pl.Int64).alias("rows"), pl.col("n_decode").sum().alias("decoded"), pl.col("t").max()
            )
            self._stage("dryrun_rollout", sums)

    def instance(self) -> None:
        """Stage time and place of every row of an instance stream."""
        position = self._piece.start
        try:
            for block in blocks(self._run, self._piece, BLOCK_BYTES):
                self._places(block.data, block.first_line, position, cut=block.cut)
                position += len(block.data)
        except DamagedStream as damage:
            self._bad(BadLine(damage.line, str(damage), "", rest=True))

    def _places(self, data: bytes, line: int, position: int, *, cut: bool) -> None:
        times, lines, starts, sizes = array("d"), array("q"), array("q"), array("q")
        begin = 0
        while begin < len(data):
            end = data.find(b"\n", begin)
            whole = end >= 0
            end = end if whole else len(data)
            t = _row_time(data, begin, end, check=cut and not whole)
            if t is not None:
                times.append(t)
                lines.append(line)
                starts.append(position + begin)
                sizes.append(end - begin)
            elif data[begin:end].strip():
                self._bad(BadLine(line, "not an occupancy row with a time", "", cut=cut and not whole))
            begin = end + 1
            line += 1
        columns = {
            "t": pl.Series(times),
            "line": pl.Series(lines),
            "start": pl.Series(starts),
            "size": pl.Series(sizes),
        }
        self._stage("dryrun_instance", pl.DataFrame(columns))

    def config(self) -> None:
        """Stage a configuration of this simulator; others' files of that name are passed over."""
        try:
            config = read_config(self._run, self._piece.source)
        except UnreadableConfig as error:
            if ".hydra/" in self._piece.source:
                self._bad(BadLine(1, str(error), "", rest=True))
            return
        if isinstance(config.get("policy"), dict) and isinstance(config.get("job"), dict) and "rollout_cost" in config:
            self._stage("dryrun_config", pl.DataFrame({"config": [orjson.dumps(config).decode()]}))

    def console(self) -> None:
        """Stage the lines that tell of starts and ends (guide 5, ``run.log`` and stdout)."""
        rows: list[dict[str, Any]] = []
        try:
            for line, text, _cut in numbered_lines(self._run, self._piece):
                for what, pattern in _CONSOLE_LINES.items():
                    if match := pattern.search(undecorate(text).text):
                        rows.append({"line": line, "what": what, "words": list(match.groups()), "text": text[:200]})
        except DamagedStream as damage:
            self._bad(BadLine(damage.line, str(damage), "", rest=True))
        if rows:
            self._stage("dryrun_console", pl.DataFrame(rows, schema=_CONSOLE_SCHEMA))


_CONSOLE_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "line": pl.Int64,
    "what": pl.String,
    "words": pl.List(pl.String),
    "text": pl.String,
}
_CONSOLE_LINES: Final = {
    "start": re.compile(
        r"Starting simulation: policy=(\w+), n_versions=(\d{1,9}), n_instances=(\d{1,9}), batch_size=(\d{1,9}),"
        r" log_telemetry=(True|False)"
    ),
    "complete": re.compile(r"^Simulation complete: (\d{1,9}) versions in (\d{1,15}(?:\.\d+)?)s"),
    "consumed": re.compile(r"^\s*Consumed: (\d{1,9}) requests"),
    "dropped": re.compile(r"^\s*Dropped: (\d{1,9}) requests"),
    "throughput": re.compile(r"^\s*Throughput: (\d{1,15}(?:\.\d+)?) tokens/s"),
    "max_true": re.compile(r"^\s*Max staleness \(true\): (\d{1,9})\b"),
    "max_reported": re.compile(r"^\s*Max staleness \(reported\): (\d{1,9})\b"),
    "livelock": re.compile(r"WARNING: Simulation livelocked!()"),
    "assertion": re.compile(r"^(AssertionError\b.*)"),
}


def _time(column: str) -> pl.Expr:
    return pl.col(column).is_between(0.0, LATEST)


def _row_time(data: bytes, begin: int, end: int, *, check: bool) -> float | None:
    """Time of the row ``data[begin:end]``; None if it is no whole row. ``check``: the row may be cut, parse it."""
    match = _ROW_START.match(data, begin, end)
    try:
        if match is None or check or not data[begin:end].rstrip().endswith(b"}"):
            row = orjson.loads(data[begin:end])
            t = row.get("t") if isinstance(row, dict) else None
        else:
            t = float(match[1])
    except ValueError:
        return None
    return float(t) if isinstance(t, int | float) and 0.0 <= t <= LATEST else None


def same_bytes(run: RunFiles, one: str, other: str) -> bool:
    """Compare the decompressed bytes of two files; damage makes them different."""
    try:
        with run.open(one) as first, run.open(other) as second:
            while chunk := first.read(_HEAD_BYTES):
                if second.read(len(chunk)) != chunk:
                    return False
            return not second.read(1)
    except (OSError, EOFError, UnreadableInput):
        return False


@dataclass(frozen=True)
class Occupancy:
    """An instance's row read at last: ``generated`` by request number; empty with ``why`` if it is damaged."""

    line: int
    generated: dict[int, int]
    why: str | None = None


def read_rows(run: RunFiles, source: str, places: Iterable[tuple[int, int, int]]) -> Iterator[Occupancy]:
    """Read rows of an instance stream at their places (line, start, size), given in file order.

    ``running_len`` and ``waiting_len`` both count: an aborted or preempted request waits, but keeps its tokens.
    """
    try:
        with run.open(source) as stream:
            for line, start, size in places:
                stream.seek(start)
                yield _occupancy(line, stream.read(size))
    except (OSError, EOFError, ValueError, UnreadableInput) as error:
        yield Occupancy(0, {}, f"it changed or became unreadable while it was read ({error})")


def _occupancy(line: int, data: bytes) -> Occupancy:
    try:
        row = orjson.loads(data)
        generated = {
            int(rid): request["generated"]
            for part in ("running_len", "waiting_len")
            for rid, request in (row.get(part) or {}).items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return Occupancy(line, {}, "not an occupancy row")
    if not all(type(count) is int and count >= 0 for count in generated.values()):
        return Occupancy(line, {}, "a count of generated tokens is no natural number")
    return Occupancy(line, generated)
