"""Benchmarks of the audit, as ratios measured in one run; writes RESULTS.md beside this file.

    python benchmarks/bench.py [--trajectories 1000000] [--tokens 20000000] [--repeat 3]
        [--only events|frameworks|recorder|simulate|scale|watch] [--decades 100000,1000000,10000000]

On canonical logs the whole audit is measured, on the artifacts of each framework the reading (``frameworks.py``), of
the recorder what it costs its caller (``recorder.py``), of the simulator its time and memory (``simulator.py``), of the
audit how it grows with the run (``scale.py``); with ``--only`` the other parts of RESULTS.md stay.

Every command runs as its own process, alternating with those it is compared with; the fastest repetition counts.
Memory is the peak resident set of the process. Logs are generated once into ``benchmarks/data`` (ignored by git).
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import frameworks
import recorder
import scale
import simulator
import watch

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
FRAMEWORKS = "## Artifacts of the frameworks"
RECORDER = "## The recorder"
SIMULATOR = "## The simulator"
SCALE = "## Scale"
WATCH = "## Watching"


@dataclass(frozen=True)
class Cost:
    """What one process took: wall and CPU seconds, peak resident MiB."""

    wall: float
    cpu: float
    memory: float


def run(command: Sequence[str], cwd: Path) -> Cost:
    """Run a process to its end; raises ``RuntimeError`` for an exit code other than the audit's own 0, 1 and 3."""
    started = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os.chdir(cwd)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        # As an installed tool starts: from bytecode.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.execv(command[0], list(command))
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - started
    if os.waitstatus_to_exitcode(status) not in (0, 1, 3):
        raise RuntimeError(f"{' '.join(command)} failed")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def fastest(costs: Sequence[Cost]) -> Cost:
    """The repetition with the smallest wall time."""
    return min(costs, key=lambda cost: cost.wall)


def generate(name: str, *options: str) -> Path:
    """Make a log unless it is there already."""
    log = DATA / name / "run.staleness.jsonl"
    if not log.exists():
        run([sys.executable, str(HERE / "generate.py"), str(log) + ".part", *options], HERE)
        Path(str(log) + ".part").rename(log)
    return log


def script(name: str, *arguments: str) -> list[str]:
    """Command line of a script this is compared with."""
    return [sys.executable, str(HERE / "against" / name), *arguments]


def audit(log: Path, *options: str) -> list[str]:
    """Command line of an audit."""
    return [sys.executable, "-m", "staleness_audit", "audit", str(log.parent), "--format", "json", "--quiet", *options]


def cold_and_again(log: Path, scratch: Path, repeat: int) -> tuple[Cost, Cost]:
    """A cold audit, and a second one with another bound over the tables it left."""
    cold, again = [], []
    for _ in range(repeat):
        shutil.rmtree(scratch / ".staleness-audit", ignore_errors=True)
        cold.append(run(audit(log), scratch))
        again.append(run(audit(log, "--bound", "2"), scratch))
    return fastest(cold), fastest(again)


def html_report(log: Path, scratch: Path, repeat: int) -> tuple[int, Cost]:
    """Size of the page in bytes, and what it costs to write it over the tables that an audit left."""
    page = scratch / "report.html"
    command = [sys.executable, "-m", "staleness_audit", "report", str(log.parent), "--html", str(page), "--quiet"]
    cost = fastest([run(command, scratch) for _ in range(repeat)])
    return page.stat().st_size, cost


def row(what: str, ours: float, other: float, aim: str, met: bool) -> str:
    """One line of the table of results."""
    return f"| {what} | {ours:.2f} | {other:.2f} | {ours / other:.2f} | {aim} | {'yes' if met else 'no'} |"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=20_000_000)
    parser.add_argument("--megabytes", type=int, default=32, help="size of each framework's artifact")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=("events", "frameworks", "recorder", "simulate", "scale", "watch"))
    parser.add_argument("--decades", default="100000,1000000,10000000", help="numbers of trajectories, for scale")
    options = parser.parse_args()
    logs, _, rest = (HERE / "RESULTS.md").read_text().partition(FRAMEWORKS)
    artifacts, _, rest = rest.partition(RECORDER)
    recording, _, rest = rest.partition(SIMULATOR)
    simulating, _, rest = rest.partition(SCALE)
    scaling, _, watching = rest.partition(WATCH)
    if options.only in (None, "events"):
        logs = "\n".join(measure_events(options))
    if options.only in (None, "frameworks"):
        artifacts = "\n".join(measure_frameworks(options))
    if options.only in (None, "recorder"):
        recording = "\n".join([*recorder.measure_all(options.repeat), "", f"{_machine()}."])
    if options.only in (None, "simulate"):
        simulating = "\n".join(measure_simulator(options))
    if options.only in (None, "scale"):
        scaling = "\n".join(measure_scale(options))
    if options.only in (None, "watch"):
        sizes = {"events": [100_000, options.trajectories], "prime-rl": [10_000, 100_000]}
        watching = "\n".join([*watch.table(sizes, looks=5), "", f"{_machine()}."])
    parts = [logs, FRAMEWORKS, artifacts, RECORDER, recording, SIMULATOR, simulating, SCALE, scaling, WATCH, watching]
    (HERE / "RESULTS.md").write_text("\n\n".join(part.strip() for part in parts) + "\n")
    print((HERE / "RESULTS.md").read_text())


def measure_frameworks(options: argparse.Namespace) -> list[str]:
    """Return the lines of the section about the frameworks' own artifacts."""
    table = frameworks.measure_all(options.megabytes, options.repeat)
    return [
        f"Each artifact grown to about {options.megabytes} MiB from a recorded run; reading it into tables, in one "
        f"process, beside a library that merely reads the same bytes. Fastest of {options.repeat}; {_machine()}.",
        "",
        *table,
    ]


