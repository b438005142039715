"""A run that is read line by line, in any portions, comes to what a fresh audit of the same lines comes to."""

from __future__ import annotations

import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import logs
from oracle.lives import Run
from oracle.strategies import runs

from staleness_audit import audit
from staleness_audit.watch import growing
from staleness_audit.watch.follow import Follower


def figures(document: dict[str, Any]) -> dict[str, Any]:
    same = json.loads(json.dumps(document, default=str))
    del same["violations"]["worst"], same["run"]["health"]
    return same


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=runs(), seed=st.integers(0, 10**6), block=st.sampled_from((1, 3)))
def test_any_portions_come_to_the_same(monkeypatch: pytest.MonkeyPatch, run: Run, seed: int, block: int) -> None:
    """Every trajectory that is over is set aside at once, in blocks of one or three, so that late lines reopen them."""
    monkeypatch.setattr(growing, "SEAL_FROM", 1)
    monkeypatch.setattr(growing, "BLOCK", block)
    monkeypatch.setattr(growing, "MANY_PARTS", 3)
    monkeypatch.setattr(growing, "PATIENCE", 10**6)
    rng = random.Random(seed)
    with TemporaryDirectory() as place:
        folder = Path(place) / "run"
        folder.mkdir()
        whole = {name: [logs.dump([line]) for line in lines] for name, lines in logs.log_of(run).items()}
        watching = Follower(folder, run.bound, framework=None, folder=Path(place) / "watching")
        written = dict.fromkeys(whole, 0)
        while any(written[name] < len(lines) for name, lines in whole.items()):
            for name, lines in whole.items():
                more = rng.choice((0, 4, 12, 40))
                with (folder / name).open("ab") as file:
                    file.writelines(lines[written[name] : written[name] + more])
                written[name] += more
            if all(count == 0 for count in written.values()):
                continue
            state = watching.refresh()
            watching.settle()
            fresh = audit(folder, run.bound, tables=Path(place) / "fresh").data
            assert figures(state.data) == figures(fresh)
