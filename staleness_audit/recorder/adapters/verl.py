"""verl's V1 trainer, recorded by a replay buffer of one's own (``trainer.v1.sampler.custom_sampler``).

>>> # my_sampler.py, named by trainer.v1.sampler.custom_sampler.path; .name is "Recorded"
>>> record = Recorder("run/events", "trainer", framework="verl", bound=7)  # doctest: +SKIP
>>> Recorded = recorded(ReplayBuffer, record)  # doctest: +SKIP

The buffer hands the trainer its batches. Each row's tag holds the engine versions of its first and its last request
(``min_global_steps``, ``max_global_steps``); the minimum may be older than the oldest token, if a request was aborted
before its first one, never newer. What the buffer drops it clears by itself, so dropped rows are not seen.
Step ``s`` trains from version ``s - 1``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from staleness_audit.recorder.adapters.steps import Batches, unharmed
from staleness_audit.recorder.recorder import Recorder


def recorded(buffer_class: type, record: Recorder, *, single_turn: bool = False) -> type:
    """Return a subclass of verl's replay buffer that records the batches it hands out for training.

    Arguments:
        buffer_class: ``ReplayBuffer``, or a sampler of your own.
        record: where to; ``bound`` is ``max_off_policy_threshold - 1`` in versions, the unit global steps.
        single_turn: whether all tokens of a response are the policy's and take part in training. Otherwise tools may
            have made some, and only that the policy made one is recorded.
    """
    record.unseen("dropped", "cancelled", "lost", "pending")

    class Recorded(buffer_class):  # type: ignore[misc]
        """The replay buffer, recorded."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.batches = Batches(record)

        def sample(self, global_steps: int, partition_id: str, *arguments: Any, **options: Any) -> Any:
            result = super().sample(global_steps, partition_id, *arguments, **options)
            if partition_id == "train":
                with unharmed(record):
                    batch = result[0] if isinstance(result, tuple) else result
                    self.batches.took(global_steps, global_steps - 1, _rows(record, batch, single_turn))
            return result

    return Recorded


def _rows(record: Recorder, batch: Any, single_turn: bool) -> Iterator[tuple[str, int | None]]:
    for key, tag in zip(batch.keys, batch.tags, strict=True):
        if tag.get("is_padding"):
            continue
        tokens = tag.get("response_len")
        # Keys are <prompt>_<session>_<index>; the prompt's part may itself have underscores.
        record.admitted(key, key.rsplit("_", 2)[0], ts=None)
        oldest, newest = tag.get("min_global_steps"), tag.get("max_global_steps")
        versions = {"version": newest} if oldest == newest else {"version_lo": oldest, "version_hi": newest}
        known = {"tokens": tokens} if single_turn else {"tokens_lo": min(tokens or 0, 1), "tokens_hi": tokens}
        record.span(key, ts=None, monotone=True, **known, **versions)
        record.sampled(key)
        yield key, tokens if single_turn else None
