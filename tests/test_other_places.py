"""Runs and tables on Google Cloud Storage and in a repository of Hugging Face's hub: servers that speak as they do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.command import run, sentence

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("werkzeug")

from helpers.door import once, opened  # noqa: E402 - needs werkzeug
from helpers.google_store import GoogleStore  # noqa: E402
from helpers.hub import REPOSITORY, Hub  # noqa: E402


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleStore]:
    """A store with an empty bucket, whose clients lose no time before they ask again."""
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # it would ask Google about the bucket
    retry = pytest.importorskip("gcsfs.retry")
    monkeypatch.setitem(retry.DEFAULT_RETRY_CONFIG, "initial", 0.01)
    store = GoogleStore()
    with opened(store):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.url)
        monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
        fsspec.filesystem("gs").clear_instance_cache()
        yield store
        fsspec.filesystem("gs").clear_instance_cache()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with an empty repository."""
    hf = pytest.importorskip("huggingface_hub")
    from huggingface_hub import HfFileSystem
    from huggingface_hub.utils import _http

    monkeypatch.setattr(_http.time, "sleep", lambda _: None)
    store = Hub()
    with opened(store):
        monkeypatch.setenv("HF_ENDPOINT", store.url)
        monkeypatch.setattr(hf.constants, "ENDPOINT", store.url)  # as it would be, were the variable set before
        template = hf.constants.HUGGINGFACE_CO_URL_TEMPLATE
        monkeypatch.setattr(hf.constants, "HUGGINGFACE_CO_URL_TEMPLATE", store.url + template[template.index("/{") :])
        HfFileSystem.clear_instance_cache()
        yield store
        HfFileSystem.clear_instance_cache()


@pytest.fixture(params=["gs", "hf"])
def place(request: pytest.FixtureRequest) -> tuple[Any, str]:
    """A store of either kind, and the URL of its top."""
    if request.param == "gs":
        return request.getfixturevalue("google"), "gs://bucket"
    return request.getfixturevalue("hub"), f"hf://datasets/{REPOSITORY}"


def put(folder: Path, store: GoogleStore | Hub, below: str) -> None:
    """Put the files of a run into a store."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            store.objects[f"{below}/{file.relative_to(folder)}"] = file.read_bytes()


def document(path: Any, *options: Any) -> dict[str, Any]:
    """Audit, and forget where the run is and what tells its files from others."""
    found: dict[str, Any] = json.loads(run("audit", path, "--format", "json", *options).stdout)
    return {**found, "run": {**found["run"], "path": None}, "inputs": None}


@pytest.fixture
def six_logs(event_log: Any, tmp_path: Path) -> Path:
    """A run of six logs, so that listings have several pages: in each a trajectory, trained one version late."""
    folder = tmp_path / "six"
    folder.mkdir()
    for number in range(6):
        log = event_log(f"node{number}", bound=0, writer=f"node{number}")
        log.add("span", trajectory_id=f"t{number}", tokens=10, version=0)
        log.add("trained", trajectory_id=f"t{number}", step=1)
        log.add("step", step=1, version=1)
        (written,) = log.close().iterdir()
        written.rename(folder / f"node{number}.staleness.jsonl")
    return folder


def test_a_run_is_judged_like_its_copy_here(place: tuple[Any, str], six_logs: Path) -> None:
    """Six trajectories of ten tokens, all of them one version late; of each log no byte is fetched twice."""
    store, top = place
    put(six_logs, store, "runs/one")
    there = document(f"{top}/runs/one")
    assert there["violations"]["tokens"] == {"lo": 60, "hi": 60}
    assert there == document(six_logs)
    assert store.read(".jsonl") == sum(len(data) for data in store.objects.values())


def test_a_pattern_finds_runs(place: tuple[Any, str], two_step_run: Any) -> None:
    store, top = place
    for name, bound in (("seed-1", 2), ("seed-2", 1), ("other", 1)):
        put(two_step_run(name, bound=bound), store, f"runs/{name}")
    done = run("audit", f"{top}/runs/seed-*", "--format", "json")
    assert done.exit_code == 1
    assert [data["verdict"] for data in json.loads(done.stdout)] == ["pass", "fail"]


@pytest.mark.parametrize("how", ["slow_down", "cut"])
def test_a_read_that_fails_is_made_again(place: tuple[Any, str], two_step_run: Any, how: str) -> None:
    """The first answer with the log in it is "not now", or ends halfway."""
    store, top = place
    folder = two_step_run("run", bound=1)
    put(folder, store, "run")
    first, met = once(".jsonl")
    setattr(store, how, first)
    assert document(f"{top}/run") == document(folder)
    assert met


def test_what_is_not_there_is_named_in_one_sentence(place: tuple[Any, str]) -> None:
    """A folder of the store, and a bucket or repository that there is not: no verdict, exit code 2."""
    _, top = place
    assert f"{top}/nothing" in sentence(run("audit", f"{top}/nothing"))
    elsewhere = top.replace("bucket", "cellar").replace("me/logs", "me/cellar")
    assert f"{elsewhere}/run" in sentence(run("audit", f"{elsewhere}/run"))


def test_tables_on_google(google: GoogleStore, two_step_run: Any) -> None:
    """Tables are written there once, audited there without the run, and replaced when the log has changed."""
    folder, url = two_step_run("run", bound=1), "gs://bucket/tables"
    assert run("ingest", folder, "--tables", url).exit_code == 0
    assert document(url) == document(folder)
    before = parts(google)
    assert len(before) > 5
    google.requests.clear()
    assert run("ingest", folder, "--tables", url).exit_code == 0
    assert parts(google) == before and not [one for one in google.requests if "/.parts/" in one.path]
    shutil.rmtree(".staleness-audit")
    log = next(folder.glob("*.jsonl"))
    log.write_text(log.read_text().replace('"bound": 1', '"bound": 2'))
    assert run("ingest", folder, "--tables", url).exit_code == 0
    assert document(url)["verdict"] == "pass"
    assert len({name.split("/")[2] for name in parts(google)}) == 2


def parts(store: GoogleStore) -> dict[str, bytes]:
    """The parts of tables in a store."""
    return {name: data for name, data in store.objects.items() if "/.parts/" in name}
