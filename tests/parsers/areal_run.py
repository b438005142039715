"""Writes small AReaL trials by hand, and audits them.

The story most tests start from: batches of two prompts with one sample each, eta = 1. Step s collects from second
10 s + 10 on, trains, pushes version s + 1 at 10 s + 16 and prints its line at 10 s + 17. Seconds count from noon UTC;
the console tells it as 14:00 (two hours east).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from staleness_audit.api import AuditResult, audit

NOON = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
ZONE = timedelta(hours=2)
ENGINE = "[RemoteInfEngine Rank 0]"
Runs = Sequence[Sequence[int]]

STRAGGLER: dict[int, tuple[float, float, Runs]] = {
    0: (1.0, 3.0, [[0, 5]]),
    1: (1.1, 4.0, [[0, 6]]),
    2: (3.5, 35.0, [[0, 4], [1, 3], [2, 2]]),
    3: (4.5, 6.0, [[0, 7]]),
    4: (4.6, 7.0, [[0, 8]]),
    5: (18.0, 19.0, [[1, 9]]),
    6: (18.1, 19.5, [[1, 3]]),
    7: (28.0, 29.0, [[2, 4]]),
    8: (38.0, 39.0, [[3, 2]]),
}
"""Task: (started, ready, version runs). Steps 0 to 3 train (0, 1), (3, 4), (5, 6), (2, 7); task 8 is left over. Task 2
is the oldest result once it is there: its 4 tokens of v0 are 3 versions old when step 3 trains them."""


def config(**changes: Any) -> dict[str, Any]:
    """The configuration of the story; keys are dotted, None removes."""
    made: dict[str, Any] = {
        "rollout": {
            "max_head_offpolicyness": 1,
            "consumer_batch_size": 2,
            "deterministic_sampling": False,
            "request_timeout": 3600,
            "_version": "v1",
        },
        "train_dataset": {"batch_size": 2},
        "gconfig": {"n_samples": 1},
        "actor": {"backend": "fsdp:d1", "ppo_n_minibatches": 1},
        "dynamic_bs": False,
    }
    for dotted, value in changes.items():
        *path, last = dotted.split(".")
        place = made
        for part in path:
            place = place.setdefault(part, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return made


def says(second: float, logger: str, text: str, level: str = "INFO") -> str:
    """A line of the console, colours and all."""
    local = NOON + ZONE + timedelta(seconds=second)
    stamp = local.strftime("%Y%m%d-%H:%M:%S.") + f"{local.microsecond // 1000:03d}"
    return f"\x1b[1;38;2;180;140;80m(AReaL)\x1b[0m \x1b[92m{stamp} {logger} {level}: {text}\x1b[0m"


def tracer(second: float = 0.0) -> list[tuple[float, str]]:
    return [
        (
            second,
            says(
                second,
                "PerfTracer",
                "Configured global PerfTracer: enabled=True, session_tracing=True, rank=0, role=master",
            ),
        )
    ]


def task_lines(
    tasks: Mapping[int, tuple[float, float | None, Any]], outcome: Mapping[int, str] | None = None, engine: str = ENGINE
) -> list[tuple[float, str]]:
    """Start and end of each task; ``outcome``: reject or fail, if not accepted."""
    lines = []
    for number, (started, ready, _) in tasks.items():
        lines.append((started, says(started, engine, f"AsyncTaskRunner: Submitted task {number}. Running: 1")))
        if ready is None:
            continue
        how = (outcome or {}).get(number, "accept")
        counters = "enqueued: 0, running: 1, accepted: 1, rejected: 1."
        if how == "fail":
            lines.append((ready - 0.001, says(ready - 0.001, engine, "Workflow execution failed: no answer", "ERROR")))
        else:
            word = "and accept" if how == "accept" else "but reject"
            lines.append((ready - 0.001, says(ready - 0.001, engine, f"Finish {word} rollout. {counters}")))
        lines.append((ready, says(ready, engine, f"AsyncTaskRunner: Completed task {number}. Running: 0")))
    return lines


def old_lines(
    tasks: Mapping[int, tuple[float, float | None, Any]], refused: int | None = None
) -> list[tuple[float, str]]:
    """Task lines of v0.3: ``accepted`` counts what finished, and a look at the results takes back what it refuses.

    Results are looked at when a batch is collected: at 10 s, 20 s, and so on.
    """
    lines, accepted = [], 0
    ended = sorted((ready, number) for number, (_, ready, _) in tasks.items() if ready is not None)
    for number, (started, _, _) in tasks.items():
        lines.append(
            (started, says(started, "Launcher", f"Submit rollout rid {number}. Submit: 1, running: 1, accepted: 0."))
        )
    looked = 10.0
    for ready, number in ended:
        if refused is not None and ready > looked and any(n == refused and at <= looked for at, n in ended):
            accepted, refused = accepted - 1, None
        while ready > looked:
            looked += 10
        accepted += 1
        text = f"Finish rollout {number}. Submit: 9, running: 1, accepted: {accepted}."
        lines.append((ready, says(ready, "Launcher", text)))
        verdict = "Rollout is rejected." if number == refused else "Accept rollout result. accepted/count = 0/2"
        lines.append((looked + 0.01, says(looked + 0.01, "Launcher", verdict)))
    return [(at, line.replace("(AReaL) ", "")) for at, line in lines]


def step_lines(steps: Mapping[int, Mapping[str, float]], shift: float = 0.0) -> list[tuple[float, str]]:
    """The line of each step and the table of its statistics."""
    lines = []
    for number, values in steps.items():
        at = 10.0 * number + 17 + shift
        lines.append((at, says(at, "StatsLogger", f"Epoch 1/1 Step {number + 1}/9 Train step {number + 1}/9 done.")))
        cells = list(values.items())
        for index in range(0, len(cells), 2):
            pairs = "".join(f" {key} │ {value:.4e} │" for key, value in cells[index : index + 2])
            lines.append((at + 0.0001 * (index + 1), f"│{pairs}"))
    return lines


def stats(count: int, tokens: int, **more: float) -> dict[str, float]:
    """What a step logs about itself; keyword names are those of ``version_stats``."""
    found: dict[str, float] = {"ppo_actor/n_seqs": count, "ppo_actor/n_valid_tokens": tokens}
    found["ppo_actor/update/version_stats/v_proximal"] = 0
    return found | {f"ppo_actor/update/version_stats/{key}": value for key, value in more.items()}


ASSIGNED = {(0, 0): {"0/0", "1/0"}, (0, 1): {"3/0", "4/0"}, (0, 2): {"5/0", "6/0"}, (0, 3): {"2/0", "7/0"}}
"""Which tasks of ``STRAGGLER`` are trained in which step."""
STATS = {0: stats(2, 11), 1: stats(2, 15), 2: stats(2, 12), 3: stats(2, 13)}
"""Of the story: 5 + 6, 7 + 8, 9 + 3, (4 + 3 + 2) + 4 tokens."""


def spans(steps: Iterable[int], rank: int = 0, pid: int = 7) -> list[dict[str, Any]]:
    """The trainer's spans of some steps, as a process writes them."""
    found: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": f"[master] Rank {rank}"}}
    ]
    for step in steps:
        begin = 10 + 10 * step
        for name, start, length in (
            ("train.rollout", begin, 2.0),
            ("train.ppo_update", begin + 3, 2.0),
            ("train.update_weights", begin + 5, 1.0),
            ("train.log_stats", begin + 6.5, 1.0),
        ):
            args = {"global_step": step, "rank": rank, "role": "master"}
            times = {"ts": round(start * 1e6), "dur": round(length * 1e6)}
            found.append({"name": name, "ph": "X", **times, "pid": pid, "tid": pid, "args": args})
    return found


