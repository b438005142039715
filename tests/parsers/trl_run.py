"""A small stand-in for TRL's trainer and worker that leaves the same files, and knows the truth of every token.

Time is counted in token times. The loader, the check at the pull, the batching and the order of log lines follow the
guide (sections 4 and 5); nothing here is shared with the parser.
"""

from __future__ import annotations

import heapq
import json
import random
import sqlite3
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

START = datetime(2026, 11, 29, 15, 0, tzinfo=UTC)
INFO = "INFO trl.experimental.async_grpo: [RANK 0] "


@dataclass
class Row:
    group: int
    version: int
    prompt: int
    tokens: list[int]
    steps: list[int] = field(default_factory=list)
    fate: str = "pending"
    begun: float = 0.0


@dataclass(frozen=True)
class Plan:
    steps: int = 12
    bound: int = 1
    sync: int = 1
    micro: int = 1
    size: int = 4
    processes: int = 1
    budget: int = -1
    group: int = 4
    slots: int = 12
    logging: int = 1
    train_time: float = 12.0
    seed: int = 0
    old: bool = False
    save: int = 4
    longest: int = 60


class Sim:
    """One launch. ``start``: the step it resumes after; ``label``: the trainer's version before its first sync."""

    def __init__(self, plan: Plan, start: int = 0, label: int = 0, launch: int = 0, at: float = 0.0) -> None:
        self.plan, self.start, self.launch, self.now = plan, start, launch, at
        self.random = random.Random(plan.seed * 101 + launch)
        self.label = label
        self.syncs: list[tuple[float, int]] = []
        self.base = start // plan.sync
        self.published = 0
        self.queue: deque[Row] = deque()
        self.flying: list[tuple[float, int, int]] = []
        self.waiting: dict[int, list[Row]] = {}
        self.versions: dict[int, int] = {}
        self.rows: list[Row] = []
        self.next = self.serial = 0
        self.lines: list[str] = []
        self.records: list[dict[str, Any]] = []
        self.pulled: list[int] = []
        self.dropped = self.oversize = 0
        self.trained: list[tuple[int, list[Row]]] = []
        self.delivered: list[Row] = []
        self.flushes: list[tuple[float, int, list[Row]]] = []

    # ------------------------------------------------------------------------------------------ worker

    def design(self) -> int:
        return self.base + self.published - 1

    def stamp(self) -> str:
        return (START + timedelta(seconds=self.now / 10)).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]

    def say(self, text: str) -> None:
        self.lines.append(f"{self.stamp()} {INFO}{text}")

    def admit(self, now: float) -> None:
        while len(self.flying) < self.plan.slots:
            group, member = divmod(self.next, self.plan.group)
            if member == 0:
                self.waiting[group] = []
                self.versions[group] = self.label
            self.next += 1
            length = self.random.choice([6, 8, 10, 12, 14, self.plan.longest if self.random.random() < 0.3 else 9])
            row = Row(group, self.versions[group], 7, [-1] * length)
            self.rows.append(row)
            self.serial += 1
            heapq.heappush(self.flying, (now + length, self.serial, len(self.rows) - 1))
            row.begun = now

    def advance(self, to: float) -> None:
        """Let the worker run until a time."""
        while self.flying and self.flying[0][0] <= to:
            ended, _, index = heapq.heappop(self.flying)
            self.now = max(self.now, ended)
            row = self.rows[index]
            row.tokens = [self.version_at(row.begun + place) for place in range(len(row.tokens))]
            self.waiting[row.group].append(row)
            if len(self.waiting[row.group]) == self.plan.group:
                members = self.waiting.pop(row.group)
                self.say("Rollout metrics: reward_mean=0.7500, reward_std=0.8292")
                self.say(f"[score] scored {len(members)} samples in 0.00s, buffer_qsize={len(self.queue)}")
                self.queue.extend(members)
            self.admit(self.now)
        self.now = max(self.now, to)

    def version_at(self, moment: float) -> int:
        return max((version for time, version in self.syncs if time <= moment), default=self.base)

    # ------------------------------------------------------------------------------------------ trainer

    def sync(self) -> None:
        self.say("Weight sync: pausing vLLM...")
        self.say("Weight sync: transferring weights... (barrier took 0.0s)")
        self.published += 1
        self.syncs.append((self.now, self.design()))
        self.label += 1
        self.say("Weight sync: done. Total 0.0s")

    def pull(self) -> Row:
        while True:
            while not self.queue:
                self.advance(self.flying[0][0])
            row = self.queue.popleft()
            lag = self.label - row.version
            if lag > self.plan.bound:
                self.say(f"dropping stale sample (staleness={lag}, max={self.plan.bound})")
                row.fate, self.dropped = "dropped", self.dropped + 1
                continue
            length = row.prompt + len(row.tokens)
            if 0 < self.plan.budget < length:
                self.say(f"Dropping a rollout sample of {length} tokens that exceeds token_budget={self.plan.budget}.")
                row.fate, self.oversize = "dropped", self.oversize + 1
                continue
            self.pulled.append(lag)
            self.delivered.append(row)
            if self.plan.old and len(self.delivered) % 8 == 0:
                self.flushes.append((self.now, self.label, self.delivered[-8:]))
            return row

    def micro_batches(self) -> Iterator[list[Row]]:
        plan = self.plan
        if plan.budget <= 0:
            while True:
                yield [self.pull() for _ in range(plan.size * plan.processes)]
        batch: list[Row] = []
        fill, load = [0] * plan.processes, [0] * plan.processes
        while True:
            row = self.pull()
            length = row.prompt + len(row.tokens)
            room = [place for place in range(plan.processes) if fill[place] + length <= plan.budget]
            if not room:
                yield batch
                batch, fill, load = [], [0] * plan.processes, [0] * plan.processes
                room = [0]
            place = min(room, key=lambda one: load[one])
            fill[place] += length
            load[place] += length**2
            batch.append(row)

    def loader(self) -> Iterator[list[Row]]:
        source = self.micro_batches()
        held = next(source)
        for following in source:
            yield held
            held = following

    def bar(self, done: int) -> str:
        return f"  {done * 100 // self.plan.steps}%|███       | {done}/{self.plan.steps} [00:09<02:17,  9.14s/it]"

    def run(self, until: int) -> Sim:
        plan = self.plan
        self.lines.append("\r" + self.bar(0))
        self.sync()
        self.say(f"vllm worker started: num_generations={plan.group}, max_inflight_tasks={plan.slots}, temperature=1.0")
        self.admit(self.now)
        loader = self.loader()
        samples = tokens = previous = 0
        previous = self.start
        for step in range(self.start + 1, until + 1):
            batch = [row for _ in range(plan.micro) for row in next(loader)]
            self.advance(self.now + plan.train_time * self.random.uniform(0.3, 1.5))
            for row in batch:
                row.steps.append(step)
                row.fate = "trained"
            self.trained.append((step, batch))
            samples += len(batch)
            tokens += sum(len(row.tokens) for row in batch)
            self.lines.append("\r" + self.bar(step))
            synced = step % plan.sync == 0
            if synced:
                self.sync()
            if step % plan.logging == 0:
                self.record(step, samples, tokens, step - previous, synced)
                samples = tokens = 0
                previous = step
        return self

    def record(self, step: int, samples: int, tokens: int, steps: int, synced: bool) -> None:
        values: dict[str, Any] = {"loss": self.random.random()}
        if self.records:
            values["iteration_time_s" if self.plan.old else "perf/step_s"] = 0.5
        if self.plan.old:
            values |= {"queue_wait_time_s": 0.1, "buffer_qsize": 1.0}
            values |= {"weight_sync_time_s": 0.05} if synced else {}
        else:
            values |= {
                "sample/staleness_mean": sum(self.pulled) / len(self.pulled) if self.pulled else None,
                "sample/staleness_max": float(max(self.pulled)) if self.pulled else None,
                "batch/samples_per_step": samples / steps,
                "batch/trained_tokens_per_step": tokens / steps,
                "rollout/samples_per_rollout": 1.0,
            }
            values |= {"sample/dropped_stale_total": float(self.dropped)} if self.dropped else {}
            values |= {"batch/dropped_oversize_total": float(self.oversize)} if self.oversize else {}
            values |= {"perf/weight_sync_s": 0.05} if synced else {}
        self.pulled, self.dropped, self.oversize = [], 0, 0
        self.records.append({"step": step, **values, "epoch": step / self.plan.steps})
        printed = {key: f"{value:.4g}" if value is not None else "nan" for key, value in values.items()} | {
            "epoch": "1"
        }
        self.lines.append("\r" + " " * 40 + "\r" + str(printed))
        self.lines.append("\r" + self.bar(step))
        self.records[-1]["_ts"] = START + timedelta(seconds=self.now / 10)


