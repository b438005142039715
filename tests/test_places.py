"""Runs and tables on object storage: an HTTP server that speaks S3, and also turns requests away and breaks off."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from helpers.cases import SAMPLES
from helpers.command import run, sentence

from staleness_audit import places
from staleness_audit.discovery import RunFiles
from staleness_audit.places import place
from staleness_audit.store import store as store_at

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("s3fs")
pytest.importorskip("moto")

from helpers.door import Request, once  # noqa: E402 - needs werkzeug, which comes with moto
from helpers.object_store import ObjectStore, object_store  # noqa: E402 - needs moto


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as door:
        yield door


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """The store with an empty bucket, reached through the ordinary variables."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    fs = fsspec.filesystem("s3", skip_instance_cache=True)
    if fs.exists("bucket"):
        fs.rm("bucket", recursive=True)
    fs.mkdir("bucket")
    fsspec.filesystem("s3").clear_instance_cache()
    places._ranged.cache_clear()  # another module's store had an address of its own
    server.reset()
    yield server


def put(folder: Path, url: str) -> str:
    fs = fsspec.filesystem("s3")
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            fs.put_file(str(file), f"{url}/{file.relative_to(folder)}")
    return url


def document(path: Any, *options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("audit", path, "--format", "json", *options).stdout)
    return found


def without_path(data: dict[str, Any]) -> dict[str, Any]:
    """The document but for where the run is, and what tells its files from others."""
    return {**data, "run": {**data["run"], "path": None}, "inputs": None}


@pytest.mark.parametrize(
    "case",
    [
        "slime/fully_async_balanced",  # torch files, event files, a console
        pytest.param("prime-rl/strict_bound2", marks=pytest.mark.slow),  # JSON lines
        pytest.param("roll/agentic_native", marks=pytest.mark.slow),  # compressed logs
        pytest.param("trl/fixed-ga1-s1", marks=pytest.mark.slow),
    ],
)
def test_a_run_on_s3_is_judged_like_its_copy_here(store: ObjectStore, case: str) -> None:
    folder = SAMPLES / case / "run"
    there = document(put(folder, "s3://bucket/run"), "--bound", "2")
    assert there["run"]["path"] == "s3://bucket/run"
    assert without_path(there) == without_path(document(folder, "--bound", "2"))


@pytest.mark.slow
def test_an_audit_at_a_url_is_verified_there_and_on_a_copy(store: ObjectStore, tmp_path: Path) -> None:
    """Contents cannot be compared with a copy's, sizes can: a file of other bytes and size is named."""
    folder = Path(shutil.copytree(SAMPLES / "events" / "kept_bound1" / "run", tmp_path / "copy"))
    url = put(folder, "s3://bucket/run")
    assert run("audit", url, "--format", "json", "--output", "audit.json").exit_code == 0
    there = run("verify", "audit.json", url)
    assert (there.exit_code, "unchecked" in there.stdout) == (0, False), there.output
    here = run("verify", "audit.json", folder)
    assert (here.exit_code, here.stdout.startswith("same")) == (0, True), here.output
    assert "unchecked contents of the inputs: recorded by their listing, now by their bytes" in here.stdout
    (log,) = folder.iterdir()
    log.write_bytes(log.read_bytes() + b"\n")
    changed = run("verify", "audit.json", folder)
    assert changed.exit_code == 1 and f"input {log.name}: recorded " in changed.stdout


def test_compressed_logs_are_streamed(store: ObjectStore, two_step_run: Any, tmp_path: Path) -> None:
    """The same log as it is, as .gz and as .zst: the same verdict, and the object is named with its suffix."""
    log = next(two_step_run("run", bound=1).glob("*.jsonl"))
    expected = without_path(document(log.parent))
    for suffix, data in (
        (".gz", gzip.compress(log.read_bytes())),
        (".zst", zstandard.ZstdCompressor().compress(log.read_bytes())),
    ):
        fsspec.filesystem("s3").pipe(f"bucket/run{suffix}/{log.name}{suffix}", data)
        found = document(f"s3://bucket/run{suffix}")
        assert found["violations"]["worst"][0]["evidence"][0]["source"] == log.name + suffix
        assert found["verdict"] == expected["verdict"] == "fail"
        assert found["violations"]["tokens"] == expected["violations"]["tokens"]


