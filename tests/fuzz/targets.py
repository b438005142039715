"""What is fuzzed: each target takes bytes and returns, or raises something that its reader does not document.

Readers of bytes are given the bytes. A parser is given a recorded run in which one file, of a kind that the first byte
chooses, holds the bytes instead of its own; the run must be audited or refused with an ``AuditError``.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from staleness_audit import plugins
from staleness_audit.api import audit
from staleness_audit.discovery import RunFiles, discover
from staleness_audit.errors import AuditError
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

SAMPLES = Path(__file__).parents[2] / "sample_traces"
Target = Callable[[bytes], None]


@cache
def _scratch() -> Path:
    """A folder in memory, where there is one."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="staleness-fuzz-", dir=memory if memory.is_dir() else None))
    import atexit

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
            lines = list(numbered_lines(run, piece))
            assert sum(len(frame) for frame in line_frames(run, piece)) == len(lines)
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
def _kinds(name: str) -> tuple[Path, tuple[str, ...]]:
    """A small recorded run of a format, and one file of it for each suffix and folder depth."""
    cases = [path.parent for path in (SAMPLES / name).glob("*/expected.json")]
    run = min(cases, key=lambda case: sum(file.stat().st_size for file in case.rglob("*") if file.is_file())) / "run"
    files = {(file.suffix, len(file.parts)): file for file in sorted(run.rglob("*")) if file.is_file()}
    return run, tuple(str(file.relative_to(run)) for file in files.values())


def parser(name: str) -> Target:
    """Audit a run of a format one of whose files holds the bytes."""

    def target(data: bytes) -> None:
        run, files = _kinds(name)
        copy, tables = _scratch() / f"run-{name}", _scratch() / f"tables-{name}"
        shutil.rmtree(tables, ignore_errors=True)
        if not copy.exists():
            shutil.copytree(run, copy)
        changed = files[data[0] % len(files)] if data else files[0]
        (copy / changed).write_bytes(data[1:])
        try:
            with suppress(AuditError):
                audit(copy, 1, framework=name, tables=tables)
        finally:
            shutil.copyfile(run / changed, copy / changed)

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
        run, files = _kinds(target.removeprefix("parser-"))
        for number, name in enumerate(files):
            yield bytes([number]) + (run / name).read_bytes()[:20_000]
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
