"""A run of DryRun-RL's model from the command line: its own names for policies, workloads and costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from staleness_audit.errors import AuditError, choices
from staleness_audit.simulate.dryrun.driver import DryRun
from staleness_audit.simulate.dryrun.instance import Limits, Roofline
from staleness_audit.simulate.dryrun.lengths import lengths
from staleness_audit.simulate.dryrun.policies import LOOPS

PREFIX = "dryrun:"

MOST = 1_000_000
"""No length, time or number is larger."""

WORKLOADS: Mapping[str, Mapping[str, float]] = {
    "uniform": {"lo": 50, "hi": 200},
    "bimodal": {"short_len": 50, "long_len": 500, "long_frac": 0.25},
    "lognormal": {"mu": 4.0, "sigma": 1.0},
    "powerlaw": {"alpha": 2.0, "lo": 10, "hi": 1000},
    "fixed": {"lo": 100},
}
"""Families of lengths with their defaults (the DryRun-RL guide, 4.7); all have ``n`` and ``seed``."""

KNOBS: Mapping[str, Mapping[str, type]] = {
    "areal": {},
    "roll": {},
    "psrl": {},
    "slime": {"over_sampling_ratio": float, "interval": int},
    "verl": {"staleness_threshold": float, "window": int, "require_batches": int},
}

COSTS: Mapping[str, type] = {
    "n_instances": int,
    "partial_rollout": bool,
    "token_budget": int,
    "prompt": int,
    "train_s": float,
    "train_token_s": float,
    "recompute_token_s": float,
    "sync_s": float,
}
LIMITS: Mapping[str, type] = {"kv_blocks": int, "block_size": int, "max_concurrency": int}
ROOFLINE: Mapping[str, type] = {"floor": float, "step": float, "token": float, "context": float}


def read_run(
    name: str,
    *,
    bound: int | None = None,
    batch: int | None = None,
    settings: Mapping[str, str] | None = None,
    workload: str | None = None,
    costs: Mapping[str, str] | None = None,
) -> DryRun:
    """Set up a run of ``dryrun:POLICY``.

    Args:
        name: ``dryrun:`` and one of its five policies.
        bound: its ``max_staleness``.
        batch: requests per step.
        settings: the policy's own knobs.
        workload: ``NAME[:key=value,...]``, one of ``WORKLOADS``.
        costs: what it has and what things cost.

    Raises:
        AuditError: no such name, or a value that is none.
    """
    policy = name.removeprefix(PREFIX)
    if policy not in LOOPS:
        raise AuditError(f"There is no policy {name!r}; {choices(name, (PREFIX + known for known in LOOPS))}")
    sizes = _read("--cost", costs or {}, {**COSTS, **LIMITS, **ROOFLINE})
    run = DryRun(
        policy,
        _lengths(workload or "lognormal"),
        limits=replace(Limits(), **{key: value for key, value in sizes.items() if key in LIMITS}),
        cost=replace(Roofline(), **{key: value for key, value in sizes.items() if key in ROOFLINE}),
        knobs=_read("--set", settings or {}, KNOBS[policy]),
        **{key: value for key, value in sizes.items() if key in COSTS},
    )
    return replace(
        run,
        batch_size=run.batch_size if batch is None else batch,
        max_staleness=run.max_staleness if bound is None else bound,
    )


def _lengths(text: str) -> list[int]:
    name, _, rest = text.partition(":")
    if name not in WORKLOADS:
        raise AuditError(f"--workload {text}: there is no {name!r} here; {choices(name, WORKLOADS)}")
    given = dict(pair.partition("=")[::2] for pair in filter(None, rest.split(",")))
    kinds: dict[str, type] = {**dict.fromkeys(WORKLOADS[name], float), "n": int, "seed": int}
    values = {**WORKLOADS[name], **_read(f"--workload {text}:", given, kinds)}
    try:
        made = lengths(name, **values)
    except (ArithmeticError, ValueError) as error:  # an empty range, a power that is too large
        raise AuditError(f"--workload {text}: no lengths come of these numbers ({error}).") from error
    if not made or not 1 <= min(made) <= max(made) <= MOST:
        raise AuditError(f"--workload {text}: there is at least one length, and all are from 1 to {MOST:,}.")
    return made


def _read(where: str, given: Mapping[str, str], kinds: Mapping[str, type]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, text in given.items():
        if key not in kinds:
            raise AuditError(f"{where} {key}: there is none here; there are: {', '.join(kinds) or 'none'}.")
        try:
            found[key] = {"true": True, "false": False}[text.lower()] if kinds[key] is bool else kinds[key](text)
        except (KeyError, ValueError) as error:
            raise AuditError(f"{where} {key}={text}: that is no {kinds[key].__name__}.") from error
        least = 1 if kinds[key] is int and key not in ("seed", "prompt") else 0
        if not least <= found[key] <= MOST:  # which nan is not, either
            raise AuditError(f"{where} {key}={text}: a number from {least} to {MOST:,} is wanted.")
    return found
