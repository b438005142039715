"""How the audit grows with the run: processes, memory, trajectories. Part of ``bench.py`` (``--only scale``).

- Two processes against one, over artifacts whose reading is Python's work. Each may use one core (DuckDB and Polars
  too), so that nothing but the second process can make it faster. Wall seconds of the whole command, and CPU seconds of
  all its processes, which hold on a busy machine, too. *Reading* is the share of the one process' time in which units
  were read: the rest, above all joining them, is one process' work.
- An audit whose ``--memory`` is a quarter of the log: what the process holds at most beyond it is the fixed overhead.
- Seconds per trajectory over two decades of sizes: the slope of their logarithms, start-up (an audit of 100
  trajectories) subtracted. A slope of 1 is a cost per trajectory that stays the same.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import frameworks

HERE = Path(__file__).resolve().parent
TWO_PROCESSES = (
    ("areal", "session traces", 128),
    ("nemo-rl", "console (async_grpo)", 256),
    ("prime-rl", "rollout traces", 512),
    ("psrl", "component log", 256),
    ("slime", "rollout dumps", 64),
    ("slime", "console", 32),
    ("verl", "metric records", 512),
)
"""Artifacts, and how many MiB of each are read: some seconds' work, beside which starting a process is little."""
AIM_TWO = 1.6
BOUND_BY_PARSING = 0.75
"""Share of one process' time that must be reading units for 1.6 times to be possible: 1 / (1 - share / 2)."""
AIM_SLOPE = 1.05
LEAST_MEMORY = 100_000_000

Run = Callable[[Sequence[str], Path], Any]
"""``bench.run``: a command and its folder in, ``bench.Cost`` out."""


