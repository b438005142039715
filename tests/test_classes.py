"""Anonymous classes of trajectories and of groups: what their rows make the audit count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from staleness_audit.check.checker import check
from staleness_audit.discovery import RunFiles, discover
from staleness_audit.ingest import ingest
from staleness_audit.parser import Card, Detection, RunFacts, Sink, Staged, Unit
from staleness_audit.plugins import Choice
from staleness_audit.rebuild import Rebuilt, rebuild


class Rows:
    """A parser whose log is a dictionary of rows."""

    name = "rows"
    version = "1"
    card = Card("rows", "steps", (), (), "nothing")
    uses_processes = False

    def __init__(self, tables: dict[str, list[dict[str, Any]]], ascending: bool = False) -> None:
        self.tables, self.ascending = tables, ascending

    def detect(self, run: RunFiles) -> Detection | None:
        return Detection(("told",))

    def plan(self, run: RunFiles) -> Sequence[Unit]:
        return []

    def read(self, unit: Unit, run: RunFiles, sink: Sink) -> None: ...

    def finish(self, staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
        for table, rows in self.tables.items():
            sink.write(table, pl.DataFrame(rows, infer_schema_length=None))
        return RunFacts("rows", "steps", ascending=self.ascending)


def rebuilt(folder: Path, *, ascending: bool = False, **tables: list[dict[str, Any]]) -> Rebuilt:
    run = folder / "run"
    run.mkdir()
    (run / "x.txt").write_text("x")
    step = {"attempt": 0, "step": 1, "v_train_lo": 5, "v_train_hi": 5, "completed": True, "evidence": "derived"}
    parser, found = Rows({"steps": [step], **tables}, ascending), discover(run)
    return rebuild(ingest(found, Choice(parser, Detection(("told",))), folder / "tables"))


def audited(folder: Path, bound: int, **rows: Any) -> dict[str, Any]:
    return check(rebuilt(folder, **rows), bound)


def cohort(name: str, members: int, age: int, **more: Any) -> dict[str, list[dict[str, Any]]]:
    """A class of trajectories of this age, with two loss tokens each, as rows of three tables."""
    about = {"trajectory_id": name, "evidence": "derived"}
    size = {"anonymous": True, "multiplicity_lo": members, "multiplicity_hi": members}
    tokens = {"tokens_lo": 2 * members, "tokens_hi": 2 * members, "version_lo": 5 - age, "version_hi": 5 - age}
    return {
        "trajectories": [about | size | {"attempt": 0, **more}],
        "spans": [about | tokens | {"span_index": 0}],
        "uses": [about | {"attempt": 0, "step": 1}],
    }


def exact(value: float) -> dict[str, float]:
    return {"lo": value, "hi": value}


def test_a_class_is_between_one_group_and_as_many_as_trajectories(tmp_path: Path) -> None:
    data = audited(tmp_path, 1, **cohort("c", 6, 3))
    assert data["violations"]["trajectories"] == exact(6)
    assert data["violations"]["groups"] == {"lo": 1, "hi": 6}


def test_the_table_of_groups_says_how_many_it_is(tmp_path: Path) -> None:
    group = {"group_id": "g", "attempt": 0, "multiplicity_lo": 3, "multiplicity_hi": 3, "evidence": "derived"}
    data = audited(tmp_path, 1, **cohort("c", 6, 3, group_id="g"), groups=[group])
    assert data["violations"]["groups"] == exact(3)


def test_a_class_of_two_in_one_group(tmp_path: Path) -> None:
    group = {"group_id": "g", "attempt": 0, "multiplicity_lo": 1, "multiplicity_hi": 1, "evidence": "derived"}
    data = audited(tmp_path, 1, **cohort("c", 2, 3, group_id="g"), groups=[group])
    assert data["violations"]["groups"] == exact(1)


def test_two_classes_in_one_class_of_groups_prove_one_violating_group_only(tmp_path: Path) -> None:
    # Three groups, each of one young and one old member or not: all that is sure is that some group is old.
    group = {"group_id": "g", "attempt": 0, "multiplicity_lo": 3, "multiplicity_hi": 3, "evidence": "derived"}
    old, young = cohort("old", 3, 3, group_id="g"), cohort("young", 3, 0, group_id="g")
    data = audited(tmp_path, 1, **{table: old[table] + young[table] for table in old}, groups=[group])
    assert data["violations"]["groups"] == {"lo": 1, "hi": 3}
