"""Writes small DryRun-RL logs for the tests, and reads back what the parser makes of them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from staleness_parsers.dryrun import PARSER

from staleness_audit import plugins
from staleness_audit.discovery import discover
from staleness_audit.ingest import Dataset, ingest

SCRATCH = tempfile.TemporaryDirectory(prefix="dryrun-tables-")
"""Removed when the tests end."""

CONFIG = """\
job: {{n_versions: {steps}, batch_size: 1, max_staleness: {eta}}}
rollout: {{n_instances: 1, partial_rollout: true, livelock_rounds: 50}}
rollout_cost: {{name: roofline, A_d: 1.0e-07}}
policy: {{name: {policy}{more}}}
workload: {{prompt: {{name: fixed, 'n': 200, lo: 10, hi: 10}}}}
"""


class Logs:
    """One simulation, written row by row. Versions of a request are given where its row is written."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.logs = run / "logs"
        (self.logs / "instance").mkdir(parents=True, exist_ok=True)
        self.admitted: dict[int, dict[str, object]] = {}

    def config(self, policy: str = "areal", eta: int = 1, steps: int = 3, more: str = "") -> Logs:
        (self.run / ".hydra").mkdir(exist_ok=True)
        (self.run / ".hydra" / "config.yaml").write_text(CONFIG.format(policy=policy, eta=eta, steps=steps, more=more))
        return self

    def launch(self, policy: str = "areal", steps: int = 3) -> Logs:
        sizes = f"n_versions={steps}, n_instances=1, batch_size=1"
        line = f"Starting simulation: policy={policy}, {sizes}, log_telemetry=True."
        with (self.run / "run.log").open("a") as log:
            log.write(f"2026-11-29 15:30:21.187 [INFO] dryrun (pid=7) main.py:278 - {line}\n")
        return self

    def append(self, stream: str, row: dict[str, object]) -> Logs:
        with (self.logs / stream).open("a") as file:
            file.write(json.dumps(row) + "\n")
        return self

    def request(
        self, t: float, event: str, rid: int, generated: int, versions: tuple[int, int], **more: object
    ) -> Logs:
        row = {"t": t, "event": event, "rid": rid, "generated": generated, "ctx": 10 + generated}
        row |= {"complete_time": None, "consume_version": None, "staleness_true": None, "staleness_reported": None}
        row |= self.admitted[rid] | {"v_min": versions[0], "v_max": versions[1]} | more
        return self.append("request.jsonl", row)

    def admit(self, t: float, rid: int, target: int, version: int, instance: int = 0) -> Logs:
        self.admitted[rid] = {
            "admit_time": t,
            "dispatch_time": t,
            "prompt_len": 10,
            "target_len": target,
            "v_traj": version,
        }
        self.admitted[rid]["instance_id"] = instance
        return self.request(t, "admit", rid, 0, (version, version))

    def complete(self, t: float, rid: int, generated: int, versions: tuple[int, int]) -> Logs:
        return self.request(t, "complete", rid, generated, versions, complete_time=t)

    def consume(self, t: float, rid: int, k: int, generated: int, versions: tuple[int, int]) -> Logs:
        lags = {"staleness_true": k - versions[0], "staleness_reported": k - versions[1]}
        return self.request(t, "consume", rid, generated, versions, consume_version=k, complete_time=t, **lags)

    def train(
        self, k: int, start: float, end: float, tokens: int, requests: int = 1, expired: int = 0, **more: int
    ) -> Logs:
        row = {"t": end, "start": start, "end": end, "version": k + 1, "n_reqs": requests, "total_tokens": tokens}
        return self.append("train.jsonl", row | {"n_dropped_step": expired} | more)

    def occupancy(
        self, t: float, running: dict[int, int], waiting: dict[int, int] | None = None, instance: int = 0
    ) -> Logs:
        def lengths(requests: dict[int, int]) -> dict[str, dict[str, int]]:
            return {str(rid): {"generated": generated, "prefilled": 0} for rid, generated in requests.items()}

        row = {"t": t, "instance_id": instance, "running_len": lengths(running), "waiting_len": lengths(waiting or {})}
        return self.append(f"instance/{instance}.jsonl", row)


