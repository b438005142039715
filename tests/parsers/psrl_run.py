"""Writes the files of a small PSRL run, in the forms of the guide, for tests that can be checked by hand."""

from __future__ import annotations

import json
from pathlib import Path

ROUTE = "2026-08-03 08:15:{second:02d}  INFO route_trace: model_gateway/src/x.rs:1: {event} "
LOCAL = "2026-08-03 10:15:{second:02d},{ms:03d} - file.py - 1 - {text}"


class Run:
    """A run of instances 0 and 1, groups of one. Lines come out in the order in which they are told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trace: list[str] = []
        self.logs: dict[str, list[str]] = {}
        self.steps: dict[int, list[dict[str, object]]] = {}
        self.second = 0
        self.told = 0

    def route(self, request: int, tag: int, instance: int = 0, prompt: int = 10, tokens: int = 0) -> None:
        self.trace.append(
            ROUTE.format(second=self.second, event="route")
            + f'event="route" request_id={request} prompt_id={request} version_tag={tag} prompt_tokens={prompt} '
            f"response_tokens={tokens} total_tokens={prompt + tokens} dst_instance={instance} dst_dp_rank=0"
        )

    def pop(
        self, request: int, tag: int, tokens: int, instance: int = 0, prompt: int = 10, status: str = "completed"
    ) -> None:
        reason = "stop" if status == "completed" else "abort"
        self.trace.append(
            ROUTE.format(second=self.second, event="pop")
            + f'event="pop" request_id={request} prompt_id={request} version_tag={tag} prompt_tokens={prompt} '
            f"response_tokens={tokens} total_tokens={prompt + tokens} instance={instance} dp_rank=0 "
            f'status="{status}" finish_reason="{reason}" iteration_count=1'
        )

    def made(self, request: int, tag: int, tokens: int = 20, instance: int = 0) -> None:
        """One call of one segment."""
        self.route(request, tag, instance)
        self.pop(request, tag, tokens, instance)

    def trained(self, step: int, *requests: int) -> None:
        if "AgentLoopManager" in self.logs:
            self.say("AgentLoopManager", f"Buffer {step - 1} is ready, returning immediately.")
        self.steps.setdefault(step, []).extend(
            {"input": "é", "output": "o", "gts": None, "score": 1.0, "step": step, "uid": uid} for uid in requests
        )

    def say(self, component: str, *texts: str) -> None:
        lines = self.logs.setdefault(component, [])
        for text in texts:
            self.told += 1
            lines.append(LOCAL.format(second=self.second, ms=self.told % 1000, text=text))

    def tracker(self, *texts: str) -> None:
        self.say("RequestStatusTracker", *texts)

    def informed(self, buffer: int = 0) -> None:
        """Logs at INFO; ``buffer`` is the first one that the trainer waits for."""
        self.tracker("PSManager initialized on ('127.0.0.1', None).")
        self.say("AgentLoopManager", f"Buffer {buffer} is not ready, waiting for it to be ready.")

    def pull(self, instance: int, version: int) -> None:
        self.tracker(
            f"[Single Event] PULL - Rollout instance [('{instance}', 0)] pulling latest model "
            f"with version tag {version} (nixl)"
        )

    def push(self, version: int) -> None:
        self.tracker(f"[Single Event] PUSH - Model with version tag {version} (nixl) pushed successfully")

    def header(self, buffer: int, *tags: tuple[int, int]) -> None:
        self.say("AgentLoopManager", f"TRAINING Buffer {buffer} version tag distribution:")
        for tag, count in tags:
            self.say("AgentLoopManager", f"version_tag={tag}: count={count} (100.00%), staleness={buffer - tag}")

    def text(self, uid: int | str, version: int, assistant: int, turns: int = 1) -> None:
        path = self.root / f"psrl_logs/trajectories/v{version}/{uid}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"=== Prompt ===\nturns: 9, é\n=== Summary ===\nturns: {turns}, patch: no, stop: finished, elapsed: 0.1s\n"
            f"[Token Counts] prompt: 10 | assistant: {assistant} | env: 0 | total: {10 + assistant}\n"
        )

    def settings(self, **psrl: object) -> None:
        path = self.root / "outputs/2026-08-03/10-15-00/.hydra/config.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        values = {"staleness": 1, "staleness_buffer_entries": 1, "rollout_n": 1, **psrl}
        trainer = {"critic_warmup": values.pop("critic_warmup", 0), "test_freq": -1, "val_before_train": False}
        path.write_text(json.dumps({"psrl": values, "trainer": trainer}))

    def entry(self, prompt: int, version: object, index: object = 0, validate: bool = False) -> str:
        return (
            f"EntryInfo(rollout_instance_id=('0', 0), prompt_id={prompt}, request_idx={index}, "
            f"model_version={version}, n_trajectory=1, is_validate={validate})"
        )

    def write(self) -> Path:
        logs = self.root / "psrl_logs"
        logs.mkdir(parents=True, exist_ok=True)
        if self.trace:
            (logs / "route_trace.log").write_text("\n".join(self.trace) + "\n")
        for component, lines in self.logs.items():
            (logs / f"{component}.log").write_text("\n".join(lines) + "\n")
        for step, rows in self.steps.items():
            path = self.root / f"rollout_data/{step}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        return self.root