def dump_row(task: int, runs: Runs, sample: int = 0, **more: Any) -> dict[str, Any]:
    """A row of a dump of v2.0.0 or later."""
    tokens = sum(count for _, count in runs)
    versions = [version for version, _ in runs]
    return {
        "task_id": task,
        "sample_idx": sample,
        "seqlen": tokens + 2,
        "prompt_len": 2,
        "head_version": min(versions, default=-1),
        "tail_version": max(versions, default=-1),
        "version_rle": [list(run) for run in runs],
        "reward": 1.0,
        "prompt": "p",
        "completion": "c",
        **more,
    }


def session(
    task: int, number: int, begin: float, end: float | None, status: str = "accepted", **more: Any
) -> dict[str, Any]:
    """A session record; times in seconds after noon."""
    base = NOON.timestamp()
    record = {
        "task_id": task,
        "session_id": number,
        "rank": 0,
        "role": "master",
        "status": status,
        "submit_ts": base + begin,
    }
    if end is not None:
        record["finalized_ts"] = base + end
    record["phases"] = {"generate": [{"start_ts": base + begin, "end_ts": None if end is None else base + end - 0.1}]}
    return record | more


@dataclass
class Trial:
    """A trial's files; ``write`` puts them below a folder as the framework does."""

    config: dict[str, Any] | None = field(default_factory=config)
    console: list[tuple[float, str]] = field(default_factory=list)
    dumps: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    perf: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    sessions: list[dict[str, Any]] = field(default_factory=list)

    def write(self, folder: Path) -> Path:
        root = folder / "logs" / "user" / "exp" / "trial"
        root.mkdir(parents=True, exist_ok=True)
        if self.config is not None:
            text = json.dumps(self.config)
            (root / "config.yaml").write_text(text)
        if self.console:
            lines = [line for _, line in sorted(self.console, key=lambda entry: entry[0])]
            (root / "main.log").write_text("\n".join(lines) + "\n")
        for name, rows in self.dumps.items():
            put(root / "rollout" / name, rows)
        for rank, rows in self.perf.items():
            put(root / "perf_tracer" / "master" / f"traces-r{rank}.jsonl", rows)
        if self.sessions:
            put(root / "session_tracer" / "master" / "sessions-r0.jsonl", self.sessions)
        return root


