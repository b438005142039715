"""The configuration: from the driver's printed objects, or a ``config.yaml`` (guide sections 2 and 5)."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from staleness_audit.parser import Bound, Guarantee
from staleness_audit.readers.config import UnreadableConfig, lookup, plain_value
from staleness_audit.readers.numbers import is_whole

KEYS: Final = (
    "grpo.num_prompts_per_step",
    "grpo.num_generations_per_prompt",
    "grpo.max_num_steps",
    "grpo.seq_logprob_error_threshold",
    "grpo.async_grpo.enabled",
    "grpo.async_grpo.max_trajectory_age_steps",
    "grpo.async_grpo.in_flight_weight_updates",
    "grpo.async_grpo.recompute_kv_cache_after_weight_updates",
    "ppo.num_prompts_per_step",
    "ppo.num_generations_per_prompt",
    "ppo.policy_training_start_step",
    "ppo.async_ppo.enabled",
    "ppo.async_ppo.max_trajectory_age_steps",
    "ppo.async_ppo.in_flight_weight_updates",
    "async_rl.sampler.name",
    "async_rl.sampler.max_staleness_versions",
    "async_rl.sampler.max_lookahead_versions",
    "async_rl.sampler.warmup_lookahead_versions",
    "async_rl.sampler.sample_freshest_first",
    "async_rl.sampler.target",
    "async_rl.min_groups_for_streaming_train",
    "async_rl.max_inflight_prompts",
    "async_rl.max_buffered_rollouts",
    "async_rl.recompute_kv_cache_after_weight_updates",
    "async_rl.rollout_failure.on_dropped_prompt",
    "policy.train_global_batch_size",
    "env.should_log_nemo_gym_responses",
)
"""What is kept of a configuration, under its dotted name; everything else is ignored."""

Settings = Mapping[str, Any]
STRICT: Final = {
    "windowed": "the window is checked again on everything that is selected",
    "weight_fifo": "only groups inside the window are selected, oldest version first",
    "in_order": "a group is trained at the step it was admitted for, at most the lookahead after its admission",
}


def from_mapping(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the known keys of a nested configuration (wandb wraps each top value as ``{"value": ...}``)."""
    plain = {
        key: item["value"] if isinstance(item, Mapping) and "value" in item and set(item) <= {"value", "desc"} else item
        for key, item in config.items()
    }
    found = {key: lookup(plain, key) for key in KEYS}
    return {key: value for key, value in found.items() if isinstance(value, bool | int | float | str)}


