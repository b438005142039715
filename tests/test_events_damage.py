"""What is wrong in a canonical event log is named by file and line, opens what it must, and stops nothing else.

The log that all tests start from holds 10 tokens at staleness 0 (trajectory ``a``) and 10 at staleness 2 (``b``);
line 1 is the header, and line n + 1 has the number n.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
import zstandard
from oracle.logs import Line, closed, dump

from staleness_audit.api import audit
from staleness_audit.errors import AuditError

NAME = "w.staleness.jsonl"
LINES: list[Line] = closed(
    {"kind": "admitted", "trajectory_id": "a"},
    {"kind": "span", "trajectory_id": "a", "tokens": 10, "version": 2},
    {"kind": "admitted", "trajectory_id": "b"},
    {"kind": "span", "trajectory_id": "b", "tokens": 10, "version": 0},
    {"kind": "trained", "trajectory_id": "a", "step": 3},
    {"kind": "trained", "trajectory_id": "b", "step": 3},
    {"kind": "step", "step": 3, "version": 2},
    bound=1,
)
RAW = [json.dumps(line).encode() for line in LINES]


def report(folder: Path, *files: bytes, names: tuple[str, ...] = (NAME, "x.staleness.jsonl")) -> dict[str, Any]:
    run = folder / "run"
    run.mkdir(exist_ok=True)
    for name, data in zip(names, files, strict=False):
        (run / name).write_bytes(data)
    return audit(run, 1, tables=folder / "tables", worst=1).data


def joined(raw: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in raw)


def replaced(number: int, text: str | bytes) -> bytes:
    """The log with another text in place of the line of this number (from 1, as editors count)."""
    return joined([*RAW[: number - 1], text.encode() if isinstance(text, str) else text, *RAW[number:]])


def said(data: dict[str, Any], code: str) -> list[tuple[str, int | None]]:
    """File and line of every diagnostic of a code."""
    return [(item["source"], item["line"]) for item in data["diagnostics"]["items"] if item["code"] == code]


def is_open(data: dict[str, Any]) -> bool:
    """Whether upper ends of counts of training are open."""
    counts = [data["tokens"]["trained"], data["violations"]["tokens"], data["staleness"]["max"]]
    return all(count["hi"] is None for count in counts)


def test_the_log_itself_is_sound(tmp_path: Path) -> None:
    data = report(tmp_path, joined(RAW))
    assert data["diagnostics"]["items"] == []
    assert data["tokens"]["trained"] == {"lo": 20, "hi": 20}
    assert data["violations"]["tokens"] == {"lo": 10, "hi": 10}
    assert data["verdict"] == "fail"


SPAN = '{"kind": "span", "n": 2, "trajectory_id": "a", '
UNUSABLE = {
    "no JSON": "not an event at all",
    "cut in the middle of the file": '{"kind": "span", "n": 2, "traj',
    "an array": "[1, 2, 3]",
    "a number": "17",
    "two objects": '{"kind": "span"} {"kind": "span"}',
    "NUL bytes": b"\x00" * 40,
    "invalid UTF-8": b'{"kind": "span", "n": 2, "trajectory_id": "\xff\xfe", "tokens": 10, "version": 2}',
    "tokens of a wrong type": SPAN + '"tokens": "ten", "version": 2}',
    "tokens as an object": SPAN + '"tokens": {"value": 10}, "version": 2}',
    "fractional tokens": SPAN + '"tokens": 9.5, "version": 2}',
    "negative tokens": SPAN + '"tokens": -10, "version": 2}',
    "no tokens": SPAN + '"version": 2}',
    "a fractional version": SPAN + '"tokens": 10, "version": 1.5}',
    "a negative version": SPAN + '"tokens": 10, "version": -1}',
    "a huge version": SPAN + '"tokens": 10, "version": 99999999999}',
    "huge tokens": SPAN + '"tokens": 1e300, "version": 2}',
    "a number beyond double": SPAN + '"tokens": 1e999, "version": 2}',
    "tokens that are not a number": SPAN + '"tokens": NaN, "version": 2}',
    "infinitely many tokens": SPAN + '"tokens": Infinity, "version": 2}',
    "prompt tokens that are not a number": SPAN + '"tokens": 10, "version": 2, "prompt_tokens": NaN}',
    "a huge multiplicity": SPAN + '"tokens": 10, "version": 2, "multiplicity": 1e40}',
    "an impossible time": SPAN + '"tokens": 10, "version": 2, "ts": 1e30}',
    "an interval with exchanged ends": SPAN + '"tokens": 10, "version_lo": 2, "version_hi": 1}',
    "more loss tokens than tokens": SPAN + '"tokens": 10, "version": 2, "loss_tokens": 11}',
    "versions and another number of tokens": SPAN + '"tokens": 10, "versions": [2, 2]}',
    "a negative version in a list": SPAN + '"versions": [2, -1]}',
    "a null version in a list": SPAN + '"versions": [2, null]}',
    "a fractional version in a list": SPAN + '"versions": [2, 1.5]}',
    "a word in a list of versions": SPAN + '"versions": [2, "new"]}',
    "more loss tokens than versions": SPAN + '"versions": [2, 2], "loss_tokens": 3}',
    "no trajectory": '{"kind": "span", "n": 2, "tokens": 10, "version": 2}',
    "no kind": '{"n": 2, "trajectory_id": "a", "tokens": 10, "version": 2}',
}


@pytest.mark.parametrize("text", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_a_line_that_cannot_be_used_is_named_and_the_rest_is_audited(tmp_path: Path, text: str | bytes) -> None:
    data = report(tmp_path, replaced(3, text))
    assert (NAME, 3) in said(data, "bad-line") + said(data, "bad-event")
    assert is_open(data)
    assert data["violations"]["tokens"]["lo"] == 10
    assert data["verdict"] == "fail"


def test_damage_that_may_hide_a_violation_forbids_a_pass(tmp_path: Path) -> None:
    clean = [line for line in LINES if line.get("trajectory_id") != "b"]
    raw = [json.dumps(line | ({"n": index} if index else {})).encode() for index, line in enumerate(clean)]
    assert report(tmp_path, joined(raw))["verdict"] == "pass"
    raw[2] = b"garbage"
    assert report(tmp_path, joined(raw))["verdict"] == "inconclusive"


def test_of_a_step_that_cannot_be_read_nothing_is_certain(tmp_path: Path) -> None:
    data = report(tmp_path, replaced(8, '{"kind": "step", "n": 7, "step": 3, "version": -2}'))
    assert said(data, "bad-event") == [(NAME, 8)]
    assert data["violations"]["trajectories"] == {"lo": 0, "hi": None}
    assert data["verdict"] == "inconclusive"


def test_an_unknown_kind_may_have_said_anything(tmp_path: Path) -> None:
    data = report(tmp_path, replaced(2, '{"kind": "teleported", "n": 1, "trajectory_id": "a"}'))
    assert said(data, "unknown-kind") == [(NAME, 2)]
    assert is_open(data)


def test_unknown_fields_are_passed_over(tmp_path: Path) -> None:
    line = {"kind": "admitted", "n": 1, "trajectory_id": "a", "colour": "blue", "deep": {"er": [1, {"x": None}]}}
    data = report(tmp_path, replaced(2, json.dumps(line)))
    assert data["diagnostics"]["items"] == []
    assert data["tokens"]["trained"] == {"lo": 20, "hi": 20}


def test_a_cut_last_line_did_not_happen(tmp_path: Path) -> None:
    data = report(tmp_path, joined(RAW[:-1]) + b'{"kind": "trained", "n": 8, "traj')
    assert said(data, "cut-line") == [(NAME, 9)]
    # The end line is missing as well, and that opens upper ends.
    assert said(data, "no-end-line") != []
    assert data["tokens"]["trained"] == {"lo": 20, "hi": None}


def test_a_last_line_without_a_newline_is_a_line(tmp_path: Path) -> None:
    data = report(tmp_path, joined(RAW).rstrip(b"\n"))
    assert data["diagnostics"]["items"] == []


def test_blank_lines_and_windows_line_ends_are_harmless(tmp_path: Path) -> None:
    data = report(tmp_path, b"\r\n".join([*RAW[:3], b"", b"   ", *RAW[3:], b""]))
    assert data["diagnostics"]["items"] == []
    assert data["tokens"]["trained"] == {"lo": 20, "hi": 20}


def test_a_missing_header_is_named(tmp_path: Path) -> None:
    data = report(tmp_path, joined(RAW[1:]))
    assert said(data, "bad-header") == [(NAME, 1)]
    assert is_open(data)
    # It may have said that this is an attempt which another one rolled back.
    assert data["violations"]["tokens"]["lo"] == 0
    assert data["verdict"] == "inconclusive"


@pytest.mark.parametrize("unseen", ["dropped", ["trained"], [1]])
def test_unseen_fates_that_are_none_are_taken_for_all(tmp_path: Path, unseen: object) -> None:
    header = {**json.loads(RAW[0]), "unseen": unseen}
    data = report(tmp_path, joined([json.dumps(header).encode(), *RAW[1:]]))
    assert said(data, "bad-header") == [(NAME, 1)]
    assert data["trajectories"]["lost"] == {"unknown": {"lo": 0, "hi": None}}


@pytest.mark.parametrize("data", [b"", b"\n", b"\x00", b"{}"])
def test_a_file_without_content_is_named(tmp_path: Path, data: bytes) -> None:
    document = report(tmp_path, joined(RAW), data)
    assert said(document, "bad-header") == [("x.staleness.jsonl", 1)]
    assert is_open(document)


def test_only_empty_files_are_inconclusive(tmp_path: Path) -> None:
    document = report(tmp_path, b"")
    assert document["verdict"] == "inconclusive"
    assert document["staleness"]["max"]["hi"] is None


def test_missing_numbers_are_counted(tmp_path: Path) -> None:
    data = report(tmp_path, joined([*RAW[:2], *RAW[4:]]))
    missing = [item for item in data["diagnostics"]["items"] if item["code"] == "lines-missing"]
    assert [item["message"][:16] for item in missing] == ["2 lines of write"]
    assert is_open(data)


def test_a_repeated_line_counts_once(tmp_path: Path) -> None:
    data = report(tmp_path, joined([*RAW[:5], RAW[4], *RAW[5:]]))
    assert said(data, "repeated-line") == [(NAME, 6)]
    assert data["tokens"]["trained"] == {"lo": 20, "hi": 20}


def test_two_lines_of_one_number_are_damage(tmp_path: Path) -> None:
    other = json.dumps(LINES[4] | {"tokens": 99}).encode()
    data = report(tmp_path, joined([*RAW[:5], other, *RAW[5:]]))
    assert said(data, "number-reused") == [(NAME, 6)]
    assert is_open(data)


def test_a_repeated_file_counts_once(tmp_path: Path) -> None:
    data = report(tmp_path, joined(RAW), joined(RAW))
    assert said(data, "repeated-file") == [("x.staleness.jsonl", None)]
    assert data["tokens"]["trained"] == {"lo": 20, "hi": 20}


def test_a_file_and_its_compressed_copy_of_another_name_are_not_counted_twice(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="occurs in more than one file"):
        report(tmp_path, joined(RAW), gzip.compress(joined(RAW)), names=(NAME, "copy.staleness.jsonl.gz"))


def test_what_holds_no_event_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"no line of w\.staleness\.jsonl is a header or an event"):
        report(tmp_path, random.Random(0).randbytes(5000))


def test_a_header_of_another_format_forbids_a_pass(tmp_path: Path) -> None:
    data = report(tmp_path, joined(RAW).replace(b"staleness-events/1", b"staleness-events/2"))
    assert said(data, "other-format") == [(NAME, 1)]
    assert is_open(data)


def test_headers_that_state_different_bounds_are_noticed(tmp_path: Path) -> None:
    other = closed({"kind": "admitted", "trajectory_id": "c"}, bound=7, writer="v")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / NAME).write_bytes(joined(RAW))
    (tmp_path / "run" / "x.staleness.jsonl").write_bytes(dump(other))
    data = audit(tmp_path / "run", tables=tmp_path / "tables").data
    assert said(data, "bounds-differ") != []
    assert data["bound"]["value"] == 1


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gz", "zst"])
def test_a_compressed_file_that_breaks_off_is_read_as_far_as_it_goes(tmp_path: Path, pack: Any) -> None:
    filler = [json.dumps({"kind": "admitted", "n": n, "trajectory_id": f"t{n * n}"}).encode() for n in range(8, 3000)]
    whole = pack(joined([*RAW[:-1], *filler]))
    suffix = ".gz" if pack is gzip.compress else ".zst"
    data = report(tmp_path, whole[: len(whole) * 2 // 3], names=(NAME + suffix,))
    assert [source for source, _ in said(data, "damaged-file")] == [NAME + suffix]
    assert is_open(data)


def test_bytes_that_are_no_archive_are_named(tmp_path: Path) -> None:
    data = report(tmp_path, joined(RAW), b"plain text", names=(NAME, "x.staleness.jsonl.gz"))
    assert [source for source, _ in said(data, "damaged-file")] == ["x.staleness.jsonl.gz"]
    assert is_open(data)


def test_tokens_newer_than_their_training_prove_nothing(tmp_path: Path) -> None:
    data = report(tmp_path, replaced(5, '{"kind": "span", "n": 4, "trajectory_id": "b", "tokens": 10, "version": 8}'))
    assert [item["locator"] for item in data["diagnostics"]["items"] if item["code"] == "newer-than-training"] == ["b"]
    assert data["violations"]["tokens"]["lo"] == 0
    assert data["verdict"] == "inconclusive"


def test_a_list_longer_than_sixteen_megabytes_is_read(tmp_path: Path) -> None:
    tokens = 6_000_000
    line = b'{"kind": "span", "n": 2, "trajectory_id": "a", "versions": [' + b"2, " * (tokens - 1) + b"2]}"
    assert len(line) > 16 << 20
    data = report(tmp_path, replaced(3, line))
    assert data["diagnostics"]["items"] == []
    assert data["tokens"]["trained"] == {"lo": tokens + 10, "hi": tokens + 10}


def test_each_of_many_bad_lines_is_counted_if_not_listed(tmp_path: Path) -> None:
    data = report(tmp_path, joined([*RAW[:2], *[b"garbage"] * 250, *RAW[2:]]))
    listed = [line for _, line in said(data, "bad-line") if line is not None]
    assert listed == list(range(3, 103))
    assert any("150 more" in item["message"] for item in data["diagnostics"]["items"])


def test_a_space_before_the_colon_hides_no_text_that_looks_like_a_number(tmp_path: Path) -> None:
    line = b'{"kind":"span","n":4,"trajectory_id":"b","tokens" : "10","version":0}'
    answer = report(tmp_path, replaced(5, line))
    assert [number for _, number in said(answer, "bad-line")] == [5]
    assert is_open(answer)


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "span", "n": 4, "trajectory_id": "b", "tokens": "10", "version": 0},
        {"kind": "span", "n": 4, "trajectory_id": "b", "tokens": True, "version": 0},
        {"kind": "span", "n": 4, "trajectory_id": 7, "tokens": 10, "version": 0},
        {"kind": "span", "n": 4, "trajectory_id": "b", "versions": ["0", "0"]},
        {"kind": "span", "n": 4, "trajectory_id": "b", "versions": [0, False], "monotone": True},
        {"kind": "span", "n": 4, "trajectory_id": "b", "versions": [0, 0.5]},
    ],
)
def test_a_value_of_another_type_is_refused_whether_packed_or_not(tmp_path: Path, line: Line) -> None:
    """A text that looks like a number is none: line 5 is left out, and what it may have said stays open."""
    log = replaced(5, json.dumps(line))
    answers = []
    for name, data in ((NAME, log), (NAME + ".gz", gzip.compress(log))):
        (tmp_path / name).mkdir()
        answer = report(tmp_path / name, data, names=(name,))
        assert said(answer, "bad-line") == [(name, 5)]
        assert is_open(answer)
        answers.append({key: answer[key] for key in ("verdict", "trajectories", "tokens", "staleness")})
    assert answers[0] == answers[1]
