"""What a look of ``watch`` costs beside a run of any size.

    python benchmarks/watch.py --trajectories 1000000

Writes the event log of a run (``generate.py``), looks at it once, and then appends four steps (1024 trajectories, with
the lines of those that later steps will train) before each further look. Seconds on the clock, and of the processor,
which on a busy machine say more.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import generate

from staleness_audit.watch.follow import Follower

STEPS_PER_LOOK = 4


def timed(what: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    what()
    return time.perf_counter() - clock, time.process_time() - processor


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--looks", type=int, default=10)
    parser.add_argument("--folder", type=Path, help="where the log and the tables go (default: a temporary folder)")
    options = parser.parse_args()
    before = -(-options.trajectories // generate.BATCH)
    per_step = generate.BATCH * 5 + 2  # admitted, two spans, finished, trained; step and sync
    texts = generate.texts((before + STEPS_PER_LOOK * options.looks) * generate.BATCH, 2, None, 0)
    lines = (line for text in texts for line in text.splitlines(keepends=True))
    with tempfile.TemporaryDirectory(prefix="staleness-bench-", dir=options.folder) as place:
        run = Path(place) / "run"
        run.mkdir()
        follower = Follower(run, None, framework=None, folder=Path(place) / "watching")
        with (run / "run.staleness.jsonl").open("w") as log:
            log.writelines(islice(lines, 1 + before * per_step))
            log.flush()
            print(f"{options.trajectories:,} trajectories, {log.tell() / 1e6:,.0f} MB")
            print("first look      {:8.2f} s, {:8.2f} s of the processor".format(*timed(follower.refresh)))
            print("setting aside   {:8.2f} s, {:8.2f} s of the processor".format(*timed(follower.settle)), flush=True)
            looks = []
            for _ in range(options.looks):
                log.writelines(islice(lines, STEPS_PER_LOOK * per_step))
                log.flush()
                looks.append(timed(follower.refresh))
                follower.settle()
        clock, processor = zip(*looks, strict=True)
        print(f"a further look  {min(clock):8.2f} s, {min(processor):8.2f} s of the processor (best)")
        print(f"                {statistics.median(clock):8.2f} s, {statistics.median(processor):8.2f} s (median)")


if __name__ == "__main__":
    main()
