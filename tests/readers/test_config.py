"""Configurations come out as plain values or as one clause saying why not."""

from __future__ import annotations

import gzip

import pytest

from staleness_audit.discovery import discover
from staleness_audit.readers.config import MAX_BYTES, UnreadableConfig, lookup, parse_config, parse_printed, read_config


@pytest.mark.parametrize(
    ("data", "kind", "plain"),
    [
        (b'{"job": {"eta": 2}}', "json", {"job": {"eta": 2}}),
        (b"\xef\xbb\xbf{}", "json", {}),
        (b'{"loss": NaN}', "json", {"loss": "nan"}),
        (b"job:\n  eta: 2\n  'n': 200\n  cost: 1.0e-07\n", "yaml", {"job": {"eta": 2, "n": 200, "cost": 1e-7}}),
        (b"1: on\nday: 2026-08-18\n", "yml", {"1": True, "day": "2026-08-18"}),
        (b"[job]\neta = 2\n", "toml", {"job": {"eta": 2}}),
    ],
)
def test_each_format_gives_plain_values(data, kind, plain):
    assert parse_config(data, kind) == plain


def test_a_tag_never_constructs_anything():
    data = b"a: !!python/object/apply:os.system ['true']\nb: !mine {x: 1}\n"
    assert parse_config(data, "yaml") == {"a": ["true"], "b": {"x": 1}}


def billion_laughs() -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 12)]
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("data", "kind", "why"),
    [
        (b"", "yaml", "empty"),
        (b"[1]", "json", "not a mapping"),
        (b'{"a":', "json", "not JSON"),
        (b"a: [", "yaml", "line [12]: "),
        (b"a = ", "toml", "not TOML"),
        (b"\xff", "json", "UTF-8"),
        (b"{}", "ini", "not ini"),
        (b'{"a":' * 3000 + b"1" + b"}" * 3000, "json", "deeper"),
        (b"[" * 5000, "yaml", "deeper|nesting depth"),
        (b"a: &a\n  b: *a\n", "yaml", "deeper"),
        (billion_laughs(), "yaml", "values"),
        (b" " * (MAX_BYTES + 1), "json", "larger"),
    ],
)
def test_what_is_no_configuration_says_why(data, kind, why):
    with pytest.raises(UnreadableConfig, match=why):
        parse_config(data, kind)


def test_files_of_a_run_are_read_whether_compressed_or_not(tmp_path):
    (tmp_path / "a.yaml.gz").write_bytes(gzip.compress(b"job: {eta: 2}"))
    (tmp_path / "b.yaml.gz").write_bytes(gzip.compress(b"job: {eta: 2}")[:12])
    run = discover(tmp_path)
    assert lookup(read_config(run, "a.yaml.gz"), "job.eta") == 2
    with pytest.raises(UnreadableConfig, match="damaged"):
        read_config(run, "b.yaml.gz")


def test_lookup_passes_over_missing_levels():
    assert lookup({"a": {"b": 1}}, "a.b") == 1
    assert lookup({"a": {"b": 1}}, "a.b.c") is None
    assert lookup({"a": {"b": 1}}, "x.y") is None


@pytest.mark.parametrize("noise", ["WARNING: a: b", "  File 'x.py', line 3", "10%|#  | 1/9 [00:01<00:09]", "[x] y"])
def test_a_printed_configuration_is_read_among_lines_of_others(noise):
    lines = ["job:", "  eta: 2", "  names:", "  - a", "steps: 9"]
    assert parse_printed([*lines[:2], noise, *lines[2:]]) == {"job": {"eta": 2, "names": ["a"]}, "steps": 9}
    with pytest.raises(UnreadableConfig):
        parse_printed(["nothing of it"])


@pytest.mark.parametrize("text", ["a: 100000000000000000000", '{"a": 100000000000000000000}'], ids=["yaml", "json"])
def test_integers_beyond_64_bits_are_floats(text: str) -> None:
    assert parse_config(text.encode(), "json" if text[0] == "{" else "yaml") == {"a": 1e20}


def test_a_long_hexadecimal_number_takes_no_time() -> None:
    """Its decimal digits would be refused, or computed in the square of their number."""
    assert parse_config(b"a = 0x" + b"f" * 1_000_000, "toml") == {"a": "inf"}
