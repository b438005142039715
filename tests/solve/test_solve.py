"""The constraint library against exhaustive enumeration, and by hand."""

from __future__ import annotations

import time
from fractions import Fraction
from itertools import combinations_with_replacement

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staleness_audit.solve import Band, Facts, either, pick, rounded, single, solve, whole


def enumerate_all(facts: Facts) -> list[tuple[int, ...]]:
    """Every multiset that fits, by trying all."""
    found = []
    for members in range(facts.members[0], facts.members[1] + 1):
        for values in combinations_with_replacement(range(facts.domain[0], facts.domain[1] + 1), members):
            if fits(facts, values):
                found.append(values)
    return found


def fits(facts: Facts, values: tuple[int, ...]) -> bool:
    n, total = len(values), sum(values)
    checks = [
        facts.total is None or facts.total[0] <= total <= facts.total[1],
        facts.mean is None or not n or facts.mean[0] * n <= total <= facts.mean[1] * n,
        facts.smallest is None or (n > 0 and min(values) == facts.smallest),
        facts.largest is None or (n > 0 and max(values) == facts.largest),
        *(low <= sum(value > at for value in values) <= high for at, (low, high) in facts.over.items()),
        *(low * n <= sum(value > at for value in values) <= high * n for at, (low, high) in facts.share_over.items()),
        *(values.count(value) >= count for value, count in facts.known.items()),
    ]
    return all(checks)


@st.composite
def some_facts(draw: st.DrawFn) -> Facts:
    """Facts that mostly describe a real multiset, loosened here and there, sometimes plain wrong."""
    first = draw(st.integers(0, 2))
    domain = (first, first + draw(st.integers(0, 5)))
    values = draw(st.lists(st.integers(*domain), max_size=6))
    n = len(values)

    def loose(number: int) -> tuple[int, int]:
        return number - draw(st.integers(0, 1)), number + draw(st.integers(0, 2))

    say = st.booleans()
    thresholds = draw(st.lists(st.integers(domain[0] - 1, domain[1] + 1), max_size=3))
    mean = Fraction(sum(values), n) if n else Fraction(0)
    return Facts(
        members=(max(n - draw(st.integers(0, 1)), 0), n + draw(st.integers(0, 1))) if draw(say) else (n, n),
        domain=domain,
        total=loose(sum(values)) if draw(say) else None,
        mean=(mean - Fraction(1, 10), mean + Fraction(1, 10)) if draw(say) else None,
        smallest=min(values) if values and draw(say) else None,
        largest=max(values) if values and draw(say) else None,
        over={at: loose(sum(value > at for value in values)) for at in thresholds},
        share_over={at: (Fraction(sum(v > at for v in values), n),) * 2 for at in thresholds[:1] if n and draw(say)},
        known=dict.fromkeys(draw(st.lists(st.sampled_from(values), max_size=2)), 1) if values else {},
    )


@settings(max_examples=600, deadline=None)
@given(some_facts())
def test_every_interval_is_the_tightest_that_enumeration_gives(facts: Facts) -> None:
    every = enumerate_all(facts)
    found = solve(facts)
    if not every:
        assert found is None
        return
    assert found is not None
    for value in range(facts.domain[0], facts.domain[1] + 1):
        counts = [values.count(value) for values in every]
        assert found.count(value) == (min(counts), max(counts)), f"count of {value}"
        beyond = [sum(item > value for item in values) for values in every]
        assert found.over(value) == (min(beyond), max(beyond)), f"over {value}"
    assert found.members == (min(map(len, every)), max(map(len, every)))
    assert found.unique == (len(every) == 1)


@settings(max_examples=300, deadline=None)
@given(some_facts())
def test_bands_say_of_the_ith_largest_what_enumeration_says(facts: Facts) -> None:
    found = solve(facts)
    if found is None:
        return
    every = [sorted(values, reverse=True) for values in enumerate_all(facts)]
    places = [(band, band.members[0] > 0) for band in found.bands() for _ in range(band.members[1])]
    assert len(places) == found.members[1]
    for index, (band, sure) in enumerate(places):
        present = [values[index] for values in every if len(values) > index]
        assert sure == (len(present) == len(every))
        assert band.values[0] <= min(present) <= max(present) <= band.values[1]
        if sure:
            assert band.values == (min(present), max(present))


