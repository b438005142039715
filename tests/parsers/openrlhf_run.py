"""OpenRLHF in miniature: the control of guide section 4 as a discrete-event simulation that logs like section 5.

The generator takes a permit, makes (or takes from its buffer) a batch and queues it; the trainer takes a batch, returns
the permit at once, trains, and broadcasts. ``simulate`` returns what the console would say and, for every sample, the
versions of its oldest and newest token.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.event_file import records


@dataclass(frozen=True)
class Setup:
    queue: int = 1
    prompts: int = 3
    call: int = 3
    group: int = 2
    steps: int = 12
    partial: bool = False
    eval_every: int = 0
    start: int = 0
    slow_training: float = 0.5
    seed: int = 0


@dataclass
class Log:
    setup: Setup
    lines: list[str] = field(default_factory=list)
    truth: list[tuple[int, list[tuple[int, int]]]] = field(default_factory=list)
    """Per step as logged: for each sample, the version of its oldest and of its newest token."""

    def write(self, folder: Path, name: str = "console.log") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(line + "\n" for line in self.lines), encoding="utf-8")
        return folder


Process = Generator[tuple[str, Any], Any, None]


class _World:
    """Processes that sleep, take from channels (FIFO) and put into them; a lock is a channel with one token."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()
        self._due: list[tuple[float, int, Process, Any]] = []
        self._waiting: dict[int, deque[Process]] = {}

    def start(self, process: Process) -> None:
        heapq.heappush(self._due, (self.now, next(self._order), process, None))

    def put(self, channel: deque[Any], item: Any) -> None:
        waiting = self._waiting.get(id(channel))
        if waiting:
            heapq.heappush(self._due, (self.now, next(self._order), waiting.popleft(), item))
        else:
            channel.append(item)

    def run(self) -> None:
        while self._due:
            self.now, _, process, value = heapq.heappop(self._due)
            self._resume(process, value)

    def _resume(self, process: Process, value: Any) -> None:
        try:
            kind, what = process.send(value)
        except StopIteration:
            return
        if kind == "sleep":
            heapq.heappush(self._due, (self.now + what, next(self._order), process, None))
        elif what:
            heapq.heappush(self._due, (self.now, next(self._order), process, what.popleft()))
        else:
            self._waiting.setdefault(id(what), deque()).append(process)


def simulate(setup: Setup) -> Log:
    return _Run(setup).log


