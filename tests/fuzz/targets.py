"""What is fuzzed: each target takes bytes and returns, or raises something that its reader does not document.

Readers of bytes are given the bytes. A parser is given a recorded run, made small, in which one file, of a kind that
the first byte chooses, holds the bytes instead of its own. The run must be read or refused with an ``AuditError``; one
input in ``AUDITED_ONE_IN`` is audited whole, which takes ten times as long. Parts of files that stay are read once.
"""

from __future__ import annotations

import atexit
import gzip
import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import zstandard

from staleness_audit import plugins
from staleness_audit.api import audit
from staleness_audit.discovery import RunFiles, discover
from staleness_audit.errors import AuditError
from staleness_audit.ingest import StagedParts, join_units, parts_by_table
from staleness_audit.readers.config import UnreadableConfig, parse_config, parse_printed
from staleness_audit.readers.console import parse_dict, parse_local_time, undecorate
from staleness_audit.readers.json_lines import read_json_lines
from staleness_audit.readers.lines import DamagedStream, line_frames, numbered_lines
from staleness_audit.readers.numpy_stubs import array_values, scalar_value
from staleness_audit.readers.pickle_values import BadPickle, read_pickle
from staleness_audit.readers.records import DamagedRecords
from staleness_audit.readers.scalars import read_values
from staleness_audit.readers.sqlite import DamagedDatabase, open_database
from staleness_audit.readers.torch_files import BadTorchFile, Stub, Tensor, open_torch
from staleness_audit.sink import PartWriter

SAMPLES = Path(__file__).parents[2] / "sample_traces"
Target = Callable[[bytes], None]
MOST_SECONDS = 20
"""Of a processor, for one input."""
SMALL_BYTES = 6000
AUDITED_ONE_IN = 64
AS_IT_IS = 128
"""From this first byte on, the bytes of a compressed file are its own, and not what it unpacks to."""
PACKERS = {".gz": partial(gzip.compress, compresslevel=1, mtime=0), ".zst": zstandard.compress}
NAMED = re.compile(r"[a-z]*\d[0-9a-z]*")
"""Numbers and digests in names, by which files of one kind are told apart."""
LOGS = {".jsonl", ".log", ".txt", ".out", ".err"}


