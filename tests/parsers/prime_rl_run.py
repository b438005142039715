"""Writes small prime-rl run directories by hand, and reads back what the parser makes of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from staleness_parsers.prime_rl import PARSER

from staleness_audit import ingest, plugins
from staleness_audit.discovery import discover

NOON = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC).timestamp()
"""Time 0 of the runs below; their logs tell it as 14:00:00 (two hours east of Greenwich)."""
ZONE = 7200

CONFIG = {
    "max_off_policy_steps": 1,
    "batch_size": 4,
    "group_size": 2,
    "seq_len": 1024,
    "max_steps": None,
    "model": {"lora": None},
    "train": {
        "filter_zero_advantages": True,
        "source": [
            {
                "name": "math",
                "group_size": 2,
                "algo": {"type": "grpo", "length_penalty": None, "sampling": {"source": "policy"}},
                "curriculum": None,
            }
        ],
    },
    "monitors": {"file": {"path": "metrics.jsonl"}},
}


def node(tokens: int, parent: int | None = None, *, header: int = 1, sampled: bool = True) -> dict[str, Any]:
    """A node of ``header`` unsampled and ``tokens`` sampled tokens (a prompt if not ``sampled``)."""
    mask = [False] * header + [sampled] * tokens
    found = {"sampled": sampled, "mask": mask, "token_ids": list(range(len(mask)))}
    return found if parent is None else found | {"parent": parent}


def trace(name: str, calls: Iterable[tuple[float, float, int]], *, reward: float = 1.0, **more: Any) -> dict[str, Any]:
    """A trace of one turn per call: (begin, end, tokens), seconds after ``NOON``."""
    nodes, made, last = [node(3, header=0, sampled=False)], [], 0.0
    for index, (begin, end, tokens) in enumerate(calls):
        nodes.append(node(tokens, index))
        made.append(
            {
                "node": index + 1,
                "time": {"start": NOON + begin, "end": NOON + end},
                "usage": {"completion_tokens": tokens},
            }
        )
        last = end
    first = made[0]["time"]["start"] if made else NOON
    found = {
        "version": 1,
        "id": name,
        "agent": {"name": "agent", "trainable": True},
        "nodes": nodes,
        "calls": made,
        "rewards": {"r": {"score": reward, "weight": 1.0}},
        "ok": True,
        "errors": [],
        "timing": {"start": first - 0.1, "scoring": {"start": NOON + last, "end": NOON + last + 0.1}},
    }
    return found | more


def episode(
    name: str, group: str, start: int | None, end: int | None, traces: list[dict[str, Any]], **more: Any
) -> dict[str, Any]:
    """An episode of the environment ``math`` with a span of versions (none for a frozen source)."""
    work: dict[str, Any] = {"type": "train", "step": 1}
    if start is not None:
        work["policy"] = {"start": start, "end": end}
    found = {
        "id": name,
        "env": {"id": "math", "name": "math"},
        "group": {"id": group},
        "run": {"type": "train", "work": work},
        "ok": True,
        "errors": [],
        "traces": traces,
    }
    return found | more


def simple(name: str, group: str, start: int, end: int, begin: float, stop: float, **more: Any) -> dict[str, Any]:
    """An episode with one trace ``name`` of one call and ten tokens."""
    return episode(f"e-{name}", group, start, end, [trace(name, [(begin, stop, 10)], **more)])


@dataclass
class Run:
    """A run directory under construction."""

    root: Path
    metrics: list[dict[str, Any]] = field(default_factory=list)

    def write(self, path: str, text: str) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        return target

    def config(self, **changes: Any) -> None:
        self.write("configs/orchestrator.json", json.dumps(CONFIG | changes))

    def lines(self, path: str, rows: Iterable[Any]) -> Path:
        return self.write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def traces(self, step: int, part: str, *rows: dict[str, Any], role: str = "train") -> Path:
        return self.lines(f"rollouts/step_{step}/{role}/{part}/traces.jsonl", rows)

    def shipped(self, step: int, at: float, **more: Any) -> None:
        row = {"step": step, "time": NOON + at, "time/step": 9.0, "progress/rollouts": 4, "off_policy/dropped": 0.0}
        self.metrics.append(row | more)

    def trained(self, step: int, at: float) -> None:
        row = {"step": step, "time": NOON + at, "time/step": 8.0, "time/wait_for_batch": 5.0}
        self.metrics.append(row | {"time/forward_backward": 2.0, "time/broadcast_weights": 0.5, "time/save_ckpt": 0})

    def save_metrics(self) -> Path:
        return self.lines("metrics.jsonl", self.metrics)

    def log(self, *entries: tuple[float, str, str], attempt: int | None = 1, process: str = "orchestrator") -> Path:
        """Lines (seconds after ``NOON``, level, message), coloured and without a date as the framework writes them."""
        text = ""
        for at, level, message in entries:
            clock = datetime.fromtimestamp(NOON + ZONE + at, UTC).strftime("%H:%M:%S")
            text += f"\x1b[2m{clock}\x1b[0m \x1b[1m{level:>7}\x1b[0m \x1b[1m{message}\x1b[0m\n"
        folder = f"logs/attempt_{attempt}" if attempt is not None else "logs"
        return self.write(f"{folder}/{process}.log", text)


def step_line(step: int, shipped: int, recorded: int) -> str:
    """The orchestrator's line for a shipped batch."""
    return (
        f"Step {step} |    8.0s | Reward 0.4000 | Trainable {shipped}/{shipped} (100.0%) | Turns 1.4 | Branches 1.0 | "
        f"Max Off-Policy {recorded} | Error 0.0% | Cancelled 0.0% | Truncation 0.0%"
    )