def test_large_objects_are_read_in_ranges_and_cut_like_files(store: ObjectStore, tmp_path: Path) -> None:
    """20,000 lines of 1 kB in pieces of 2 MB: cut where the file is cut, and no range is fetched twice to be cut."""
    from staleness_audit.discovery import discover

    lines = b"".join(b"%09d" % number + b" " * 990 + b"\n" for number in range(20_000)) + b"cut"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.txt").write_bytes(lines)
    there, here = discover(place(put(tmp_path / "run", "s3://bucket/run"))), discover(tmp_path / "run")
    store.requests.clear()
    assert list(there.split("log.txt", 2 << 20)) == list(here.split("log.txt", 2 << 20))
    assert store.read("log.txt") == len(lines)
    with there.open("log.txt") as stream:
        stream.seek(15_000_000)
        assert stream.read(9) == b"000015000"
    assert there.head("log.txt", 4) == b"0000"


def test_a_large_object_is_fetched_once_to_be_cut_and_read(
    store: ObjectStore, event_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of 75 kB in pieces of 8 kB: all of its bytes come over the network once."""
    monkeypatch.setattr(RunFiles.split, "__defaults__", (8 << 10,))
    log = event_log("run", bound=1)
    for number in range(500):
        log.add("span", trajectory_id=f"t{number}", tokens=10, version=0)
        log.add("trained", trajectory_id=f"t{number}", step=0)
    log.add("step", step=0, version=0)
    folder = log.close()
    (file,) = folder.iterdir()
    url = put(folder, "s3://bucket/run")
    store.requests.clear()
    there = document(url)
    assert store.read(file.name) == file.stat().st_size
    assert without_path(there) == without_path(document(folder))
    assert there["trajectories"]["trained"] == {"lo": 500, "hi": 500}
    assert not list(Path(tempfile.gettempdir()).glob("staleness-audit-spool-*/work/*"))


def test_tables_on_s3(store: ObjectStore, two_step_run: Any, tmp_path: Path) -> None:
    """Tables are written there once, and audited there without the run, by somebody who may only read."""
    folder, url = two_step_run("run", bound=1), "s3://bucket/tables"
    assert run("ingest", folder, "--tables", url).exit_code == 0
    assert without_path(document(url)) == without_path(document(folder))
    written = store.written()
    assert run("ingest", folder, "--tables", url).exit_code == 0
    assert len(written) > 5 and store.written() == written
    # A log that grew replaces tables; what the old ones alone stood on goes.
    shutil.rmtree(".staleness-audit")
    log = next(folder.glob("*.jsonl"))
    log.write_text(log.read_text().replace('"bound": 1', '"bound": 2'))
    assert run("ingest", folder, "--tables", url).exit_code == 0
    assert document(url)["verdict"] == "pass"
    units = {name.split("/")[3] for name in fsspec.filesystem("s3").find("bucket/tables/.parts")}
    assert len(units) == 2
    assert "12" in run("sql", url, "SELECT count(*) + 10 FROM trajectories").stdout
    assert run("report", url, "--html", tmp_path / "page.html").exit_code == 0


def test_of_tables_only_what_is_asked_for_is_fetched(store: ObjectStore, tmp_path: Path) -> None:
    """Ten columns of 80,000 random numbers, 6.4 MB: one column is a tenth of that."""
    import duckdb
    import numpy as np
    import polars as pl

    from staleness_audit.engine import create_view, scan

    rng = np.random.default_rng(0)
    rows = pl.DataFrame({f"c{number}": rng.random(80_000) for number in range(10)})
    rows.write_parquet(tmp_path / "part.parquet", row_group_size=40_000)
    fsspec.filesystem("s3").put_file(str(tmp_path / "part.parquet"), "bucket/part.parquet")
    size = (tmp_path / "part.parquet").stat().st_size
    parts = [place("s3://bucket/part.parquet")]
    store.requests.clear()
    with duckdb.connect() as connection:
        create_view(connection, "part", parts)
        assert connection.execute("SELECT sum(c3) FROM part").fetchone() == pytest.approx((rows["c3"].sum(),))
    assert store.read("part.parquet") < size / 2
    store.requests.clear()
    assert scan(parts).select("c3").collect()["c3"].sum() == pytest.approx(rows["c3"].sum())
    assert store.read("part.parquet") < size / 2


def test_patterns_and_folders_of_runs(store: ObjectStore, two_step_run: Any) -> None:
    for name, bound in (("seed-1", 2), ("seed-2", 1)):
        put(two_step_run(name, bound=bound), f"s3://bucket/runs/{name}")
    done = run("audit", "s3://bucket/runs/seed-*", "--format", "json")
    assert done.exit_code == 1
    assert [data["verdict"] for data in json.loads(done.stdout)] == ["pass", "fail"]
    assert len(json.loads(run("compare", "s3://bucket/runs/*", "--format", "json").stdout)["runs"]) == 2


# ------------------------------------------------------------------------------------------------- when it goes wrong


def test_throttled_requests_are_made_again(store: ObjectStore, two_step_run: Any) -> None:
    """Every request is told to slow down once before it is answered."""
    url, told = put(two_step_run("run", bound=1), "s3://bucket/run"), set()

    def first_time(request: Request) -> bool:
        new = (request.method, request.path) not in told
        told.add((request.method, request.path))
        return new

    store.slow_down = first_time
    assert document(url)["verdict"] == "fail"
    assert told


def test_a_read_that_breaks_off_is_made_again(store: ObjectStore, two_step_run: Any) -> None:
    """The first answer with the log in it ends halfway: no half log may be taken for the whole."""
    folder = two_step_run("run", bound=1)
    url = put(folder, "s3://bucket/run")
    store.cut, met = once(".jsonl")
    assert without_path(document(url)) == without_path(document(folder))
    assert met


@pytest.mark.slow
def test_what_goes_on_failing_is_no_damage(store: ObjectStore, two_step_run: Any) -> None:
    """A log that can't be fetched is an error with exit code 2: nothing is said about the run, and nothing kept."""
    url = put(two_step_run("run", bound=2), "s3://bucket/run")
    store.slow_down = lambda request: request.path.endswith(".jsonl")
    assert "s3://bucket/run" in sentence(run("audit", url))
    store.slow_down = lambda _: False
    assert document(url)["verdict"] == "pass"


def test_urls_that_lead_nowhere(store: ObjectStore) -> None:
    assert "there is nothing of this name" in sentence(run("audit", "s3://bucket/nothing"))
    assert "no password" in sentence(run("audit", "ftp://me:secret@example.org/run"))
    assert "secret" not in sentence(run("audit", "ftp://me:secret@example.org/run"))
    assert "unsupported" in sentence(run("audit", "nosuch://bucket/run")).lower()
    assert "a path of this machine" in sentence(run("watch", "s3://bucket/run"))


def test_file_urls_are_paths(two_step_run: Any) -> None:
    folder = two_step_run("a b", bound=2)
    assert place(folder.as_uri()) == folder
    assert run("audit", folder.as_uri()).exit_code == 0


def test_memory_is_a_place_too(two_step_run: Any) -> None:
    log = next(two_step_run("run", bound=2).glob("*.jsonl"))
    fsspec.filesystem("memory").pipe("/run/a.staleness.jsonl", log.read_bytes())
    assert run("audit", "memory://run").exit_code == 0


class Killed(BaseException):
    """In place of a signal."""


def test_of_parts_that_go_the_mark_that_they_are_whole_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever dies between two requests leaves parts that do not count, rather than a part that counts as all."""
    tables, system = place("memory://going"), fsspec.filesystem("memory")
    kept = store_at(tables)
    with kept.fresh("unit") as folder:
        (folder / "spans.parquet").write_bytes(b"rows")
    kept.begin()
    assert kept.has("unit")

    def dies_after_the_first(system: Any, paths: list[str]) -> None:
        for path in paths:
            system.rm_file(path)
        raise Killed

    monkeypatch.setattr(type(system), "rm", dies_after_the_first)
    with pytest.raises(Killed):
        kept.clean((), {})
    kept.begin()
    assert [path.name for path in tables.rglob("*.parquet")] == ["spans.parquet"] and not kept.has("unit")
