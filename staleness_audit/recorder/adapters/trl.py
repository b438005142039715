"""TRL's asynchronous GRPO trainer, recorded: which rows each step trained, which it dropped, what versions made them.

>>> from trl.experimental.async_grpo import AsyncGRPOTrainer  # doctest: +SKIP
>>> trainer = recorded(AsyncGRPOTrainer, record)(model=..., args=..., ...)  # doctest: +SKIP

A subclass that overrides the public ``get_train_dataloader`` and ``training_step``, and a ``TrainerCallback``:

- The queue of rows is wrapped: every row taken from it gets a name, and is dropped if it is staler than
  ``max_staleness`` or longer than ``token_budget`` (the rules that the trainer applies to it a moment later, in the
  same thread).
- The collator is wrapped: it sees each micro-batch's rows, in the order in which ``training_step`` is called.
- At the end of a step its rows are ``trained``, from the version that was live when the step began.

TRL numbers the first policy 1; in the log it is v0. The unit is weight syncs. What never comes out of the queue is not
seen: rows that a worker throws away or has in flight, and those that wait when the training ends.

What made a row's tokens, TRL knows only as the version at which its group was admitted. So the default span reaches
from that version to the one live when the row was taken, and the audit says what follows from it. A worker of
your own that knows more (``rollout_worker=``) gives it with ``spans``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from staleness_audit.recorder.adapters.steps import unharmed
from staleness_audit.recorder.recorder import Recorder


def recorded(
    trainer_class: type,
    record: Recorder,
    *,
    prefix: str = "",
    spans: Callable[[Any], Iterable[dict[str, Any]]] | None = None,
) -> type:
    """Return a subclass of the trainer that records what it does. Rows are recorded on the main process only.

    Arguments:
        trainer_class: ``AsyncGRPOTrainer`` or a subclass of it.
        record: where to; its header should say ``bound`` (``v_train - v_gen``) and ``unit="weight syncs"``.
        prefix: put before the names of trajectories (``<group>/<row>``); needed if a run is resumed, as groups are then
            counted anew.
        spans: from a row of the queue to the fields of its spans (``docs/events.md``), versions counted from v0. May
            raise; the row's tokens are then unknown.
    """

    class Recorded(trainer_class):  # type: ignore[misc]
        """The trainer, recorded."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            record.unseen("dropped", "cancelled", "lost", "pending")  # only what is taken from the queue is seen
            self._steps = _Steps(self, record, prefix, spans or _row_span(self))
            self.add_callback(_callback(self._steps))

        def get_train_dataloader(self) -> Any:
            if not self.accelerator.is_main_process:
                return super().get_train_dataloader()
            queue: Any = self.rollout_queue
            self.rollout_queue: Any = _Queue(queue, self._steps)
            try:
                loader = super().get_train_dataloader()
            finally:
                self.rollout_queue = queue
            # Accelerate's loader stands around the one that collates.
            inner = getattr(loader, "base_dataloader", loader)
            collate = inner.collate_fn

            def noted(examples: Any) -> Any:
                self._steps.collated(examples)
                return collate(examples)

            inner.collate_fn = noted
            return loader

        def training_step(self, *arguments: Any, **options: Any) -> Any:
            output = super().training_step(*arguments, **options)
            if self.accelerator.is_main_process:
                self._steps.trained()
            return output

    return Recorded


def _safely(method: Callable[..., None]) -> Callable[..., None]:
    """Let no error of the recording reach the training; what was missed leaves a gap."""

    @wraps(method)
    def safe(self: _Steps, *arguments: Any) -> None:
        with unharmed(self.record):
            method(self, *arguments)

    return safe