@dataclass
class Tables:
    """What the parser wrote."""

    dataset: ingest.Dataset

    def rows(self, table: str, *order: str) -> list[dict[str, Any]]:
        frame = self.dataset.scan(table).collect()
        return frame.sort(*order).to_dicts() if order else frame.to_dicts()

    @property
    def facts(self) -> dict[str, Any]:
        return dict(self.dataset.facts)

    def versions(self, trajectory: str) -> list[tuple[int | None, int | None]]:
        """Version intervals of a trajectory's spans in their order."""
        spans = [row for row in self.rows("spans", "span_index") if row["trajectory_id"] == trajectory]
        return [(row["version_lo"], row["version_hi"]) for row in spans]

    def loss(self, trajectory: str) -> tuple[int, int | None]:
        spans = [row for row in self.rows("spans") if row["trajectory_id"] == trajectory]
        highs = [row["loss_tokens_hi"] for row in spans]
        return sum(row["loss_tokens_lo"] for row in spans), None if None in highs else sum(highs)

    def uses(self) -> set[tuple[str, int, int]]:
        return {(row["trajectory_id"], row["attempt"], row["step"]) for row in self.rows("uses")}

    def fates(self, trajectory: str) -> set[tuple[str, str | None, str]]:
        ends = ("dropped", "cancelled", "lost", "pending")
        rows = [row for row in self.rows("events") if row["trajectory_id"] == trajectory and row["kind"] in ends]
        return {(row["kind"], row["reason"], row["evidence"]) for row in rows}

    def codes(self) -> Counter[str]:
        return Counter(row["code"] for row in self.rows("diagnostics"))

    def opened(self) -> set[str]:
        return {row["opens"] for row in self.rows("diagnostics") if row["opens"]}


def read(root: Path, tables: Path, **assume: str) -> Tables:
    """Ingest a run directory with this parser alone."""
    run = discover(root)
    run.assume = {key.replace("_", "-"): value for key, value in assume.items()}
    return Tables(ingest.ingest(run, plugins.choose(run, among={PARSER.name: PARSER}), tables))