def measure_scale(options: argparse.Namespace) -> list[str]:
    """Return the lines of the section about growth."""
    lines = scale.measure_all(
        run,
        generate,
        trajectories=options.trajectories,
        decades=[int(count) for count in options.decades.split(",")],
        repeat=options.repeat,
    )
    return [*lines, "", f"{_machine()}."]


def measure_simulator(options: argparse.Namespace) -> list[str]:
    """Return the lines of the section about the simulator."""
    costs = {policy: run(simulator.command(policy), HERE) for policy in simulator.MILLION}
    return [
        f"{simulator.BATCH} groups of one trajectory a step, {simulator.VERSIONS} versions, lognormal lengths, "
        f"4 engines, bound {simulator.BOUND}. `dryrun:` is DryRun-RL's model as rebuilt here, which goes through "
        "every engine step that anything disturbs.",
        "",
        *simulator.measure_policies(options.repeat),
        "",
        "A million trajectories (490 steps of 256 groups of 8), the whole command; CPU seconds are compared, because "
        "the machine was shared:",
        "",
        "| policy | seconds | CPU seconds | peak MiB | aim | met |",
        "|---|---|---|---|---|---|",
        *(simulator.million_row(policy, cost.wall, cost.cpu, cost.memory) for policy, cost in costs.items()),
        "",
        f"{_machine()}.",
    ]


def measure_events(options: argparse.Namespace) -> list[str]:
    """Return the lines of the part about canonical logs."""
    log = generate(f"spans-{options.trajectories}", "--trajectories", str(options.trajectories))
    double = generate(f"spans-{2 * options.trajectories}", "--trajectories", str(2 * options.trajectories))
    lists = generate(f"lists-{options.tokens}", "--tokens-listed", str(options.tokens))
    with tempfile.TemporaryDirectory(prefix="staleness-bench-") as folder:
        scratch = Path(folder)
        touch = fastest([run(script("touch_columns.py", str(log)), scratch) for _ in range(options.repeat)])
        plain = fastest([run(script("plain_script.py", str(log)), scratch) for _ in range(options.repeat)])
        cold, again = cold_and_again(log, scratch, options.repeat)
        page, html = html_report(log, scratch, options.repeat)
        shutil.rmtree(scratch / ".staleness-audit", ignore_errors=True)
        twice = run(audit(double), scratch)
        shutil.rmtree(scratch / ".staleness-audit", ignore_errors=True)
        smallest = fastest([run(script("list_minimum.py", str(lists)), scratch) for _ in range(options.repeat)])
        lengths = fastest([run(script("list_lengths.py", str(lists)), scratch) for _ in range(options.repeat)])
        reading = fastest([_read_lists(lists, scratch) for _ in range(options.repeat)])
        whole, _ = cold_and_again(lists, scratch, options.repeat)
    gib = cold.memory / 1024
    table = [
        "| what (seconds, ours : other) | ours | other | ratio | aim | met |",
        "|---|---|---|---|---|---|",
        row(
            "(a) cold audit : DuckDB counting every column", cold.wall, touch.wall, "<= 6", cold.wall <= 6 * touch.wall
        ),
        row(
            "(a) cold audit : json and dicts, two figures only",
            cold.wall,
            plain.wall,
            "<= 0.5",
            cold.wall <= plain.wall / 2,
        ),
        row(
            "(b) audit with another bound : the first audit",
            again.wall,
            cold.wall,
            "<= 0.2",
            again.wall <= 0.2 * cold.wall,
        ),
        row(
            "(c) peak MiB at twice the size : at the size",
            twice.memory,
            cold.memory,
            "< 1.2",
            twice.memory < 1.2 * cold.memory,
        ),
        row(
            "(d) reading version lists : json and min() of each",
            reading.wall,
            smallest.wall,
            "<= 0.67",
            reading.wall <= smallest.wall / 1.5,
        ),
        row(
            "(d) reading version lists : DuckDB sum(len())",
            reading.wall,
            lengths.wall,
            "<= 1.43",
            reading.wall <= lengths.wall / 0.7,
        ),
        row("(d) whole audit of version lists : json and min()", whole.wall, smallest.wall, "-", True),
    ]
    return [
        "# Benchmark results",
        "",
        f"{options.trajectories:,} trajectories of 3 spans ({log.stat().st_size / 1e6:.0f} MB of JSON lines); "
        f"{options.tokens:,} tokens listed one version each ({lists.stat().st_size / 1e6:.0f} MB). "
        f"Fastest of {options.repeat}; {_machine()}. Made by `make bench`.",
        "",
        *table,
        "",
        f"(c) peak memory of the cold audit: {gib:.2f} GiB (aim <= 1.5 GiB); CPU of the cold audit {cold.cpu:.1f} s, "
        f"of the json script {plain.cpu:.1f} s.",
        "",
        f"HTML report over the tables: {page / 1e6:.1f} MB (aim < 8 MB), {html.wall:.1f} s with the audit of "
        f"{again.wall:.1f} s.",
    ]


def _machine() -> str:
    return f"{os.cpu_count()} cores, Python {platform.python_version()}"


def _read_lists(lists: Path, scratch: Path) -> Cost:
    shutil.rmtree(scratch / "tables", ignore_errors=True)
    return run(script("ingest_only.py", str(lists.parent), str(scratch / "tables")), scratch)


if __name__ == "__main__":
    main()