@contextmanager
def one_core() -> Iterator[None]:
    """Let libraries of the commands use one thread."""
    names = ("STALENESS_AUDIT_THREADS", "POLARS_MAX_THREADS", "OMP_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def grown(framework: str, what: str, size: int) -> Path:
    """Return a run with an artifact of about ``size`` bytes."""
    artifact = next(each for each in frameworks.ARTIFACTS if (each.framework, each.what) == (framework, what))
    root, _ = frameworks.grow(artifact, size)
    return root


def two_processes(run: Run, repeat: int) -> Iterator[str]:
    """Yield the table's lines."""
    yield "| artifact | MB | one process, s | two, s | times as fast | aim | met | reading | CPU s, one | two |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for framework, what, megabytes in TWO_PROCESSES:
        root = grown(framework, what, megabytes << 20)
        size = sum(file.stat().st_size for file in root.rglob("*") if file.is_file())
        found: dict[int, list[Any]] = {1: [], 2: []}
        shares: list[float] = []
        with tempfile.TemporaryDirectory(prefix="staleness-bench-") as folder, one_core():
            for again in range(repeat):
                for workers, costs in found.items():
                    tables = Path(folder) / f"{workers}-{again}"
                    script = str(HERE / "against" / "ingest_workers.py")
                    command = [sys.executable, script, str(root), framework, str(tables), str(workers)]
                    costs.append(run(command, Path(folder)))
                    if workers == 1:
                        shares.append(float(Path(f"{tables}.read").read_text()) / costs[-1].wall)
                    shutil.rmtree(tables)
        one, two = (min(costs, key=lambda cost: cost.wall) for costs in found.values())
        gain = one.wall / two.wall
        share = max(shares)
        met = "yes" if gain >= AIM_TWO else "no" if share >= BOUND_BY_PARSING else "not bound by parsing"
        line = (
            f"| {framework} {what} | {size / 1e6:.0f} | {one.wall:.1f} | {two.wall:.1f} | {gain:.2f} | >= {AIM_TWO} "
            f"| {met} | {share:.2f} | {one.cpu:.1f} | {two.cpu:.1f} |"
        )
        print(line, flush=True)
        yield line


def limited(run: Run, log: Path, repeat: int) -> Iterator[str]:
    """Yield what an audit takes whose memory is a quarter of the log, and what it takes beyond that."""
    size = log.stat().st_size
    memory = max(LEAST_MEMORY, size // 4)
    yield "| log, MB | --memory, MB | peak of the process, MB | beyond --memory, MB | seconds | without a limit, s |"
    yield "|---|---|---|---|---|---|"
    free = min(_cold(run, log).wall for _ in range(repeat))
    for limit in (memory, 4 * memory):
        bound = [_cold(run, log, "--memory", str(limit)) for _ in range(repeat)]
        least = min(bound, key=lambda cost: cost.wall)
        peak = min(cost.memory for cost in bound) * 2**20
        line = (
            f"| {size / 1e6:.0f} | {limit / 1e6:.0f} | {peak / 1e6:.0f} | {(peak - limit) / 1e6:.0f} "
            f"| {least.wall:.1f} | {free:.1f} |"
        )
        print(line, flush=True)
        yield line


def _cold(run: Run, log: Path, *options: str) -> Any:
    with tempfile.TemporaryDirectory(prefix="staleness-bench-") as folder:
        command = [sys.executable, "-m", "staleness_audit", "audit", str(log.parent), "--format", "json", "--quiet"]
        return run([*command, *options], Path(folder))


def growth(run: Run, logs: Sequence[tuple[int, Path]], smallest: Path, repeat: int) -> Iterator[str]:
    """Yield seconds per trajectory by size, and the slope; ``logs``: number of trajectories and log."""
    start = [_cold(run, smallest) for _ in range(max(3, repeat))]
    wall, cpu = min(cost.wall for cost in start), min(cost.cpu for cost in start)
    yield "| trajectories | log, MB | seconds | CPU seconds | CPU, microseconds a trajectory | peak MiB |"
    yield "|---|---|---|---|---|---|"
    walls, cpus = [], []
    for count, log in logs:
        costs = [_cold(run, log) for _ in range(repeat if count < 1_000_000 else 1)]
        walls.append((count, min(cost.wall for cost in costs) - wall))
        cpus.append((count, min(cost.cpu for cost in costs) - cpu))
        peak = max(cost.memory for cost in costs)
        line = (
            f"| {count:,} | {log.stat().st_size / 1e6:.0f} | {walls[-1][1]:.1f} | {cpus[-1][1]:.1f} "
            f"| {cpus[-1][1] / count * 1e6:.1f} | {peak:.0f} |"
        )
        print(line, flush=True)
        yield line
    yield ""
    met = slope(cpus) <= AIM_SLOPE
    yield (
        f"Start-up, which is subtracted: {wall:.1f} s, {cpu:.1f} CPU s. Slope of the logarithms: {slope(cpus):.3f} in "
        f"CPU seconds, {slope(walls):.3f} in seconds (aim <= {AIM_SLOPE}: {'met' if met else 'not met'})."
    )


def slope(points: Sequence[tuple[int, float]]) -> float:
    """Least-squares slope of log(seconds) over log(trajectories)."""
    xs, ys = [math.log(count) for count, _ in points], [math.log(seconds) for _, seconds in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def measure_all(
    run: Run, generate: Callable[..., Path], *, trajectories: int, decades: Sequence[int], repeat: int
) -> list[str]:
    """Measure everything and return the lines of the section."""
    logs = [(count, generate(f"spans-{count}", "--trajectories", str(count))) for count in decades]
    large = generate(f"spans-{trajectories}", "--trajectories", str(trajectories))
    return [
        f"Reading, with two processes against one (fastest of {repeat}; each with one thread):",
        "",
        *two_processes(run, repeat),
        "",
        "An audit in a quarter of the log's size, and in all of it:",
        "",
        *limited(run, large, 1),
        "",
        "Cost by number of trajectories, start-up subtracted:",
        "",
        *growth(run, logs, generate("spans-100", "--trajectories", "100"), repeat),
    ]
