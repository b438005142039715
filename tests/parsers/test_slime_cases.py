"""Genuine runs of slime against what their engine recorded (`truth.jsonl`): every span, every use, every step."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from staleness_parsers.slime import PARSER

from staleness_audit import plugins
from staleness_audit.discovery import discover
from staleness_audit.ingest import Dataset, ingest

CASES = Path(__file__).parents[2] / "sample_traces" / "slime"
DUMPED = ["fully_async_balanced", "fully_async_killed_in_training"]


def tables(case: str, folder: Path) -> Dataset:
    run = discover(CASES / case / "run")
    return ingest(run, plugins.choose(run, among={"slime": PARSER}), folder)


def truth(case: str) -> list[dict]:
    return [json.loads(line) for line in (CASES / case / "truth.jsonl").read_text().splitlines()]


def expected(case: str) -> dict:
    return json.loads((CASES / case / "expected.json").read_text())["truth"]


@pytest.mark.parametrize("case", DUMPED)
def test_every_span_has_its_version_and_length(case, tmp_path):
    spans: dict[str, list[list[int]]] = {}
    for row in tables(case, tmp_path).scan("spans").collect().sort("span_index").iter_rows(named=True):
        assert row["version_lo"] == row["version_hi"]
        assert row["tokens_lo"] == row["tokens_hi"]
        spans.setdefault(row["trajectory_id"], []).append([row["version_lo"], row["tokens_lo"]])
    recorded = {str(line["trajectory"]): line["segments"] for line in truth(case) if line["trajectory"] is not None}
    assert spans == {key: [segment[:2] for segment in segments] for key, segments in recorded.items() if key in spans}
    assert all(line["fate"] != "trained" or str(line["trajectory"]) in spans for line in truth(case))


@pytest.mark.parametrize("case", DUMPED)
def test_every_trained_token_has_its_staleness(case, tmp_path):
    data = tables(case, tmp_path)
    uses = data.scan("uses").join(data.scan("steps").filter("completed"), on=["attempt", "step"])
    rows = uses.join(data.scan("spans"), on=["trajectory_id", "span_index"], suffix="_span").collect()
    histogram: Counter[str] = Counter()
    for row in rows.iter_rows(named=True):
        assert row["loss_tokens_lo"] == row["loss_tokens_hi"]
        if row["loss_tokens_lo"]:
            histogram[str(row["v_train_lo"] - row["version_lo"])] += row["loss_tokens_lo"]
    assert dict(histogram) == expected(case)["token_histogram"]
    assert rows["trajectory_id"].n_unique() == expected(case)["trained_trajectories"]


@pytest.mark.parametrize("case", [*DUMPED, "fully_async_longtail_console_only"])
def test_steps_are_exact(case, tmp_path):
    steps = tables(case, tmp_path).scan("steps").collect()
    assert steps["completed"].null_count() == 0
    assert steps["completed"].sum() == expected(case)["steps"]
    done = steps.filter("completed")
    assert done["v_train_lo"].to_list() == done["step"].to_list()
    assert (done["ended"] >= done["started"]).all()


def test_constraints_without_dumps_hold_the_truth(tmp_path):
    case = "fully_async_longtail_console_only"
    found = tables(case, tmp_path).scan("constraints").collect()
    counts = Counter(use["step"] for line in truth(case) for use in line["trained"])
    tokens: Counter[int] = Counter()
    oldest: Counter[int] = Counter()
    for line in truth(case):
        for use in line["trained"]:
            tokens[use["step"]] += sum(loss for _, _, loss in line["segments"])
            ages = [use["v_train"] - version for version, _, loss in line["segments"] if loss]
            oldest[use["step"]] = max([oldest[use["step"]], *ages])
    for row in found.iter_rows(named=True):
        if row["quantity"] == "trajectories":
            assert (row["op"], row["value"]) == ("eq", counts[row["step"]])
        elif row["quantity"] == "loss_tokens":
            assert row["op"] == "le"
            assert tokens[row["step"]] <= row["value"] <= 1.25 * tokens[row["step"]]
        else:
            assert oldest[row["step"]] <= row["value"]


def test_tensorboard_alone_says_the_same_with_less_precision(tmp_path):
    pytest.importorskip("tensorboard")
    case = "fully_async_longtail_console_only"
    run = tmp_path / "run"
    (run / "tensorboard").mkdir(parents=True)
    for file in (CASES / case / "run" / "tensorboard").iterdir():
        (run / "tensorboard" / file.name).write_bytes(file.read_bytes())
    files = discover(run)
    data = ingest(files, plugins.choose(files, among={"slime": PARSER}), tmp_path / "tables")
    both = tables(case, tmp_path / "both")
    wanted = ["step", "quantity", "value"]
    ours, theirs = (
        d.scan("constraints").select(wanted).cast({"quantity": pl.String}).sort(wanted).collect() for d in (data, both)
    )
    assert ours.filter(pl.col("quantity") != "loss_tokens").equals(theirs.filter(pl.col("quantity") != "loss_tokens"))
    close = (ours["value"] - theirs["value"]).abs().max()
    assert close is not None
    assert close <= 1
    assert data.scan("steps").collect()["completed"].sum() == 15
