"""What the SQL modules make of small lives that can be followed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from oracle.logs import Line, closed, dump

from staleness_audit.api import AuditResult, audit


def span(name: str, tokens: int, version: int, **more: Any) -> Line:
    return {"kind": "span", "trajectory_id": name, "tokens": tokens, "version": version, **more}


def listed(name: str, versions: list[int], **more: Any) -> Line:
    return {"kind": "span", "trajectory_id": name, "versions": versions, **more}


def tell(kind: str, name: str, **more: Any) -> Line:
    return {"kind": kind, "trajectory_id": name, **more}


def trained(name: str, step: int, **more: Any) -> Line:
    return {"kind": "trained", "trajectory_id": name, "step": step, **more}


def step(number: int, version: int, **more: Any) -> Line:
    return {"kind": "step", "step": number, "version": version, **more}


def exact(value: float) -> dict[str, float]:
    return {"lo": value, "hi": value}


class Audit:
    """Audits files of lines in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *files: list[Line], bound: int | None = None, **more: Any) -> AuditResult:
        run = self.folder / "run"
        run.mkdir(exist_ok=True)
        for index, lines in enumerate(files):
            (run / f"f{index}.staleness.jsonl").write_bytes(dump(lines))
        return audit(run, bound, tables=self.folder / "tables", **more)


@pytest.fixture
def audited(tmp_path: Path) -> Audit:
    return Audit(tmp_path)


class TestInFlightAndInQueue:
    def test_a_trajectory_that_ends_on_older_weights_has_a_negative_part_in_flight(self, audited: Audit) -> None:
        # v_end = 3: the 2 tokens of version 5 have 3 - 5 = -2 in flight and 6 - 3 = 3 in the queue, together 1 = 6 - 5.
        data = audited(closed(span("a", 2, 5), span("a", 2, 3), trained("a", 1), step(1, 6)), bound=9).data
        assert data["staleness"]["in_flight_mean"] == exact(-1)
        assert data["staleness"]["in_queue_mean"] == exact(3)
        assert data["staleness"]["token_mean"] == exact(2)

    def test_inside_one_span_that_never_decreases_nothing_is_newer_than_the_last_token(self, audited: Audit) -> None:
        known = {"kind": "span", "trajectory_id": "a", "tokens": 4, "version_lo": 2, "version_hi": 4}
        rising = audited(closed(known | {"monotone": True}, trained("a", 1), step(1, 5)), bound=9).data
        assert rising["staleness"]["in_flight_mean"] == {"lo": 0, "hi": 2}
        any_order = audited(closed(known, trained("a", 1), step(1, 5)), bound=9).data
        assert any_order["staleness"]["in_flight_mean"] == {"lo": -2, "hi": 2}


class TestFates:
    def test_taken_by_a_step_that_never_completed_is_pending_when_the_run_ends(self, audited: Audit) -> None:
        first = closed(tell("admitted", "a"), span("a", 3, 0), step(1, 0), attempt=0)
        last = closed(trained("a", 2), step(2, 1, completed=False), attempt=1, resumed_after=1)
        data = audited(first, last, bound=1).data
        assert data["trajectories"]["pending"] == exact(1)
        assert data["trajectories"]["lost"] == {}

    def test_heard_of_in_the_last_attempt_is_not_lost_with_the_attempt_that_admitted_it(self, audited: Audit) -> None:
        first = closed(tell("admitted", "a"), tell("admitted", "b"), step(1, 0), attempt=0)
        last = closed(tell("finished", "a"), step(2, 1), attempt=1, resumed_after=1)
        data = audited(first, last, bound=1).data
        assert data["trajectories"]["pending"] == exact(1)
        assert data["trajectories"]["lost"] == {"unknown": exact(1)}

    def test_an_empty_list_of_versions_is_a_trajectory_without_tokens(self, audited: Audit) -> None:
        data = audited(closed(listed("a", []), trained("a", 1), step(1, 0)), bound=1).data
        assert data["tokens"]["generated"] == exact(0)
        assert data["trajectories"]["trained"] == exact(1)
        assert data["diagnostics"]["items"] == []


class TestVerdict:
    def test_if_every_token_was_masked_nothing_was_trained(self, audited: Audit) -> None:
        data = audited(closed(span("a", 3, 0), trained("a", 1, loss_tokens=0), step(1, 5)), bound=1).data
        assert data["verdict"] == "inconclusive"
        assert data["staleness"]["max"] == {"lo": None, "hi": None}
        assert data["violations"]["tokens"] == exact(0)
        assert data["tokens"]["masked"] == exact(3)


