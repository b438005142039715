"""slime and Dressage, recorded around their rollout and filter functions (``--rollout-function-path`` and others).

>>> # my_rollout.py; --rollout-function-path my_rollout.generate
>>> generate = recorded_rollout(generate_rollout_fully_async, record)  # doctest: +SKIP
>>> keep = recorded_filter(check_reward_nonzero_std, record)  # --dynamic-sampling-filter-path  # doctest: +SKIP

A sample's ``weight_versions`` has one label per finished engine call, which is exact for all tokens of the call where
engines are paused by aborting requests. Which tokens belong to which call is not said, so a sample of several labels is
an interval. slime labels the initial policy ``"1"`` (``"default"`` where weights are sent as deltas); it is v0 here.
Batch ``r`` trains from the policy that ``r`` batches have trained. Dressage leaves no labels on samples, so that their
versions stay open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, NamedTuple

from staleness_audit.recorder.adapters.steps import Batches, unharmed
from staleness_audit.recorder.recorder import Recorder

Function = Callable[..., Any]
VersionOf = Callable[[str], int]


def recorded_rollout(
    function: Function, record: Recorder, *, in_place: bool | None = None, version_of: VersionOf | None = None
) -> Function:
    """Return a rollout function that records the batch it returns.

    Batch ``r + 1`` may be generated while ``r`` trains, so that a step is confirmed by the batch after the next one;
    ``recorded_rollout(...).batches.over()`` confirms the last ones when the training has ended.

    Arguments:
        function: the rollout function, ``(args, rollout_id, data_source, evaluation=False)``.
        record: where to; the unit is trained rollouts.
        in_place: whether engines take new weights in the midst of requests: a label is then the newest of its call. By
            default whether ``args.flush_cache_interval`` is another than 1.
        version_of: from a label to the policy version. By default as slime counts, from ``args.start_rollout_id``,
            ``args.update_weights_interval`` and ``args.update_weight_mode``.
    """
    batches = Batches(record, ahead=1)
    record.unseen(
        "dropped", "cancelled", "lost", "pending"
    )  # only what is returned, and what a filter rejects, is seen

    @wraps(function)
    def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
        result = function(args, rollout_id, data_source, evaluation=evaluation)
        if not evaluation:
            with unharmed(record):
                groups = getattr(result, "samples", result)
                labels = _Labels(version_of or _label_to_version(args), _newest_only(args, in_place))
                batches.took(rollout_id, rollout_id, list(_rows(record, groups, labels)))
        return result

    generate.batches = batches  # type: ignore[attr-defined]
    return generate


def recorded_filter(
    function: Function, record: Recorder, *, in_place: bool | None = None, version_of: VersionOf | None = None
) -> Function:
    """Return a dynamic sampling filter, ``(args, samples, **options)``, that records the groups it rejects.

    ``in_place``, ``version_of``: as for ``recorded_rollout``.
    """

    @wraps(function)
    def keep(args: Any, samples: Any, **options: Any) -> Any:
        result = function(args, samples, **options)
        with unharmed(record):
            if not getattr(result, "keep", result):
                why = str(getattr(result, "reason", None) or "")
                reason = "zero_advantage" if "zero_std" in why else "filtered"
                labels = _Labels(version_of or _label_to_version(args), _newest_only(args, in_place))
                for name, _ in list(_rows(record, samples, labels)):
                    record.dropped(name, reason)
        return result

    return keep


class _Labels(NamedTuple):
    """What labels say: the version of each, and whether it is only the newest of its call."""

    version_of: VersionOf
    newest_only: bool


def _newest_only(args: Any, in_place: bool | None) -> bool:
    return getattr(args, "flush_cache_interval", 1) != 1 if in_place is None else in_place


def _label_to_version(args: Any) -> VersionOf:
    start = int(getattr(args, "start_rollout_id", None) or 0)
    every = int(getattr(args, "update_weights_interval", None) or 1)
    # The first sync of whole weights, before any training, counts; that of deltas does not.
    delta = getattr(args, "update_weight_mode", None) == "delta"

    def version(label: str) -> int:
        pushes = (0 if label == "default" else int(label)) if delta else int(label) - 1
        return start if pushes == 0 else (start // every + pushes) * every

    return version


def _rows(record: Recorder, samples: Any, labels: _Labels) -> Iterator[tuple[str, int | None]]:
    """Record the samples, of groups or of groups of groups; yield their names and loss tokens."""
    for sample in samples:
        if isinstance(sample, (list, tuple)):
            yield from _rows(record, sample, labels)
            continue
        name = str(sample.index)
        record.admitted(name, None if sample.group_index is None else str(sample.group_index), ts=None)
        tokens, mask = int(sample.response_length), sample.loss_mask
        loss = tokens if mask is None else int(sum(mask))
        # What is masked may be a tool's or the policy's own.
        sampled = {"tokens": tokens} if loss == tokens else {"tokens_lo": loss, "tokens_hi": tokens}
        record.span(name, ts=None, loss_tokens=loss, **sampled, **_versions(sample, labels))
        record.finished(name)
        yield name, 0 if getattr(sample, "remove_sample", False) else loss


def _versions(sample: Any, labels: _Labels) -> dict[str, Any]:
    try:
        versions = [labels.version_of(label) for label in sample.weight_versions]
    except (TypeError, ValueError):  # a label that is no number, such as SGLang's "default"
        return {}
    if not versions:
        return {}
    if labels.newest_only:
        return {"version_hi": max(versions), "monotone": True}
    # A call that was aborted before its first token has a label too, so the oldest may be older than any token.
    lowest, highest = min(versions), max(versions)
    return {"version": lowest} if lowest == highest else {"version_lo": lowest, "version_hi": highest, "monotone": True}
