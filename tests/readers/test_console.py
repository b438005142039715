"""Console lines: which of them tell something, what kind of message they are, and the dicts they print."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from staleness_audit.discovery import discover
from staleness_audit.readers.console import Messages, number_of, parse_dict, undecorate
from staleness_audit.readers.lines import LONG_LINE_BYTES, GarbledText, line_frames, numbered_lines, telling_lines

LOG = "step 1 \r\nnothing\n\x1b[36m(A pid=7)\x1b[0m step 2\nstep \xff\n\nstep cut"


def read(lines: Iterator[Any]) -> tuple[list[Any], GarbledText | None]:
    """The lines, and the damage that is told after the last of them."""
    found = []
    try:
        for line in lines:
            found.append(line)
    except GarbledText as damage:
        return found, damage
    return found, None


@pytest.mark.parametrize("compressed", [False, True])
def test_telling_lines_are_those_of_all_lines_that_match(tmp_path: Path, compressed: bool) -> None:
    data = LOG.encode("latin-1")
    name = "x.log.gz" if compressed else "x.log"
    (tmp_path / name).write_bytes(gzip.compress(data) if compressed else data)
    run = discover(tmp_path)
    for piece in [run.whole(name)] if compressed else run.split(name, 8):
        told, _ = read(telling_lines(run, piece, r"step [\d\x{FFFD}c]"))
        assert told == [line for line in read(numbered_lines(run, piece))[0] if "step" in line[1]]
    pieces = [run.whole(name)] if compressed else run.split(name, 8)
    numbers = [line for piece in pieces for line, _, _ in read(telling_lines(run, piece, "step"))[0]]
    assert numbers == [1, 3, 4, 6]
    for piece in pieces:
        framed = [row for frame in read(line_frames(run, piece))[0] for row in frame.rows()]
        assert framed == [(line, text, False, cut) for line, text, cut in read(numbered_lines(run, piece))[0]]


def test_frames_hold_the_beginning_of_a_long_line(tmp_path: Path) -> None:
    """Counted in characters, so that none is cut in its middle."""
    (tmp_path / "x.log").write_text("step 1\n" + "é" * LONG_LINE_BYTES + "\nstep 3\n")
    run = discover(tmp_path)
    [frame] = line_frames(run, run.whole("x.log"))
    told = [(1, "step 1", False, False), (2, "é" * LONG_LINE_BYTES, True, False), (3, "step 3", False, False)]
    assert frame.rows() == told


@pytest.mark.parametrize(
    ("data", "garbled"),
    [
        (b"step 1\nst\xe9p 2\nstep 3\nst\0p 4\n", 2),
        ("step 1\nstep é\n".encode("utf-16"), 1),
        (b"step 1\n" + b"\0" * 9, 2),
        (b"step 1\nstep \xc3\nstep 3\n", None),  # a writer cut the line inside a letter
        (b"step 1\nst\xe9p", None),  # the end of the file, a record that did not happen
        ("step 1 \N{REPLACEMENT CHARACTER}\n".encode(), None),  # sampled by a model, printed as it should be
    ],
)
def test_lines_of_bytes_that_are_no_text_are_told_after_the_last_line(
    tmp_path: Path, data: bytes, garbled: int | None
) -> None:
    (tmp_path / "x.log").write_bytes(data)
    run = discover(tmp_path)
    lines, damage = read(numbered_lines(run, run.whole("x.log")))
    assert len(lines) == data.count(b"\n") + (not data.endswith(b"\n"))
    assert (damage.line if damage else None) == garbled


def test_the_first_pattern_that_fits_decides_and_its_groups_are_told() -> None:
    messages = Messages(
        [
            ("step", r"step (?P<number>\d+)(?: of (?P<count>\d+)|$)"),
            ("step", r"step (?:number )?(?P<text>\w+)"),
            ("end", r"(ended|over)"),
        ]
    )
    assert messages.match("step 3 of 5") == ("step", {"number": "3", "count": "5"})
    assert messages.match("step 3") == ("step", {"number": "3", "count": None})
    assert messages.match("step number three") == ("step", {"text": "three"})
    assert messages.match("over and out") == ("end", {})
    assert messages.match("a step 3") is None


def test_dicts_are_read_as_python_prints_them() -> None:
    assert parse_dict("{'a': 1, 'b': -0.5, 'c': 1e-05, 'd': 'x'}") == {"a": 1, "b": -0.5, "c": 1e-05, "d": "x"}
    assert parse_dict("{'a': np.float64(2.0), 'b': None, 'c': True}") == {"a": 2.0, "b": None, "c": True}
    assert parse_dict("{'it\\'s': 1}") == {"it's": 1}
    assert parse_dict('{"it\'s": \'a "word"\'}') == {"it's": 'a "word"'}
    odd = parse_dict("{'a': nan, 'b': -inf}")
    assert odd is not None and math.isnan(float(str(odd["a"]))) and odd["b"] == -math.inf
    assert parse_dict("{'a': 1, 'b'") is None
    assert parse_dict("{'a'}") is None
    assert parse_dict("{'a': __import__('os')}") is None


def test_a_rewritten_line_of_ray_is_undecorated() -> None:
    line = undecorate(
        "\x1b[36m(Actor pid=12, ip=10.0.0.1)\x1b[0m 10%|#\rdone \x1b[32m [repeated 3x across cluster]\x1b[0m"
    )
    assert (line.text, line.actor, line.pid, line.repeated) == ("done", None, None, 4)
    line = undecorate("(Actor pid=12) done")
    assert (line.text, line.actor, line.pid, line.repeated) == ("done", "Actor", 12, 1)


def test_of_several_prefixes_the_innermost_speaks() -> None:
    line = undecorate("\x1b[36m(TaskRunner pid=1, ip=10.0.0.1)\x1b[0m (Actor pid=12) \x1b[32mstep 3\x1b[0m")
    assert (line.text, line.actor, line.pid) == ("step 3", "Actor", 12)


def test_a_bar_is_taken_off_the_message_it_is_glued_to() -> None:
    bar = "Rollouts:  38%|####      | 3/8 [00:10<00:17,  3.5s/it]"
    assert undecorate(f"{bar}(Actor pid=12) {bar}  key: 1").text == "  key: 1"
    assert undecorate(bar).text == bar
    assert undecorate("100% | of | 3/8 [what").text == "100% | of | 3/8 [what"


def test_numbers_and_text_that_no_table_can_hold_become_ones_that_it_can() -> None:
    """Found by fuzzing: integers of 80 and of 4,000 bits, and half of a surrogate pair."""
    found = parse_dict(f"{{'many': {10**24}, 'most': -{10**1200}, 'half': '\\ud800', 'most of all': {2**63 - 1}}}")
    assert found == {"many": 1e24, "most": float("-inf"), "half": "?", "most of all": 2**63 - 1}


def test_a_list_is_no_key() -> None:
    assert parse_dict("{[1]: 2}") is None


def test_a_number_of_any_length_is_one_that_tables_can_hold() -> None:
    """Python would refuse to read 5000 digits, and 64 bits hold 18 of them."""
    assert [number_of(digits) for digits in ("7", "-07", b"9" * 18)] == [7, -7, 10**18 - 1]
    assert [number_of(digits) for digits in ("9" * 5000, "-" + "9" * 25, b"9" * 19)] == [10**18, -(10**18), 10**18]
