"""prime-rl on recorded runs, token by token against what the engine noted while it made them."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prime_rl_run import Tables, read

CASES = Path(__file__).parents[2] / "sample_traces" / "prime-rl"
NAMES = ("strict_bound2", "race_bound1", "queue_unenforced_bound1")


@pytest.fixture(scope="module", params=NAMES)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Tables, list[dict[str, Any]]]:
    folder = CASES / request.param
    truth = [json.loads(line) for line in (folder / "truth.jsonl").read_text().splitlines()]
    return request.param, read(folder / "run", tmp_path_factory.mktemp("tables")), truth


Case = tuple[str, Tables, list[dict[str, Any]]]


def spans_of(tables: Tables) -> dict[str, list[dict[str, Any]]]:
    spans: dict[str, list[dict[str, Any]]] = {}
    for row in tables.rows("spans", "trajectory_id", "span_index"):
        spans.setdefault(row["trajectory_id"], []).append(row)
    return spans


def check_versions(tables: Tables, truth: list[dict[str, Any]]) -> int:
    """Every token's true version is in its interval; returns how many were looked at."""
    spans, recorded = spans_of(tables), {row["trajectory_id"] for row in tables.rows("trajectories")}
    checked = 0
    for life in truth:
        if life["role"] == "eval" or life["trajectory"] not in recorded:
            continue
        versions = [version for version, tokens, _ in life["segments"] for _ in range(tokens)]
        rows = spans[life["trajectory"]]
        bounds = [(row["version_lo"], row["version_hi"]) for row in rows for _ in range(row["tokens_lo"])]
        assert len(versions) == len(bounds)
        assert all(low <= version <= high for version, (low, high) in zip(versions, bounds, strict=True))
        checked += len(versions)
    return checked


def check_fates(tables: Tables, truth: list[dict[str, Any]]) -> int:
    """Every untrained trajectory's true fate is among those told; returns how many certain drops there are."""
    ends = ("dropped", "cancelled", "lost", "pending")
    told: dict[str, set[tuple[str, str | None]]] = {}
    certain: set[str] = set()
    for row in tables.rows("events"):
        if row["kind"] in ends:
            told.setdefault(row["trajectory_id"], set()).add((row["kind"], row["reason"]))
            if row["kind"] == "dropped" and row["evidence"] != "inferred":
                certain.add(row["trajectory_id"])
    recorded = {row["trajectory_id"] for row in tables.rows("trajectories")}
    for life in truth:
        if life["role"] == "train" and life["trajectory"] in recorded and life["fate"] != "trained":
            assert (life["fate"], life["reason"]) in told.get(life["trajectory"], {("pending", None)})
    assert not told.keys() & {life["trajectory"] for life in truth if life["trained"]}
    return len(certain)


def test_every_token_lies_in_its_interval(case: Case) -> None:
    _, tables, truth = case
    assert check_versions(tables, truth) > 2000


def test_uses_and_loss_tokens_are_exact(case: Case) -> None:
    name, tables, truth = case
    expected = json.loads((CASES / name / "expected.json").read_text())["truth"]
    trained = {(life["trajectory"], use["step"]) for life in truth for use in life["trained"]}
    assert {(trajectory, step) for trajectory, _, step in tables.uses()} == trained
    spans = spans_of(tables)
    low = sum(row["loss_tokens_lo"] for trajectory, _ in trained for row in spans[trajectory])
    high = sum(row["loss_tokens_hi"] for trajectory, _ in trained for row in spans[trajectory])
    assert low == high == expected["trained_tokens"]
    assert [(row["v_train_lo"], row["completed"]) for row in tables.rows("steps", "step")] == [
        (n, True) for n in range(10)
    ]


def test_the_guides_figures_come_out(case: Case) -> None:
    """Traces certainly and possibly beyond the bound, and traces whose start may be one too new."""
    name, tables, _ = case
    bound = tables.facts["bound"]["value"]
    spans, certain, possible, flagged = spans_of(tables), 0, 0, 0
    starts = {row["trajectory_id"]: row["version_lo"] for row in tables.rows("events") if row["kind"] == "admitted"}
    for trajectory, _, step in tables.uses():
        oldest = [step - 1 - row["version_lo"] for row in spans[trajectory]]
        certain += max(step - 1 - row["version_hi"] for row in spans[trajectory]) > bound
        possible += max(oldest) > bound
        flagged += min(row["version_lo"] for row in spans[trajectory]) < starts[trajectory]
    assert (certain, possible, flagged) == {
        "strict_bound2": (0, 0, 0),
        "race_bound1": (0, 50, 58),
        "queue_unenforced_bound1": (7, 16, 0),
    }[name]


