"""How fast each parser reads its framework's main artifacts, beside a library that merely reads the same bytes.

    python benchmarks/frameworks.py [--megabytes 32] [--repeat 3] [FRAMEWORK...]

A recorded case of ``sample_traces`` is copied to ``benchmarks/data`` and one of its artifacts made large there. The
lines of a log follow each other again and again (what a launch prints once, only once); samples of a dump are repeated
in it; files that come one per step are copied under the numbers of further steps. Measured is ``Parser.read`` of all
units of that artifact, up to the written tables, in one process and in turns with the library. CPU seconds count, and
the fastest repetition.
"""

from __future__ import annotations

import argparse
import copy
import io
import pickle
import pickletools
import re
import shutil
import sqlite3
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import orjson

from staleness_audit import plugins
from staleness_audit.discovery import discover
from staleness_audit.parser import Parser, Unit
from staleness_audit.readers.torch_files import load
from staleness_audit.sink import PartWriter

HERE = Path(__file__).resolve().parent
SAMPLES = HERE.parent / "sample_traces"
DATA = HERE / "data"
AIM = 0.3
SAMPLES_TIMES = 64
_NUMBER = re.compile(r"\d+(?=\D*$)")


@dataclass(frozen=True)
class Artifact:
    """What is made large: the files below the ``run`` of a case, and up to which line a log is its launch's head.

    ``against`` names the reader it is compared with (``READERS``).
    """

    framework: str
    what: str
    case: str
    files: str
    against: str
    head: bytes | None = None


ARTIFACTS = (
    Artifact("areal", "console", "spmd_reject_fail_eval_resume", "logs/**/main.log", "lines"),
    Artifact("areal", "session traces", "spmd_reject_fail_eval_resume", "logs/**/sessions-r0.jsonl", "json"),
    Artifact("areal", "TensorBoard events", "spmd_straggler_metrics_only", "logs/**/events.out.*", "events"),
    Artifact("dressage", "rollout dumps", "partial_keep2_preempt2", "rollout_data/*.pt", "pickle"),
    Artifact("dressage", "console", "partial_keep2_preempt2", "console.log", "lines"),
    Artifact("dryrun", "request log", "roll-lognormal", "logs/request.jsonl", "json"),
    Artifact("nemo-rl", "console (async_grpo)", "async_grpo-age1-drain", "ray-driver.log", "lines", b"=== Step 1/"),
    Artifact(
        "nemo-rl", "console (SingleController)", "sc-ready_first-violation", "ray-driver.log", "lines", b"train step 1/"
    ),
    Artifact("openrlhf", "console", "q1-normal", "console.log", "lines"),
    Artifact("prime-rl", "rollout traces", "strict_bound2", "rollouts/step_*/train/all/traces.jsonl", "json"),
    Artifact("prime-rl", "metrics", "strict_bound2", "metrics.jsonl", "json"),
    Artifact("psrl", "gateway trace", "default-level", "psrl_logs/route_trace.log", "lines"),
    Artifact("psrl", "component log", "multiturn-violation", "psrl_logs/RequestStatusTracker.log", "lines"),
    Artifact("roll", "OTLP traces", "rlvr_extra", "otlp/traces/traces.jsonl", "json"),
    Artifact("roll", "console", "rlvr_extra", "console.log", "lines", b"step 1 start"),
    Artifact("roll", "pickled batches", "agentic_native", "rollout_mock/train/*.pkl", "pickle"),
    Artifact("skyrl", "console", "straggler_s1", "console.log", "lines", b"Started: 'step'"),
    Artifact("skyrl", "pickled batches", "straggler_s1", "exports/dumped_data/*.pkl", "pickle"),
    Artifact("slime", "rollout dumps", "fully_async_killed_in_training", "rollout_data/*.pt", "pickle"),
    Artifact("slime", "console", "fully_async_killed_in_training", "console.log", "lines"),
    Artifact("trl", "trackio database", "old-format-1.10.0-s1", "trackio/*.db", "sqlite"),
    Artifact("trl", "console", "budget-ga1-s2", "console.log", "lines"),
    Artifact("verl", "console", "v1_sep_drop_t4", "console.log", "lines", b"step:1 "),
    Artifact("verl", "metric records", "fa_theta0.5_trig2_partial", "demo/*.jsonl", "json"),
    Artifact("verl", "checkpointed queue", "v1_sep_drop_t4", "checkpoints/**/*.pkl", "pickle"),
)


