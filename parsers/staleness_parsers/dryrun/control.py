"""The five policies side by side: what each limits, why it discards, which version it serves (guide 4.5 and 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from staleness_audit.parser import Artifact, Bound, Card, Figure, Guarantee, Mode
from staleness_audit.readers.config import lookup
from staleness_audit.readers.numbers import is_whole

BOUND_KEY: Final = "job.max_staleness"
CONVERSION: Final = "compared as it is: staleness_true = consume_version - v_min is v_train - v_gen of the oldest token"

DROP_REASONS: Final = {
    "psrl": "other:no_reservation",  # its slot was cleared by a weight update or the proactive filter
    "roll": "stale",  # the group of its version had expired
    "slime": "surplus",  # the batch was full without it
    "verl": "overload",  # the queue was full
}
"""Why a request is discarded at its completion (a ``drop`` row after its ``complete`` row)."""

CANCEL_REASONS: Final = {
    "roll": "stale",  # the group of its version expires at the update
    "slime": "surplus",  # over-sampled work is cancelled at every update
}
"""Why a request in flight is stopped at a weight update (a ``drop`` row without ``complete``)."""


@dataclass(frozen=True)
class Launch:
    """What is known of one simulation's settings, from ``.hydra`` or at least from its start line in ``run.log``.

    ``config`` is the resolved configuration, empty where it is lost (an appended run overwrites it).
    """

    policy: str | None = None
    n_versions: int | None = None
    batch_size: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def requests_per_step(self) -> int | None:
        """B, or B*R where verl takes R batches a step."""
        batches = _whole(lookup(self.config, "policy.require_batches")) if self.policy == "verl" else 1
        return None if self.batch_size is None or batches is None else self.batch_size * batches

    @property
    def fixed_prompt(self) -> int | None:
        """Length of every prompt, if the workload fixes it (guide 4.7: ``fixed`` takes ``lo``)."""
        fixed = lookup(self.config, "workload.prompt.name") == "fixed"
        return _whole(lookup(self.config, "workload.prompt.lo")) if fixed else None

    @property
    def serving_rule_known(self) -> bool:
        """Whether the version the engines serve follows from what is known (slime's depends on its interval)."""
        return self.policy is not None and (self.policy != "slime" or self.push_interval is not None)

    @property
    def push_interval(self) -> int | None:
        """N of slime: the engines serve its multiples, each from the start of step N, 2N, ...; None: k + 1 at once."""
        return _whole(lookup(self.config, "policy.update_weights_interval")) if self.policy == "slime" else None


def launch_from_config(config: Mapping[str, Any]) -> Launch:
    """Take from a resolved configuration what the parser needs (guide 2)."""
    policy = lookup(config, "policy.name")
    return Launch(
        policy if isinstance(policy, str) else None,
        _whole(lookup(config, "job.n_versions")),
        _whole(lookup(config, "job.batch_size")),
        config,
    )


def bound(launch: Launch) -> Bound:
    """Return the bound the configuration states for its policy: psrl, roll and areal take ``job.max_staleness``."""
    configured = lookup(launch.config, BOUND_KEY)
    if launch.policy in {"psrl", "roll", "areal"}:
        value = _whole(configured)
        return Bound(value, BOUND_KEY, configured, CONVERSION if value is not None else None)
    if launch.policy in {"slime", "verl"}:
        return Bound(None, None, None, f"{BOUND_KEY} is not used by the {launch.policy} policy, which states no bound")
    return Bound(None)


def guarantee(launch: Launch) -> Guarantee:
    """Largest staleness a policy lets through in any schedule (guide 4.5)."""
    eta = _whole(lookup(launch.config, BOUND_KEY))
    match launch.policy:
        case "psrl":
            return Guarantee(eta, "a finished request only enters buffers up to its admission version + max_staleness")
        case "roll":
            return Guarantee(
                eta, "a batch takes groups of versions v - max_staleness to v, older ones expire at the update"
            )
        case "slime":
            interval = launch.push_interval
            return Guarantee(
                interval, "all requests in flight are cancelled at every update, so age is limited by the push interval"
            )
        case "areal" if eta == 0:
            return Guarantee(
                0, "with max_staleness 0 no more than one batch is admitted and untrained, so none is overtaken"
            )
        case "areal":
            return Guarantee(
                "none", "max_staleness limits admissions only: a long request is overtaken step after step"
            )
        case "verl":
            return Guarantee("none", "the sample window and the queue are limited, the age of what is in them is not")
    return Guarantee(None, "the logs do not say which policy was simulated")


def weakest(guarantees: Sequence[Guarantee]) -> Guarantee:
    """Return what holds for several simulations together: the least of their promises."""
    unbounded = [promise for promise in guarantees if promise.limit == "none"]
    unknown = [promise for promise in guarantees if promise.limit is None]
    if found := unbounded or unknown:
        return found[0]
    return max(guarantees, key=lambda promise: promise.limit if isinstance(promise.limit, int) else 0)


def _whole(value: object) -> int | None:
    return value if is_whole(value) and 0 <= value < 1 << 31 else None


def _mode(policy: str, key: str | None, strict: Literal[True, False] | None, limit: str, reason: str) -> Mode:
    return Mode(f"policy={policy}", key, CONVERSION if key else "states no bound", strict, limit, reason)


CARD: Final = Card(
    title="DryRun-RL (simulator)",
    unit="training steps",
    artifacts=(
        Artifact(
            "logs/request.jsonl",
            "log_telemetry=true (default)",
            "every request's admission, completion, drop and training step; oldest and newest version of its tokens, "
            "so that staleness per request is exact",
        ),
        Artifact(
            "logs/instance/<i>.jsonl",
            "log_telemetry=true (default)",
            "tokens generated at every weight update, so that the version of every token is exact",
        ),
        Artifact(
            "logs/train.jsonl", "log_telemetry=true (default)", "which steps completed, when, with how many requests"
        ),
        Artifact("logs/rollout_step.jsonl", "log_telemetry=true (default)", "nothing about single requests"),
        Artifact(".hydra/config.yaml", "always written by Hydra", "policy and bound of the last simulation"),
        Artifact("run.log", "log_level=INFO (default)", "policy and size of every simulation in this folder"),
        Artifact("a capture of stdout", "dryrun ... | tee console.log", "that the simulation ended, and how"),
    ),
    modes=(
        _mode("psrl", BOUND_KEY, True, "max_staleness", "admission reserves a slot in a buffer no more than eta ahead"),
        _mode("roll", BOUND_KEY, True, "max_staleness", "groups older than eta expire at every update"),
        _mode(
            "areal", BOUND_KEY, False, "none (0 for max_staleness 0)", "limits admissions, long requests are overtaken"
        ),
        _mode("slime", None, None, "policy.update_weights_interval", "everything in flight is cancelled at an update"),
        _mode("verl", None, False, "none", "window and queue are limited, age is not"),
    ),
    betrays=(
        "Request numbers have no gaps, and train.jsonl counts the requests of every step and those under way or ready "
        "at its end, so a lost admit, consume or drop row is noticed up to the last completed step, as is an instance "
        "stream without a row at a weight update. A drop row lost after that (the request then looks left over) and "
        "records missing at the end of all streams alike are not."
    ),
    figures=(
        Figure(
            "staleness_reported",
            "the staleness of the newest token, as a system that tags anew would report it",
        ),
        Figure(
            "n_dropped_step",
            "what expired at the update; drops at completion are not counted",
        ),
    ),
)
"""The framework on one page."""
