"""prime-rl, recorded by a monitor: an object beside those that its orchestrator logs metrics and samples to.

>>> monitor = RecordingMonitor(record)  # doctest: +SKIP
>>> setup_monitor(...).monitors.append(monitor)  # prime_rl.utils.monitor.MultiMonitor  # doctest: +SKIP

prime-rl's own ``traces.jsonl`` (on by default) says the same and more, of every episode; the monitor is for runs that
switch it off, or that want one event log of all parts. The orchestrator hands ``log_samples`` the episodes of the batch
that it ships. Their versions are known as the span of the episode, from the one live when its group was opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from staleness_audit.recorder.adapters.steps import Batches, unharmed
from staleness_audit.recorder.recorder import Recorder


class RecordingMonitor:
    """Implements prime-rl's ``Monitor``; only the samples of training batches are of interest.

    Batch ``N`` trains from version ``N - 1``, and up to two more may be shipped while it does.

    Arguments:
        record: where to; the unit is training steps.
        describe: from a sample to the fields of its trajectories: ``trajectory_id``, ``group_id``, ``tokens``,
            ``loss_tokens``, ``version_lo``, ``version_hi``, any of which may be missing. By default an episode in the
            form of ``traces.jsonl``, as a mapping or with ``model_dump()``.
    """

    def __init__(self, record: Recorder, describe: Callable[[Any], Iterable[Mapping[str, Any]]] | None = None) -> None:
        self.history: list[dict[str, Any]] = []
        self.batches = Batches(record, ahead=2)
        self._record = record
        record.unseen("dropped", "cancelled", "lost", "pending")  # only what is shipped is seen
        self._describe = describe or episode

    def log_samples(self, rollouts: Iterable[Any], step: int) -> None:
        """Record the batch that is shipped for ``step``."""
        with unharmed(self._record):
            self.batches.took(step, step - 1, list(self._rows(rollouts)))

    def _rows(self, rollouts: Iterable[Any]) -> Iterator[tuple[str, int | None]]:
        for rollout in rollouts:
            for fields in self._describe(rollout):
                span = dict(fields)
                name, loss = str(span.pop("trajectory_id")), span.get("loss_tokens")
                self._record.admitted(name, span.pop("group_id", None), ts=None)
                tokens = {} if "tokens" in span else {"tokens_lo": loss or 0}
                self._record.span(name, ts=None, **tokens, **span)
                self._record.sampled(name)
                yield name, loss

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Metrics are not recorded."""

    def log_eval_samples(self, rollouts: Iterable[Any], env_name: str, step: int) -> None:
        """Evaluation counts nowhere."""

    def log_distributions(self, distributions: dict[str, list[float]], step: int) -> None:
        """Distributions are not recorded."""

    def log_final_samples(self) -> None:
        """Everything was recorded before."""

    def log_final_distributions(self) -> None:
        """Distributions are not recorded."""

    def save_final_summary(
        self, filename: str = "final_summary.json", success: bool = True, error_message: str | None = None
    ) -> None:
        """The training has ended; if well, so have its last steps."""
        with unharmed(self._record):
            if success:
                self.batches.over()

    def close(self) -> None:
        """Write the end line."""
        self._record.close()


def episode(sample: Any) -> Iterator[dict[str, Any]]:
    """Trajectories of an episode in the form of ``traces.jsonl``: one per trace, its tokens those its masks mark."""
    data = sample if isinstance(sample, Mapping) else sample.model_dump()
    policy = data["run"]["work"].get("policy") or {}
    versions = {"version_lo": policy.get("start"), "version_hi": policy.get("end"), "monotone": True}
    for trace in data["traces"]:
        tokens = sum(sum(node.get("mask") or ()) for node in trace["nodes"])
        yield {"trajectory_id": trace["id"], "group_id": data["group"]["id"], "tokens": tokens, **versions}
