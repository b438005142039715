"""The replay against runs whose versions are known: every sample's true versions are in the interval of its share."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from openrlhf_run import Log, Setup, simulate
from staleness_parsers.openrlhf.console import LINES, _read_line
from staleness_parsers.openrlhf.facts import Told, _limit
from staleness_parsers.openrlhf.finish import _tell, _versions
from staleness_parsers.openrlhf.launches import find_launches
from staleness_parsers.openrlhf.settings import Settings

Keep = Callable[[str], bool]


def understand(log: Log, keep: Keep = lambda _: True, settings: Settings = Settings()) -> Told:  # noqa: B008 - frozen
    rows: list[dict[str, Any]] = [
        {**dict.fromkeys(LINES), "source": "console.log", "line": number, **row}
        for number, line in enumerate(log.lines, 1)
        if keep(line)
        for row in _read_line(line)
    ]
    (launch,) = find_launches(rows, [])
    return _tell(launch, settings)


def check(log: Log, told: Told) -> None:
    truth = dict(log.truth)
    for number, batch in enumerate(told.launch.batches):
        samples = truth[batch.step]
        for share in told.filling.shares[number]:
            size = len(samples) if share.samples is None else share.samples
            part, samples = samples[:size], samples[size:]
            known = _versions(share, told, batch.step - 1)
            assert all(known.oldest_lo <= oldest and newest <= known.newest for oldest, newest in part)
            if told.filling.whole[number]:
                assert min(oldest for oldest, _ in part) <= known.oldest_hi
    limit = _limit(told).limit
    if isinstance(limit, int):
        assert max(step - 1 - oldest for step, part in log.truth for oldest, _ in part) <= limit


def losing(what: str, dice: random.Random) -> Keep:
    marks = {"steps": "Global step", "bars": "Generate samples", "takes": "Starting experience"}
    return lambda line: not (what in marks and marks[what] in line and dice.random() < 0.25)


@pytest.mark.parametrize("what", ["nothing", "steps", "bars", "takes", "queue", "all bars", "the beginning"])
@pytest.mark.parametrize("prompts", [2, 3])
def test_every_true_version_is_in_its_interval(what: str, prompts: int):
    dice = random.Random(f"{what} {prompts}")
    for seed in range(30):
        setup = Setup(
            queue=dice.choice([1, 1, 2, 3]),
            prompts=prompts,
            call=prompts + dice.choice([0, 0, 1, 2, prompts, 3 * prompts]),
            group=dice.choice([1, 2, 4]),
            partial=dice.random() < 0.5,
            eval_every=dice.choice([0, 0, 4]),
            start=dice.choice([0, 0, 10]),
            slow_training=dice.choice([0.1, 0.5, 3.0]),
            seed=seed,
        )
        log = simulate(setup)
        if what == "the beginning":
            log.lines = log.lines[len(log.lines) // 2 :]
        if what in ("queue", "all bars"):
            mark = "queue_size" if what == "queue" else "Generate samples"
            log.lines = [line for line in log.lines if mark not in line]
        known = {"train.partial_rollout_enable": setup.partial} if dice.random() < 0.3 else {}
        check(log, understand(log, losing(what, dice), Settings(known)))


def test_with_one_permit_in_default_mode_every_call_has_one_version():
    for seed in range(10):
        told = understand(simulate(Setup(seed=seed)), settings=Settings({"train.partial_rollout_enable": False}))
        assert [(known.oldest_lo, known.newest) for known in told.versions] == [
            (max(number - 1, 0), max(number - 1, 0)) for number in range(12)
        ]


def test_mixed_batches_are_split_by_the_call_that_made_them():
    """Three prompts a batch, four a call: what is left over goes first into the next batch."""
    told = understand(simulate(Setup(call=4)))
    assert [[share.samples for share in shares] for shares in told.filling.shares[:5]] == [
        [6],
        [2, 4],
        [4, 2],
        [6],
        [6],
    ]
    assert told.filling.group == 2
    assert _limit(told).limit == 2
