"""Files that are none, lead elsewhere, unpack without end or have strange names: named, bounded, not followed."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from helpers.command import run, sentence

from staleness_audit import discovery
from staleness_audit.api import audit
from staleness_audit.discovery import discover
from staleness_audit.errors import UnreadableInput
from staleness_audit.readers import lines
from staleness_audit.readers.config import UnreadableConfig, parse_config, parse_printed
from staleness_audit.readers.console import parse_dict, strip_ansi, undecorate

BESIDE = "y.staleness.jsonl"


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(path))


def device(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root makes device files")
    os.mknod(path, 0o666 | 0o020000, os.makedev(1, 5))  # /dev/zero: endless


def link_out(path: Path) -> None:
    secret = path.parents[1] / "secret.staleness.jsonl"
    secret.write_text('{"format": "staleness-events/1"}\n')
    path.symlink_to(secret)


def link_up(path: Path) -> None:
    path.symlink_to("../../../../../../etc/passwd")


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_nothing(path: Path) -> None:
    path.symlink_to("/nowhere/at/all")


@pytest.mark.parametrize(
    "make",
    [fifo, unix_socket, device, link_out, link_up, link_to_device, link_to_nothing],
    ids=lambda make: make.__name__,
)
def test_what_is_no_file_of_the_run_is_named_and_not_opened(two_step_run: Any, make: Callable[[Path], None]) -> None:
    path = two_step_run("run", bound=2)
    assert audit(path).verdict == "pass"
    make(path / BESIDE)
    result = audit(path)
    (said,) = [item for item in result.data["diagnostics"]["items"] if item["code"] == "file-not-read"]
    assert said["source"] == BESIDE
    # It has the name of a log of the run, so what it held is not known.
    assert result.verdict == "inconclusive"
    assert result.data["trajectories"]["seen"]["lo"] == 2


def test_a_fifo_is_no_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "neither a directory nor a regular file" in sentence(run("audit", tmp_path / "pipe"))


def test_a_file_that_becomes_a_fifo_or_a_link_after_it_was_listed(two_step_run: Any) -> None:
    path = two_step_run("run", bound=2)
    for make in (fifo, link_out):
        found = discover(path)
        (path / "run.staleness.jsonl").rename(path.parent / "aside")
        make(path / "run.staleness.jsonl")
        with pytest.raises(UnreadableInput):
            found.open("run.staleness.jsonl")
        (path / "run.staleness.jsonl").unlink()
        (path.parent / "aside").rename(path / "run.staleness.jsonl")


def test_folders_that_go_round_or_down_without_end(two_step_run: Any) -> None:
    path = two_step_run("run", bound=2)
    (path / "round").symlink_to(path)
    here = os.open(path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert audit(path).data["trajectories"]["seen"] == {"lo": 2, "hi": 2}
    # The standard library's own removal recurses.
    subprocess.run(["rm", "-rf", str(path / "d")], check=True)


NAMES = [
    b"new\nline",
    b"\x1b[2J\x1b]0;title\x07",
    b"not utf-8 \xff\xfe",
    b"'; DROP TABLE uses; --",
    b"<script>alert(1)</script>",
    b"$(touch executed)",
    b"-rf",
    b"..",
    b"[*]?{a,b}",
    b"=cmd|'/c calc'!A1",
    "\u202egnp.exe".encode(),
    b"a" * 200,
    b"step=7",
    b"%s%n{0}",
    b"http:",
    b"\\..\\..\\x",
]


@pytest.mark.parametrize("name", [*NAMES[:3], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[3:])])
def test_any_name_is_only_a_name(two_step_run: Any, name: bytes) -> None:
    """Of a file, of a folder in the run, and of the run itself."""
    log = (two_step_run("run", bound=1) / "run.staleness.jsonl").read_bytes()
    top = Path(os.fsdecode(b"runs of " + name))
    inner = top / os.fsdecode(b"folder " + name)
    inner.mkdir(parents=True)
    (inner / os.fsdecode(name.replace(b"/", b"_") + b".staleness.jsonl")).write_bytes(log)
    shown = run("audit", top, "--format", "json", "--html", "report.html", "--output", "sarif:x.sarif")
    assert shown.exit_code == 1, (shown.output, shown.exception)
    told = json.loads(shown.stdout)["violations"]["worst"][0]["evidence"][0]
    assert told["source"].startswith("folder ") and told["source"].endswith(".staleness.jsonl")
    assert run("audit", top).exit_code == 1  # again, from the cache
    assert run("explain", top, "--worst").exit_code == 0
    assert run("export", top, "--format", "csv", "--output", "csv").exit_code == 0
    assert not Path("executed").exists()
    page = Path("report.html").read_text()
    assert "<script>alert(1)" not in page


def test_of_two_names_that_look_alike_neither_is_lost(two_step_run: Any) -> None:
    """A name that is no text goes by its escapes, unless another file really has that name."""
    path = two_step_run("run", bound=2)
    whole = (path / "run.staleness.jsonl").read_bytes()
    (path / "run.staleness.jsonl").unlink()
    (path / os.fsdecode(b"\xff.staleness.jsonl")).write_bytes(whole)
    assert [file.source for file in discover(path).files] == ["\\xff.staleness.jsonl"]
    (path / "\\xff.staleness.jsonl").write_bytes(whole)
    assert [source for source, _ in discover(path).skipped] == ["\\xff.staleness.jsonl"]
    assert audit(path).verdict == "inconclusive"


@pytest.mark.parametrize(
    "pack",
    [pytest.param(gzip.compress, id="gzip", marks=pytest.mark.slow), pytest.param(zstandard.compress, id="zstd")],
)
def test_a_compressed_log_that_unpacks_without_end_is_left_and_named(
    two_step_run: Any, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    """Limits are made small, for the time; what is read up to them counts."""
    monkeypatch.setattr(discovery, "UNPACKED_BYTES", 1 << 17)
    monkeypatch.setattr(discovery, "MAX_EXPANSION", 2)
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1 << 14)
    path = two_step_run("run", bound=2)
    log = (path / "run.staleness.jsonl").read_bytes()
    suffix = "gz" if pack is gzip.compress else "zst"
    (path / f"run.staleness.jsonl.{suffix}").write_bytes(pack(log + b"\n" * (1 << 18)))
    (path / "run.staleness.jsonl").unlink()
    result = audit(path)
    assert result.verdict == "inconclusive"
    assert any("unpack" in item["message"] for item in result.data["diagnostics"]["items"])


def test_a_flipped_byte_in_a_compressed_log_is_damage(two_step_run: Any) -> None:
    path = two_step_run("run", bound=2)
    log = path / "run.staleness.jsonl"
    packed = bytearray(gzip.compress(log.read_bytes()))
    packed[len(packed) // 2] ^= 0x55
    (path / "run.staleness.jsonl.gz").write_bytes(packed)
    log.unlink()
    assert audit(path, 2).verdict == "inconclusive"


MERGED = "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 30))
CONFIGS = {
    "toml, one key of many levels": (b".".join([b"a"] * 100_000) + b" = 1", "toml"),
    "toml, quoted levels": (b' . '.join([b'"a"', b"'b'"] * 50_000) + b" = 1", "toml"),
    "toml, a table of many levels": (b"[" + b".".join([b"a"] * 100_000) + b"]", "toml"),
    "toml, nested arrays": (b"a = " + b"[" * 100_000, "toml"),
    "toml, a number of a million digits": (b"a = " + b"1" * 1_000_000, "toml"),
    "json, nested": (b'{"a":' + b"[" * 1_000_000, "json"),
    "json, a number of a million digits": (b'{"a":' + b"1" * 1_000_000 + b"}", "json"),
    "yaml, nested in lines": ("".join(" " * n + "a:\n" for n in range(3000)).encode(), "yaml"),
    "yaml, nested keys": (b"? " * 100_000 + b"x", "yaml"),
    "yaml, an alias of itself": (b"a: &a [*a]\n", "yaml"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_that_stands_for_too_much_is_refused(name: str) -> None:
    with pytest.raises(UnreadableConfig):
        parse_config(*CONFIGS[name])


def test_numbers_in_sixties_and_merged_keys_end() -> None:
    long = "1" + ":59" * 300_000
    assert parse_config(f"a: {long}\nb: {long}.5\nc: 1:30\n".encode(), "yaml") == {"a": long, "b": f"{long}.5", "c": 90}
    assert parse_config(MERGED.encode(), "yaml")["a29"] == {"k": 1}


WIDE = 200_000
LINES = [
    "(" + " " * WIDE,
    "(a pid=1) " * (WIDE // 10),
    "(" + "a" * WIDE + " pid=1)",
    " " * WIDE + "[repeated ",
    "[repeated " * (WIDE // 10),
    "1%|a|" * (WIDE // 5),
    "1%|" + "|1/1" * (WIDE // 4),
    "1%|a| 1/1 [" * (WIDE // 10),
    "(x pid=" + "9" * WIDE + ") y",
    "x [repeated " + "9" * WIDE + "x across cluster]",
    "\x1b]" * WIDE,
    "\x1b[" + "0" * WIDE,
    "{" + "(" * WIDE,
    "{1:" + "-" * WIDE + "1}",
    "{" + "tensor(1, " * (WIDE // 10),
    "{" + "np.float64(" * (WIDE // 10),
    "{" + "1+" * (WIDE // 2) + "1}",
    "{" + "[" * WIDE + "]" * WIDE + "}",
    "- " * WIDE,
    "-" * WIDE,
    "'" * WIDE,
    "a" * WIDE + ":",
]


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_no_line_takes_a_console_reader_for_ever(line: str) -> None:
    """Each took minutes to for ever where a regular expression or the reader of literals went back and forth."""
    said = undecorate(line)
    assert said.pid is None or said.pid < 10**12
    assert len(strip_ansi(line)) <= len(line)
    assert parse_dict(line) is None
    try:
        assert len(parse_printed([line])) == 1
    except UnreadableConfig as why:
        assert str(why)


COMMANDS = """
import ctypes, os, platform, struct, sys
# Libraries in other languages pass Python's hook by: the kernel ends the process at a socket of the Internet's kind.
number = {"x86_64": 41, "aarch64": 198}.get(platform.machine())
if number is not None:
    rules = [(0x20, 0, 0, 0), (0x15, 0, 3, number), (0x20, 0, 0, 16), (0x15, 2, 0, 2), (0x15, 1, 0, 10)]
    rules += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x80000000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code)))
    kernel = ctypes.CDLL(None, use_errno=True).prctl
    if kernel(38, 1, 0, 0, 0) or kernel(22, 2, program, 0, 0):
        print("this kernel filters no calls", file=sys.stderr)
