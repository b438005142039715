"""What fuzzing is given and has found, read again in every run of the tests; and inputs by grammar."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.command import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.held import read_run
from fuzz.mutate import NUMBER, ODD
from fuzz.small import SAMPLES, cases
from fuzz.targets import HEAD, TARGETS, bench, seeds
from staleness_audit.api import load
from staleness_audit.discovery import discover
from staleness_audit.plugins import choose
from staleness_audit.readers.config import UnreadableConfig, parse_config
from staleness_audit.readers.pickle_values import BadPickle, read_pickle
from staleness_audit.tables import SCHEMAS

CORPUS = Path(__file__).parent / "corpus"
READERS = [name for name in TARGETS if not name.startswith("parser-")]


@pytest.mark.parametrize("name", READERS)
def test_readers_end_as_they_say_they_do(name: str) -> None:
    found = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    assert found
    genuine = [seed for seed in seeds(name) if len(seed) < 5000][:3]
    for data in [b"", *found, *genuine]:
        TARGETS[name](data)


def test_the_corpus_is_small_and_belongs_to_targets() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 20_000
    assert {f"parser-{path.name}" for path in SAMPLES.iterdir() if path.is_dir()} <= set(TARGETS)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TARGETS if name.startswith("parser-")])
def test_parsers_end_with_a_result_or_a_sentence(name: str) -> None:
    """Each kind of file is cut in its middle, emptied, exchanged for noise, and given odd numbers."""
    for data in seeds(name):
        kind, body = data[:HEAD], data[HEAD:]
        for other in (body[: len(body) // 2], b"", b"\x00\xff{\n" * 50, *(_odd(body, text) for text in ODD)):
            TARGETS[name](kind + other)
    for path in (CORPUS / name).glob("*"):
        TARGETS[name](path.read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name.removeprefix("parser-") for name in TARGETS if name.startswith("parser-")])
def test_what_is_held_in_memory_is_what_ingestion_writes(name: str, tmp_path: Path) -> None:
    around = bench(name, cases(name)[0])
    run = discover(around.small.root)
    held = read_run(run, choose(run, name, around.among), {}).tables
    written = load(around.small.root, framework=name, tables=tmp_path / "tables")
    for table in set(SCHEMAS) - {"sources"}:
        rows = held.get(table, written.scan(table).head(0).collect()).rows()
        assert sorted(map(str, rows)) == sorted(map(str, written.scan(table).collect().rows())), table


def _odd(body: bytes, text: bytes) -> bytes:
    """Put a text instead of the first and the third number of every other line."""
    lines = body.splitlines(keepends=True)
    for index in range(len(text) % 2, len(lines), 2):
        places = list(NUMBER.finditer(lines[index]))
        for place in places[2:3] + places[:1]:
            lines[index] = lines[index][: place.start()] + text + lines[index][place.end() :]
    return b"".join(lines)


OPCODES = b"NK\x88\x89]})(\x8f0122aeslutd\x85\x86\x87\x90\x91\x94hRbQ\x81.co\x93\x92"
operation = st.one_of(
    st.sampled_from([bytes([code]) for code in OPCODES]),
    st.builds(lambda code, index: bytes([code, index]), st.sampled_from(b"hqK"), st.integers(0, 6)),
    st.builds(lambda text: b"\x8c" + bytes([len(text)]) + text, st.binary(max_size=6)),
    st.builds(lambda text: b"\x8a" + bytes([len(text)]) + text, st.binary(max_size=12)),
    st.sampled_from([b"cbuiltins\nset\n", b"cbuiltins\nbytearray\n", b"c_codecs\nencode\n", b"cos\nsystem\n"]),
)


@given(st.lists(operation, max_size=40))
@settings(max_examples=300, deadline=None)
def test_programs_of_a_pickle_are_a_value_or_bad(program: list[bytes]) -> None:
    with suppress(BadPickle):
        read_pickle(b"\x80\x04" + b"".join(program) + b".")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6) | st.integers(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=6), plain, max_size=5))
@settings(max_examples=100, deadline=None)
def test_configurations_are_plain_or_unreadable(value: dict[str, Any]) -> None:
    """What comes out can be written as JSON and as UTF-8, whatever went in."""
    for data, kind in ((yaml.safe_dump(value).encode(), "yaml"), (json.dumps(value, default=str).encode(), "json")):
        with suppress(UnreadableConfig):
            json.dumps(parse_config(data, kind), ensure_ascii=False, allow_nan=False).encode()


odd = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        1,
        2,
        2**31,
        2**63,
        -(2**63) - 1,
        1e308,
        0.5,
        "",
        "a",
        "b",
        "\ud800",
        "\x00",
        "'; --",
        [],
        [1],
        {},
        "9",
    ]
)
FIELDS = ["n", "trajectory_id", "group_id", "version", "versions", "tokens", "loss_tokens", "step", "started"]
FIELDS += ["ended", "ts", "reason", "completed", "trajectories", "worker", "attempt"]
event = st.fixed_dictionaries(
    {"kind": st.sampled_from(["admitted", "span", "finished", "trained", "step", "sync", "dropped", "end", "?"])},
    optional=dict.fromkeys(FIELDS, odd),
)


@given(header=st.dictionaries(st.sampled_from(["framework", "bound", "config", "writer", "clock"]), odd),
       events=st.lists(event, max_size=8))  # fmt: skip
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_event_logs_by_grammar_are_audited_or_refused(
    tmp_path: Path, header: dict[str, Any], events: list[Any]
) -> None:
    """Every field may hold anything; the command ends with a verdict's exit code or one sentence."""
    log = tmp_path / "run.staleness.jsonl"
    lines = [{"format": "staleness-events/1", **header}, *events]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run("audit", log, "--bound", "1", "--format", "json", "--tables", tmp_path / "tables")
    assert done.exit_code in (0, 1, 2, 3) and (done.exception is None or isinstance(done.exception, SystemExit))
    if done.exit_code == 2:
        assert done.stderr.startswith("error: ")
    else:
        json.loads(done.stdout)
