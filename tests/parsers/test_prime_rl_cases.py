"""prime-rl on recorded runs, token by token against what the engine noted while it made them."""

from __future__ import annotations

import json
from collections import Counter
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


def test_every_token_lies_in_its_interval(case: Case) -> None:
    _, tables, truth = case
    spans, recorded = spans_of(tables), {row["trajectory_id"] for row in tables.rows("trajectories")}
    checked = 0
    for life in truth:
        if life["role"] == "eval" or life["trajectory"] not in recorded:
            continue
        versions = [version for version, tokens, _ in life["segments"] for _ in range(tokens)]
        bounds = [
            (row["version_lo"], row["version_hi"]) for row in spans[life["trajectory"]] for _ in range(row["tokens_lo"])
        ]
        assert len(versions) == len(bounds)
        assert all(low <= version <= high for version, (low, high) in zip(versions, bounds, strict=True))
        checked += len(versions)
    assert checked > 2000


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
    name, tables, truth = case
    ends = ("dropped", "cancelled", "lost", "pending")
    told: dict[str, set[tuple[str, str | None]]] = {}
    certain: Counter[str] = Counter()
    for row in tables.rows("events"):
        if row["kind"] in ends:
            told.setdefault(row["trajectory_id"], set()).add((row["kind"], row["reason"]))
            certain[row["kind"]] += row["evidence"] != "inferred" and not row["trajectory_id"].startswith("anonymous")
    recorded = {row["trajectory_id"] for row in tables.rows("trajectories")}
    for life in truth:
        if life["role"] == "train" and life["trajectory"] in recorded and life["fate"] != "trained":
            assert (life["fate"], life["reason"]) in told.get(life["trajectory"], {("pending", None)})
    dropped = sum(life["fate"] == "dropped" for life in truth)
    assert certain["dropped"] == dropped, "at both log levels all drops are certain here"
    assert not told.keys() & {life["trajectory"] for life in truth if life["trained"]}


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
    assert facts["guarantee"]["limit"] == ("none" if name.startswith("queue") else bound + 1)
    assert facts["signs"][-1]["what"] == "RL trainer finished!"
    assert tables.codes() == {}
    assert [entry["attempt"] for entry in facts["attempts"]] == [1]


def test_evaluation_is_seen_and_set_apart(tmp_path: Path) -> None:
    tables = read(CASES / "strict_bound2" / "run", tmp_path)
    assert Counter(row["role"] for row in tables.rows("trajectories"))["eval"] == 18