@cache
def _scratch() -> Path:
    """A folder of this process."""
    folder = Path(tempfile.mkdtemp(prefix="staleness-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def one_file(name: str, data: bytes) -> Iterator[RunFiles]:
    """Yield a run of one file."""
    path = _scratch() / name
    path.write_bytes(data)
    try:
        yield discover(path)
    finally:
        path.unlink()


def pickled(data: bytes) -> None:
    """A pickle by itself."""
    with suppress(BadPickle):
        read_pickle(data)


def torch(data: bytes) -> None:
    """A torch file, with its tensors, strictly and with stubs."""
    with one_file("x.pt", data) as run:
        for stubs in (False, True):
            with suppress(BadTorchFile), open_torch(run, "x.pt", stubs=stubs) as value:
                _look(value, 0)


def _look(value: Any, depth: int) -> None:
    """Read what a parser would: tensors and arrays of the upper levels."""
    with suppress(BadTorchFile):
        if isinstance(value, Tensor):
            value.tolist()
        elif isinstance(value, Stub):
            array_values(value)
        scalar_value(value)
    if depth < 4 and isinstance(value, dict | list | tuple):
        for item in list(value.values() if isinstance(value, dict) else value)[:20]:
            _look(item, depth + 1)


def config(data: bytes) -> None:
    """A configuration in each format, and printed on a console."""
    for kind in ("json", "yaml", "toml"):
        with suppress(UnreadableConfig):
            parse_config(data, kind)
    with suppress(UnreadableConfig):
        parse_printed(data.decode(errors="replace").split("\n"))


def console(data: bytes) -> None:
    """Lines of a console, as they come and in frames."""
    with one_file("x.log", data) as run:
        for piece in run.split("x.log", 64):
            lines, framed = [], 0
            with suppress(DamagedStream):  # at the end, if some bytes were no text
                lines.extend(numbered_lines(run, piece))
            with suppress(DamagedStream):
                for frame in line_frames(run, piece):
                    framed += len(frame)
            assert framed == len(lines)
            for _, text, _ in lines:
                said = undecorate(text).text
                parse_dict(said)
                parse_local_time(said)


def packed(data: bytes) -> None:
    """Compressed files of lines."""
    for name in ("x.log.gz", "x.log.zst"):
        with one_file(name, data) as run, suppress(DamagedStream):
            for _ in numbered_lines(run, run.whole(name)):
                pass


def json_lines(data: bytes) -> None:
    """Lines of JSON objects: each line is in a table or bad."""
    schema = pa.schema(
        {"a": pa.int64(), "b": pa.string(), "c": pa.list_(pa.int64()), "d": pa.struct({"e": pa.float64()})}
    )
    bad: list[int] = []
    with one_file("x.jsonl", data) as run:
        for table in read_json_lines(run, run.whole("x.jsonl"), schema, lambda line: bad.append(line.line)):
            table.validate(full=True)


def trackers(data: bytes) -> None:
    """Scalars of TensorBoard and of W&B."""
    for name in ("x.tfevents.1", "x.wandb"):
        with one_file(name, data) as run, suppress(DamagedRecords):
            for _ in read_values(run, name):
                pass


def database(data: bytes) -> None:
    """A tracker's SQLite database."""
    with one_file("x.db", data) as run, suppress(DamagedDatabase), open_database(run, "x.db") as opened:
        for _ in opened.rows("metrics", ("id", "step", "metrics"), ("id",)):
            pass


@cache
def _small(name: str) -> tuple[RunFiles, tuple[str, ...]]:
    """A recorded run of a format with two files of each kind and the first lines of each; one file of each kind."""
    cases = [path.parent / "run" for path in (SAMPLES / name).glob("*/expected.json")]
    run = min(cases, key=lambda case: sum(file.stat().st_size for file in case.rglob("*") if file.is_file()))
    kinds: dict[str, list[str]] = {}
    for file in sorted(run.rglob("*")):
        kept = kinds.setdefault(NAMED.sub("0", source := str(file.relative_to(run))), [])
        if not file.is_file() or len(kept) == 2:
            continue
        kept.append(source)
        copy = _scratch() / name / source
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(_beginning(file))
    return discover(_scratch() / name), tuple(kept[0] for kept in kinds.values() if kept)


def _beginning(file: Path) -> bytes:
    """The first lines of a log; another file as it is."""
    data = file.read_bytes()
    return data if file.suffix not in LOGS else data[: data.rfind(b"\n", 0, SMALL_BYTES) + 1] or data


@cache
def _kept_units(name: str) -> dict[str, Path]:
    """Folders with what the units of a small run say, by unit."""
    return {}


def _parse(name: str, run: RunFiles, folder: Path, *, keep: bool = False) -> None:
    """Do what ingestion does, but for the tables of the whole run."""
    choice, kept = plugins.choose(run, name), _kept_units(name)
    folders, read = [], set()
    for number, unit in enumerate(choice.parser.plan(run)):
        read |= {piece.source for piece in unit.pieces}
        if (place := kept.get(repr(unit))) is None:
            place = folder / str(number)
            place.mkdir(parents=True)
            with PartWriter(place) as sink:
                choice.parser.read(unit, run, sink)
            if keep:
                kept[repr(unit)] = place
        folders.append(place)
    (folder / "whole").mkdir(parents=True)
    with PartWriter(folder / "whole") as sink:
        join_units(run, choice, StagedParts(folder, parts_by_table(folders)), sink, read)


def parser(name: str) -> Target:
    """Read a run of a format one of whose files holds the bytes."""

    def target(data: bytes) -> None:
        run, files = _small(name)
        if not _kept_units(name):
            _parse(name, discover(run.root), _scratch() / f"kept-{name}", keep=True)
        choice = data[0] if data else 0
        changed = run.root / files[choice % AS_IT_IS % len(files)]
        tables = _scratch() / "tables"
        shutil.rmtree(tables, ignore_errors=True)
        own = changed.read_bytes()
        pack = PACKERS.get(changed.suffix) if choice < AS_IT_IS else None
        changed.write_bytes(pack(data[1:]) if pack else data[1:])
        started = time.process_time()
        try:
            with suppress(AuditError):
                if crc32(data) % AUDITED_ONE_IN:
                    _parse(name, discover(run.root), tables)
                else:
                    json.dumps(audit(run.root, 1, framework=name, tables=tables).data, allow_nan=False)
        finally:
            changed.write_bytes(own)
        assert time.process_time() - started < MOST_SECONDS

    return target


def seeds(target: str) -> Iterator[bytes]:
    """Genuine inputs to begin with: the beginnings of recorded files."""
    endings = {
        "torch": (".pt",),
        "pickle": (".pkl",),
        "config": (".json", ".yaml", ".toml"),
        "console": (".log", ".txt"),
        "packed": (".gz", ".zst"),
        "json-lines": (".jsonl",),
        "trackers": (".wandb",),
        "database": (".db",),
    }
    if target.startswith("parser-"):
        run, files = _small(target.removeprefix("parser-"))
        for number, name in enumerate(files):
            with run.open(name) as unpacked:
                yield bytes([number]) + unpacked.read(20_000)
        return
    for ending in endings[target]:
        found = sorted(SAMPLES.rglob(f"*{ending}"), key=lambda path: path.stat().st_size)[:8]
        yield from (path.read_bytes()[:20_000] for path in found)
    if target == "trackers":
        yield from (path.read_bytes()[:20_000] for path in sorted(SAMPLES.rglob("*tfevents*"))[:8])


TARGETS: dict[str, Target] = {
    "pickle": pickled,
    "torch": torch,
    "config": config,
    "console": console,
    "packed": packed,
    "json-lines": json_lines,
    "trackers": trackers,
    "database": database,
    **{f"parser-{name}": parser(name) for name in plugins.parsers() if (SAMPLES / name).is_dir()},
}
