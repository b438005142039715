"""What all units left, joined in the run's order, and questions that several parts ask of it."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from staleness_audit.discovery import RunFiles
from staleness_audit.parser import Sink, Staged
from staleness_audit.readers.numbers import is_whole, near
from staleness_parsers.roll import timeline
from staleness_parsers.roll.agentic import reseeded
from staleness_parsers.roll.console import PUSH, UPDATE
from staleness_parsers.roll.lives import read_lives
from staleness_parsers.roll.rows import Rows
from staleness_parsers.roll.sampled import Sampled, read_sampled
from staleness_parsers.roll.settings import Pushes, Settings
from staleness_parsers.roll.timeline import Step, Timeline

Row = Mapping[str, Any]
_MOST_STEPS = 1_000_000
_LAUNCH = 1 << 33
_TRAJECTORY = (pl.col("name") == "trajectory") & (pl.col("service") != "val_env").fill_null(value=True)
Done = Mapping[tuple[int, int], bool | None]


@dataclass
class Known:
    """Everything the units left, in the run's order."""

    spans: list[dict[str, Any]]  # of steps and sampling calls, by time
    lives: pl.DataFrame  # all other spans
    rows: dict[int, Sampled]  # step -> rows of its batch, pickle before dump
    boards: list[dict[str, Any]]
    lines: list[dict[str, Any]]
    metrics: dict[int, dict[str, dict[str, Any]]]  # step -> name -> row
    settings: Settings
    time: Timeline
    pushes: Pushes
    agentic: bool
    mocked: bool
    damaged: bool = False  # a line of spans was lost, so that a missing span proves nothing

    @cached_property
    def domains(self) -> set[str]:
        """RLVR's domains, as far as configuration, metrics and batches name them: each has a scheduler of its own."""
        named = {key.split(".")[1] for key in self.settings.values if key.startswith("rewards.")}
        for found in self.metrics.values():
            named |= {name.split("/")[0] for name in found if name.endswith("/scheduler/off_policy_ratio")}
        return named | {domain for batch in self.rows.values() for domain in batch.domains if domain}

    @property
    def trajectories_traced(self) -> bool:
        """Whether spans of the agentic pipeline's training trajectories are there."""
        return bool(self.lives.select(_TRAJECTORY.any()).item())

    @property
    def prompts_traced(self) -> bool:
        """Whether RLVR's scheduler spans are there."""
        called = any(row["name"] == "get_batch" for row in self.spans)
        return called or bool((self.lives["name"] == "process_new_prompt").any())


def _table(staged: Staged, name: str, *keys: str) -> list[dict[str, Any]]:
    if not staged.has(name):
        return []
    frame = staged.scan(name).collect()
    return frame.sort(keys, nulls_last=False, maintain_order=True).to_dicts()


def gather(staged: Staged, run: RunFiles, sink: Sink) -> Known:
    """Read what the units staged, bring it into the run's order, and see which pipeline it is."""
    spans, lives = read_lives(staged, sink)
    lines = near(_table(staged, "lines", "source", "line"), "step", None, sink)
    settings = Settings.collect(_table(staged, "settings", "source", "line", "key"), run.assume)
    metrics: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in near(_table(staged, "metrics", "source", "line", "locator"), "step", None, sink):
        metrics[row["step"]][row["name"]] = row
    pushed = {step: PUSH in named for step, named in metrics.items() if UPDATE in named}
    frequencies = settings.values.get("actor_train.model_update_frequency", [])
    if not frequencies and settings.whole:
        frequencies = [1]
    whole = [f for f in frequencies if is_whole(f)]
    starts: dict[str, str] = {}
    for row in lines:
        starts.setdefault(row["source"], row["time"] or "")
    told = timeline.from_lines(sorted(lines, key=lambda row: (starts[row["source"]], row["source"], row["line"])))
    time = timeline.from_spans(spans, [step.step for step in told.steps], sink)
    if not time.traced:
        time = told
    batches, is_agentic = read_sampled(staged)
    is_agentic |= any(row["name"] == "rollout" for row in spans) or bool((lives["name"] == "trajectory").any())
    is_agentic |= "train_env_manager.num_env_groups" in settings.values
    mocked = any(row["kind"] == "mocked" for row in lines) or (
        settings.get("rollout_mock.enable") is True and settings.get("rollout_mock.mode") == "mock"
    )
    boards = _table(staged, "boards", "source", "step")
    pushes = Pushes(whole, pushed)
    known = Known(spans, lives, batches, boards, lines, metrics, settings, time, pushes, is_agentic, mocked)
    known.damaged = staged.has("damage")
    if is_agentic and not time.steps:
        time.reseeded = reseeded(batches)
    _add_steps(known, _table(staged, "begun", "step", "source"))
    if not known.time.steps:
        message = "Nothing here tells of a training step; restore the console, spans, dumps or metrics."
        sink.diagnose("warning", "no-records", message, opens="training")
    elif not time.traced and not lines and known.time.steps[0].step > 0:
        message = f"Nothing is left of the steps before {known.time.steps[0].step}, if the run did not resume there."
        sink.diagnose("warning", "beginning-missing", message, opens="training")
    return known