def arguments(plan: Plan) -> dict[str, Any]:
    found = {
        "max_staleness": plan.bound,
        "weight_sync_steps": plan.sync,
        "gradient_accumulation_steps": plan.micro,
        "per_device_train_batch_size": plan.size,
        "token_budget": plan.budget,
        "num_generations": plan.group,
        "max_inflight_tasks": plan.slots,
        "logging_steps": plan.logging,
        "save_steps": plan.save,
        "max_steps": plan.steps,
        "run_name": "toy",
    }
    return found if plan.old else found | {"weight_sync_timeout": 1800}


def write(run: Path, launches: list[Sim], *, state: bool = True, trackio: bool = True, console: bool = True) -> None:
    plan = launches[-1].plan
    run.mkdir(parents=True, exist_ok=True)
    if console:
        text = "\n".join(line for launch in launches for line in launch.lines) + "\n"
        (run / "console.log").write_text(text)
    if state:
        history: list[dict[str, Any]] = []
        for launch in launches:
            history = [record for record in history if record["step"] <= launch.start] + launch.records
        last = launches[-1].trained[-1][0]
        folder = run / "output" / f"checkpoint-{last}"
        folder.mkdir(parents=True)
        plain = [{key: value for key, value in record.items() if key != "_ts"} for record in history]
        document = {"global_step": last, "log_history": plain, "logging_steps": plan.logging, "save_steps": plan.save}
        (folder / "trainer_state.json").write_text(json.dumps(document))
        for launch in launches[1:]:
            (run / "output" / f"checkpoint-{launch.start}").mkdir(exist_ok=True)
            (run / "output" / f"checkpoint-{launch.start}" / "rollout_state.json").write_text('{"prompt_index": 3}')
    if trackio:
        write_trackio(run / "trackio" / "toy.db", launches)


