"""NeMo-RL's single-controller loop, recorded by a sampler of one's own (``async_rl.sampler.target``).

>>> # my_sampler.py; async_rl.sampler.name: custom, .target: "my_sampler:Recorded"
>>> record = Recorder("run/events", "sampler", framework="nemo-rl", bound=2)  # doctest: +SKIP
>>> Recorded = recorded(WindowedSampler, record)  # doctest: +SKIP

The sampler picks the groups that are trained and drops those that are too old, from a buffer that stamps each with the
rollout version at its start and at its end. The start is never newer than the weights that made the first token. While
a sync is under way the stamp is still the old one, so the last token may be one version newer than the end says.
A step that is assembled at trainer version ``V`` trains from ``V``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from staleness_audit.recorder.adapters.steps import Batches, unharmed
from staleness_audit.recorder.recorder import Recorder


class _Slot(NamedTuple):
    """A group in the buffer: its rows, and the rollout versions at its start and its end."""

    rows: tuple[str, ...]
    start: int
    end: int | None


def recorded(sampler_class: type, record: Recorder) -> type:
    """Return a subclass of a prompt-group sampler that records what it selects and evicts.

    Arguments:
        sampler_class: ``WindowedSampler``, ``InOrderSampler``, ... or one of your own.
        record: where to; ``bound`` is ``max_staleness_versions`` (or ``max_lookahead_versions``), the unit training
            steps.
    """

    class Recorded(sampler_class):  # type: ignore[misc]
        """The sampler, recorded."""

        # NeMo-RL asks the class itself, so that nobody inherits it by mistake; recording changes nothing about it.
        supports_buffer_checkpoint = getattr(sampler_class, "supports_buffer_checkpoint", False)

        def __init__(self, buffer: Any, *arguments: Any, **options: Any) -> None:
            super().__init__(buffer, *arguments, **options)
            self.batches = Batches(record)
            record.unseen("cancelled", "lost", "pending")  # only groups that are ready are looked at

        async def select(self, *, current_train_weight: int, **options: Any) -> Any:
            before = _seen(record, self._buffer)
            result = await super().select(current_train_weight=current_train_weight, **options)
            with unharmed(record):
                chosen = set(result[0].sample_ids) if result[0] is not None else set()
                slots = [slot for slot in before if chosen.intersection(slot.rows)]
                if slots:
                    # Step numbers follow the trainer's version: the step at version V is the (V + 1)th.
                    step = current_train_weight + 1
                    self.batches.took(step, current_train_weight, list(_rows(record, slots, current_train_weight)))
            return result

        async def evict(self, *, current_train_weight: int) -> Any:
            before = _seen(record, self._buffer)
            result = await super().evict(current_train_weight=current_train_weight)
            with unharmed(record):
                left = {slot.rows for slot in _slots(self._buffer)}
                gone = [slot for slot in before if slot.rows not in left]
                for name, _ in list(_rows(record, gone, current_train_weight)):
                    record.dropped(name, "stale", step=current_train_weight + 1)
            return result

    return Recorded


def _seen(record: Recorder, buffer: Any) -> list[_Slot]:
    """The groups that are ready; none, and a gap in the log, if the buffer is of another make."""
    with unharmed(record):
        return _slots(buffer)
    return []


def _slots(buffer: Any) -> list[_Slot]:
    ends = getattr(buffer, "end_weight_list", None) or [None] * len(buffer.meta_list)
    parallel = zip(buffer.meta_list, buffer.start_weight_list, ends, buffer.ready_list, strict=True)
    return [_Slot(tuple(meta.sample_ids), start, end) for meta, start, end, ready in parallel if ready and meta]


def _rows(record: Recorder, slots: Iterable[_Slot], trainer: int) -> Iterator[tuple[str, int | None]]:
    for slot in slots:
        newest = trainer if slot.end is None else min(slot.end + 1, trainer)
        for row in slot.rows:
            record.admitted(row, slot.rows[0], ts=None)
            # The row's tokens are in the data plane, which the sampler does not look into.
            record.span(row, tokens_lo=1, version_lo=slot.start, version_hi=newest, monotone=True, ts=None)
            record.finished(row, ts=None)
            yield row, None
