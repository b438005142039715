"""A recorder in Ray actors: it arrives as a fresh one, and what a killed actor did not close cannot pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from staleness_audit import audit
from staleness_audit.recorder import Recorder

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Any:
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow
def test_actors_write_files_of_their_own(cluster: Any, tmp_path: Path) -> None:
    """Two actors generate 10 tokens of v0 each, the driver trains both in step 1, from v1."""

    class Worker:
        def __init__(self, record: Recorder) -> None:
            self.record = record

        def generate(self, name: str) -> None:
            self.record.span(name, tokens=10, version=0)
            self.record.flush()

        def close(self) -> None:
            self.record.close()

    record = Recorder(tmp_path / "run", "w", framework="toy", bound=1)
    workers = [ray.remote(Worker).remote(record) for _ in range(2)]
    ray.get([worker.generate.remote(f"t{number}") for number, worker in enumerate(workers)])
    for number in range(2):
        record.trained(f"t{number}", step=1)
    record.step(1, version=1, trajectories=2, loss_tokens=20)
    record.close()
    ray.get(workers[0].close.remote())
    ray.kill(workers[1])  # no end line
    assert len(list((tmp_path / "run").iterdir())) == 3
    data = audit(tmp_path / "run").data
    assert (data["verdict"], data["tokens"]["trained"]["lo"]) == ("inconclusive", 20)
    assert [item["code"] for item in data["diagnostics"]["items"]] == ["no-end-line"]
    # One that is closed in a method of its own is whole.
    again = Recorder(tmp_path / "whole", "w", framework="toy", bound=1)
    worker = ray.remote(Worker).remote(again)
    ray.get(worker.generate.remote("t"))
    ray.get(worker.close.remote())
    again.trained("t", step=1)
    again.step(1, version=1)
    again.close()
    assert audit(tmp_path / "whole").verdict == "pass"
