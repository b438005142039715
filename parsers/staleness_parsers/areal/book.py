"""Writing the event tables: steps with what they say of themselves, and tasks with samples, tokens, uses and fates."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from staleness_audit.parser import Era, Sink
from staleness_audit.tables import SCHEMAS
from staleness_parsers.areal.assembly import Batches
from staleness_parsers.areal.content import Content, Dialect, Key
from staleness_parsers.areal.launches import Launch, Step, superseded
from staleness_parsers.areal.settings import Settings
from staleness_parsers.areal.tasks import Task

NAMES = {
    "n_seqs": "step.trajectories",
    "n_valid_tokens": "step.loss_tokens",
    "version_stats/sample_staleness_theta_max": "step.staleness_max",
    "version_stats/sample_staleness_theta_avg": "step.staleness_token_mean",
}
"""Canonical names of what the framework says of a step. Until PR #1736 its maximum is a mean of maxima."""
MAX = "version_stats/sample_staleness_theta_max"
MEAN = "version_stats/sample_staleness_theta_avg"
GLOBAL = "version_stats/stale_token_fraction"
CHUNK = 20_000
ERA = 8
"""Tasks of an era."""


@dataclass
class Book:
    """Rows on their way to the event tables, written in chunks.

    ``multiple``: ids need the rank to be unique. ``resent``: launches in which requests may have been sent again
    with the stamp of the first try; ``retried``: tasks of which one may have been. ``dialect``: what the
    stamps are worth. ``memory``: as ``Staged`` has it.
    """

    sink: Sink
    settings: Settings
    launches: Sequence[Launch]
    batches: dict[int, Batches]
    contents: dict[Key, Content]
    multiple: bool
    retried: set[Key]
    resent: set[int]
    dialect: Dialect
    memory: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, table: str, row: dict[str, Any], place: tuple[str, int] | None, evidence: str) -> None:
        """Note a row of an event table, with the place that tells it."""
        source, line = place or (None, None)
        rows = self.rows.setdefault(table, [])
        rows.append({**row, "source": source, "line": line, "evidence": evidence})
        if len(rows) >= CHUNK:
            self.sink.write(table, pa.Table.from_pylist(rows, schema=SCHEMAS[table]))
            rows.clear()

    def flush(self) -> None:
        """Write what was noted."""
        for table, rows in self.rows.items():
            if rows:
                self.sink.write(table, pa.Table.from_pylist(rows, schema=SCHEMAS[table]))

    # ------------------------------------------------------------------------------------------------------------ steps

    def write_steps(self, launch: Launch) -> None:
        """Write the steps a launch completed, what they say of themselves, and the updates that followed."""
        numbers = sorted(launch.steps)
        for number in numbers:
            self._write_step(launch, launch.steps[number])
        known = set(numbers)
        after = self.launches[launch.number + 1] if launch.number + 1 < len(self.launches) else None
        top = max([*numbers, (after.first - 1) if after and after.first is not None else -1], default=-1)
        # A later launch continued after steps, or later steps follow, of which nothing was logged: they were trained.
        for number in range(launch.start_version, top + 1):
            if number not in known:
                place = launch.steps[numbers[-1]].proof if numbers else None
                self._step_row(launch, Step(number), place, "inferred", completed=True)
                self.sink.diagnose(
                    "warning",
                    "step-unlogged",
                    f"Step {number} of launch {launch.number} was trained, but no log tells anything about it.",
                    source=place[0] if place else None,
                    opens="training",
                )

    def _step_row(
        self, launch: Launch, step: Step, place: tuple[str, int] | None, evidence: str, completed: bool | None
    ) -> None:
        ended = (
            step.updated
            or (step.trained[1] if step.trained else None)
            or step.done
            or (step.wall[1] if step.wall else None)
        )
        collected = max((end for _, end in step.windows.values()), default=None)
        began = min((begin for begin, _ in step.windows.values()), default=None)
        dated = launch.dated or step.done is not None
        row = {
            "attempt": launch.number,
            "step": step.number,
            "v_train_lo": step.number,
            "v_train_hi": step.number,
            "started": collected if dated and (ended is None or collected is None or collected <= ended) else None,
            "ended": ended if dated else None,
            "waited_us": collected - began if collected is not None and began is not None else None,
            "updates": self.settings.updates,
            "completed": completed,
        }
        self.add("steps", row, place, evidence)

    def _write_step(self, launch: Launch, step: Step) -> None:
        # Its collection alone does not prove that a step was trained.
        self._step_row(launch, step, step.proof, "recorded", completed=True if step.proof else None)
        if step.updated is not None and launch.dated:
            row: dict[str, Any] = {
                "attempt": launch.number,
                "version_lo": step.number + 1,
                "version_hi": step.number + 1,
                "ended": step.updated,
            }
            self.add("syncs", row, step.proof, "recorded")
        key: dict[str, Any] = {"attempt": launch.number, "step": step.number}
        for name, value in step.values.items():
            if not name.startswith("timeperf/"):
                raw = name if "/" in name and not name.startswith("version_stats/") else f"ppo_actor/{name}"
                raw = raw.replace("ppo_actor/version_stats", "ppo_actor/update/version_stats")
                row = {
                    **key,
                    "name": NAMES.get(name) if name != "n_valid_tokens" or not self._masks() else None,
                    "raw_name": raw,
                    "value": value,
                    "ts": step.wall[0] if step.wall else None,
                }
                self.add("reported", row, step.stats_at, "recorded")
        for quantity, op, number in self._limits(launch, step):
            self.add(
                "constraints", {**key, "quantity": quantity, "op": op, "value": float(number)}, step.stats_at, "derived"
            )

    def _limits(self, launch: Launch, step: Step) -> list[tuple[str, str, int]]:
        """Return what is certain of a step as a whole: its own statistics, and what the replay leaves open."""
        batch = self.batches[launch.number].steps.get(step.number)
        limits: list[tuple[str, str, int]] = []
        count, tokens = step.values.get("n_seqs"), step.values.get("n_valid_tokens")
        if count is not None:
            limits += _about("trajectories", count, step.printed)
        elif (
            step.proof
            and not self._complete(launch, step.number)
            and not superseded(self.launches, launch.number, step.number)
        ):
            self.sink.diagnose(
                "warning",
                "step-uncounted",
                f"Nothing tells how much step {step.number} trained; switch on stats_logger.tensorboard.path.",
                source=step.proof[0],
                line=step.proof[1],
                opens="training",
            )
        if tokens is not None:
            exact = _about("loss_tokens", tokens, step.printed)
            masked = self._masks()
            limits += [("loss_tokens", "le", number) for _, op, number in exact if op != "ge"] if masked else exact
        limits += [] if self._restamped(launch, step.number) else self._oldest(step)
        if batch is not None and batch.oldest is not None:
            limits.append(("staleness_max", "le", max(step.number - batch.oldest, 0)))
        return limits

    def _complete(self, launch: Launch, number: int) -> bool:
        """Whether the replay names all that a step trained, down to the last token."""
        batches = self.batches[launch.number]
        batch = batches.steps.get(number)
        members = batches.members.get(number, ())
        told = all(self.contents[key].whole for key in members)
        return batch is not None and bool(members) and not batch.perhaps and told

    def _restamped(self, launch: Launch, number: int) -> bool:
        """Whether a step may have trained tokens of a request that was sent again, which are newer than it says."""
        if launch.number not in self.resent:
            return False
        batches = self.batches[launch.number]
        members = batches.members.get(number, ())
        batch = batches.steps.get(number)
        return not members or not self.retried.isdisjoint(members) or batch is None or bool(batch.perhaps)

    def _masks(self) -> bool:
        """Whether tokens are taken out of the loss after they were counted."""
        return self.settings.masks or self.settings.token_mask

    def _oldest(self, step: Step) -> list[tuple[str, str, int]]:
        """Return what the logged staleness proves: a mean of maxima, or any mean, is no larger than the largest.

        Of tokens that a ratio filter took out of the loss it tells nothing. Where PR #1722 takes out the old ones,
        nobody says whether it was made before or after that.
        """
        if self.settings.token_mask or self.dialect.void:
            return []
        top, mean = step.values.get(MAX), step.values.get(MEAN)
        slack = 1e-3 + (1e-4 * abs(top or 0.0) if step.printed else 0.0)
        if top is not None and GLOBAL in step.values and abs(top - round(top)) <= slack:
            return [("staleness_max", "ge" if self.settings.masks else "eq", round(top))]
        least = max((-int(-(value - slack) // 1) for value in (top, mean) if value is not None), default=0)
        least -= self.dialect.loose  # a proxy's stamp may be one older than the token
        return [("staleness_max", "ge", least)] if least > 0 else []

    # ------------------------------------------------------------------------------------------------------------ tasks

    def write_tasks(self, tasks: Sequence[Task]) -> None:
        """Write all tasks; an era is a stretch of their numbers in a launch."""
        eras: dict[int, list[Task]] = defaultdict(list)
        for task in tasks:
            eras[(task.launch << 40) + task.number // ERA].append(task)

        def write(numbers: Sequence[int], sink: Sink) -> None:
            own, chosen = replace(self, sink=sink, rows={}), {task.key for number in numbers for task in eras[number]}
            for task in tasks:
                if task.key in chosen:
                    own.write_task(task)
            own.flush()

        run = (self.multiple, self.settings, self.dialect.void)
        told, known = [], self.memory.get("eras", {})
        kept = self.memory["eras"] = {}
        for number, members in sorted(eras.items()):
            rows = sum(len(self.contents[task.key].samples) for task in members)
            made_from = (run, [self._made_from(task) for task in members])
            before = known.get(number, (None, ""))
            same = before[0] == made_from
            kept[number] = before if same else (made_from, hashlib.sha256(repr(made_from).encode()).hexdigest())
            told.append(Era(number, rows, kept[number][1]))
        self.sink.write_eras(told, write)

    def _made_from(self, task: Task) -> tuple[Any, ...]:
        """Tell all that ``write_task`` makes rows from."""
        batches = self.batches[task.launch]
        return (
            [*{**vars(task), "sessions": None}.values()],  # they are in the contents
            self.contents[task.key].mark,
            task.key in batches.hidden,
            batches.step_of.get(task.key),
            None if task.status not in FATES else batches.collecting(task.ready),
            self._recorded(task),
        )

    def write_task(self, task: Task) -> None:
        """Write the trajectories of a task, their tokens, their use, and their fate."""
        batches, content = self.batches[task.launch], self.contents[task.key]
        if task.key in batches.hidden:
            return  # some step trained it or did not: it is among the anonymous ones of that step
        step = batches.step_of.get(task.key)
        prefix = (f"a{task.launch}:" if task.launch else "") + (f"r{task.rank}:" if self.multiple else "")
        group = f"{prefix}{task.number}"
        if not content.samples:
            self._write_unsampled(task, group)
            return
        if content.calls and step is None and task.status in FATES:
            self._write_calls(task, group)
            return
        for index, sample in enumerate(content.samples):
            identity = f"{group}/{index}"
            evidence = "recorded" if sample.told else "inferred"
            about = {
                "trajectory_id": identity,
                "group_id": group,
                "attempt": task.launch,
                "prompt_tokens": sample.prompt,
            }
            self.add(
                "trajectories",
                {
                    **about,
                    "role": "train",
                    "anonymous": False,
                    "multiplicity_lo": int(sample.sure),
                    "multiplicity_hi": 1,
                },
                sample.place,
                evidence,
            )
            start = 0
            for number, span in enumerate(sample.spans):
                row = {
                    "trajectory_id": identity,
                    "span_index": number,
                    "token_start": start,
                    "tokens_lo": span.tokens_lo,
                    "tokens_hi": span.tokens_hi,
                    "version_lo": span.version_lo,
                    "version_hi": span.version_hi,
                    "monotone": True,
                    **self._mask(span.tokens_hi),
                }
                self.add("spans", row, sample.place, evidence if span.version_lo == span.version_hi else "derived")
                start += span.tokens_lo
            if step is not None:
                self._write_use(task, identity, step, sample.spans, sample.place)
            self._write_events(task, identity, group, step, failed=task.failed and not sample.told)

    def _mask(self, tokens: int | None) -> dict[str, int | None]:
        """Return the loss mask where a ratio filter may have taken any token out of it."""
        return {"loss_tokens_lo": 0, "loss_tokens_hi": tokens} if self.settings.masks else {}

    def _write_use(self, task: Task, identity: str, step: int, spans: Sequence[Any], place: tuple[str, int]) -> None:
        use = {"trajectory_id": identity, "attempt": task.launch, "step": step}
        if not self.settings.token_mask or self.settings.eta is None:
            self.add("uses", use, task.end_place or place, "derived")
            return
        behind = None if self.dialect.void else self.settings.behind
        for number, span in enumerate(spans):
            low, high = (0, span.tokens_hi) if self.dialect.void else span.kept(step, self.settings.eta)
            row = {
                **use,
                "span_index": number,
                "loss_tokens_lo": 0 if self.settings.masks else low,
                "loss_tokens_hi": high,
            }
            if high != 0 and behind is not None:
                # What was not taken out may still be older than it was stamped.
                row["staleness_hi"] = min(max(step - span.version_lo, 0), self.settings.eta + behind)
            self.add("uses", row, task.end_place or place, "derived")

    def _write_events(self, task: Task, identity: str, group: str, step: int | None, *, failed: bool) -> None:
        common = {"trajectory_id": identity, "group_id": group, "attempt": task.launch, "multiplicity": 1}
        end = task.end_place or task.place
        told = [("started", task.started, task.place), ("finished", task.finished, end), ("enqueued", task.ready, end)]
        for seq, (kind, at, place) in enumerate(told):
            if at is not None and (kind != "enqueued" or task.status == "accepted"):
                self.add("events", {**common, "seq": seq, "kind": kind, "ts": at}, place, "recorded")
        fate = FATES.get(task.status or "")
        if fate is None or step is not None:
            return
        kind, reason = fate
        if task.reason == "returned_none":
            reason = "other:returned_none"
        collecting = self.batches[task.launch].collecting(task.ready)
        row = {**common, "seq": 9, "kind": kind, "ts": task.ready, "step": collecting, "reason": reason}
        self.add("events", row, end, "recorded" if task.sure and not failed else "inferred")
        if not task.sure:
            self.add("events", {**row, "seq": 10, "kind": "pending", "reason": None}, end, "inferred")
        if failed:
            self.add("events", {**row, "seq": 11, "kind": "lost", "reason": "error"}, end, "inferred")

    def _write_unsampled(self, task: Task, group: str) -> None:
        """Write a task that failed before any sample was started: up to a whole group that holds no token."""
        if task.status != "failed" or not task.place[0]:
            return
        identity = f"anonymous:{group}"
        most = self.settings.samples
        row = {"trajectory_id": identity, "group_id": group, "attempt": task.launch, "role": "train", "anonymous": True}
        self.add("trajectories", {**row, "multiplicity_lo": 0, "multiplicity_hi": most}, task.place, "derived")
        span = {
            "trajectory_id": identity,
            "span_index": 0,
            "tokens_lo": 0,
            "tokens_hi": 0 if self._recorded(task) else None,
        }
        self.add("spans", span, task.place, "derived")
        event = {
            "trajectory_id": identity,
            "attempt": task.launch,
            "seq": 9,
            "kind": "lost",
            "ts": task.ready,
            "reason": "error",
        }
        self.add("events", event, task.end_place or task.place, "derived")

    def _write_calls(self, task: Task, group: str) -> None:
        """Write an agent's task that was thrown away: nobody knows how many rows its calls were."""
        kind, reason = FATES[task.status or ""]
        identity = f"anonymous:{group}"
        about = {"trajectory_id": identity, "group_id": group, "attempt": task.launch}
        size = {"multiplicity_lo": 0, "multiplicity_hi": None}
        self.add("trajectories", {**about, "role": "train", "anonymous": True, **size}, task.place, "derived")
        span = {"trajectory_id": identity, "span_index": 0, "tokens_lo": 0, "tokens_hi": None}
        self.add("spans", span, task.place, "derived")
        event = {**about, "seq": 9, "kind": kind, "ts": task.ready, "reason": reason}
        self.add("events", event, task.end_place or task.place, "derived")

    def _recorded(self, task: Task) -> bool:
        """Whether this launch kept records of samples, so that a task without any had none."""
        return bool(self.launches[task.launch].sessions)


FATES = {
    "rejected": ("dropped", "filtered"),
    "failed": ("lost", "error"),
    "timeout": ("cancelled", "other:timeout"),
}
"""What became of a task that was not accepted, in DESIGN's words."""


def _about(quantity: str, value: float, printed: bool) -> list[tuple[str, str, int]]:
    """Limit a count as logged: exact, or rounded to five digits in the console's table."""
    number = round(value)
    slack = int(abs(value) * 5e-5) + 1 if printed and abs(value) >= 1e5 else (2 if abs(value) >= 1 << 24 else 0)
    if not slack:
        return [(quantity, "eq", number)]
    return [(quantity, "ge", number - slack), (quantity, "le", number + slack)]
