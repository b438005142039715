"""What launchers, terminals and other processes add to a console changes nothing that is read from it.

Only the consoles of a recorded run are audited, so that no other file makes up for what would be lost in them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from helpers.cases import cases

from staleness_audit.api import audit

BAR = "Generating:  38%|████▊      | 3/8 [00:10<00:17,  3.5s/it]"
FOREIGN = (
    "INFO 11-29 16:41:56 [loggers.py:123] Engine 000: Avg prompt throughput: 12.1 tokens/s, Running: 3 reqs",
    "(EngineCore_DP0 pid=77) WARNING 11-29 10:10:10 something odd happened",
    '  File "/opt/x.py", line 3, in f',
)


def every(change: Callable[[int, str], str]) -> Callable[[str], str]:
    """Change each line, given its number."""
    return lambda text: "\n".join(change(*line) if line[1] else "" for line in enumerate(text.split("\n")))


def after(which: int, added: Callable[[int], str]) -> Callable[[str], str]:
    """Put a line of another process after every fifth line."""
    return every(lambda at, line: f"{line}\n{added(at)}" if at % 5 == which else line)


def ray(text: str) -> str:
    return every(lambda _, line: f"\x1b[36m(TaskRunner pid=123, ip=10.0.0.1)\x1b[0m {line}")(text)


def crlf(text: str) -> str:
    return text.replace("\n", "\r\n")


NOISE: dict[str, Callable[[str], str]] = {
    "CRLF": crlf,
    "colour": every(lambda _, line: f"\x1b[32m{line}\x1b[0m"),
    "Ray prefix": ray,
    "folded lines of others": after(2, lambda _: "(RewardWorker pid=99) scored [repeated 3x across cluster]"),
    "foreign lines": after(1, lambda at: FOREIGN[at % 3]),
    "glued bars": every(lambda at, line: BAR + line if at % 6 == 2 else line),
    "rewritten bars": every(lambda at, line: f"{BAR}\r{line}" if at % 6 == 2 else line),
    "all at once": lambda text: crlf(ray(after(1, lambda at: FOREIGN[at % 3])(text))),
}
UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.decompress,
    ".zst": lambda data: zstandard.ZstdDecompressor().stream_reader(data).read(),
}


def consoles(run: Path) -> dict[Path, str]:
    """Texts of a run's consoles, by where they stand once they are unpacked."""
    found = {}
    for packing, unpack in UNPACK.items():
        for path in run.rglob(f"*.log{packing}"):
            text = unpack(path.read_bytes()).decode()
            if text and path.parent.name != "proxy":
                found[path.relative_to(run).with_name(path.name.removesuffix(packing))] = text
    return dict(sorted(found.items()))


WITH_CONSOLE = [case for case in cases() if consoles(case / "run")]


def told(run: Path, tables: Path, bound: int | None) -> dict[str, Any]:
    """Verdict and counts, without the names of the lines that prove them."""
    data = audit(run, bound, tables=tables).data
    for use in data["violations"]["worst"] or []:
        del use["evidence"]
    names = ("verdict", "bound", "guarantee", "staleness", "violations", "trajectories", "tokens", "throughput")
    return {name: data[name] for name in names} | {name: data["run"][name] for name in ("steps", "attempts")}


@pytest.mark.slow
@pytest.mark.parametrize("case", WITH_CONSOLE, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_noise_changes_nothing(case: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    texts = consoles(case / "run")
    for path, text in texts.items():
        (run / path).parent.mkdir(parents=True, exist_ok=True)
        (run / path).write_bytes(text.encode())
    argv = json.loads((case / "expected.json").read_text()).get("argv", [])
    bound = int(argv[argv.index("--bound") + 1]) if "--bound" in argv else 1
    plain = told(run, tmp_path / "plain", bound)
    for name, change in NOISE.items():
        for path, text in texts.items():
            (run / path).write_bytes(change(text).encode())
        assert told(run, tmp_path / name, bound) == plain, name
