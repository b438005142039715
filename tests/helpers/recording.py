"""What worker processes do that record; imported by them, so it needs only the recorder."""

from __future__ import annotations

import time

from staleness_audit.recorder import Recorder


def one_step(record: Recorder, name: str = "a", step: int = 3) -> None:
    """10 tokens of v0 are trained by the step that starts from v2: staleness 2."""
    record.span(name, tokens=10, version=0)
    record.trained(name, step=step)
    record.step(step, version=2, trajectories=1, loss_tokens=10)


def roll_out(record: Recorder, number: int) -> None:
    """Generate a trajectory, and leave without closing the recorder."""
    record.span(f"t{number}", tokens=10, version=0)


def soak(record: Recorder, process: int, seconds: float) -> None:
    """Record steps for a while; tell in a last ``sync`` how many there were."""
    until = time.monotonic() + seconds
    step = 0
    while time.monotonic() < until:
        one_step(record, f"{process}/{step}", step=step * 8 + process)
        step += 1
        if step % 200 == 0:
            time.sleep(0.01)
    record.sync(step)
    record.close()
    assert record.stats.dropped == record.stats.failed == 0


SOAK_WORKERS = 7
"""Rollout workers beside the one trainer of the watched soak."""


def soak_worker(record: Recorder, worker: int, steps: int, seconds: float) -> None:
    """Generate a trajectory of 10 tokens for each step, by the version before the step's (at first by v0)."""
    begun = time.monotonic()
    for step in range(steps):
        name = f"{worker}/{step}"
        record.admitted(name)
        record.span(name, tokens=10, version=max(step - 1, 0))
        record.finished(name)
        time.sleep(max(0.0, begun + seconds * step / steps - time.monotonic()))
    record.close()
    assert record.stats.dropped == record.stats.failed == 0


def soak_trainer(record: Recorder, steps: int, seconds: float) -> None:
    """Train all workers' trajectories of a step in it; some lines come before those of the workers."""
    begun = time.monotonic()
    for step in range(steps):
        started = time.time()
        for worker in range(SOAK_WORKERS):
            record.trained(f"{worker}/{step}", step=step)
        record.step(step, version=step, started=started, trajectories=SOAK_WORKERS, loss_tokens=10 * SOAK_WORKERS)
        time.sleep(max(0.0, begun + seconds * step / steps - time.monotonic()))
    record.close()
    assert record.stats.dropped == record.stats.failed == 0
