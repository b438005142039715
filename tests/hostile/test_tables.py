"""A folder of tables from a stranger: what it names has to be in it, and nothing outside is read or changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.command import run, sentence

from staleness_audit.api import audit


@pytest.fixture
def tables(two_step_run: Any, tmp_path: Path) -> Path:
    """Tables of the run most tests look at, and a folder beside them that must stay as it is."""
    audit(two_step_run("run", bound=1), tables=tmp_path / "tables")
    mine = tmp_path / "mine"
    (mine / "documents").mkdir(parents=True)
    (mine / "documents" / "thesis").write_text("years of work")
    (mine / "secret.parquet").write_bytes(b"secret")
    return tmp_path / "tables"


def untouched(tables: Path) -> bool:
    mine = tables.parent / "mine"
    found = sorted(str(path.relative_to(mine)) for path in mine.rglob("*"))
    return (
        found == ["documents", "documents/thesis", "secret.parquet"]
        and (mine / "documents" / "thesis").read_text() == "years of work"
    )


def change(folder: Path, values: dict[str, Any]) -> None:
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**manifest, **values}))


FORGED: dict[str, dict[str, Any]] = {
    "a key that climbs": {"key": "../../mine/documents"},
    "an absolute key": {"key": "/elsewhere/x"},
    "a key that is none": {"key": 7},
    "a part that climbs": {"tables": {"uses": ["../mine/secret.parquet"]}},
    "an absolute part": {"tables": {"uses": ["/etc/passwd"]}},
    "a part with a pattern": {"tables": {"uses": ["uses/*.parquet"]}},
    "a part of another table": {"tables": {"uses": ["spans/" + "0" * 24 + ".parquet"]}},
    "a part that is missing": {"tables": {"uses": ["uses/" + "0" * 24 + ".parquet"]}},
    "a table that is none": {"tables": {"uses\"; DROP TABLE x; --": []}},
    "tables that are none": {"tables": [1]},
    "parts that are none": {"tables": {"uses": "uses"}},
    "no facts": {"facts": None},
    "no figures": {"figures": {}},
    "no identity": {"identity": []},
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_what_run_json_names_has_to_be_in_the_folder(tables: Path, name: str) -> None:
    change(tables, FORGED[name])
    assert "staleness-audit ingest" in sentence(run("audit", tables))
    assert untouched(tables)


def test_run_json_may_be_nested_or_no_json(tables: Path) -> None:
    for text in ("[" * 200_000, "{", "\x00", '{"layout": 2}', "2"):
        (tables / "run.json").write_text(text)
        sentence(run("audit", tables))


@pytest.mark.parametrize("name", [".rebuilt", ".parts", ".lock", ".readers", "uses", "run.json"])
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_links_in_the_folder_are_refused(tables: Path, two_step_run: Any, name: str, kind: str) -> None:
    """Also where the run is read again: an ingestion would truncate, fill or empty what the link leads to."""
    place = tables / name
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    target = tables.parent / "mine" / ("documents" if kind == "folder" else "documents/thesis")
    place.symlink_to(target)
    path = two_step_run("other")
    for command in (["audit", tables], ["audit", path, "--tables", tables], ["ingest", path, "--tables", tables]):
        assert run(*command).exit_code == 2
        assert untouched(tables)


def test_a_part_that_is_a_link_is_refused(tables: Path) -> None:
    manifest = json.loads((tables / "run.json").read_text())
    part = tables / manifest["tables"]["uses"][0]
    part.unlink()
    part.symlink_to(tables.parent / "mine" / "secret.parquet")
    assert "a link" in sentence(run("audit", tables))


def test_a_broken_part_is_one_sentence_and_no_verdict(tables: Path) -> None:
    manifest = json.loads((tables / "run.json").read_text())
    (tables / manifest["tables"]["uses"][0]).write_bytes(b"PAR1 not really PAR1")
    shutil.rmtree(tables / ".rebuilt")
    assert "tables" in sentence(run("audit", tables))


def test_a_cache_that_lost_a_part_is_made_again(two_step_run: Any, tmp_path: Path) -> None:
    path = two_step_run("run", bound=1)
    before = audit(path, tables=tmp_path / "t").data
    manifest = json.loads((tmp_path / "t" / "run.json").read_text())
    (tmp_path / "t" / manifest["tables"]["uses"][0]).unlink()
    assert audit(path, tables=tmp_path / "t").data == before
