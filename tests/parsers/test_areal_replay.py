"""The replay of batch assembly by itself, and against a collector that looks a moment late."""

from __future__ import annotations

import random

import pytest
from staleness_parsers.areal.replay import Need, Result, replay

MS = 1_000


def results(*entries: tuple[int, int, bool]) -> list[Result]:
    """Results as (order of creation, ready in ms, accepted); the key is the order."""
    return [Result(order, ready * MS, accepted, order) for order, ready, accepted in entries]


def unchecked(_step: int, _members: frozenset[int]) -> bool | None:
    return None


def test_the_oldest_of_what_is_there_is_taken() -> None:
    """The framework's own example: tasks 2, 0, 1 created in this order, two wanted: 2 and 0, and 1 is left."""
    ready = [Result(0, 0, True, 2), Result(1, 0, True, 0), Result(2, 0, True, 1)]
    (batch,) = replay([ready], [[Need(1_000 * MS, None, 2)]], False, unchecked)
    assert batch.certain == {2, 0}


def test_a_straggler_goes_first_once_it_is_there() -> None:
    ready = results((0, 5_000, True), (1, 100, True), (2, 200, True), (3, 300, True))
    steps = [[Need(at * MS, None, 2)] for at in (1_000, 6_000)]
    assert [batch.certain for batch in replay([ready], steps, False, unchecked)] == [{1, 2}, {0, 3}]


def test_rejected_results_fill_the_wait_and_are_made_up_for() -> None:
    ready = results((0, 100, False), (1, 200, True), (2, 900, True))
    (batch,) = replay([ready], [[Need(0, None, 2)]], False, unchecked)
    assert batch.certain == {1, 2}
    (once,) = replay([ready], [[Need(0, None, 2)]], True, unchecked)
    assert once.certain == {1}


def test_what_comes_after_the_window_was_not_waited_for() -> None:
    ready = results((0, 100, True), (1, 9_000, True))
    (batch,) = replay([ready], [[Need(0, 1_000 * MS, 2)]], False, unchecked)
    assert batch.certain == batch.perhaps == set()


def test_a_doubt_ends_where_both_ways_have_used_the_same() -> None:
    """1 may have been taken instead of 2; step 2 took the other, and from step 3 on all is certain again."""
    ready = results(
        (0, 100, True), (1, 1_001, True), (2, 200, True), (3, 1_500, True), (4, 2_500, True), (5, 2_600, True)
    )
    steps = [[Need(at * MS, None, 2)] for at in (1_000, 2_000, 3_000)]
    found = replay([ready], steps, False, unchecked)
    assert [batch.certain for batch in found] == [{0}, {3}, {4, 5}]
    assert [batch.perhaps for batch in found] == [{1, 2}, {1, 2}, set()]


@pytest.mark.parametrize("seed", range(40))
def test_nothing_certain_is_wrong(seed: int) -> None:
    """A collector that looks up to 2 ms late, with rejections; steps log their tokens, or (odd seeds) nothing."""
    dice = random.Random(seed)
    size, count = dice.randint(1, 4), 40
    entries = [(order, 40 * order + dice.choice((30, 60, 400, 1500)), dice.random() > 0.2) for order in range(count)]
    tokens = [dice.randint(1, 6) for _ in entries]
    waiting = sorted(results(*entries), key=lambda result: result.ready)
    steps, batches, taken, at = [], [], set(), 0
    while True:
        begin, need, batch = at, size, set()
        while need:
            rest = [result for result in waiting if result.key not in taken]
            if len(rest) < need:
                break
            at = max(at, rest[need - 1].ready)
            look = at + dice.choice((0, 0, 0, 1, 2)) * MS
            pool = sorted(result for result in rest if result.ready <= look)[:need]
            taken |= {result.key for result in pool}
            batch |= {result.key for result in pool if result.accepted}
            need = size - len(batch)
        if need:
            break
        steps.append([Need(begin, at + 2 * MS, size)])
        batches.append(batch)
        at += dice.randint(20, 200) * MS

    def check(step: int, members: frozenset[int]) -> bool | None:
        if seed % 2:
            return None
        return sum(tokens[member] for member in members) == sum(tokens[member] for member in batches[step])

    assigned = replay([waiting], steps, False, check)
    assert all(found.certain <= truth for found, truth in zip(assigned, batches, strict=True))
    if seed % 2 == 0:
        # With a checksum most is certain.
        assert sum(len(found.certain) for found in assigned) >= 0.6 * sum(len(truth) for truth in batches)
