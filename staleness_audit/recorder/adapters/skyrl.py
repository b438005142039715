"""SkyRL's fully asynchronous trainer, recorded by a subclass of the trainer and a generator that it is given.

>>> Trainer = recorded(FullyAsyncRayPPOTrainer, record)  # doctest: +SKIP
>>> trainer = Trainer(..., generator=RecordedGenerator(generator))  # doctest: +SKIP

Trainer and generator live in one process. The trainer sees each weight sync; the generator notes the version before
and after each group. Where they are the same, all of the group's tokens are of that version; else of these two or
between. SkyRL itself records neither. Step ``g`` trains from version ``g - 1``. Groups that were dropped on the way to
a batch are seen with it, those that are dropped as an epoch ends are not.

SkyRL 0.3 and 0.4 take the weights over in ``trainer.dispatch.save_weights_for_sampler``; its predecessor
``skyrl_train`` did in a method of the trainer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from functools import wraps
from typing import Any

from staleness_audit.recorder.adapters.steps import Batches, unharmed
from staleness_audit.recorder.recorder import Recorder


class RecordedGenerator:
    """A generator that notes by which versions each of its outputs was made; the trainer sets ``versions``."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        # While weights are taken over, the engines may have the old or the new ones.
        self.versions: tuple[int | None, int | None] = (None, None)
        # By the identity of the output, which is kept so that it stays its own.
        self.made: dict[int, tuple[Any, int | None, int | None]] = {}

        @wraps(generator.generate)  # SkyRL looks at its parameters
        async def generate(*arguments: Any, **options: Any) -> Any:
            oldest, _ = self.versions
            output = await generator.generate(*arguments, **options)
            self.made[id(output)] = (output, oldest, self.versions[1])
            return output

        self.generate = generate

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generator, name)


class _Dispatch:
    """The trainer's dispatch, whose syncs the trainer sees."""

    def __init__(self, dispatch: Any, trainer: Any) -> None:
        self._dispatch = dispatch
        self._trainer = trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatch, name)

    async def save_weights_for_sampler(self, *arguments: Any, **options: Any) -> Any:
        """Take the weights over, between two looks of the trainer."""
        return await self._trainer.synced(self._dispatch.save_weights_for_sampler(*arguments, **options))


def recorded(trainer_class: type, record: Recorder) -> type:
    """Return a subclass of the trainer that records what it trains.

    Arguments:
        trainer_class: ``FullyAsyncRayPPOTrainer`` or a subclass of it.
        record: where to; ``bound`` is ``max_staleness_steps``, the unit training steps.
    """
    record.unseen("dropped", "cancelled", "lost", "pending")  # only what comes with a batch is seen

    class Recorded(trainer_class):  # type: ignore[misc]
        """The trainer, recorded."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.batches = Batches(record)

        def init_weight_sync_state(self, *arguments: Any, **options: Any) -> Any:
            result = super().init_weight_sync_state(*arguments, **options)
            self.dispatch: Any = _Dispatch(self.dispatch, self)
            return result

        async def async_sync_policy_weights_to_inference_engines(self, *arguments: Any, **options: Any) -> Any:
            return await self.synced(super().async_sync_policy_weights_to_inference_engines(*arguments, **options))

        async def synced(self, sync: Awaitable[Any]) -> Any:
            """Await a weight sync and record it."""
            with unharmed(record):
                self._versions((0, 1))
            result = await sync
            with unharmed(record):
                self._versions((1, 1))
                record.sync(int(self.global_step))
            return result

        def _versions(self, taken: tuple[int, int]) -> None:
            """Engines have the weights of as many steps as are complete (the initial sync comes before the first)."""
            if isinstance(self.generator, RecordedGenerator):
                _, last = self.generator.versions
                both = (int(self.global_step) if last is None else last, int(self.global_step))
                self.generator.versions = (both[taken[0]], both[taken[1]])

        def convert_generation_group_mini_batch_to_training_input(
            self, groups: Any, dropped: Any = None, *arguments: Any, **options: Any
        ) -> Any:
            further = arguments if dropped is None else (dropped, *arguments)
            result = super().convert_generation_group_mini_batch_to_training_input(groups, *further, **options)
            with unharmed(record):
                step = int(self.global_step)
                made = self.generator.made if isinstance(self.generator, RecordedGenerator) else {}
                for group in dropped or ():
                    for name in _record_group(record, group, made):
                        record.dropped(name, "zero_advantage", step=step)
                names = [name for group in groups for name in _record_group(record, group, made)]
                for name in names:
                    record.sampled(name)
                self.batches.took(step, step - 1, zip(names, _losses(result, len(names)), strict=True))
            return result

    return Recorded


def _record_group(record: Recorder, group: Any, made: dict[int, Any]) -> Iterator[str]:
    output, scheduled = group.generator_output, int(group.global_step_when_scheduled)
    # Scheduled at step g, the engines had version g - 1, or already g; later tokens may be newer.
    _, oldest, newest = made.pop(id(output), (None, max(scheduled - 1, 0), None))
    versions = {"version": oldest} if oldest == newest else {"version_lo": oldest, "version_hi": newest}
    # A prompt returns in every epoch.
    name = f"{group.uid}@{scheduled}"
    for index, (tokens, mask) in enumerate(zip(output["response_ids"], output["loss_masks"], strict=True)):
        row, loss = f"{name}/{index}", int(sum(mask))
        record.admitted(row, name, ts=None)
        # What is masked may be an environment's or the policy's own.
        known = {"tokens": loss} if loss == len(tokens) else {"tokens_lo": loss, "tokens_hi": len(tokens)}
        record.span(row, ts=None, loss_tokens=loss, monotone=True, **known, **versions)
        yield row


def _losses(batch: Any, rows: int) -> list[int | None]:
    """What the loss sees of each row: SkyRL masks whole groups afterwards (``zero_variance_filter``)."""
    kept = [int((mask != 0).sum()) for mask in batch["loss_mask"]]
    padded = int(batch.metadata.get("pad_size", 0))
    if len(kept) - padded == rows:
        return [*kept[:rows]]
    return [None] * rows  # turns were merged (``merge_stepwise_output``)