def put(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def dumps_of(tasks: Mapping[int, tuple[float, float | None, Runs]]) -> dict[str, list[dict[str, Any]]]:
    """One file per finished task, in the folder of its newest version."""
    found = {}
    for number, (_, ready, runs) in tasks.items():
        if ready is not None:
            found[f"{max(version for version, _ in runs)}/{number}.jsonl"] = [dump_row(number, runs)]
    return found


def straggler(**changes: Any) -> Trial:
    """The story."""
    console = tracer() + task_lines(STRAGGLER) + step_lines(STATS)
    return Trial(config(**changes), console, dumps_of(STRAGGLER), {0: spans(range(4))})


def judged(trial: Trial, folder: Path, bound: int | None = None) -> AuditResult:
    """Write and audit a trial."""
    trial.write(folder / "run")
    return audit(folder / "run", bound, framework="areal", tables=folder / "tables")


def uses(result: AuditResult) -> dict[tuple[int, int], set[str]]:
    """Trajectories of each (attempt, step), as the parser says."""
    found: dict[tuple[int, int], set[str]] = {}
    for row in result.rebuilt.dataset.scan("uses").collect().to_dicts():
        found.setdefault((row["attempt"], row["step"]), set()).add(row["trajectory_id"])
    return found


def exact(value: int) -> dict[str, int]:
    return {"lo": value, "hi": value}


def versions(result: AuditResult) -> dict[str, list[tuple[int, int, int | None]]]:
    """Spans of each trajectory: (oldest version, newest version, tokens)."""
    found: dict[str, list[tuple[int, int, int | None]]] = {}
    for row in result.rebuilt.dataset.scan("spans").collect().sort("trajectory_id", "span_index").to_dicts():
        found.setdefault(row["trajectory_id"], []).append((row["version_lo"], row["version_hi"], row["tokens_hi"]))
    return found


def codes(result: AuditResult) -> set[str]:
    """Codes of all diagnostics."""
    return {item["code"] for item in result.data["diagnostics"]["items"]}
