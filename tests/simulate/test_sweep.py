"""Sweeps: every point once, the same in any order and number of processes, taken up where they were interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from staleness_audit.cli import app
from staleness_audit.errors import AuditError
from staleness_audit.simulate.page import front, means, write_page
from staleness_audit.simulate.panels import looks
from staleness_audit.simulate.sweep import POINTS, Point, all_policies, fair, grid, run, sweep

WORKLOAD = "uniform:low=5,high=60,group=2"


def points() -> list[Point]:
    return list(grid(["deadline", "verl:drop"], [1, 2], [WORKLOAD], steps=4, batch=4, seeds=(0, 1)))


def test_a_row_is_what_its_run_did() -> None:
    point = points()[0]
    row = run(point)
    summary = point.setup().run(4)
    assert row["policy"] == "deadline" and row["bound"] == 1 and row["steps"] == 4
    assert row["tokens_trained"] == summary.trained_tokens and row["staleness_max"] == summary.max_staleness()
    assert row["beyond_share"] == 0.0


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = sweep(points(), tmp_path / "whole", workers=1)
    assert whole.height == 8 and whole["key"].n_unique() == 8
    cut = tmp_path / "cut"
    sweep(points()[:3], cut, workers=1)
    # The process was killed while it noted its fourth run, and a line of what it noted is no JSON any more.
    with (cut / POINTS).open("a") as file:
        file.write('{"key": "damaged\n{"key": "half')
    told: list[tuple[int, int]] = []
    again = sweep(points(), cut, workers=1, progress=lambda done, total, _: told.append((done, total)))
    assert told == [(4, 8), (5, 8), (6, 8), (7, 8), (8, 8)]
    assert again.equals(whole) and pl.read_parquet(cut / "results.parquet").equals(whole)
    assert len((cut / POINTS).read_text().splitlines()) == 8


@pytest.mark.slow
def test_processes_give_what_one_gives(tmp_path: Path) -> None:
    assert sweep(points(), tmp_path / "two", workers=2).equals(sweep(points(), tmp_path / "one", workers=1))


def test_every_policy_gets_the_same_room() -> None:
    """Bound 2, batch 8: what is in flight or waits beyond the trained batch is at most (2 + 1) * 8 groups."""
    for policy in all_policies():
        settings = fair(policy, 2, 8)
        for knob in ("threshold", "max_active_groups", "max_inflight", "max_inflight_prompts", "max_inflight_tasks"):
            assert settings.get(knob, 24) == 24
    assert all(point.setup().policy for point in grid(all_policies(), [1, 2], [WORKLOAD], steps=1, batch=8))


def test_the_front_holds_what_nothing_beats() -> None:
    table = pl.DataFrame(
        {
            "workload": ["w"] * 5 + ["other"],
            "policy": ["a", "b", "c", "d", "e", "f"],
            "staleness_mean": [0.5, 1.0, 1.0, 2.0, 3.0, 9.0],
            "trained_tokens_per_s": [100.0, 300.0, 200.0, 250.0, 400.0, 1.0],
        }
    )
    # c is beaten by b at equal staleness, d by b; another workload has a front of its own.
    assert set(front(table)["policy"]) == {"a", "b", "e", "f"}


def test_means_over_seeds_and_the_page(tmp_path: Path) -> None:
    table = sweep(points(), tmp_path, workers=1).with_columns(workload=pl.lit("<script>alert(1)</script>"))
    rows = means(table)
    assert rows.height == 4
    first = table.filter((pl.col("policy") == "deadline") & (pl.col("bound") == 1))
    found = rows.filter((pl.col("policy") == "deadline") & (pl.col("bound") == 1))
    assert found["trained_tokens_per_s"].item() == pytest.approx(first["trained_tokens_per_s"].mean())
    write_page(table, tmp_path / "sweep.html")
    page = (tmp_path / "sweep.html").read_text()
    assert "<script>alert(1)" not in page and "&lt;script&gt;alert(1)" in page
    # One workload, two bounds, one depth: the front, each bound side by side, the bound along; no depth and no tail.
    figures = json.loads(page.partition('id="figures">')[2].partition("</script>")[0])
    assert sorted(name.partition("-")[0] for name in figures) == ["bound", "equal", "equal", "front"]
    assert 'id="depth"' not in page and 'id="tail"' not in page
    equal = next(figure for name, figure in figures.items() if name.startswith("equal") and name.endswith("1"))
    shown = dict(zip(equal["data"][0]["y"], equal["data"][0]["x"], strict=True))
    assert shown["deadline"] == pytest.approx(first["trained_tokens_per_s"].mean(), rel=1e-4)
    # Of one bound nobody learns what a larger one buys.
    write_page(table.filter(pl.col("bound") == 1), tmp_path / "one.html")
    assert 'id="bound"' in page and 'id="bound"' not in (tmp_path / "one.html").read_text()


def test_the_page_shows_depth_and_tail_where_they_vary(tmp_path: Path) -> None:
    pair = ["deadline", "roll", "verl:drop"]
    work = [WORKLOAD, "uniform:low=5,high=300,group=2"]
    several = list(grid(pair, [2], work, steps=3, batch=4, depths=[1, 2, 3]))
    # Deadline leads by at most its bound, ROLL by exactly that.
    assert [(p.policy, p.depth) for p in several if p.workload == WORKLOAD] == [
        ("deadline", 2), ("deadline", 1), ("roll", 2), ("verl:drop", 2), ("verl:drop", 1), ("verl:drop", 3)
    ]  # fmt: skip
    settings = {(p.policy, p.depth): p.settings for p in several}
    assert settings["deadline", 1] == {"lookahead": 1} and settings["verl:drop", 3] == {"num_warmup_batches": 3}
    write_page(sweep(several, tmp_path, workers=1), tmp_path / "sweep.html")
    page = (tmp_path / "sweep.html").read_text()
    figures = json.loads(page.partition('id="figures">')[2].partition("</script>")[0])
    deep = next(figure for name, figure in figures.items() if name.startswith("depth"))
    assert {trace["name"]: trace["x"] for trace in deep["data"]} == {"deadline": [1, 2], "verl:drop": [1, 2, 3]}
    tail = next(figure for name, figure in figures.items() if name.startswith("workload"))
    assert tail["data"][0]["x"] == work


def test_no_two_policies_look_alike() -> None:
    for order in (all_policies(), sorted(all_policies())):
        drawn = looks(order)
        assert len(set(drawn.values())) == len(drawn)
    assert drawn["verl:drop"].colour == drawn["verl:wait"].colour != drawn["trl"].colour


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="no policy 'nobody'"):
        list(grid(["nobody"], [1], [WORKLOAD], steps=1, batch=4))
    with pytest.raises(AuditError, match="cannot be written"):
        (tmp_path / "file").write_text("")
        sweep(points(), tmp_path / "file", workers=1)
    with pytest.raises(AuditError, match="has such a knob"):
        list(grid(["areal"], [1], [WORKLOAD], steps=1, batch=4, settings={"lookahead": ["1"]}))
    # A knob is set where there is one.
    mixed = list(grid(["areal", "deadline"], [1], [WORKLOAD], steps=1, batch=4, settings={"lookahead": ["0", "1"]}))
    assert [(point.policy, point.settings.get("lookahead")) for point in mixed] == [
        ("areal", None),
        ("deadline", "0"),
        ("deadline", "1"),
    ]
    for policy, bounds in (("deadline", "few"), ("deadline", ""), ("openrlhf", "0")):
        assert CliRunner().invoke(app, ["sweep", policy, "--bounds", bounds]).exit_code == 2


def test_the_command(tmp_path: Path) -> None:
    arguments = [
        "deadline",
        "--bounds",
        "1,2",
        "--set",
        "lookahead=1,null",
        "--steps",
        "3",
        "--batch",
        "4",
        "--workers",
        "1",
    ]
    result = CliRunner().invoke(app, ["sweep", *arguments, "--workload", WORKLOAD, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0 and "4 runs" in result.output
    rows = [json.loads(line) for line in (tmp_path / "out" / POINTS).read_text().splitlines()]
    assert {row["settings"] for row in rows} == {'{"lookahead": "1"}', '{"lookahead": "null"}'}
    assert (tmp_path / "out" / "sweep.html").exists()
