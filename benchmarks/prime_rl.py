"""A run of prime-rl that is written step by step, for ``watch.py``: traces, metrics, the orchestrator's log.

Each step trains 32 groups of 8; every eighth group is one version older. Two more groups arrive too old and are
dropped, as the log says. The trainer takes nine of ten seconds.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

BEGAN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
BOUND, GROUPS, MEMBERS, DROPPED = 2, 32, 8, 2
SECONDS = 10.0
PER_STEP = (GROUPS + DROPPED) * MEMBERS


class GrowingRun:
    """Writes steps into ``folder``, which must not exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._step = 0
        (folder / "configs").mkdir(parents=True)
        (folder / "configs" / "orchestrator.json").write_text(json.dumps(_config(), indent=2) + "\n")
        (folder / "logs" / "attempt_1").mkdir(parents=True)
        self._log(_line(0.0, "INFO", "Starting orchestrator loop (max_steps=infinite)"))

    def steps(self, count: int) -> None:
        """Write so many steps more."""
        for _ in range(count):
            self._step += 1
            self._write(self._step)

    def _write(self, step: int) -> None:
        members = [_group(step, number) for number in range(GROUPS + DROPPED)]
        shipped = "".join(members[:GROUPS])
        for part, text in (("all", "".join(members)), ("effective", shipped)):
            folder = self._folder / "rollouts" / f"step_{step}" / "train" / part
            folder.mkdir(parents=True)
            (folder / "traces.jsonl").write_text(text)
        at, count, dropped = SECONDS * step, GROUPS * MEMBERS, DROPPED * MEMBERS if step > BOUND + 1 else 0
        oldest = min(step - 1, BOUND)
        if dropped:
            advice = f"past max_off_policy_steps={BOUND}. Consider increasing it to avoid this."
            self._log(_line(at - 0.5, "WARNING", f"Dropped {dropped} queued traces {advice}"))
        shown = f"Step {step} | {SECONDS:6.1f}s | Reward 1.0000 | Trainable {count}/{count} (100.0%)"
        ages = f"Max Off-Policy {oldest} | Error 0.0% | Cancelled 0.0% | Truncation 0.0%"
        self._log(_line(at, "SUCCESS", f"{shown} | Turns 1.0 | Branches 1.0 | {ages}"))
        self._log(_line(at + 9, "INFO", f"Updating policy in-flight to v{step}"))
        self._log(_line(at + 9.5, "DEBUG", f"Updated weights to step {step} in 500ms"))
        orchestrator = {
            "step": step,
            "time": BEGAN + at,
            "progress/rollouts": PER_STEP,
            "time/step": SECONDS,
            "off_policy/max": float(oldest),
            "off_policy/dropped": float(dropped),
        }
        trainer = {"step": step, "time": BEGAN + at + 9, "time/step": 9.0, "time/wait_for_batch": 1.0}
        with (self._folder / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in (orchestrator, trainer))

    def _log(self, line: str) -> None:
        with (self._folder / "logs" / "attempt_1" / "orchestrator.log").open("a") as file:
            file.write(line)


def _group(step: int, number: int) -> str:
    """Lines of the episodes of a group that arrive while a step is collected."""
    older = 2 if number >= GROUPS else int(number % 8 == 0)
    start = max(0, step - 2 - older)
    group = f"{step:06x}{number:02x}-0000-4000-8000-{step * 64 + number:012x}"
    began = max(0.5, SECONDS * (start + 1) + 1 + 0.01 * number)
    lines = []
    for member in range(MEMBERS):
        name, tokens = f"{step:x}g{number:x}m{member}", 5 + number * member % 40
        times = {"start": BEGAN + began, "end": BEGAN + SECONDS * step - 2 + 0.02 * number + 0.001 * member}
        usage = {"prompt_tokens": 4, "completion_tokens": tokens}
        trace = {
            "version": 1,
            "id": f"{name}b",
            "agent": {"name": "agent", "trainable": True},
            "nodes": [
                {"sampled": False, "mask": [False] * 4, "token_ids": [1] * 4},
                {"parent": 0, "sampled": True, "mask": [True] * tokens, "token_ids": [2] * tokens},
            ],
            "calls": [{"node": 1, "finish_reason": "stop", "usage": usage, "time": times}],
            "rewards": {"score": {"score": 1.0, "weight": 1.0}},
            "is_completed": True,
            "ok": True,
            "errors": [],
            "timing": {"start": times["start"], "scoring": {"start": times["end"], "end": times["end"]}},
        }
        work = {"type": "train", "step": max(1, start + 2), "policy": {"start": start, "end": max(0, step - 2)}}
        episode = {
            "id": name,
            "env": {"id": "words", "name": "words"},
            "group": {"id": group},
            "run": {"type": "train", "work": work},
            "ok": True,
            "errors": [],
            "traces": [trace],
        }
        lines.append(json.dumps(episode) + "\n")
    return "".join(lines)


def _line(at: float, level: str, message: str) -> str:
    clock = datetime.fromtimestamp(BEGAN + at, UTC).strftime("%H:%M:%S")
    return f"\x1b[2m{clock}\x1b[0m \x1b[1m{level:>7}\x1b[0m \x1b[1m{message}\x1b[0m\n"


def _config() -> dict[str, object]:
    algorithm = {"type": "grpo", "length_penalty": None, "sampling": {"source": "policy"}}
    source = {"name": "words", "group_size": MEMBERS, "algo": algorithm, "curriculum": None}
    return {
        "max_off_policy_steps": BOUND,
        "batch_size": GROUPS * MEMBERS,
        "group_size": MEMBERS,
        "seq_len": 1 << 20,
        "max_steps": None,
        "model": {"lora": None},
        "train": {"filter_zero_advantages": False, "source": [source]},
        "monitors": {"file": {"path": "metrics.jsonl"}},
    }
