"""The trial's resolved configuration: what the control needs of it (guide section 2)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from staleness_audit.readers.config import lookup
from staleness_audit.readers.numbers import is_whole

_SHOWN = (
    "rollout.max_head_offpolicyness",
    "rollout.consumer_batch_size",
    "rollout.max_concurrent_rollouts",
    "rollout.max_concurrent_samples",
    "rollout.queue_size",
    "rollout.enable_rollout_tracing",
    "rollout.dump_to_file",
    "rollout.request_timeout",
    "rollout.deterministic_sampling",
    "rollout.backend",
    "rollout._version",
    "rollout.agent.mode",
    "rollout.agent.export_style",
    "train_dataset.batch_size",
    "gconfig.n_samples",
    "gconfig.drop_incomplete_group",
    "dynamic_bs",
    "total_train_steps",
    "recover.mode",
    "recover.freq_steps",
    "actor.backend",
    "actor.ppo_n_minibatches",
    "actor.use_decoupled_loss",
    "actor.rejection_sampling",
    "actor.m2_threshold",
    "actor.weight_update_mode",
    "perf_tracer.enabled",
    "perf_tracer.session_tracer.enabled",
    "stats_logger.tensorboard.path",
)


@dataclass(frozen=True)
class Settings:
    """What the files say of the control; None where they don't.

    ``eta`` is the look-ahead of admission, ``quota`` its C (``consumer_batch_size``), ``batch`` B (prompts a step),
    ``samples`` G (samples a prompt). ``august``: the code is of August 2026 or later (it has
    ``rollout.deterministic_sampling``), so versions are stamped before a request, not after its answer. ``masks``:
    ratio rejection may take tokens out of the loss. ``token_mask``: PR #1722 masks tokens older than ``eta``.
    ``whole_groups``: a group that lacks a sample is rejected; otherwise it shrinks.
    """

    shown: Mapping[str, Any] = field(default_factory=dict)
    eta: int | None = None
    quota: int | None = None
    batch: int | None = None
    samples: int | None = None
    dynamic: bool = False
    by_task_id: bool = False
    timeout: float | None = None
    updates: int | None = None
    data_parallel: int | None = None
    generation: str | None = None
    august: bool = False
    masks: bool = False
    token_mask: bool = False
    whole_groups: bool = False
    found: bool = False

    @property
    def behind(self) -> int | None:
        """By how many versions a token may be older than its stamp; None: by any number (guide section 3)."""
        if self.generation == "v2" and not self.august:
            return None  # a whole answer has the version of its end
        return 0 if self.august and self.generation != "v2" else 1


def settings_from(document: Mapping[str, Any]) -> Settings:
    """Pick out of ``config.yaml`` what the control needs; a value of the wrong type counts as missing."""
    rollout = lookup(document, "rollout")
    rejection = lookup(document, "actor.rejection_sampling")
    action = rejection.get("action") if isinstance(rejection, Mapping) else None
    timeout = lookup(document, "rollout.request_timeout")
    generation = lookup(document, "rollout._version")
    return Settings(
        shown={key: value for key in _SHOWN if (value := lookup(document, key)) is not None},
        eta=_whole(lookup(document, "rollout.max_head_offpolicyness")),
        quota=_whole(lookup(document, "rollout.consumer_batch_size")),
        batch=_whole(lookup(document, "train_dataset.batch_size")),
        samples=_whole(lookup(document, "gconfig.n_samples")),
        dynamic=lookup(document, "dynamic_bs") is True,
        by_task_id=lookup(document, "rollout.deterministic_sampling") is True,
        timeout=float(timeout) if isinstance(timeout, int | float) and not isinstance(timeout, bool) else None,
        updates=_whole(lookup(document, "actor.ppo_n_minibatches")),
        data_parallel=_data_parallel(lookup(document, "actor.backend"))
        or _data_parallel(lookup(document, "allocation_mode"), old=True),
        generation=generation if isinstance(generation, str) else None,
        august=isinstance(rollout, Mapping) and "deterministic_sampling" in rollout,
        masks=(rejection is not None and action != "clamp") or lookup(document, "actor.m2_threshold") is not None,
        token_mask=lookup(document, "rollout.max_concurrent_samples") is not None,
        whole_groups=lookup(document, "gconfig.drop_incomplete_group") is True,
        found=True,
    )


def _whole(value: object) -> int | None:
    return value if is_whole(value) and 0 <= value < 1 << 31 else None


def _data_parallel(backend: object, *, old: bool = False) -> int | None:
    """Return the number of data-parallel ranks in an allocation such as ``fsdp:d4`` or ``megatron:d2p2t4``.

    ``old``: it names the servers first, as ``sglang.d4p1t1+d2p1t1`` does.
    """
    pattern = r"\+(?:[a-z]+[:.])?(?:[a-z]\d+)*?d(\d{1,6})" if old else r":(?:[a-z]\d+)*?d(\d{1,6})"
    found = re.search(pattern, backend) if isinstance(backend, str) else None
    return int(found[1]) if found else None