def test_fates_hold_the_truth(case: Case) -> None:
    """At both log levels all drops are certain here."""
    _, tables, truth = case
    assert check_fates(tables, truth) == sum(life["fate"] == "dropped" for life in truth)


def quieten(run: Path) -> None:
    """Make of a log at level DEBUG what level INFO leaves of it."""
    log = run / "logs/attempt_1/orchestrator.log"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if "DEBUG" not in line))


def remove(path: str) -> Callable[[Path], None]:
    def from_run(run: Path) -> None:
        for found in list(run.glob(path)):
            shutil.rmtree(found) if found.is_dir() else found.unlink()

    return from_run


LOSSES = {
    "level info": quieten,
    "no logs": remove("logs"),
    "no metrics": remove("metrics.jsonl*"),
    "no configuration": remove("configs"),
    "no arrivals": remove("rollouts/*/train/all"),
    "half of the arrivals": remove("rollouts/step_[1-5]/train/all"),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", NAMES)
def test_less_evidence_widens_but_never_lies(name: str, loss: str, tmp_path: Path) -> None:
    shutil.copytree(CASES / name / "run", tmp_path / "run")
    LOSSES[loss](tmp_path / "run")
    tables = read(tmp_path / "run", tmp_path / "tables")
    truth = [json.loads(line) for line in (CASES / name / "truth.jsonl").read_text().splitlines()]
    check_versions(tables, truth)
    check_fates(tables, truth)
    if "arrivals" in loss:
        assert {"dropped", "lost"} <= set(tables.facts["unseen"])
    trained = {(life["trajectory"], use["step"]) for life in truth for use in life["trained"]}
    assert {(trajectory, step) for trajectory, _, step in tables.uses()} == trained
    cancelled = sum(life["fate"] == "cancelled" for life in truth)
    told = {row["trajectory_id"] for row in tables.rows("events") if row["kind"] == "cancelled"}
    most = sum(row["multiplicity_hi"] for row in tables.rows("trajectories") if row["trajectory_id"] in told)
    assert cancelled <= most or "cancelled" in tables.facts["unseen"] or "arrivals" in loss


def test_cancelled_members_are_counted(case: Case) -> None:
    name, tables, truth = case
    cancelled = [row for row in tables.rows("events") if row["kind"] == "cancelled"]
    sizes = {
        row["trajectory_id"]: (row["multiplicity_lo"], row["multiplicity_hi"]) for row in tables.rows("trajectories")
    }
    low = sum(sizes[row["trajectory_id"]][0] for row in cancelled)
    high = sum(sizes[row["trajectory_id"]][1] for row in cancelled)
    assert low <= sum(life["fate"] == "cancelled" for life in truth) <= high
    assert (low, high) == {"strict_bound2": (16, 16), "race_bound1": (0, 16), "queue_unenforced_bound1": (31, 31)}[name]


def test_step_lines_agree_with_the_files(case: Case) -> None:
    _, tables, _ = case
    counted = {row["step"]: row["value"] for row in tables.rows("constraints") if row["quantity"] == "trajectories"}
    assert counted == Counter(step for _, _, step in tables.uses())


def test_facts_of_the_runs(case: Case) -> None:
    name, tables, _ = case
    facts = tables.facts
    bound = facts["bound"]["value"]
    assert bound == int(name[-1])
    assert facts["guarantee"]["limit"] == ("none" if name.startswith("queue") else bound + 2)
    assert facts["signs"][-1]["what"] == "RL trainer finished!"
    assert tables.codes() == {}
    assert [entry["attempt"] for entry in facts["attempts"]] == [1]


def test_evaluation_is_seen_and_set_apart(tmp_path: Path) -> None:
    tables = read(CASES / "strict_bound2" / "run", tmp_path)
    assert Counter(row["role"] for row in tables.rows("trajectories"))["eval"] == 18
