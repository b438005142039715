"""SkyRL's fully asynchronous trainer, recorded by a subclass of the trainer and a generator that it is given.

>>> Trainer = recorded(FullyAsyncRayPPOTrainer, record)  # doctest: +SKIP
>>> trainer = Trainer(..., generator=RecordedGenerator(generator))  # doctest: +SKIP

Trainer and generator live in one process. The trainer counts its weight syncs; the generator notes the version before
and after each group. Where they are the same, all of the group's tokens are of that version; else of these two or
between. SkyRL itself records neither. Step ``g`` trains from version ``g - 1``.
"""

from __future__ import annotations

from collections.abc import Iterator
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

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generator, name)

    async def generate(self, input_batch: Any, *arguments: Any, **options: Any) -> Any:
        """Generate, between two looks at the version."""
        oldest, _ = self.versions
        output = await self.generator.generate(input_batch, *arguments, **options)
        self.made[id(output)] = (output, oldest, self.versions[1])
        return output


def recorded(trainer_class: type, record: Recorder) -> type:
    """Return a subclass of the trainer that records what it trains.

    Arguments:
        trainer_class: ``FullyAsyncRayPPOTrainer`` or a subclass of it.
        record: where to; ``bound`` is ``max_staleness_steps``, the unit training steps.
    """
    record.unseen("dropped", "cancelled", "lost", "pending")  # only what is trained is seen

    class Recorded(trainer_class):  # type: ignore[misc]
        """The trainer, recorded."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.batches = Batches(record)

        async def async_sync_policy_weights_to_inference_engines(self, *arguments: Any, **options: Any) -> Any:
            with unharmed(record):
                self._versions((0, 1))
            result = await super().async_sync_policy_weights_to_inference_engines(*arguments, **options)
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

        def convert_generation_group_mini_batch_to_training_input(self, groups: Any, *arguments: Any) -> Any:
            result = super().convert_generation_group_mini_batch_to_training_input(groups, *arguments)
            with unharmed(record):
                step = int(self.global_step)
                made = self.generator.made if isinstance(self.generator, RecordedGenerator) else {}
                self.batches.took(step, step - 1, [row for group in groups for row in _rows(record, group, made)])
            return result

    return Recorded


def _rows(record: Recorder, group: Any, made: dict[int, Any]) -> Iterator[tuple[str, int]]:
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
        record.sampled(row)
        yield row, loss
