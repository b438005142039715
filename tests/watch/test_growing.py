"""A run that is read line by line, in any portions, comes to what a fresh audit of the same lines comes to."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from helpers.states import figures
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import logs
from oracle.lives import Run
from oracle.strategies import runs

from staleness_audit import audit
from staleness_audit.watch import growing
from staleness_audit.watch.follow import Follower


def step(group: str, number: int, *members: str) -> list[dict[str, Any]]:
    """Lines of a group that a step trains, begun 10 s after the one before; its tokens are of version 0."""
    begun = 10.0 * (number + 1)
    trained = [
        line
        for member in members
        for line in (
            {"kind": "admitted", "trajectory_id": member, "group_id": group, "ts": begun - 8},
            {"kind": "span", "trajectory_id": member, "tokens": 5, "version": 0, "ts": begun - 6},
            {"kind": "finished", "trajectory_id": member, "ts": begun - 4},
            {"kind": "trained", "trajectory_id": member, "step": number, "ts": begun},
        )
    ]
    return [*trained, {"kind": "step", "step": number, "version": number, "started": begun, "ended": begun + 5}]


@pytest.mark.slow
def test_what_is_done_with_is_set_aside_and_comes_back_when_a_line_speaks_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups of two are trained by steps 0 and 1 (from v0 and v1, by tokens of v0) and set aside, each in a block.

    Then ``a/0`` is trained again by step 2: its block comes back, and the audit's figures are those of a fresh one.
    Then a second record of step 1 contradicts the first: everything is read anew.
    """
    monkeypatch.setattr(growing, "SEAL_FROM", 2)
    monkeypatch.setattr(growing, "BLOCK", 2)
    lines: list[dict[str, Any]] = []

    def write(*new: dict[str, Any]) -> None:
        lines.extend(new)
        head = {"format": "staleness-events/1", "framework": "toy", "writer": "w", "bound": 1}
        numbered = [{"n": number, **line} for number, line in enumerate(lines, 1)]
        (tmp_path / "run").mkdir(exist_ok=True)
        with (tmp_path / "run" / "w.staleness.jsonl").open("ab") as file:
            file.write(logs.dump([head, *numbered] if len(lines) == len(new) else numbered[-len(new) :]))

    watching = Follower(tmp_path / "run", None, framework=None, folder=tmp_path / "watching")

    def look() -> tuple[int, int]:
        state = watching.refresh()
        assert figures(state.data) == figures(audit(tmp_path / "run").data)
        watching.settle()
        assert watching._growing is not None
        return len(watching._growing._kept.products.blocks), watching._growing.resets

    write(*step("a", 0, "a/0", "a/1"), *step("b", 1, "b/0", "b/1"))
    assert look() == (2, 0)
    write({"kind": "admitted", "trajectory_id": "c/0", "ts": 21.0})
    assert look() == (2, 0)  # nobody speaks of a or b
    write(
        {"kind": "trained", "trajectory_id": "a/0", "step": 2, "ts": 30.0},
        {"kind": "step", "step": 2, "version": 2, "started": 30.0, "ended": 35.0},
    )
    state = watching.refresh()
    assert state.data["violations"]["tokens"] == {"lo": 5, "hi": None}  # 2 - 0 = 2 > 1
    assert watching._growing is not None
    assert len(watching._growing._kept.products.blocks) == 1
    assert figures(state.data) == figures(audit(tmp_path / "run").data)
    watching.settle()
    write({"kind": "step", "step": 1, "version": 7, "started": 20.0, "ended": 25.0})
    assert look()[1] == 1


