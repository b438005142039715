"""A line of 100 MB in the middle of any log: an answer, within bounds of memory and time, that names the file.

Measured in a process of its own, since nothing else tells how much memory an audit took at most.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.cases import cases

from faults.damage import files_of, is_text, plain_name, replace, unpack
from faults.judge import Case

LINE_BYTES = 100_000_000
MOST_BYTES = 1_500_000_000
"""Of memory: the line as bytes, as text, as columns, and twice each while one is made from the other."""
MOST_SECONDS = 60
"""Of processor time."""
AUDIT = """
import json, resource, sys
from staleness_audit.api import audit
from staleness_audit.errors import AuditError
try:
    data = audit(sys.argv[1], 1, tables=sys.argv[2]).data
    told = [f"{item['source']} {item['message']}" for item in data["diagnostics"]["items"]]
    said = [data["trajectories"], data["tokens"], data["staleness"]]
except AuditError as refusal:
    told, said = [str(refusal)], None
used = resource.getrusage(resource.RUSAGE_SELF)
seconds = used.ru_utime + used.ru_stime
# Not ru_maxrss, which counts what the process was before it ran this.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(json.dumps({"bytes": int(peak.split()[1]) * 1024, "seconds": seconds, "told": told, "said": said}))
"""


def logs() -> list[tuple[Path, str]]:
    """Return a text file of each name (but for numbers) of each format, in the first case that has it."""
    found: dict[tuple[str, str], tuple[Path, str]] = {}
    for case in cases():
        for kind in files_of(case / "run", lambda path: is_text(path) and path.stat().st_size > 0):
            path = kind[len(kind) // 2]
            letters = "".join(char for char in plain_name(path).name if not char.isdigit())
            found.setdefault((case.parent.name, letters), (case, path.relative_to(case / "run").as_posix()))
    return list(found.values())


def audited(run: Path, tables: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", AUDIT, str(run), str(tables)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr[-2000:]
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "file"), logs(), ids=lambda part: part if isinstance(part, str) else part.name)
def test_a_line_of_100_mb(folder: Path, file: str, tmp_path: Path) -> None:
    run = Case(folder, tmp_path).copy()
    lines = unpack(run / file).splitlines(keepends=True)
    half = len(lines[len(lines) // 2]) // 2
    lines[len(lines) // 2] = lines[len(lines) // 2][:half] + b"x" * LINE_BYTES + lines[len(lines) // 2][half:]
    replace(run / file, b"".join(lines), packed=True)
    after = audited(run, tmp_path / "after")
    print(f"{file}: {after['bytes']:,} bytes, {after['seconds']:.1f} s")
    assert after["bytes"] < MOST_BYTES
    assert after["seconds"] < MOST_SECONDS
    # A console may hold any text; where a long one is nobody's message, it changes nothing.
    if not any(file in text for text in after["told"]):
        assert after["said"] == audited(folder / "run", tmp_path / "whole")["said"]