class TestDistinctTokens:
    def test_uses_that_share_the_mask_of_the_span_train_the_same_tokens(self, audited: Audit) -> None:
        data = audited(
            closed(span("a", 3, 0, loss_tokens=1), trained("a", 1), trained("a", 2), step(1, 0), step(2, 1)), bound=1
        ).data
        assert data["tokens"]["trained"] == exact(2)
        assert data["tokens"]["trained_distinct"] == exact(1)
        assert data["tokens"]["masked"] == exact(2)

    def test_uses_with_masks_of_their_own_may_train_different_tokens(self, audited: Audit) -> None:
        data = audited(
            closed(
                span("a", 3, 0), trained("a", 1, loss_tokens=1), trained("a", 2, loss_tokens=1), step(1, 0), step(2, 1)
            ),
            bound=1,
        ).data
        assert data["tokens"]["trained_distinct"] == {"lo": 1, "hi": 2}


class TestDrops:
    def test_the_step_being_collected_is_that_of_the_attempt_that_dropped(self, audited: Audit) -> None:
        # Step 1 of the first attempt had version 9: to it the trajectory would have been too old.
        first = closed(tell("admitted", "a"), span("a", 3, 0), step(1, 9), attempt=0)
        last = closed(tell("dropped", "a", reason="stale", step=1), step(1, 1), attempt=1, resumed_after=0)
        data = audited(first, last, bound=1).data
        assert data["trajectories"]["dropped"] == {"stale": exact(1)}
        assert data["waste"]["needless_drop_tokens"] == exact(3)

    def test_evaluation_rollouts_are_dropped_from_no_step(self, audited: Audit) -> None:
        data = audited(
            closed(
                tell("admitted", "e", role="eval"),
                tell("dropped", "e", reason="stale", step=1),
                tell("admitted", "a"),
                tell("dropped", "a", reason="stale", step=1),
                step(1, 5),
            ),
            bound=1,
        ).data
        assert data["per_step"][0]["dropped"] == exact(1)
        assert data["trajectories"]["dropped"] == {"stale": exact(1)}

    def test_a_drop_that_is_taken_back_is_none(self, audited: Audit) -> None:
        data = audited(
            closed(tell("admitted", "a"), tell("dropped", "a", step=1), tell("requeued", "a"), step(1, 5)), bound=1
        ).data
        assert data["per_step"][0]["dropped"] == exact(0)
        assert data["trajectories"]["pending"] == exact(1)

    def test_a_class_of_trajectories_is_counted_by_its_multiplicity(self, audited: Audit) -> None:
        data = audited(
            closed(tell("dropped", "16 of them", multiplicity=16, reason="stale", step=1), step(1, 5)), bound=1
        ).data
        assert data["trajectories"]["dropped"] == {"stale": exact(16)}
        assert data["per_step"][0]["dropped"] == exact(16)

    def test_a_drop_of_no_stated_step_may_belong_to_any(self, audited: Audit) -> None:
        data = audited(closed(tell("admitted", "a"), tell("dropped", "a"), step(1, 0), step(2, 1)), bound=1).data
        assert [row["dropped"] for row in data["per_step"]] == [{"lo": 0, "hi": 1}] * 2

    def test_a_drop_for_no_stated_reason_may_have_been_needless(self, audited: Audit) -> None:
        lines = [tell("admitted", "a"), span("a", 3, 0), tell("dropped", "a", step=1), step(1, 0)]
        data = audited(closed(*lines), bound=1).data
        assert data["waste"]["needless_drop_tokens"] == {"lo": 0, "hi": 3}


class TestSteps:
    def test_steps_of_unknown_versions_may_share_one(self, audited: Audit) -> None:
        # Version 4 lies in all three intervals; but each may also have a version of its own.
        lines = [step(1, 4), {"kind": "step", "step": 2, "version_hi": 4}, {"kind": "step", "step": 3}]
        assert audited(closed(*lines), bound=1).data["run"]["steps"] == {"lo": 1, "hi": 3}


class TestMissingUses:
    def test_a_missing_trajectory_may_have_any_number_of_tokens(self, audited: Audit) -> None:
        # The step trained 2 trajectories, 1 is identified: the other's tokens are not told.
        data = audited(closed(span("a", 3, 0), trained("a", 1), step(1, 1, trajectories=2)), bound=1).data
        assert data["tokens"]["trained"] == {"lo": 3, "hi": None}
