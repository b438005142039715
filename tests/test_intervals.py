"""Interval arithmetic against counting out every possibility."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staleness_audit.check.intervals import Class, Interval, histogram, mean, quantile, total


@st.composite
def classes(draw: st.DrawFn) -> list[Class]:
    found = []
    for _ in range(draw(st.integers(1, 3))):
        low = draw(st.integers(0, 4))
        least = draw(st.integers(0, 2))
        found.append(Class(low, low + draw(st.integers(0, 2)), least, least + draw(st.integers(0, 2))))
    return found


def worlds(known: Sequence[Class]) -> Iterator[list[int]]:
    """Every multiset of whole values that the classes allow, as a list."""
    options = []
    for item in known:
        values = range(int(item.lo or 0), int(item.hi or 0) + 1)
        numbers = range(item.n_lo, (item.n_hi or 0) + 1)
        options.append([list(world) for n in numbers for world in itertools.combinations_with_replacement(values, n)])
    for parts in itertools.product(*options):
        yield [value for part in parts for value in part]


def reached(known: Sequence[Class], of: object) -> tuple[float, float] | None:
    """Smallest and largest value of a function over all worlds with members."""
    values = [of(world) for world in worlds(known) if world]  # type: ignore[operator]
    return (min(values), max(values)) if values else None


@settings(deadline=None, max_examples=150)
@given(classes())
def test_the_mean_is_as_tight_as_possible(known: list[Class]) -> None:
    found = reached(known, lambda world: Fraction(sum(world), len(world)))
    got = mean(known)
    if found is None:
        assert got == Interval(None, None)
    else:
        assert (got.lo, got.hi) == (pytest.approx(float(found[0])), pytest.approx(float(found[1])))


def nearest_rank(world: list[int], share: Fraction) -> int:
    ordered = sorted(world)
    return next(value for rank, value in enumerate(ordered, 1) if Fraction(rank, len(ordered)) >= share)


@settings(deadline=None, max_examples=150)
@given(classes(), st.sampled_from((0.5, 0.9, 0.99)))
def test_quantiles_are_as_tight_as_possible(known: list[Class], share: float) -> None:
    found = reached(known, lambda world: nearest_rank(world, Fraction(share).limit_denominator(1000)))
    got = quantile(known, share)
    assert (got.lo, got.hi) == (found or (None, None))


@settings(deadline=None, max_examples=100)
@given(classes())
def test_histograms_hold_every_possibility_and_claim_only_what_all_share(known: list[Class]) -> None:
    rows = {row["staleness"]: (row["tokens"]["lo"], row["tokens"]["hi"]) for row in histogram(known, "tokens")}
    seen: dict[int, list[int]] = {value: [] for value in range(8)}
    for world in worlds(known):
        for value, counts in seen.items():
            counts.append(world.count(value))
    for value, counts in seen.items():
        assert rows.get(value, (0, 0)) == (min(counts), max(counts))


class TestByHand:
    def test_one_certain_and_one_possible_member(self) -> None:
        known = [Class(2, 2, 1, 1), Class(0, 0, 0, 1)]
        assert mean(known) == Interval(1, 2)
        assert quantile(known, 0.5) == Interval(0, 2)

    def test_any_number_of_members_pulls_the_mean_to_their_value(self) -> None:
        known = [Class(5, 5, 10, 10), Class(1, 3, 0, None)]
        assert mean(known) == Interval(1, 5)

    def test_members_of_no_known_age_leave_the_upper_end_open(self) -> None:
        known = [Class(1, 1, 3, 3), Class(0, None, 1, 1)]
        assert mean(known) == Interval(0.75, None)
        assert quantile(known, 0.5) == Interval(1, 1)
        assert quantile(known, 0.99) == Interval(1, None)
        assert histogram(known, "tokens")[-1] == {"staleness": 2, "or_more": True, "tokens": {"lo": 0, "hi": 1}}

    def test_members_that_may_be_newer_than_their_end_leave_the_lower_end_open(self) -> None:
        assert mean([Class(None, 2, 1, 1), Class(4, 4, 1, 1)]) == Interval(None, 3)

    def test_of_nothing_nothing_is_known(self) -> None:
        assert mean([]) == quantile([], 0.5) == Interval(None, None)
        assert histogram([], "tokens") == []

    def test_a_damaged_version_asks_for_no_rows(self) -> None:
        """Three tokens a billion versions old, and two of 1 or of as many: a row for 1, and what is beyond the last."""
        rows = histogram([Class(10**9, 10**9, 3, 3), Class(1, 10**9, 2, 2)], "tokens")
        assert rows[0] == {"staleness": 1, "tokens": {"lo": 0, "hi": 2}}
        assert rows[-1] == {"staleness": 20_001, "or_more": True, "tokens": {"lo": 3, "hi": 5}}
        assert total([]) == Interval(0, 0)

    def test_lost_lines_may_hold_any_value(self) -> None:
        rows = histogram([Class(1, 1, 2, 2)], "tokens", lost=True, known=2)
        assert [(row["staleness"], row["tokens"]["lo"], row["tokens"]["hi"]) for row in rows] == [
            (0, 0, None),
            (1, 2, None),
            (2, 0, None),
            (3, 0, None),
        ]

    def test_sums_of_open_intervals_are_open(self) -> None:
        assert total([Interval(1, 2), Interval(3, None)]) == Interval(4, None)
        assert Interval(1, 2).open_above() == Interval(1, None)
        assert 1 in Interval(None, 1)
        assert 2 not in Interval(None, 1)