def read_lines(files: Sequence[Path]) -> None:
    """Let DuckDB find the lines of text files and measure them."""
    names = ", ".join("'" + str(path).replace("'", "''") + "'" for path in files)
    options = "columns={'line': 'VARCHAR'}, delim='\x01', quote='', escape='', header=false, auto_detect=false"
    duckdb.execute(
        f"SELECT count(*), sum(strlen(line)) FROM read_csv([{names}], {options}, strict_mode=false, new_line='\\n')"
    ).fetchall()


def read_json(files: Sequence[Path]) -> None:
    """Let orjson read each line."""
    for path in files:
        for line in path.read_bytes().splitlines():
            orjson.loads(line)


def read_pickles(files: Sequence[Path]) -> None:
    """Let pickletools walk the opcodes of pickles, bare or in torch's archives."""
    for path in files:
        data = path.read_bytes()
        if data.startswith(b"PK"):
            archive = zipfile.ZipFile(io.BytesIO(data))
            data = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
        for _ in pickletools.genops(data):
            pass


def read_events(files: Sequence[Path]) -> None:
    """Let the tensorboard package load the events."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # noqa: PLC0415 - an extra

    for path in files:
        for _ in EventFileLoader(str(path)).Load():
            pass


def read_database(files: Sequence[Path]) -> None:
    """Let sqlite3 fetch every row of every table."""
    for path in files:
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            database.execute(f'SELECT * FROM "{table}"').fetchall()
        database.close()


WHY_SLOW = {
    "lines": "DuckDB only finds the ends of the lines. Of these short recorded runs nearly every line means something, "
    "and each such line is taken apart in Python. Lines that mean nothing are left out by one search over a block; "
    "only the consoles of prime-rl, roll, skyrl and verl are followed line by line, for the clock's midnights "
    "(prime-rl) and for configurations and records of many lines, among which other processes speak.",
    "json": "orjson only builds the values; ours also turns them into rows, checks them, and writes tables.",
    "pickle": "pickletools only walks over the outer opcodes of these small files; ours also opens the tensors in "
    "them, counts their masks, and writes tables.",
    "events": "",
    "sqlite": "sqlite3 only hands out the cells; here the JSON documents in them are read and turned into rows.",
}
READERS: dict[str, tuple[str, Callable[[Sequence[Path]], None]]] = {
    "lines": ("DuckDB: lines and their lengths", read_lines),
    "json": ("orjson: each line", read_json),
    "pickle": ("pickletools: opcodes", read_pickles),
    "events": ("tensorboard: events", read_events),
    "sqlite": ("sqlite3: all rows", read_database),
}


def grow(artifact: Artifact, size: int) -> tuple[Path, list[Path]]:
    """Return the run with the artifact grown to about ``size`` bytes, and the artifact's files."""
    root = DATA / f"{artifact.framework}-{artifact.what}-{size >> 20}".replace(" ", "-")
    if not root.exists():
        part = root.with_name(root.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        run = discover(SAMPLES / artifact.framework / artifact.case / "run")
        for file in run.files:
            target = part / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with run.open(file.source) as stream:
                target.write_bytes(stream.read())
        files = sorted(part.glob(artifact.files))
        if artifact.against == "sqlite":
            _grow_database(files[0], size)
        elif files[0].suffix in {".log", ".jsonl"}:
            _grow_lines(max(files, key=lambda file: file.stat().st_size), size, artifact.head)
        elif artifact.against == "events":
            _grow_events(files[0], size)
        else:
            if artifact.what == "rollout dumps":
                for file in files:
                    _grow_samples(file)
            _add_files(files, size)
        part.rename(root)
    return root, sorted(root.glob(artifact.files))


def _grow_lines(file: Path, size: int, head: bytes | None) -> None:
    data = file.read_bytes()
    at = data.rfind(b"\n", 0, data.index(head)) + 1 if head else 0
    body = data[at:].removesuffix(b"\n") + b"\n"
    file.write_bytes(data[:at] + body * max(1, (size - at) // len(body)))


def _grow_samples(file: Path) -> None:
    """Repeat the samples of a dump, which in earnest holds some hundred of some thousand tokens each."""
    value = load(io.BytesIO(file.read_bytes()))
    value["samples"] = [copy.deepcopy(sample) for _ in range(SAMPLES_TIMES) for sample in value["samples"]]
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("dump/data.pkl", pickle.dumps(value, protocol=2))
        archive.writestr("dump/byteorder", "little")


def _grow_events(file: Path, size: int) -> None:
    data = file.read_bytes()
    file.write_bytes(data * max(1, size // len(data)))


def _grow_database(file: Path, size: int) -> None:
    """Repeat the rows of metrics, with ids of their own."""
    database = sqlite3.connect(file)
    names = [row[1] for row in database.execute("PRAGMA table_info(metrics)") if not row[5]]
    values = ["hex(randomblob(16))" if name == "log_id" else name for name in names]
    while file.stat().st_size < size:
        database.execute(f"INSERT INTO metrics ({', '.join(names)}) SELECT {', '.join(values)} FROM metrics")
        database.commit()
    database.close()


def _add_files(files: Sequence[Path], size: int) -> None:
    """Copy files under the numbers of further steps: those of the part of the path that tells them apart."""
    total = sum(file.stat().st_size for file in files)
    varying = [index for index, parts in enumerate(zip(*(file.parts for file in files))) if len(set(parts)) > 1]  # noqa: B905
    for again in range(1, max(1, size // total)):
        for file in files:
            parts = list(file.parts)
            parts[varying[0]] = _NUMBER.sub(lambda found: str(int(found[0]) + 10_000 * again), parts[varying[0]])  # noqa: B023
            target = Path(*parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


@dataclass(frozen=True)
class Speed:
    """MB, and MB per CPU second of our reading and of the library's."""

    artifact: Artifact
    size: float
    ours: float
    other: float

    @property
    def ratio(self) -> float:
        """Our speed as a share of the library's."""
        return self.ours / self.other


def measure(artifact: Artifact, size: int, repeat: int) -> Speed:
    """Grow an artifact and read it both ways."""
    root, files = grow(artifact, size)
    run = discover(root)
    parser = plugins.choose(run, artifact.framework).parser
    names = {str(path.relative_to(root)) for path in files}
    units = [unit for unit in parser.plan(run) if any(piece.source in names for piece in unit.pieces)]
    bytes_read = sum({piece: piece.end - piece.start for unit in units for piece in unit.pieces}.values())
    ours, other = [], []
    for _ in range(repeat):
        ours.append(_timed(lambda: _read(parser, units, root)))
        other.append(_timed(lambda: READERS[artifact.against][1](files)))
    bytes_of_files = sum(path.stat().st_size for path in files)
    return Speed(artifact, bytes_of_files / 1e6, bytes_read / 1e6 / min(ours), bytes_of_files / 1e6 / min(other))


def _timed(act: Callable[[], None]) -> float:
    """CPU seconds of all threads: what else the machine does is not measured along."""
    started = time.process_time()
    act()
    return time.process_time() - started


def _read(parser: Parser, units: Sequence[Unit], root: Path) -> None:
    run = discover(root)
    for unit in units:
        with tempfile.TemporaryDirectory(prefix="staleness-bench-") as folder, PartWriter(Path(folder)) as sink:
            parser.read(unit, run, sink)


def report(speeds: Sequence[Speed]) -> list[str]:
    """Lines of the section of RESULTS.md."""
    lines = [
        "| framework | artifact | MB | ours, MB per CPU second | the library | ratio | compared with |",
        "|---|---|---|---|---|---|---|",
    ]
    for speed in speeds:
        about = speed.artifact
        lines.append(
            f"| {about.framework} | {about.what} | {speed.size:.0f} | {speed.ours:.1f} | {speed.other:.1f} "
            f"| {speed.ratio:.2f} | {READERS[about.against][0]} |"
        )
    slow: dict[str, list[str]] = {}
    for speed in speeds:
        if speed.ratio < AIM:
            slow.setdefault(speed.artifact.against, []).append(f"{speed.artifact.framework} {speed.artifact.what}")
    if slow:
        lines += ["", f"Below the aim of {AIM}:", ""]
        lines += [f"- {', '.join(names)}: {WHY_SLOW[kind]}" for kind, names in slow.items()]
    return lines


def measure_all(megabytes: int, repeat: int, only: Sequence[str] = ()) -> list[str]:
    """Measure every artifact (of the named frameworks) and return the lines of the report."""
    speeds = []
    for artifact in ARTIFACTS:
        if not only or artifact.framework in only:
            speeds.append(measure(artifact, megabytes << 20, repeat))
            print(report(speeds[-1:])[2], flush=True)
    return report(speeds)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frameworks", nargs="*")
    parser.add_argument("--megabytes", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    measure_all(options.megabytes, options.repeat, options.frameworks)


if __name__ == "__main__":
    main()
