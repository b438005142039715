"""What a log only says of several steps together: possible in each of them, certain in all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from test_classes import audited, cohort, exact, rebuilt

from staleness_audit.check.checker import check
from staleness_audit.check.story import tell
from staleness_audit.report.findings import violation_story
from staleness_audit.report.terminal import render_story
from staleness_audit.report.terminal.verdict import violation_lines
from staleness_audit.report.terminal.words import Words

STEPS = [
    {"attempt": 0, "step": version + 1, "v_train_lo": version, "v_train_hi": version}
    | {"completed": True, "evidence": "derived"}
    for version in (2, 3, 4)
]


def constraint(quantity: str, value: float, op: str = "eq", step: int = 5) -> dict[str, Any]:
    return {"attempt": 0, "step": step, "quantity": quantity, "op": op, "value": value, "evidence": "recorded"}


@pytest.fixture
def six(tmp_path: Path) -> dict[str, Any]:
    """Six trajectories of v1, two tokens each, written for step 5 and trained in some of the steps 3 to 5."""
    rows = cohort("six", 6, 4)  # a class of version 5 - 4 = 1
    rows["uses"] = [row | {"step": 5} for row in rows["uses"]]
    facts = [constraint("trajectories", 6), constraint("loss_tokens", 12), constraint("first_step", 3)]
    return audited(tmp_path, 2, **rows, steps=STEPS, constraints=facts)


def test_staleness_reaches_from_the_first_step_to_the_last(six: dict[str, Any]) -> None:
    # The weights of steps 3 to 5 are v2 to v4: staleness 1 to 3, beyond 2 only in step 5.
    assert six["trajectories"]["trained"] == exact(6)
    assert six["tokens"]["trained"] == exact(12)
    assert six["staleness"]["max"] == {"lo": 1, "hi": 3}
    assert six["violations"]["trajectories"] == {"lo": 0, "hi": 6}
    assert six["verdict"] == "inconclusive"


def test_each_of_the_steps_may_have_trained_all_or_none(six: dict[str, Any]) -> None:
    rows = {row["step"]: row for row in six["per_step"]}
    assert sorted(rows) == [3, 4, 5]
    for row in rows.values():
        assert row["trajectories"] == {"lo": 0, "hi": 6}
        assert row["tokens"] == {"lo": 0, "hi": 12}
        assert row["max"] == {"lo": 0, "hi": 3}
        assert row["mean"] == {"lo": 0, "hi": 3}
        assert row["violations"] == {"lo": 0, "hi": 6}
    assert six["run"]["steps"] == exact(3)


def test_the_first_step_may_be_one_that_no_row_describes(tmp_path: Path) -> None:
    # Of step 2 nothing is known, so its weights may be the first ones, v0; v1 can't be trained by older weights.
    rows = cohort("two", 2, 4)
    rows["uses"] = [row | {"step": 5} for row in rows["uses"]]
    facts = [constraint("trajectories", 2), constraint("first_step", 2)]
    data = audited(tmp_path, 2, **rows, steps=STEPS, constraints=facts)
    assert data["staleness"]["max"] == {"lo": 0, "hi": 3}


def test_a_step_alone_is_no_sum(tmp_path: Path) -> None:
    rows = cohort("six", 6, 4)
    rows["uses"] = [row | {"step": 5} for row in rows["uses"]]
    facts = [constraint("trajectories", 6), constraint("first_step", 5)]
    data = audited(tmp_path, 2, **rows, steps=STEPS, constraints=facts)
    assert data["staleness"]["max"] == exact(3)
    assert {row["step"]: row["trajectories"] for row in data["per_step"] if row["trajectories"] != exact(0)} == {
        5: exact(6)
    }


def test_no_class_of_the_histogram_exceeds_what_was_trained(tmp_path: Path) -> None:
    # One old and one young trajectory of unknown lengths, each with at least one of 12 tokens: no class is open above.
    old, young = cohort("old", 1, 3), cohort("young", 1, 0)
    rows = {table: old[table] + young[table] for table in old}
    rows["spans"] = [row | {"tokens_lo": 1, "tokens_hi": None} for row in rows["spans"]]
    step = {"attempt": 0, "step": 1, "v_train_lo": 5, "v_train_hi": 5, "completed": True, "evidence": "derived"}
    facts = [constraint("trajectories", 2, step=1), constraint("loss_tokens", 12, step=1)]
    data = audited(tmp_path, 1, **rows, steps=[step], constraints=facts)
    assert data["tokens"]["trained"] == exact(12)
    classes = {row["staleness"]: row["tokens"] for row in data["staleness"]["token_histogram"]}
    # The young one has at least one of the 12.
    assert (classes[0], classes[3]) == ({"lo": 1, "hi": 12}, {"lo": 1, "hi": 11})
    assert data["violations"]["tokens"] == {"lo": 1, "hi": 11}  # the young one has at least one of the twelve


def test_what_the_log_says_of_the_staleness_narrows_its_parts(tmp_path: Path) -> None:
    # Six of v1, none newer: nothing in flight. In the queue 1 to 3 by the weights v2 to v4, but no more than 2 in all.
    rows = cohort("six", 6, 4)
    rows["uses"] = [row | {"step": 5, "staleness_hi": 2} for row in rows["uses"]]
    facts = [constraint("trajectories", 6), constraint("first_step", 3)]
    data = audited(tmp_path, 1, **rows, steps=STEPS, constraints=facts)
    assert data["staleness"]["token_mean"] == {"lo": 1, "hi": 2}
    assert data["staleness"]["in_flight_mean"] == exact(0)
    assert data["staleness"]["in_queue_mean"] == {"lo": 1, "hi": 2}
    assert data["violations"]["worst"][0]["in_queue"] == {"lo": 1, "hi": 2}


@pytest.mark.parametrize(("ascending", "flight", "queue"), [(True, (0, 2), (0, 2)), (False, (-3, 2), (0, 4))])
def test_of_uses_that_nothing_describes_the_parts_are_what_the_engines_allow(
    tmp_path: Path, ascending: bool, flight: tuple[int, int], queue: tuple[int, int]
) -> None:
    # Step 5 trains two rows from v4, 1 to 2 versions old, made by v2 or v3. On several engines one of v3 may have ended
    # on v0: 3 - 0 = 3 below nothing in flight, and 4 in the queue.
    stated = [
        ("trajectories", 2, "eq"),
        ("loss_tokens", 2, "eq"),
        ("staleness_max", 2, "le"),
        ("staleness_min", 1, "ge"),
    ]
    facts = [constraint(quantity, value, op) for quantity, value, op in stated]
    data = audited(tmp_path, 1, ascending=ascending, steps=STEPS, constraints=facts)
    assert data["staleness"]["token_mean"] == {"lo": 1, "hi": 2}
    assert data["staleness"]["in_flight_mean"] == {"lo": flight[0], "hi": flight[1]}
    assert data["staleness"]["in_queue_mean"] == {"lo": queue[0], "hi": queue[1]}


class TestAProvenViolationWithoutAStep:
    """The six of v1, at most 2 versions old as the log says, against a bound of 0: they break it in any step."""

    @pytest.fixture
    def told(self, tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any], str]:
        rows = cohort("six", 6, 4)
        rows["uses"] = [row | {"step": 5, "staleness_hi": 2} for row in rows["uses"]]
        facts = [constraint("trajectories", 6), constraint("first_step", 3)]
        run = rebuilt(tmp_path, **rows, steps=STEPS, constraints=facts)
        story, console = tell(run, "six", 0), Console(file=(file := io.StringIO()), width=100)
        render_story(story, console)
        return check(run, 0), story.json(), " ".join(file.getvalue().split())

    def test_the_figures_mark_no_step_and_say_why(self, told: Any) -> None:
        data, _, _ = told
        assert data["violations"]["trajectories"] == exact(6)
        assert data["violations"]["steps"] == []
        assert data["violations"]["step_ranges"] == [
            {"attempt": 0, "first_step": 3, "step": 5, "trajectories": exact(6)}
        ]
        proven, _ = violation_lines(data, Words())
        assert proven.endswith("; of steps 3–5 each taken together: in which of them is not known")

    def test_the_row_says_of_how_many_and_of_which_steps_it_is(self, told: Any) -> None:
        row = told[0]["violations"]["worst"][0]
        assert (row["multiplicity"], row["first_step"], row["step"]) == (exact(6), 3, 5)
        assert violation_story(row, 0).startswith(
            "six (a class of 6 trajectories without names), trained in some step from 3 to 5: its oldest trained token "
            "is 1–2 versions old (0 in flight, 1–2 in the queue), the bound is 0; "
        )

    def test_the_story_contradicts_nothing(self, told: Any) -> None:
        _, story, words = told
        (use,) = story["uses"]
        assert (use["first_step"], use["step"], use["v_train"]) == (3, 5, {"lo": 2, "hi": 4})
        assert (use["oldest"], use["staleness"]) == (exact(1), {"lo": 1, "hi": 2})
        assert story["multiplicity"] == exact(6)
        assert "Let T be six, a class of 6 trajectories without names." in words
        assert "12 tokens age 1–2" in words
        assert "v2–v4 some step from 3 to 5 trains on 12 tokens" in words
        assert "v2–v4 trained in some step from 3 to 5" in words
        assert (
            "Some step from 3 to 5 trains from v2–v4; the oldest trained token of T is v1. Its staleness is 1–2 > 0, "
            "beyond the bound: 0 in flight, 1–2 in the queue. The versions alone would allow 1–3; "
            "the logs say more of its staleness." in words
        )


def test_what_was_perhaps_not_trained_leaves_room_for_what_was(tmp_path: Path) -> None:
    """A step trained 3 of these 5 trajectories, 6 tokens: perhaps the 3 of age 4, or the 2 of age 0 and one of them."""
    fresh, old = cohort("fresh", 2, 0), cohort("old", 3, 4)
    rows = {table: [*fresh[table], *old[table]] for table in fresh}
    rows["uses"] = [row | {"member": False} for row in rows["uses"]]
    facts = [constraint("trajectories", 3, step=1), constraint("loss_tokens", 6, step=1)]
    data = audited(tmp_path, 2, **rows, constraints=[*facts, constraint("staleness_max", 4, "le", step=1)])
    assert data["violations"]["tokens"] == {"lo": 0, "hi": 6}
    assert data["staleness"]["token_histogram"][-1] == {"staleness": 4, "tokens": {"lo": 0, "hi": 6}}
