"""Eight processes write, one watches, for a minute: nothing is lost, nothing counted twice, memory stays flat."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest
from helpers.recording import SOAK_WORKERS, soak_trainer, soak_worker

from staleness_audit.recorder import Recorder

SECONDS = 60.0
STEPS = 2000


def resident(process: int) -> int:
    """Bytes of memory that a process holds."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_eight_writers_and_a_watcher(tmp_path: Path) -> None:
    """7 workers and a trainer, 2000 steps of 7 trajectories with 10 tokens, each one version old; the bound is 1."""
    record = Recorder(tmp_path / "run", "soak", framework="toy", bound=1, rotate_bytes=1 << 18)
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=soak_worker, args=(record, worker, STEPS, SECONDS)) for worker in range(SOAK_WORKERS)
    ]
    writers.append(context.Process(target=soak_trainer, args=(record, STEPS, SECONDS)))
    for writer in writers:
        writer.start()
    while not list(tmp_path.glob("run/*.jsonl")):
        time.sleep(0.05)
    command = [sys.executable, "-m", "staleness_audit", "watch", "run", "--every", "0.5", "--format", "jsonl"]
    held = []
    with (tmp_path / "states.jsonl").open("w") as states:
        watcher = subprocess.Popen([*command, "--until-finished"], stdout=states, cwd=tmp_path)
        while any(writer.is_alive() for writer in writers):
            held.append(resident(watcher.pid))
            time.sleep(0.5)
        code = watcher.wait(300)  # the last audit, on however busy a machine
    assert [writer.exitcode for writer in writers] == [0] * 8

    *seen, last = map(json.loads, (tmp_path / "states.jsonl").read_text().splitlines())
    trained = SOAK_WORKERS * STEPS
    for state in (seen[-1], {**last["audit"], "steps": last["audit"]["run"]["steps"]}):
        assert state["verdict"] == "pass"
        assert state["steps"] == {"lo": STEPS, "hi": STEPS}
        assert state["tokens"]["trained"] == {"lo": 10 * trained, "hi": 10 * trained}
    assert last["audit"]["trajectories"]["seen"] == {"lo": trained, "hi": trained}
    assert last["audit"]["diagnostics"]["items"] == []
    assert code == 0
    # Never backwards, and never more than there is.
    tokens = [state["tokens"]["trained"]["lo"] for state in seen]
    assert tokens == sorted(tokens)
    assert tokens[-1] == 10 * trained
    assert len(seen) > 1  # on a busy machine a look may take half a minute
    middle, end = median(held[len(held) // 3 : len(held) // 2]), median(held[-len(held) // 6 :])
    assert end < 1.3 * middle, [size >> 20 for size in held]
