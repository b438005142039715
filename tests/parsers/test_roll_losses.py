"""ROLL's RLVR pipeline: batches of spans that were lost, and what the others betray of them.

One prompt a step, R = 1, n = 1. Prompts 0 and 1 begin at step 0, prompt 2 at step 1; step s takes prompt s. The pause
of step 1 cuts prompt 1: first request v0, second v1.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from roll_run import Run, Span, call, config, export, log, prompt, step

TRACES = "otlp/traces/traces.jsonl"
STORY = [
    *prompt(0, 0, 5, [(3, 4)]),
    *prompt(1, 0, 14, [(3, 10.5), (10.6, 13)]),
    *prompt(2, 1, 15, [(13, 14)]),
]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path)
    run["console.log"] = config()
    return run


def traces(steps: int, prompts: list[Span], driver: list[Span] | None = None) -> str:
    every = [part for number in range(steps) for part in step(number)]
    calls = [call(number) for number in range(steps)]
    return export("driver", every if driver is None else driver) + export("scheduler", calls + prompts, "scheduler-m")


def without(*keys: str) -> list[Span]:
    return [span for span in STORY if not span["spanId"].startswith(keys)]


def test_a_number_that_is_left_out_is_a_prompt_that_was_lost(run: Run) -> None:
    """Prompt 2 was ready for step 1 as well, so without prompt 1 every batch but the last could be filled."""
    run[TRACES] = traces(3, STORY)
    assert run().histogram("trajectory") == {0: (1, 2), 1: (1, 2)}, "prompt 1's first request may be empty"
    run[TRACES] = traces(3, without("prompt1"))
    audited = run()
    assert "lost-spans" in audited.codes
    assert audited.steps == audited.trained == (3, 3)
    # Prompt 0 was taken before anybody could be missing: of its start step, and first to finish.
    assert audited.histogram("trajectory")[0][0] <= 1
    assert audited.largest[1] == 1, "the window bounds whoever was trained"


def test_a_finished_prompt_without_its_reward_is_not_said_to_have_failed(run: Run) -> None:
    run[TRACES] = traces(3, without("prompt1.0.r"))
    audited = run()
    assert "lost-spans" in audited.codes
    assert audited.trained == (3, 3)
    assert all(low == 0 for low, _ in audited.fates("lost").values())


def test_a_request_that_is_lost_may_have_made_older_tokens(run: Run) -> None:
    """Without its first request prompt 1 seems to begin at 10.6, in the pause; but its response began at 3."""
    run[TRACES] = traces(2, STORY[:-4])
    assert run().largest == (0, 1)
    run[TRACES] = traces(2, [span for span in STORY[:-4] if span["spanId"] != "prompt1.0.0"])
    assert run().largest == (0, 1)


def test_a_step_without_its_own_span_has_the_number_of_its_call(run: Run) -> None:
    """Of step 0 only the pause and the update are left, of step 1 nothing: the call after the update is step 0's."""
    left = [span for span in step(0) if span["name"] in ("stop_server", "model_update")]
    run[TRACES] = traces(3, STORY, [*left, *step(2)])
    audited = run()
    assert audited.steps == (1, 3), "only step 2 is known to have trained"
    assert "newer-than-training" not in audited.codes
    assert audited.histogram("trajectory")[0][0] <= 1


def test_what_no_call_numbers_is_left_out(run: Run) -> None:
    """The first two of three steps lost their spans: an update that is left may be of either."""
    left = [span for span in step(1) if span["name"] == "model_update"]
    run[TRACES] = export("driver", [*left, *step(2)]) + export("scheduler", [call(2)], "scheduler-m")
    assert "lost-step" in run().codes


def test_a_launch_whose_steps_have_no_number_may_have_resumed_after_any(run: Run) -> None:
    """Another driver pushed weights at 101 and was killed; at step 1, which was trained before, says the console."""
    left = [span for span in step(1, at=100, tag="again") if span["name"] == "model_update"]
    run[TRACES] = export("driver", [*step(0), *step(1)]) + export("driver", left, "driver-2")
    audited = run()
    assert audited.steps == (0, None)
    assert audited["run"]["attempts"] == 2
    began = ((0, 0), (1, 10), (1, 40))
    run["console.log"] = "".join(log(f"pipeline step {number} start...", second) for number, second in began)
    assert run().steps == (1, 1)
