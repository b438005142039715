"""The nets below every audit: figures that cannot all be true are said, and forbid `pass`."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from staleness_audit.api import audit
from staleness_audit.check.conservation import cast_nets


@pytest.fixture
def document(two_step_run) -> dict[str, Any]:
    """Two trajectories of 10 tokens, trained at staleness 0 and 2; bound 2 is kept."""
    return copy.deepcopy(audit(two_step_run("run"), bound=2).data)


def caught(document: dict[str, Any]) -> list[tuple[str, str]]:
    before = len(document["diagnostics"]["items"])
    cast_nets(document)
    items = document["diagnostics"]["items"]
    return [(item["code"], item["locator"]) for item in items[: len(items) - before]]


def exactly(number: int) -> dict[str, int]:
    return {"lo": number, "hi": number}


def test_a_sound_document_is_left_as_it_is(document):
    before = copy.deepcopy(document)
    assert caught(document) == []
    assert document == before
    assert document["verdict"] == "pass"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        # 20 tokens were trained, 10 in each step, 10 of each staleness.
        ("tokens.generated", 19, [("tokens-not-conserved", "tokens.generated")]),
        ("tokens.masked", 1, [("tokens-not-conserved", "tokens.generated")]),
        ("tokens.trained", 21, [("figures-do-not-add-up", "tokens.trained")] * 2),
        ("per_step.0.tokens", 11, [("figures-do-not-add-up", "tokens.trained")]),
        ("trajectories.seen", 3, [("figures-do-not-add-up", "trajectories.seen")]),
        ("staleness.trajectory_histogram.0.trajectories", 2, [("figures-do-not-add-up", "trajectories.trained")]),
        ("violations.tokens", 1, [("figures-do-not-add-up", "violations.tokens")]),
    ],
)
def test_parts_that_do_not_add_up_forbid_pass(document, path, value, said):
    *way, last = path.split(".")
    block: Any = document
    for key in way:
        block = block[int(key) if key.isdigit() else key]
    block[last] = exactly(value)
    assert caught(document) == said
    assert document["verdict"] == "inconclusive"
    assert document["diagnostics"]["errors"] == len(said)


def test_intervals_that_only_may_fit_are_no_contradiction(document):
    document["tokens"]["trained"] = {"lo": 5, "hi": None}
    document["tokens"]["generated"] = {"lo": 0, "hi": 20}
    assert caught(document) == []


OWN = {"name": "step.loss_tokens", "raw_name": "train/tokens", "step": 2, "agrees": False, "explanation": None}
MEAN = {"name": "step.staleness_token_mean"}


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (OWN | {"reported": 12, "rebuilt": exactly(10)}, "inconclusive"),
        (OWN | {"reported": 10, "rebuilt": exactly(10), "agrees": True}, "pass"),
        (OWN | {"reported": 12, "rebuilt": exactly(10), "explanation": "counts padding too"}, "pass"),
        # A third, printed with two digits.
        (OWN | {"name": "step.staleness_token_mean", "reported": 0.33, "rebuilt": {"lo": 1 / 3, "hi": 1 / 3}}, "pass"),
        (
            OWN | {"name": "step.staleness_token_mean", "reported": 0.3, "rebuilt": {"lo": 0.34, "hi": 1}},
            "inconclusive",
        ),
    ],
)
def test_a_figure_of_the_frameworks_own_that_excludes_the_rebuilt_one_forbids_pass(document, row, verdict):
    document["reported"] = [row]
    cast_nets(document)
    assert document["verdict"] == verdict


def test_a_proven_violation_stays_proven(two_step_run):
    document = audit(two_step_run("run"), bound=1).data
    document["reported"] = [OWN | {"reported": 12, "rebuilt": exactly(10)}]
    cast_nets(document)
    assert document["verdict"] == "fail"


def test_a_step_that_says_it_trained_fewer_tokens_than_its_trajectories_hold(event_log):
    """The step says 9 loss tokens; its one trajectory was trained with all of its 10."""
    log = event_log("run", bound=1)
    log.add("admitted", trajectory_id="a", version=0)
    log.add("span", trajectory_id="a", tokens=10, version=0)
    log.add("trained", trajectory_id="a", step=0)
    log.add("step", step=0, version=0, trajectories=1, loss_tokens=9)
    data = audit(log.close()).data
    assert "tokens-do-not-add-up" in {item["code"] for item in data["diagnostics"]["items"]}
    assert data["verdict"] == "inconclusive"