@pytest.mark.slow
def test_a_group_may_be_called_as_a_trajectory_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 0 trains group 1 (trajectories 2 and 3), step 1 group 2 (4 and 5); each is set aside in a block of its own.

    Trajectory 2 is not of group 2: it is counted once, and four were trained.
    """
    monkeypatch.setattr(growing, "SEAL_FROM", 2)
    monkeypatch.setattr(growing, "BLOCK", 2)
    (tmp_path / "run").mkdir()
    log = tmp_path / "run" / "w.staleness.jsonl"
    lines = [*step("1", 0, "2", "3"), *step("2", 1, "4", "5")]
    head = {"format": "staleness-events/1", "framework": "toy", "writer": "w", "bound": 1}
    log.write_bytes(logs.dump([head, *({"n": number, **line} for number, line in enumerate(lines, 1))]))
    watching = Follower(tmp_path / "run", None, framework=None, folder=tmp_path / "watching")
    watching.refresh()
    watching.settle()
    assert watching._growing is not None
    assert len(watching._growing._kept.products.blocks) == 2
    with log.open("ab") as file:
        file.write(logs.dump([{"n": len(lines) + 1, "kind": "admitted", "trajectory_id": "6", "ts": 31.0}]))
    state = watching.refresh()
    assert state.data["trajectories"]["trained"] == {"lo": 4, "hi": None}
    assert figures(state.data) == figures(audit(tmp_path / "run").data)
    assert len(watching._growing._kept.products.blocks) == 2


def test_what_was_set_aside_has_been_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only trajectory was dropped and is set aside: that no line tells of training is said at the next look too."""
    monkeypatch.setattr(growing, "SEAL_FROM", 1)
    monkeypatch.setattr(growing, "BLOCK", 1)
    (tmp_path / "run").mkdir()
    log = tmp_path / "run" / "w.staleness.jsonl"
    one = {"trajectory_id": "a", "ts": 1.0}
    lines = [
        {"format": "staleness-events/1", "framework": "toy", "writer": "w", "bound": 1},
        {"kind": "admitted", "n": 1, **one},
        {"kind": "dropped", "n": 2, "reason": "stale", **one},
    ]
    log.write_bytes(logs.dump(lines))
    watching = Follower(tmp_path / "run", None, framework=None, folder=tmp_path / "watching")
    watching.refresh()
    watching.settle()
    assert watching._growing is not None
    assert len(watching._growing._kept.products.blocks) == 1
    log.write_bytes(logs.dump([*lines, {"kind": "end", "n": 3}]))
    state = watching.refresh()
    assert "no-training-recorded" in {item["code"] for item in state.data["diagnostics"]["items"]}
    assert figures(state.data) == figures(audit(tmp_path / "run").data)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=runs(), seed=st.integers(0, 10**6), block=st.sampled_from((1, 3)))
def test_any_portions_come_to_the_same(monkeypatch: pytest.MonkeyPatch, run: Run, seed: int, block: int) -> None:
    """Every trajectory that is over is set aside at once, in blocks of one or three, so that late lines reopen them."""
    monkeypatch.setattr(growing, "SEAL_FROM", 1)
    monkeypatch.setattr(growing, "BLOCK", block)
    monkeypatch.setattr(growing, "MANY_PARTS", 3)
    monkeypatch.setattr(growing, "LOOKS", 0)
    rng = random.Random(seed)
    with TemporaryDirectory() as place:
        folder = Path(place) / "run"
        folder.mkdir()
        whole = {name: [logs.dump([line]) for line in lines] for name, lines in logs.log_of(run).items()}
        watching = Follower(folder, run.bound, framework=None, folder=Path(place) / "watching")
        written = dict.fromkeys(whole, 0)
        while any(written[name] < len(lines) for name, lines in whole.items()):
            for name, lines in whole.items():
                more = rng.choice((0, 4, 12, 40))
                with (folder / name).open("ab") as file:
                    file.writelines(lines[written[name] : written[name] + more])
                written[name] += more
            if all(count == 0 for count in written.values()):
                continue
            state = watching.refresh()
            watching.settle()
            fresh = audit(folder, run.bound, tables=Path(place) / "fresh").data
            assert figures(state.data) == figures(fresh)