def from_repr(text: str) -> dict[str, Any]:
    """Keep the known keys of a printed configuration: nested ``Name(key=value, ...)`` and ``{'key': value}``.

    Text that Python's grammar does not read (an enumeration's ``<...>``, a cut line) is searched key by key.
    """
    start = re.search(r"\w*\(|\{", text)
    if start is None:
        return {}
    try:
        value = plain_value(_plain(ast.parse(text[start.start() :].strip(), mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError, UnreadableConfig):
        return _searched(text)
    return from_mapping(value) if isinstance(value, dict) else {}


def _plain(node: ast.expr) -> object:
    """Turn a syntax tree of literals and constructor calls into plain values; nothing is evaluated."""
    if isinstance(node, ast.Call):
        return {word.arg: _plain(word.value) for word in node.keywords if word.arg}
    if isinstance(node, ast.Dict):
        return {
            key.value: _plain(value)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        }
    return node.value if isinstance(node, ast.Constant) else None


def _searched(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in KEYS:
        *path, last = key.split(".")
        place = text
        if len(path) > 1:
            inside = re.search(rf"\b{path[-1]}'?(?:=|: )\w*[({{](?P<inside>[^()]*)", text)
            place = inside["inside"] if inside else ""
        value = re.search(
            rf"\b{last}'?(?:=|: )(?:(?P<number>-?\d{{1,18}})\b|(?P<truth>True|False)|'(?P<text>[^']*)')", place
        )
        if value and value["number"]:
            found[key] = int(value["number"])
        elif value:
            found[key] = value["truth"] == "True" if value["truth"] else value["text"]
    return found


def whole(settings: Settings, *keys: str) -> int | None:
    """Return the first of the keys that holds a whole number."""
    for key in keys:
        value = settings.get(key)
        if is_whole(value):
            return value
    return None


def group_size(settings: Settings) -> int | None:
    """G, trajectories of a group."""
    return whole(settings, "grpo.num_generations_per_prompt", "ppo.num_generations_per_prompt")


def groups_per_step(settings: Settings) -> int | None:
    """N, groups of a training step."""
    return whole(settings, "grpo.num_prompts_per_step", "ppo.num_prompts_per_step")


def sampler_key(sampler: str | None) -> str | None:
    """Key under which a sampler keeps its number."""
    if sampler == "in_order":
        return "async_rl.sampler.max_lookahead_versions"
    return "async_rl.sampler.max_staleness_versions" if sampler in {"windowed", "weight_fifo", "ready_first"} else None


def sampler_number(sampler: str | None, settings: Settings) -> int | None:
    """Return eta; 1 where the configuration is known and leaves it out."""
    key = sampler_key(sampler)
    if key is None or not settings:
        return None
    value = whole(settings, key)
    return 1 if value is None and key not in settings else value


def age_limit(settings: Settings) -> tuple[str, int | None]:
    """Return AG's key and A."""
    ppo = settings.get("ppo.async_ppo.enabled") is True
    key = "ppo.async_ppo.max_trajectory_age_steps" if ppo else "grpo.async_grpo.max_trajectory_age_steps"
    return key, whole(settings, key)


def sc_bound(sampler: str | None, settings: Settings) -> Bound:
    """Bound of the single controller: the sampler's number, except where it only leads admission (guide 3.1, 4.6)."""
    key, eta = sampler_key(sampler), sampler_number(sampler, settings)
    if sampler == "ready_first" and eta != 0:
        return Bound(None, key, eta, "ready_first: only how far admission may lead, no bound on what is trained")
    if eta is None:
        return Bound(None, key, None, None if key else f"sampler {sampler}: its bound is not known")
    return Bound(eta, key, eta, f"{sampler}: v_train - v_gen, as it is")


def sc_guarantee(launches: Sequence[tuple[str | None, int | None, bool]]) -> Guarantee:
    """Promise of the single controller over launches ``(sampler, eta, restores a buffer)``, in their order."""
    sampler, eta, restored = launches[-1]
    if any(name == "ready_first" and number != 0 for name, number, _ in launches):
        return Guarantee("none", "ready_first takes whatever is ready and never looks at a group's age.")
    if sampler == "ready_first" and eta == 0:
        return Guarantee(0, "ready_first with 0 admits exactly one step's groups per version.")
    if sampler not in STRICT:
        return Guarantee(
            None, f"nothing is known of the sampler {sampler}." if sampler else "the log names no sampler."
        )
    if restored and sampler == "in_order" and len(launches) == 1:
        return Guarantee(None, "in_order trains restored groups unchecked, and what admitted them is not in the logs.")
    numbers = [number for _, number, _ in launches]
    if None in numbers:
        return Guarantee(None, f"{sampler} is strict, but the logs do not give its number.")
    limit = max(number for number in numbers if number is not None)
    reason = f"{sampler}: {STRICT[sampler]}."
    if sampler == "in_order" and limit != eta:
        reason = f"in_order trains restored groups unchecked: they were admitted with a lookahead of up to {limit}."
    return Guarantee(limit, reason)


def ag_bound(settings: Settings, logged: int | None) -> Bound:
    """Bound of async_grpo, from the configuration or from the buffer's own lines."""
    key, age = age_limit(settings)
    age = logged if age is None else age
    return Bound(age, key, age, None if age is None else "v_train - v_gen, as it is")


def ag_guarantee(ages: Sequence[int | None]) -> Guarantee:
    """Promise of async_grpo over its launches."""
    known = [age for age in ages if age is not None]
    if not known or len(known) < len(ages):
        return Guarantee(None, "async_grpo is strict, but the logs do not give its number.")
    reason = "A group is trained at its target step only, and evicted once it is older than max_trajectory_age_steps."
    return Guarantee(max(known), reason)