def story(run: Path, *, train_rows: int = 3) -> Logs:
    """Three steps of one request each, by hand.

    ====  ==============================================================  ==========================
    time  what happens                                                    tokens of request 1 so far
    ====  ==============================================================  ==========================
    0     requests 0 and 1 are admitted, version 0 serves                 0
    1     request 0 completes (4 tokens) and is consumed: T_0             4, version 1 serves
    1     request 2 is admitted
    2     request 2 completes (3 tokens), consumed at once: T_1           8, version 2 serves
    2     request 3 is admitted
    2.5   request 1 completes: 4 tokens of v0, 4 of v1, 2 of v2           10
    3     request 1 is consumed, two versions late: T_2
    4     the last step ends; request 3 has made 2 tokens of v2, 1 of v3
    ====  ==============================================================  ==========================
    """
    logs = Logs(run)
    logs.admit(0.0, 0, 4, 0).admit(0.0, 1, 10, 0).occupancy(0.0, {}, {0: 0, 1: 0})
    logs.complete(1.0, 0, 4, (0, 0)).occupancy(1.0, {1: 4}).consume(1.0, 0, 0, 4, (0, 0)).occupancy(1.0, {}, {1: 4})
    logs.admit(1.0, 2, 3, 1).occupancy(1.0, {}, {1: 4, 2: 0})
    if train_rows > 0:
        logs.train(0, 1.0, 1.75, 14)
    logs.complete(2.0, 2, 3, (1, 1)).occupancy(2.0, {1: 8}).consume(2.0, 2, 1, 3, (1, 1)).occupancy(2.0, {}, {1: 8})
    logs.admit(2.0, 3, 9, 2).occupancy(2.0, {}, {1: 8, 3: 0}).complete(2.5, 1, 10, (0, 2)).occupancy(2.5, {3: 1})
    if train_rows > 1:
        logs.train(1, 2.0, 2.75, 13)
    logs.consume(3.0, 1, 2, 10, (0, 2)).occupancy(3.0, {3: 2}).occupancy(4.0, {3: 3})
    if train_rows > 2:
        logs.train(2, 3.0, 4.0, 20)
    return logs


def tables(run: Path, framework: str | None = None) -> Dataset:
    """Recognise (unless its framework is said) and ingest a run."""
    files = discover(run)
    choice = plugins.choose(files, framework, among={"dryrun": PARSER})
    return ingest(files, choice, Path(tempfile.mkdtemp(dir=SCRATCH.name)))


def rows(data: Dataset, table: str) -> list[dict[str, object]]:
    return data.scan(table).collect().to_dicts()


def spans(data: Dataset) -> dict[str, list[tuple[object, ...]]]:
    """By trajectory: (tokens_lo, tokens_hi, "v", version_lo, version_hi) of its spans; ends that agree given once."""
    found: dict[str, list[tuple[object, ...]]] = {}
    for row in data.scan("spans").sort("trajectory_id", "span_index").collect().to_dicts():
        tokens = (row["tokens_lo"],) if row["tokens_lo"] == row["tokens_hi"] else (row["tokens_lo"], row["tokens_hi"])
        version = (row["version_lo"], row["version_hi"])
        found.setdefault(row["trajectory_id"], []).append((*tokens, "v", *dict.fromkeys(version)))
    return found


def steps(data: Dataset) -> dict[tuple[int, int], bool | None]:
    return {(row["attempt"], row["step"]): row["completed"] for row in data.scan("steps").collect().to_dicts()}


def fates(data: Dataset) -> dict[str, list[tuple[object, ...]]]:
    found: dict[str, list[tuple[object, ...]]] = {}
    for row in data.scan("events").sort("seq").collect().to_dicts():
        if row["kind"] in {"dropped", "cancelled", "lost", "pending"}:
            found.setdefault(row["trajectory_id"], []).append((row["kind"], row["reason"]))
    return found


def findings(data: Dataset) -> set[tuple[object, ...]]:
    return {(row["severity"], row["code"], row["opens"]) for row in data.scan("diagnostics").collect().to_dicts()}