def test_the_example_of_the_skyrl_guide() -> None:
    """Four groups, sum 6, a quarter at zero, one over 2, which is the largest, 3: {0, 1, 2, 3} and nothing else."""
    found = solve(
        Facts((4, 4), (0, 3), mean=rounded("1.5000", 4), smallest=0, largest=3, over={2: (1, 1)},
              share_over={0: rounded("0.7500", 4)})
    )  # fmt: skip
    assert found is not None
    assert found.unique
    assert found.counts == {0: (1, 1), 1: (1, 1), 2: (1, 1), 3: (1, 1)}
    assert found.bands() == (Band((1, 1), (3, 3)), Band((1, 1), (2, 2)), Band((1, 1), (1, 1)), Band((1, 1), (0, 0)))


def test_two_solutions_are_told_as_places() -> None:
    """Sum 4 of three, none above 2: {0, 2, 2} or {1, 1, 2}; the largest is 2, and one or two are over 1."""
    found = solve(Facts((3, 3), (0, 2), total=(4, 4)))
    assert found is not None
    assert not found.unique
    assert found.counts == {0: (0, 1), 1: (0, 2), 2: (1, 2)}
    assert found.over(1) == (1, 2)
    assert found.bands() == (Band((1, 1), (2, 2)), Band((1, 1), (1, 2)), Band((1, 1), (0, 1)))


def test_mean_and_share_tell_how_many_there_are() -> None:
    """A mean of 2.5 takes an even number; that a quarter is at zero takes a multiple of four."""
    facts = Facts((1, 6), (0, 5), mean=single(2.5))
    assert solve(facts).members == (2, 6)  # type: ignore[union-attr]
    assert solve(Facts((1, 6), (0, 5), mean=single(2.5), share_over={0: single(0.75)})).members == (4, 4)  # type: ignore[union-attr]


def test_contradictions_have_no_solution() -> None:
    assert solve(Facts((3, 3), (0, 2), total=(7, 7))) is None
    assert solve(Facts((3, 3), (0, 2), over={0: (2, 3), 1: (3, 3)}, total=(5, 5))) is None
    assert solve(Facts((1, 1), (0, 5), smallest=1, largest=2)) is None
    assert solve(Facts((2, 2), (0, 5), known={1: 3})) is None
    assert solve(Facts((2, 2), (0, 5), known={6: 1})) is None


def test_no_members_at_all() -> None:
    found = solve(Facts((0, 0), (0, 3), total=(0, 0)))
    assert found is not None
    assert found.members == (0, 0)
    assert found.bands() == ()


def test_either_of_two_settings() -> None:
    """A threshold that is 1 or 2: what holds in both cases."""
    cases = [solve(Facts((4, 4), (0, 4), total=(10, 10), smallest=1, largest=4, over={at: (2, 2)})) for at in (1, 2)]
    assert [case.counts[4] for case in cases if case] == [(2, 2), (1, 2)]
    found = either(cases)
    assert found is not None
    assert found.over(1) == (2, 3)
    assert found.over(2) == (2, 2)
    assert either([None]) is None


def test_printed_numbers() -> None:
    assert whole(rounded("85.7500", 4), 8) == (686, 686)
    assert whole(rounded(0.3333, 4), 3) == (1, 1)
    assert whole(rounded("0.3333", 4), 4) is None
    # With 20000 members a mean of four decimals no longer tells the sum.
    assert whole(rounded("1.5000", 4), 20000) == (29999, 30001)
    low, high = single(0.10000000149011612)
    assert low < Fraction(1, 10) < high
    assert single(0.0) == (0, 0)
    assert whole(single(-2.5), 2) == (-5, -5)


def test_pick() -> None:
    assert pick([5, 1, 3], 2) == (4, 8)
    assert pick([], 0) == (0, 0)
    with pytest.raises(ValueError, match="cannot be picked"):
        pick([1], 2)


def test_thousands_of_members_and_a_hundred_values_are_quick() -> None:
    started = time.process_time()
    found = solve(
        Facts((4096, 4096), (0, 100), mean=rounded("37.1250", 4), smallest=0, largest=93, over={50: (700, 700)},
              share_over={0: rounded("0.9001", 4)})
    )  # fmt: skip
    assert found is not None
    assert found.over(50) == (700, 700)
    assert found.count(0)[0] > 0
    assert sum(band.members[1] for band in found.bands()) == 4096
    assert time.process_time() - started < 2
