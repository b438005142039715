"""What a look of ``watch`` costs beside a run of any size.

    python benchmarks/watch.py --trajectories 1000000 [--format events|prime-rl]

Writes a run (``generate.py``, ``prime_rl.py``), looks at it once, and then appends four steps (about 1000
trajectories) before each further look. Seconds on the clock, and of the processor, which on a busy machine say more.
``bench.py --only watch`` writes the table of RESULTS.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import generate
import prime_rl

from staleness_audit.watch.follow import Follower

STEPS_PER_LOOK = 4


def timed(what: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    what()
    return time.perf_counter() - clock, time.process_time() - processor


def events(run: Path, trajectories: int, looks: int) -> Iterator[None]:
    """Write an event log; further steps whenever it is gone on with."""
    before = -(-trajectories // generate.BATCH)
    per_step = generate.BATCH * 5 + 2  # admitted, two spans, finished, trained; step and sync
    texts = generate.texts((before + STEPS_PER_LOOK * looks) * generate.BATCH, 2, None, 0)
    lines = (line for text in texts for line in text.splitlines(keepends=True))
    run.mkdir()
    for count in (1 + before * per_step, *[STEPS_PER_LOOK * per_step] * looks):
        with (run / "run.staleness.jsonl").open("a") as log:
            log.writelines(islice(lines, count))
        yield


def traces(run: Path, trajectories: int, looks: int) -> Iterator[None]:
    """Write a run of prime-rl; further steps whenever it is gone on with."""
    growing = prime_rl.GrowingRun(run)
    for count in (-(-trajectories // prime_rl.PER_STEP), *[STEPS_PER_LOOK] * looks):
        growing.steps(count)
        yield


FORMATS = {"events": events, "prime-rl": traces}


def measure(kind: str, trajectories: int, looks: int, place: Path | None = None) -> list[tuple[float, float]]:
    """Seconds (``timed``) of the first look, of setting aside after it, and of each further look."""
    with tempfile.TemporaryDirectory(prefix="staleness-bench-", dir=place) as folder:
        run = Path(folder) / "run"
        growing = FORMATS[kind](run, trajectories, looks)
        next(growing)
        follower = Follower(run, None, framework=None, folder=Path(folder) / "watching")
        found = [timed(follower.refresh), timed(follower.settle)]
        for _ in growing:
            found.append(timed(follower.refresh))
            follower.settle()
        return found


def table(sizes: dict[str, list[int]], looks: int) -> list[str]:
    """Lines of the section of RESULTS.md."""
    lines = [
        f"A look after {STEPS_PER_LOOK} new steps (about 1000 trajectories), median of {looks}. The first one reads "
        "all. Seconds of the processor.",
        "",
        "| format | trajectories before | first look | setting aside | a further look |",
        "|---|---|---|---|---|",
    ]
    for kind, counts in sizes.items():
        for count in counts:
            first, aside, *further = measure(kind, count, looks)
            processor = statistics.median(seconds for _, seconds in further)
            lines.append(f"| {kind} | {count:,} | {first[1]:.1f} | {aside[1]:.1f} | {processor:.2f} |")
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=FORMATS, default="events")
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--looks", type=int, default=10)
    parser.add_argument("--folder", type=Path, help="where the log and the tables go (default: a temporary folder)")
    options = parser.parse_args()
    first, aside, *looks = measure(options.format, options.trajectories, options.looks, options.folder)
    print("first look      {:8.2f} s, {:8.2f} s of the processor".format(*first))
    print("setting aside   {:8.2f} s, {:8.2f} s of the processor".format(*aside))
    clock, processor = zip(*looks, strict=True)
    print(f"a further look  {min(clock):8.2f} s, {min(processor):8.2f} s of the processor (best)")
    print(f"                {statistics.median(clock):8.2f} s, {statistics.median(processor):8.2f} s (median)")


if __name__ == "__main__":
    main()
