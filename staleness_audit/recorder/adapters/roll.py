"""ROLL's RLVR pipeline, recorded by a rollout loop of one's own (``user_defined_rollout_loop_cls``).

>>> # my_loop.py; user_defined_rollout_loop_cls: my_loop.Recorded
>>> record = Recorder("run/events", "scheduler", framework="roll", bound=2)  # doctest: +SKIP
>>> Recorded = recorded(UserDefinedRolloutLoop, record)  # doctest: +SKIP

The scheduler calls the loop for each prompt. ROLL knows of its tokens only the step at which the prompt began
(``sampling_start_step``), whose weights are the oldest that can have made them. Responses get a name that travels with
them in ``non_tensor_batch``; whoever has the batch in hand (a pipeline of one's own) says ``took``. Step ``s`` trains
from version ``s``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from staleness_audit.recorder.adapters.steps import Batches, new_tag, tag_name, unharmed
from staleness_audit.recorder.recorder import Recorder

COLUMN = "staleness_audit_name"


def recorded(loop_class: type, record: Recorder, *, every: int = 1) -> type:
    """Return a subclass of the rollout loop that records the prompts it processes.

    Arguments:
        loop_class: ``UserDefinedRolloutLoop`` or a loop of your own.
        record: where to; ``bound`` is ``ceil(async_generation_ratio)``, the unit global steps.
        every: after how many steps weights are pushed (``model_update_frequency``).
    """
    record.unseen("dropped", "cancelled", "lost", "pending")

    class Recorded(loop_class):  # type: ignore[misc]
        """The rollout loop, recorded."""

        async def process_new_prompt(self, context: Any) -> Any:
            responses = await super().process_new_prompt(context)
            # A prompt without responses was filtered, or aborted by the scheduler: the loop does not tell them apart.
            if responses is not None and not getattr(context, "is_val", False):
                with unharmed(record):
                    begun = getattr(context, "sampling_start_step", None)
                    _note(record, responses, None if begun is None else int(begun) // every * every)
            return responses

    return Recorded


def _note(record: Recorder, responses: Any, oldest: int | None) -> None:
    listed = responses if isinstance(responses, list) else [responses]
    group = tag_name(new_tag())
    for index, response in enumerate(listed):
        name = f"{group}/{index}"
        record.admitted(name, group, ts=None)
        tokens = int(response.batch["response_mask"].sum())
        record.span(name, tokens=tokens, version_lo=oldest, monotone=True, ts=None)
        record.enqueued(name)
        response.non_tensor_batch[COLUMN] = _objects([name])


def _objects(values: list[str]) -> Any:
    import numpy  # noqa: PLC0415 - ROLL's batches are made of it

    return numpy.array(values, dtype=object)


def took(batches: Batches, batch: Any, step: int) -> None:
    """Global step ``step`` trains this batch (a ``DataProto`` of responses)."""
    with unharmed(batches.record):
        batches.took(step, step, list(_rows(batch)))


def _rows(batch: Any) -> Iterator[tuple[str, int]]:
    for name, mask in zip(batch.non_tensor_batch[COLUMN], batch.batch["response_mask"], strict=True):
        yield str(name), int(mask.sum())
