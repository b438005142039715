"""AReaL, recorded in its workflow, in ``should_accept_fn`` and in the training script (all of them the user's own).

>>> workflow = recorded(RLVRWorkflow, record)(...)  # doctest: +SKIP
>>> accept = recorded_accept(should_accept, record)  # prepare_batch's should_accept_fn  # doctest: +SKIP
>>> took(batches, batch, global_step)  # after prepare_batch; batches = Batches(record)  # doctest: +SKIP

A workflow's result holds the version of every token, so that the record is exact (but for answers that came while the
version was changing, in releases that stamp them afterwards). Two columns are added to it, by which the training script
knows the rows again. Step ``s`` trains from version ``s``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from staleness_audit.recorder.adapters.steps import Batches, new_tag, tag_name, unharmed
from staleness_audit.recorder.recorder import Recorder

COLUMNS = ("staleness_audit_process", "staleness_audit_number")


def recorded(workflow_class: type, record: Recorder) -> type:
    """Return a subclass of a workflow that records the trajectories it returns.

    Arguments:
        workflow_class: a ``RolloutWorkflow`` that returns tensors: ``RLVRWorkflow``, ... or one of your own. Any other
            result (interactions of agents) leaves a gap in the log.
        record: where to; ``bound`` is ``max_head_offpolicyness``, the unit training steps.
    """
    record.unseen("cancelled", "lost", "pending")  # only what a workflow returns is seen

    class Recorded(workflow_class):  # type: ignore[misc]
        """The workflow, recorded."""

        async def arun_episode(self, engine: Any, data: Any) -> Any:
            result = await super().arun_episode(engine, data)
            with unharmed(record):
                if result is None:
                    name = tag_name(new_tag())
                    record.admitted(name, ts=None)
                    record.dropped(name, "filtered")
                else:
                    _note(record, result)
            return result

    return Recorded


def _note(record: Recorder, result: dict[str, Any]) -> None:
    versions = result["versions"]
    tags = [new_tag() for _ in range(len(versions))]
    group = tag_name(tags[0]) if len(tags) > 1 else None
    for row, tag in enumerate(tags):
        name = tag_name(tag)
        record.admitted(name, group, ts=None)
        # -1 marks what the policy did not sample; padding, which has 0, is not attended to.
        seen = result["attention_mask"][row].tolist()
        made = [int(v) for v, there in zip(versions[row].tolist(), seen, strict=True) if there and v >= 0]
        loss = int(sum(result["loss_mask"][row].tolist()))
        record.span(name, versions=made, loss_tokens=min(loss, len(made)))
        record.finished(name)
    for column, values in zip(COLUMNS, zip(*tags, strict=True), strict=True):
        # A column like those that are there, of the same library and on the same device.
        result[column] = versions[:, 0] * 0
        for row, value in enumerate(values):
            result[column][row] = value


def recorded_accept(function: Callable[[Any], bool], record: Recorder) -> Callable[[Any], bool]:
    """Return a ``should_accept_fn`` that records the trajectories it rejects."""

    @wraps(function)
    def accept(trajectory: Any) -> bool:
        kept = function(trajectory)
        with unharmed(record):
            if not kept:
                for name, _ in _names(trajectory):
                    record.dropped(name, "filtered")
        return kept

    return accept


def took(batches: Batches, batch: Any, step: int) -> None:
    """Training step ``step`` (``global_step``) trains this batch, a dict of tensors or a list of them."""
    with unharmed(batches.record):
        parts = batch if isinstance(batch, (list, tuple)) else [batch]
        batches.took(step, step, [row for part in parts for row in _names(part)])


def _names(batch: Any) -> Iterator[tuple[str, int]]:
    columns = [batch[column].tolist() for column in COLUMNS]
    for tag, mask in zip(zip(*columns, strict=True), batch["loss_mask"], strict=True):
        yield tag_name(tag), int(sum(mask.tolist()))