def refuse(event, arguments):
    if event.startswith(("socket.connect", "socket.getaddr", "socket.send", "socket.gethost", "urllib.Request")):
        print("NETWORK", event, arguments, file=sys.stderr)
        os._exit(99)
sys.addaudithook(refuse)
from staleness_audit.cli import main
sys.argv = ["staleness-audit", *sys.argv[1:]]
main()
"""


LOCAL = {
    "audit": "audit RUN --html x.html --output sarif:x --output junit:y --output markdown:z",
    "ingest": "ingest RUN --tables t",
    "report": "report RUN --html y.html",
    "explain": "explain RUN --worst",
    "compare": "compare RUN RUN",
    "sql": "sql RUN SELECT\\ 1",
    "export": "export RUN --output trace.json",
    "csv": "export RUN --format csv --output csv",
    "watch": "watch RUN --until-finished",
    "frameworks": "frameworks",
    "prove": "prove trl --bound 1",
    "simulate": "simulate areal --bound 2 --out sim",
}
"""What every command is called with."""


@pytest.mark.parametrize(
    "name", [name if name == "audit" else pytest.param(name, marks=pytest.mark.slow) for name in LOCAL]
)
def test_no_command_touches_the_network(two_step_run: Any, tmp_path: Path, name: str) -> None:
    """Python's own hook sees every connection and look-up of a name; the kernel every socket, of any library."""
    arguments = [part.replace("RUN", str(two_step_run("run", bound=1))) for part in shlex.split(LOCAL[name])]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode in (0, 1, 3), (arguments, done.returncode, done.stderr)


@pytest.mark.parametrize(
    "call",
    [
        "import socket; socket.getaddrinfo('example.org', 80)",
        "ctypes.CDLL(None).socket(2, 1, 0)",  # as a library in C would
    ],
    ids=["python", "native"],
)
def test_the_hooks_are_not_deaf(call: str) -> None:
    heard = COMMANDS.replace("from staleness_audit.cli import main", f"{call}\nmain = sys.exit")
    done = subprocess.run([sys.executable, "-c", heard], capture_output=True, check=False)
    if "CDLL" in call and b"filters no calls" in done.stderr:
        pytest.skip("this kernel filters no calls")
    assert done.returncode in (99, -signal.SIGSYS)