def _add_steps(known: Known, begun: Sequence[Row]) -> None:
    """Add the steps known from a batch, metrics or a dump's name alone, and those between: no number is left out."""
    seen = {step.step for step in known.time.steps}
    witness = {row["step"]: row for row in [*begun, *known.boards]}
    witness |= {step: rows[0] for step, rows in known.rows.items()}
    witness |= {step: next(iter(named.values())) for step, named in known.metrics.items()}
    numbers = seen | set(witness)
    first, last = min(numbers, default=0), max(numbers, default=-1)
    place: Row | None = None
    # A damaged number must not ask for any number of steps.
    for number in range(last, first - 1, -1) if last - first < _MOST_STEPS else sorted(numbers, reverse=True):
        place = witness.get(number, place)
        if number not in seen and place is not None:
            known.time.steps.append(Step(max(known.time.attempts), number, place))
    if not seen:
        known.time.steps.sort(key=lambda step: step.step)


def era(attempt: int, step: int) -> int:
    """Number the eras of a run by launch and step: a launch has fewer than ``_LAUNCH`` steps."""
    return attempt * _LAUNCH + max(step, 0)


def everywhere(known: Known) -> str:
    """Return a digest of what the rows of any trajectory may depend on, beside what its own era says."""
    told = repr((known.settings, known.mocked, known.damaged, known.pushes.frequencies))
    return hashlib.sha256(told.encode(errors="surrogatepass")).hexdigest()


def constrain(rows: Rows, place: Row, attempt: int, step: int, quantity: str, value: int, op: str = "eq") -> None:
    """Write an aggregate fact about what a step trained."""
    rows.add("constraints", place, attempt=attempt, step=step, quantity=quantity, op=op, value=value, unit=quantity)


def window(known: Known, rows: Rows, home: Step) -> None:
    """State how old a batch without rows can be: no step takes what began before its window (guide rules 12, 13)."""
    ratio = known.settings.window
    if ratio is None or known.mocked:
        return
    oldest = known.pushes.version(max(home.step - ratio, 0), known.time.first.get(home.attempt, 0))[0]
    constrain(rows, home.place, home.attempt, home.step, "staleness_max", max(home.step - oldest, 0), op="le")


def unused(known: Known, taken: Sequence[tuple[int, int]], completed: Done) -> list[tuple[str, str | None, int | None]]:
    """What a batch that trained nothing came to: thrown away where the run went on without training it."""
    warmup = known.settings.whole_number("critic_warmup") or 0
    for attempt, step in taken:
        if completed.get((attempt, step)) is not False:
            return []
        if step < warmup:
            return [("dropped", "other:critic_warmup", step)]
        if any(other.attempt == attempt and other.step > step for other in known.time.steps):
            return [("dropped", "other:skipped", step)]
    return []


def masked(known: Known, attempt: int, step: int) -> bool:
    """Whether tokens of a step may have been masked out of the loss; its metrics know, else the configuration."""
    named = known.metrics.get(step, {})
    home = known.time.last(step)
    used = [row["value"] for name, row in named.items() if name.endswith("/actor/samples_used")]
    total = [row["value"] for name, row in named.items() if name.endswith("/actor/samples_total")]
    if known.settings.get("train_infer_correction.filters"):
        return True
    if used and len(used) == len(total) and (home is None or home.attempt == attempt):
        return bool(sum(used) < sum(total))
    return known.settings.masks
