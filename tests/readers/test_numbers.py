"""Numbers that ask for more than there is."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import orjson
import pytest

from staleness_audit.readers.config import as_json, parse_config
from staleness_audit.readers.console import decimal_of, parse_dict
from staleness_audit.readers.numbers import is_figure, micros, moment, near
from staleness_audit.readers.pickle_values import BadPickle
from staleness_audit.readers.shapes import shaped
from staleness_audit.solve import single


class Said:
    """Remembers what a reader says."""

    def __init__(self) -> None:
        self.codes: list[tuple[str, str | None]] = []

    def diagnose(self, severity: str, code: str, message: str, *, opens: str | None = None, **_: Any) -> None:
        self.codes.append((code, opens))


def test_times_beyond_the_calendar_are_none() -> None:
    assert moment(0.0) == datetime(1970, 1, 1, tzinfo=UTC)
    assert [moment(seconds) for seconds in (None, float("nan"), float("inf"), 1e40, -1e40, 1e12)] == [None] * 6


def test_a_step_far_from_the_others_is_left_out() -> None:
    said = Said()
    rows = [{"step": step, "source": "log", "line": step} for step in (1, 2, 987_654_321, 3, None)]
    assert [row["step"] for row in near(rows, "step", None, said)] == [1, 2, 3, None]  # type: ignore[arg-type]
    assert said.codes == [("step-damaged", "training")]


def test_a_step_below_zero_or_beyond_any_run_is_left_out_though_it_is_alone() -> None:
    said = Said()
    rows = [{"step": step, "source": "log"} for step in (-1, 2**31)]
    assert near(rows, "step", None, said) == []  # type: ignore[arg-type]
    assert said.codes == [("step-damaged", "training")]


def test_durations_beyond_the_calendar_and_figures_beyond_exact_ones_are_none() -> None:
    assert micros(1.5) == 1_500_000 and micros(-0.25) == -250_000
    assert [micros(seconds) for seconds in (None, float("nan"), float("inf"), 1e300, -1e40)] == [None] * 5
    assert [is_figure(value) for value in (0, -1.5, 2**53 - 1)] == [True] * 3
    assert [is_figure(value) for value in (2**53, 10**400, 1e300, float("nan"), float("-inf"))] == [False] * 5
    assert [decimal_of(text) for text in ("7", "0.25", "1.2.3", "9" * 400, ".")] == [7.0, 0.25, None, None, None]


def test_what_a_32_bit_float_stands_for_ends_with_the_largest() -> None:
    """1.0 is exact to 2**-24; beyond the largest, about 3.4e38, a number is itself."""
    assert single(1.0) == (1 - Fraction(1, 2**24), 1 + Fraction(1, 2**24))
    assert single(1e300) == (Fraction(1e300), Fraction(1e300))


def test_a_value_of_another_shape_is_the_readers_own_error() -> None:
    with pytest.raises(BadPickle, match="something else where a part of it belongs"), shaped(BadPickle):
        dict([("half", "a", "pair")])  # type: ignore[list-item]


def test_steps_of_a_long_run_all_stay() -> None:
    """Of 300,000 steps the first and the last are more than 100,000 from the one in the middle."""
    said = Said()
    rows = [{"step": step, "source": "log"} for step in range(300_000)]
    assert near(rows, "step", None, said) == rows  # type: ignore[arg-type]
    assert said.codes == []


@pytest.mark.parametrize("text", ["9223372036854775808", "-" + "9" * 40, "9" * 399])
def test_whole_numbers_beyond_64_bits_are_staged_as_floats_or_words(text: str) -> None:
    config = parse_config(f'{{"n": {text}}}'.encode(), "json")
    assert orjson.loads(as_json(config)) == config
    assert orjson.loads(as_json({"n": int(text)})) == config
    metrics = parse_dict(f"{{'n': {text}, 's': \"\"}}")
    assert metrics is not None
    assert isinstance(metrics["n"], float)