class _Queue:
    """The queue of rows, seen as they are taken."""

    def __init__(self, queue: Any, steps: _Steps) -> None:
        self._queue = queue
        self._steps = steps

    def get(self, *arguments: Any, **options: Any) -> Any:
        row = self._queue.get(*arguments, **options)
        self._steps.taken(row)
        return row

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _Steps:
    """Follows rows from the queue to the step that trains them. All of it happens in the trainer's thread."""

    def __init__(
        self, trainer: Any, record: Recorder, prefix: str, spans: Callable[[Any], Iterable[dict[str, Any]]]
    ) -> None:
        self.trainer = trainer
        self.record = record
        self.prefix = prefix
        self.spans = spans
        self.rows: defaultdict[Any, int] = defaultdict(int)  # rows of a group so far
        self.delivered: dict[int, tuple[Any, str, int]] = {}  # by the identity of their tokens' array, which is kept
        self.batches: list[list[tuple[str, int]]] = []  # micro-batches that wait for their training step
        self.batch: list[tuple[str, int]] = []  # rows that the current step has trained
        self.version: int | None = None
        self.started: float | None = None

    @_safely
    def taken(self, row: Any) -> None:
        group = row.group_id
        name = f"{self.prefix}{group}/{self.rows[group]}"
        self.rows[group] += 1
        loss = int(row.completion_mask.sum())
        self.record.admitted(name, f"{self.prefix}{group}", ts=None)
        try:
            described = list(self.spans(row))
        except Exception:
            described = [{"tokens_lo": loss}]
        for fields in described:
            self.record.span(name, **{"ts": None, **fields})
        self.record.finished(name, ts=None)
        self.record.enqueued(name, ts=row.enqueued_at)
        arguments = self.trainer.args
        if self.trainer.model_version - row.model_version > arguments.max_staleness:
            self.record.dropped(name, "stale", step=self.trainer.state.global_step + 1)
        elif 0 < arguments.token_budget < len(row.input_ids):  # fits in no batch
            self.record.dropped(name, "filtered", step=self.trainer.state.global_step + 1)
        else:
            self.delivered[id(row.input_ids)] = (row.input_ids, name, loss)

    @_safely
    def collated(self, examples: Any) -> None:
        (packs,) = examples
        rows = [self.delivered.pop(id(row["input_ids"])) for pack in packs for row in pack.samples]
        batch = [(name, loss) for _, name, loss in rows]
        for name, _ in batch:
            self.record.sampled(name)
        self.batches.append(batch)

    @_safely
    def trained(self) -> None:
        self.batch += self.batches.pop(0)

    @_safely
    def begin(self) -> None:
        version = self.trainer.model_version - 1
        if version != self.version:
            self.record.sync(version, ts=None)
        self.version, self.started, self.batch = version, time.time(), []

    @_safely
    def end(self, step: int) -> None:
        for name, loss in self.batch:
            self.record.trained(name, step, loss_tokens=loss)
        self.record.step(
            step,
            self.version,
            started=self.started,
            trajectories=len(self.batch),
            loss_tokens=sum(loss for _, loss in self.batch),
        )


def _row_span(trainer: Any) -> Callable[[Any], list[dict[str, Any]]]:
    """What TRL knows of a row: tokens after its prompt (some may be tools'), made since its group was admitted."""

    def spans(row: Any) -> list[dict[str, Any]]:
        loss = int(row.completion_mask.sum())
        after_prompt = int(row.completion_mask.size - row.completion_mask.argmax()) if loss else None
        tokens = {"tokens": loss} if after_prompt == loss else {"tokens_lo": loss, "tokens_hi": after_prompt}
        # Labels may be one too old while a sync ends, never too new.
        return [
            {**tokens, "version_lo": row.model_version - 1, "version_hi": trainer.model_version - 1, "monotone": True}
        ]

    return spans


def _callback(steps: _Steps) -> Any:
    from transformers import TrainerCallback  # noqa: PLC0415 - only who has TRL comes here

    class StepCallback(TrainerCallback):  # type: ignore[misc]
        """Says when a step begins (after the sync that the last one ended with) and ends."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                steps.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                steps.end(state.global_step)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            steps.record.close()

    return StepCallback()