def write_trackio(path: Path, launches: list[Sim]) -> None:
    path.parent.mkdir(parents=True)
    base = sqlite3.connect(path)
    base.executescript(
        "CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_id, timestamp, run_name, step, metrics, log_id);"
        "CREATE TABLE configs (id INTEGER PRIMARY KEY, run_id TEXT, run_name TEXT, config TEXT, created_at TEXT);"
        "CREATE TABLE traces (id TEXT PRIMARY KEY, run_id TEXT, timestamp TEXT, run_name TEXT, step INTEGER, key TEXT,"
        " trace_index INTEGER, messages TEXT, metadata TEXT, log_id TEXT);"
    )
    config = json.dumps(arguments(launches[-1].plan)).encode()
    base.execute("INSERT INTO configs VALUES (1, 'r1', 'toy', ?, '')", (config,))
    count = 0
    for launch in launches:
        entries: list[tuple[datetime, str, Any]] = [(record["_ts"], "record", record) for record in launch.records]
        entries += [
            (START + timedelta(seconds=now / 10), "flush", (label, rows)) for now, label, rows in launch.flushes
        ]
        for ts, kind, what in sorted(entries, key=lambda entry: entry[0]):
            count += 1
            log = f"log{launch.launch}-{count:04d}"
            document: dict[str, Any] = {}
            if kind == "record":
                document = {f"train/{key}": value for key, value in what.items() if key not in ("step", "_ts")}
                document["train/global_step"] = what["step"]
            else:
                label, rows = what
                for index, row in enumerate(rows):
                    meta = {"buffer_qsize": 0, "group_id": row.group, "model_version": row.version}
                    meta |= {"prompt_tokens": row.prompt, "completion_tokens": len(row.tokens)}
                    values = (
                        f"r1:{log}:rollouts:{index}",
                        "r1",
                        ts.isoformat(),
                        "toy",
                        label,
                        "rollouts",
                        index,
                        b"[]",
                    )
                    base.execute(
                        "INSERT INTO traces VALUES (?,?,?,?,?,?,?,?,?,?)", (*values, json.dumps(meta).encode(), log)
                    )
            cell = json.dumps(document).encode()
            base.execute(
                "INSERT INTO metrics VALUES (?, 'r1', ?, 'toy', ?, ?, ?)", (count, ts.isoformat(), count, cell, log)
            )
    base.commit()
    base.close()


# ---------------------------------------------------------------------------------------------- truth


def truth(launches: list[Sim]) -> dict[str, Any]:
    """What the audit must enclose: steps rolled back by a later launch count nowhere."""
    plan = launches[-1].plan
    uses: list[tuple[int, int, Row]] = []
    for index, launch in enumerate(launches):
        cut = min([later.start for later in launches[index + 1 :]], default=1 << 30)
        uses += [(index, step, row) for step, batch in launch.trained for row in batch if step <= cut]
    tokens: Counter[int] = Counter()
    rows: Counter[int] = Counter()
    groups = set()
    for number, step, row in uses:
        at = (step - 1) // plan.sync
        lags = [at - version for version in row.tokens]
        tokens.update(lags)
        rows[max(lags)] += 1
        if max(lags) > plan.bound:
            groups.add((number, row.group))
    return {
        "steps": len({(step - 1) // plan.sync for _, step, _ in uses}),
        "trajectories": len(uses),
        "tokens": sum(tokens.values()),
        "max": max(tokens),
        "violating": sum(count for lag, count in rows.items() if lag > plan.bound),
        "violating_tokens": sum(count for lag, count in tokens.items() if lag > plan.bound),
        "groups": len(groups),
        "token_histogram": tokens,
        "trajectory_histogram": rows,
        "dropped": sum(row.fate == "dropped" for launch in launches for row in launch.rows),
    }
