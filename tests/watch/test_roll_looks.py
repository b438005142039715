"""ROLL: what a look at a growing run makes anew, and what it keeps of the looks before."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.states import figures
from staleness_parsers.roll import agentic, console, rlvr

from staleness_audit import audit
from staleness_audit.watch.follow import Follower

sys.path.insert(0, str(Path(__file__).parents[1] / "parsers"))
from roll_run import agents, call, config, export, log, prompt, step

TRACES = "otlp/traces/traces.jsonl"


class Growing:
    """A run that is appended to and looked at; each look must say what a fresh audit says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "run"
        self.fresh = folder / "fresh"
        self.watching = Follower(self.folder, None, framework=None, folder=folder / "watching")

    def append(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as stream:
            stream.write(text)

    def look(self) -> None:
        state = self.watching.refresh()
        assert state.trouble is None
        self.watching.settle()
        self.said: Any = state.data

    def compare(self) -> None:
        assert figures(self.said) == figures(audit(self.folder, tables=self.fresh).data)


@pytest.fixture
def run(tmp_path: Path) -> Growing:
    return Growing(tmp_path)


def test_trajectories_of_a_batch_are_made_once(run: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of a group are trained at step 1; step 2 brings two others, one of them under a name of step 1."""
    made: list[int] = []
    make = agentic.trajectories_of
    monkeypatch.setattr(
        agentic,
        "trajectories_of",
        lambda rows: [made.append(rows[0]["step"]), make(rows)][1],  # type: ignore[func-returns-value]
    )
    names = [f"Toy_0_1_0_{env}_{episode}_77_20261129_161001_000000" for episode in (1, 2) for env in (0, 1)]
    for number in (1, 2):
        run.append("console.log", log(f"pipeline rollout global step {number} start..."))
        run.append("console.log", log(f"pipeline step {number} finished"))
    run.append("rollout_dump/rollout_dump_data.step_1.jsonl", agents(1, names[:2]))
    run.look()
    assert made == [1]
    run.append("rollout_dump/rollout_dump_data.step_2.jsonl", agents(2, [names[2], names[0]]))
    run.look()
    assert made == [1, 2]
    run.compare()


def test_a_prompt_is_counted_again_when_more_of_it_is_told(run: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The span of the prompt of step 0 is there before that of its reward, without which nothing took it."""
    kept: list[int] = []
    rows_of = rlvr._rows_of

    def noted(counted: Any, memory: dict[str, Any]) -> Any:
        before = memory.get("prompts", {})
        found = rows_of(counted, memory)
        kept.append(sum(row is before.get(row["span"]) for row in found))
        return found

    monkeypatch.setattr(rlvr, "_rows_of", noted)
    run.append("console.log", config(ratio=1))
    first, second = prompt(0, 0, 5, [(3, 4)]), prompt(1, 0, 9, [(6, 8)])
    late = [span for span in first if span["name"] == "rollout.compute_rewards"]
    run.append(TRACES, export("driver", step(0)) + export("scheduler", [call(0), *second]))
    run.append(TRACES, export("scheduler", [span for span in first if span not in late]))
    run.look()
    run.compare()
    kept.clear()
    run.append(TRACES, export("scheduler", late) + export("driver", step(1)) + export("scheduler", [call(1)]))
    run.look()
    assert run.said["trajectories"]["trained"]["lo"] == 2
    assert kept == [1]  # of two, the one that nothing new is told of
    run.compare()


def test_of_a_log_only_the_last_steps_are_read_again(run: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece begins with a step; the configuration, printed before the first, is in the first piece only.

    It ends there, although no empty line ends it: what follows is not of it.
    """
    monkeypatch.setattr(console, "PIECE_BYTES", 400)
    read: list[int] = []
    read_console = console.read_console
    monkeypatch.setattr(
        console,
        "read_console",
        lambda files, piece, sink: [read.append(piece.first_line), read_console(files, piece, sink)],
    )
    printed = config(ratio=1).removesuffix(log("force set offload_nccl=False.", 0)).rstrip("\n")
    run.append("console.log", printed + "\n")
    for number in range(4):
        run.append(
            "console.log", log(f"pipeline step {number} start...") + "async_generation_ratio: 7\n" + log("x" * 200)
        )
        run.append("console.log", log(f"pipeline step {number} finished"))
    run.look()
    before = list(read)
    assert len(before) > 2
    assert run.said["run"]["steps"] == {"lo": 4, "hi": 4}
    run.append("console.log", log("pipeline step 4 start...") + log("pipeline step 4 finished"))
    read.clear()
    run.look()
    assert read == [before[-1] + 4]
    assert run.said["run"]["steps"] == {"lo": 5, "hi": 5}
    assert run.said["bound"]["value"] == 1
    run.compare()
