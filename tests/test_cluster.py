"""A real Ray cluster of several nodes: the same answer as this machine's, also when one of them dies at work."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.cases import SAMPLES
from helpers.command import run, sentence

from staleness_audit import rebuild as rebuilding
from staleness_audit.api import audit
from staleness_audit.discovery import RunFiles


def test_without_ray_one_sentence_says_what_to_install(two_step_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    said = sentence(run("audit", two_step_run("run", bound=2), "--engine", "ray"))
    assert "pip install 'staleness-audit[ray]'" in said
    assert "give --engine ray too" in sentence(run("audit", two_step_run("run", bound=2), "--ray-address", "auto"))


def test_nobody_at_the_address(two_step_run: Any) -> None:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    said = sentence(run("audit", two_step_run("run", bound=2), "--engine", "ray", "--ray-address", f"127.0.0.1:{free}"))
    assert f"--ray-address 127.0.0.1:{free}: no Ray cluster answers" in said


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    """An object store; nodes know it by their environment."""
    pytest.importorskip("moto")
    from helpers.object_store import object_store

    with object_store() as door, pytest.MonkeyPatch.context() as patch:
        for name, value in door.environment().items():
            patch.setenv(name, value)
        yield door


@pytest.fixture(scope="module")
def nodes(store: Any) -> Iterator[Any]:
    """A head that computes nothing, and two nodes of one core; this process is connected to it."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def in_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebuild in three partitions, however short the run is; read in pieces of 4 kB."""
    monkeypatch.setattr(rebuilding, "count_partitions", lambda *_: 3)
    monkeypatch.setattr(RunFiles.split, "__defaults__", (4096,))


CASE = SAMPLES / "prime-rl" / "strict_bound2" / "run"


@pytest.mark.slow
def test_the_answer_is_the_same(nodes: Any, in_three: None) -> None:
    alone = run("audit", CASE, "--format", "json", "--tables", "alone")
    together = run("audit", CASE, "--format", "json", "--tables", "together", "--engine", "ray")
    assert together.stdout, (together.stderr, together.exception)
    assert json.loads(together.stdout) == json.loads(alone.stdout)
    assert together.exit_code == alone.exit_code


@pytest.mark.slow
def test_a_node_that_dies_costs_only_its_units(nodes: Any, in_three: None, event_log: Any, tmp_path: Path) -> None:
    """Of three nodes that with half of the cores dies after eight units of 4 kB: no other unit is read again."""
    from staleness_audit.cluster import connected

    log = event_log("run", bound=1)
    for number in range(500):
        log.add("span", trajectory_id=f"t{number}", tokens=10, version=number // 100)
        log.add("finished", trajectory_id=f"t{number}", ts=float(number))
        log.add("trained", trajectory_id=f"t{number}", step=number // 50)
    for step in range(10):
        log.add("step", step=step, version=step)
    folder = log.close()
    expected = audit(folder, tables="alone").data
    assert expected["verdict"] == "fail"
    doomed = nodes.add_node(num_cpus=2)
    nodes.wait_for_nodes()
    counts: list[tuple[int, int]] = []
    written: dict[str, int] = {}
    parts = tmp_path / "together" / ".parts"

    def progress(done: int, total: int, what: str) -> None:
        if what != "run.staleness.jsonl":  # the units are read
            return
        counts.append((done, total))
        if len(counts) == 8:
            nodes.remove_node(doomed, allow_graceful=False)
            written.update({each.name: each.stat().st_mtime_ns for each in parts.glob("[!.]*")})

    with connected() as pool:
        found = audit(folder, tables="together", progress=progress, pool=pool).data
    assert len(counts) == counts[-1][1] > 20
    assert len(written) >= 8
    assert {name: (parts / name).stat().st_mtime_ns for name in written} == written
    assert found == expected


@pytest.mark.slow
def test_tables_at_a_url_and_workers_that_share_no_disk(nodes: Any, in_three: None) -> None:
    """Units, partitions and what they yield go through the object store alone."""
    fsspec = pytest.importorskip("fsspec")
    expected = audit(CASE, tables="alone").data
    fsspec.filesystem("s3").mkdir("bucket")
    result = run("audit", CASE, "--format", "json", "--tables", "s3://bucket/tables", "--engine", "ray")
    assert result.stdout, (result.stderr, result.exception)
    assert json.loads(result.stdout) == expected
    left = {path.split("/")[2] for path in fsspec.filesystem("s3").find("bucket/tables")}
    assert left == {".parts", "run.json", "sources"}


@pytest.mark.slow
def test_a_sweep(nodes: Any, tmp_path: Path) -> None:
    import polars as pl

    options = ("areal", "slime", "--bounds", "1,2", "--steps", "6", "--batch", "4", "--quiet")
    assert run("sweep", *options, "--out", "together", "--engine", "ray").exit_code == 0
    assert run("sweep", *options, "--out", "alone", "--workers", "1").exit_code == 0
    assert pl.read_parquet("together/results.parquet").equals(pl.read_parquet("alone/results.parquet"))
