"""What is fuzzed: each target takes bytes and returns, or raises something that its reader does not document.

Readers of bytes are given the bytes. A parser is given a recorded run, made small, in which one file holds the bytes
instead of its own; the first two bytes choose the case and the kind of file. The run must be read, as ``promises.py``
says, or refused with an ``AuditError``; it is audited whole, which takes ten times as long, if its tables look like
none before. Parts of files that stay are read once.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from fuzz.held import Parts, read_run
from fuzz.promises import broken, broken_document, shape
from fuzz.small import SAMPLES, SmallRun, cases, cut_short, pack
from staleness_audit import plugins
from staleness_audit.api import audit
from staleness_audit.discovery import RunFiles, discover
from staleness_audit.errors import AuditError
from staleness_audit.parser import Parser
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

Target = Callable[[bytes], None]
MOST_SECONDS = 20
"""Of a processor, for one input."""
AUDITED_ONE_IN = 16
"""At most; see ``Bench``."""
HEAD = 2
"""Bytes before a file's that choose the case and the kind of file."""
AS_IT_IS = 128
"""From this second byte on, the bytes of a compressed file are its own, and not what it unpacks to."""


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
            for _ in read_values(run, run.whole(name)):
                pass


def database(data: bytes) -> None:
    """A tracker's SQLite database."""
    with one_file("x.db", data) as run, suppress(DamagedDatabase), open_database(run, "x.db") as opened:
        for _ in opened.rows("metrics", ("id", "step", "metrics"), ("id",)):
            pass


@dataclass
class Bench:
    """Where a small run is read again and again.

    ``kept``: what its units said, by unit; ``read``: how often it was read; ``shapes``: what it looked like when it was
    audited.
    """

    small: SmallRun
    among: dict[str, Parser]
    kept: dict[str, Parts] = field(default_factory=dict)
    read: int = 0
    shapes: set[int] = field(default_factory=set)


@cache
def bench(name: str, case: str) -> Bench:
    """Make a small run of a format's case, and read it once."""
    made = Bench(cut_short(name, case, _scratch() / name / case), {name: plugins.parsers()[name]})
    run = discover(made.small.root)
    choice = plugins.choose(run, name, made.among)
    told = read_run(run, choice, made.kept, keep=True)
    assert not (errors := list(broken(told, run, choice))), errors
    return made


def parser(name: str) -> Target:
    """Read a run of a format one of whose files holds the bytes."""

    def target(data: bytes) -> None:
        case, choice = (*data[:HEAD], *bytes(HEAD))[:HEAD]
        names = cases(name)
        around = bench(name, names[case % len(names)])
        file = around.small.files[choice % AS_IT_IS % len(around.small.files)]
        read_changed(around, name, file, data[HEAD:], packed=choice < AS_IT_IS)

    return target


def read_changed(
    around: Bench, name: str, file: str, body: bytes, *, packed: bool = True, audited: bool = False
) -> None:
    """Read a run in which a file has another content, and audit it if it looks like none that was audited.

    ``packed``: the content is that of a compressed file; ``audited``: in any case.
    """
    changed = around.small.root / file
    own = changed.read_bytes()
    changed.write_bytes(pack(file, body) if packed else body)
    started = time.process_time()
    try:
        with suppress(AuditError):
            _read(name, around, audited=audited)
    finally:
        changed.write_bytes(own)
    assert (seconds := time.process_time() - started) < MOST_SECONDS, f"{seconds:.0f} s of a processor"


def _read(name: str, around: Bench, *, audited: bool) -> None:
    run = discover(around.small.root)
    choice = plugins.choose(run, name, around.among)
    told = read_run(run, choice, around.kept)
    errors = list(broken(told, run, choice))
    assert not errors, "\n".join(errors)
    around.read += 1
    seen = shape(told)
    if not audited and (seen in around.shapes or len(around.shapes) > around.read / AUDITED_ONE_IN):
        return
    around.shapes.add(seen)
    tables = _scratch() / "tables"
    shutil.rmtree(tables, ignore_errors=True)
    errors = list(broken_document(audit(around.small.root, 1, framework=name, tables=tables).data))
    assert not errors, "\n".join(errors)


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
        format_name = target.removeprefix("parser-")
        for number, case in enumerate(cases(format_name)):
            small = bench(format_name, case).small
            for kind, name in enumerate(small.files):
                yield bytes([number, kind]) + small.content(name)
        return
    for ending in endings[target]:
        found = sorted(SAMPLES.rglob(f"*{ending}"), key=lambda path: path.stat().st_size)[:8]
        yield from (path.read_bytes()[:60_000] for path in found)
    if target == "trackers":
        yield from (path.read_bytes()[:60_000] for path in sorted(SAMPLES.rglob("*tfevents*"))[:8])


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
