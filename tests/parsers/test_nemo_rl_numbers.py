"""Numbers that no table holds, in NeMo-RL's console."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from staleness_audit import audit

SAMPLE = Path(__file__).parents[2] / "sample_traces/nemo-rl/sc-windowed-strict/run"


@pytest.mark.parametrize("word", ["group(s)", "chunk(s)"])
def test_a_number_beyond_all_reason_is_a_damaged_line(tmp_path: Path, word: str) -> None:
    """Found by fuzzing: of such a count nothing was left to count with."""
    run = shutil.copytree(SAMPLE, tmp_path / "run")
    log = run / "ray-driver.log"
    log.write_text(re.sub(rf"\d+ {re.escape(word)}", f"{'9' * 25} {word}", log.read_text(), count=1))
    data = audit(run).data
    assert "number-damaged" in {item["code"] for item in data["diagnostics"]["items"]}
    assert data["verdict"] != "pass"
