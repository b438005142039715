"""Numbers that ask for more than there is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from staleness_audit.readers.config import as_json, parse_config
from staleness_audit.readers.console import parse_dict
from staleness_audit.readers.numbers import moment, near


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
