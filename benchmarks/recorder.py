"""What recording an event costs the caller, beside ``logging`` and plain ``json.dumps``.

Each way of writing the same ``span`` event runs in a process of its own, alternating with the others. Time is what
passes on the caller's clock around a burst of 1000 events, as a rollout worker records them; in the 60 ms between two
bursts it does something else (here: sleeps), and a background thread can write. The fastest quarter of the bursts is
averaged, as on a busy machine the others measure the neighbours; the median is given too. "Without a pause" is all in
one go, so that the caller also waits while the background thread holds the interpreter.
"""

from __future__ import annotations

import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from staleness_audit.recorder import Recorder

BURST = 1000
PAUSE = 0.06
EVENTS = 50_000
WAYS: dict[str, tuple[str, int | None]] = {
    "buffered": ("recorder, buffered", 3),
    "durable": ("recorder, `durable=True`", 8),
    "json": ("`json.dumps` to a line-buffered file", None),
    "logging": ("`logging` to a file (text)", None),
}
"""Name in the table, and what is aimed at."""


def caller(way: str, folder: Path, stack: ExitStack) -> Callable[[int], None]:
    """Return a function that records one span with its number in the given way."""
    if way in ("buffered", "durable"):
        record = stack.enter_context(Recorder(folder, durable=way == "durable"))
        return lambda number: record.span("g17/3", tokens=number, version=3)
    if way == "json":
        # Line buffering flushes every line, as the durable recorder does.
        log = (folder / "plain.jsonl").open("w", buffering=1)

        def plain(number: int) -> None:
            event = {"kind": "span", "n": number, "trajectory_id": "g17/3", "tokens": number, "version": 3}
            log.write(json.dumps({**event, "ts": time.time()}) + "\n")

        return plain
    logger = logging.getLogger("bench")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.FileHandler(folder / "logging.txt"))
    return lambda number: logger.info("span trajectory_id=%s tokens=%d version=%d", "g17/3", number, 3)


def measure(way: str, events: int, pause: float) -> dict[str, float]:
    """Microseconds per event: of the fastest quarter of bursts, and the median."""
    with tempfile.TemporaryDirectory(prefix="staleness-bench-") as folder, ExitStack() as stack:
        call = caller(way, Path(folder), stack)
        call(0)
        costs = []
        for start in range(0, events, BURST):
            begun = time.perf_counter()
            for number in range(start, start + BURST):
                call(number)
            costs.append((time.perf_counter() - begun) / BURST * 1e6)
            time.sleep(pause)
    costs.sort()
    return {"fast": statistics.mean(costs[: max(len(costs) // 4, 1)]), "median": statistics.median(costs)}


def measure_all(repeat: int) -> list[str]:
    """Lines of the section of RESULTS.md."""
    found: dict[tuple[str, float], list[dict[str, float]]] = {}
    for _ in range(repeat):
        for pause in (PAUSE, 0.0):
            for way in WAYS:
                command = [sys.executable, __file__, way, str(EVENTS), str(pause)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found.setdefault((way, pause), []).append(json.loads(done.stdout))
    table = []
    for way, (name, aim) in WAYS.items():
        fast, median = (min(cost[which] for cost in found[way, PAUSE]) for which in ("fast", "median"))
        tight = min(cost["median"] for cost in found[way, 0.0])
        met = "-" if aim is None else "yes" if fast <= aim else "no"
        wanted = "-" if aim is None else f"<= {aim}"
        table.append(f"| {name} | {fast:.1f} | {median:.1f} | {tight:.1f} | {wanted} | {met} |")
    return [
        f"One `span` event with a time, {EVENTS:,} of them in bursts of {BURST:,}; microseconds of the caller per "
        f"event. Best of {repeat}.",
        "",
        "| way | fastest quarter of bursts | median burst | median without a pause | aim | met |",
        "|---|---|---|---|---|---|",
        *table,
    ]


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