class _Run:
    def __init__(self, setup: Setup) -> None:
        self.setup, self.log, self.world = setup, Log(setup), _World()
        self.dice = random.Random(setup.seed)
        self.slots: deque[Any] = deque([setup.start] * setup.queue)
        self.batches: deque[Any] = deque()
        self.lock: deque[Any] = deque(["token"])
        self.lives = [(0.0, setup.start)]
        self.say("PPOTrainerAsync", f"ppo_trainer_async.py:290] queue_size={setup.queue}")
        self.log.lines.append("(GenerateSamplesActor pid=8) \rEpisode [1/1]:   0%|          | 0/999 [00:00<?, ?it/s]")
        self.world.start(self.generator())
        self.world.start(self.trainer())
        self.world.run()

    def say(self, actor: str, text: str) -> None:
        second = int(self.world.now)
        stamp = f"11-29 16:{second // 60:02}:{second % 60:02}"
        self.log.lines.append(f"\x1b[36m({actor} pid=7)\x1b[0m INFO {stamp} {text}")

    def between(self) -> tuple[str, float]:
        """The time that lies between timers."""
        return "sleep", self.dice.uniform(0, 0.015)

    def generator(self) -> Process:
        setup, evaluated = self.setup, {0}
        buffer: deque[tuple[float, float]] = deque()
        for _ in range(10**6):
            permit = yield "take", self.slots
            if permit == "stop":
                return
            yield self.between()
            if setup.eval_every and permit % setup.eval_every == 0 and permit not in evaluated:
                evaluated.add(permit)
                yield "take", self.lock
                self.say("GenerateSamplesActor", "ppo_trainer_async.py:90] Starting async evaluation...")
                yield "sleep", self.dice.uniform(0.2, 2)
                self.say("GenerateSamplesActor", "ppo_trainer_async.py:97] Async evaluation completed: {}")
                self.world.put(self.lock, "token")
                self.world.put(self.batches, ("eval", permit))
                continue
            took = 0.0004
            if len(buffer) < setup.prompts * setup.group:
                if not setup.partial:
                    yield "take", self.lock
                began = self.world.now
                self.bar()
                buffer.extend(self.groups(began))
                yield "sleep", max(end for _, end in buffer) - began
                if not setup.partial:
                    self.world.put(self.lock, "token")
                took = self.world.now - began
            samples = [buffer.popleft() for _ in range(setup.prompts * setup.group)]
            self.world.put(self.batches, ("batch", (samples, took)))

    def groups(self, began: float) -> Iterator[tuple[float, float]]:
        made = [began + self.dice.uniform(0.1, self.dice.choice([0.6, 3])) for _ in range(self.setup.call)]
        for end in sorted(made):
            for _ in range(self.setup.group):
                yield began, end

    def bar(self) -> None:
        prefix = "\x1b[36m(GenerateSamplesActor pid=8)\x1b[0m \r"
        self.log.lines.append(f"{prefix}Generate samples:   0%|          | 0/{self.setup.call} [00:00<?, ?it/s]\x1b[A")

    def trainer(self) -> Process:
        step, clock, first = self.setup.start, self.world.now, self.setup.start
        while step < first + self.setup.steps:
            kind, item = yield "take", self.batches
            self.world.put(self.slots, step)
            if kind == "eval":
                self.say(
                    "TrainingActor", f"ppo_trainer_async.py:214] Eval at step {item}: {{'eval_default_pass1': 0.5}}"
                )
                clock = self.world.now
                continue
            samples, took = item
            yield self.between()
            self.say(
                "TrainingActor", f"experience_maker.py:116] 🚀 Starting experience making with {len(samples)} samples"
            )
            times = [self.dice.uniform(0.02, 0.2), self.dice.uniform(0.5, 1) * self.setup.slow_training]
            for seconds in times:
                yield "sleep", seconds
                yield self.between()
            begun = self.world.now
            yield "take", self.lock
            yield "sleep", self.dice.uniform(0.1, 0.3)
            step += 1
            self.lives.append((self.world.now, step))
            self.world.put(self.lock, "token")
            metrics = {
                "policy_loss": float("nan"),
                "timing/make_experience": times[0],
                "timing/ppo_train": times[1],
                "timing/broadcast": self.world.now - begun,
                "rollout/response_length_mean": 10.0,
                "rollout/num_samples": float(len(samples)),
                "timing/generation": took,
            }
            yield self.between()
            metrics["timing/step_total"] = self.world.now - clock
            clock = self.world.now
            self.say("TrainingActor", f"ppo_trainer_async.py:244] Global step {step}: {metrics}")
            self.log.truth.append((step, [(self.version(begun), self.version(end)) for begun, end in samples]))
        self.world.put(self.slots, "stop")

    def version(self, moment: float) -> int:
        return max(version for since, version in self.lives if since <= moment)


def event_file(path: Path, scalars: list[tuple[str, int, float, float]]) -> None:
    """Write a TensorBoard event file of (tag, step, value, seconds since 1970), record by record."""
    from tensorboard.compat.proto import event_pb2

    path.parent.mkdir(parents=True, exist_ok=True)
    events = [event_pb2.Event(wall_time=0.0, file_version="brain.Event:2")]
    for tag, step, value, wall in scalars:
        event = event_pb2.Event(wall_time=wall, step=step)
        event.summary.value.add(tag=tag, simple_value=value)
        events.append(event)
    path.write_bytes(records(events))
