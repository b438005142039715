"""The policies by name, and how one is set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from staleness_audit.errors import AuditError, choices
from staleness_audit.simulate.kernel import initial
from staleness_audit.simulate.policies.areal import Areal
from staleness_audit.simulate.policies.deadline import Deadline
from staleness_audit.simulate.policies.dressage import Dressage
from staleness_audit.simulate.policies.nemo_rl import AsyncGrpo, InOrder, ReadyFirst, WeightFifo, Windowed
from staleness_audit.simulate.policies.openrlhf import Openrlhf
from staleness_audit.simulate.policies.prime_rl import PrimeRl
from staleness_audit.simulate.policies.psrl import Psrl
from staleness_audit.simulate.policies.roll import Roll, RollAgentic
from staleness_audit.simulate.policies.skyrl import Skyrl
from staleness_audit.simulate.policies.slime import Slime, SlimePooled
from staleness_audit.simulate.policies.trl import Trl
from staleness_audit.simulate.policies.verl import VerlFullyAsync, VerlOneStepOff, VerlV1
from staleness_audit.simulate.policy import Policy


@dataclass(frozen=True)
class Preset:
    """A policy under its name: the rules, and the knobs that make it this mode."""

    rules: type[Policy]
    knobs: Mapping[str, Any] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    """Knobs that ``--bound`` must not set, because the mode is what they say."""
    small: Mapping[str, Any] = field(default_factory=dict)
    """Knobs that the prover sets smaller for this mode, which has more states than its kin."""


POLICIES: Mapping[str, Preset] = MappingProxyType(
    {
        "verl:drop": Preset(VerlV1),
        "verl:wait": Preset(VerlV1, {"max_off_policy_strategy": "wait"}),
        "verl:null": Preset(VerlV1, {"max_off_policy_threshold": None}, ("max_off_policy_threshold",)),
        "verl:fully-async": Preset(VerlFullyAsync),
        "verl:one-step-off": Preset(VerlOneStepOff),
        "trl": Preset(Trl),
        "trl:token-budget": Preset(Trl, {"token_budget": True}),
        "areal": Preset(Areal),
        "skyrl": Preset(Skyrl),
        "openrlhf": Preset(Openrlhf),
        "openrlhf:over-sampling": Preset(Openrlhf, {"oversampling": 2}),
        "slime": Preset(Slime),
        "slime:pooled": Preset(SlimePooled),
        "roll": Preset(Roll),
        "roll:agentic": Preset(RollAgentic),
        "prime-rl": Preset(PrimeRl),
        "dressage": Preset(Dressage),
        "nemo-rl:windowed": Preset(Windowed),
        "nemo-rl:weight_fifo": Preset(WeightFifo),
        "nemo-rl:ready_first": Preset(ReadyFirst),
        "nemo-rl:in_order": Preset(InOrder),
        "nemo-rl:async_grpo": Preset(AsyncGrpo),
        "psrl": Preset(Psrl),
        "psrl:retag": Preset(Psrl, {"retag": True}, small={"batch": 1}),
        "psrl:native-multi-turn": Preset(Psrl, {"native_multi_turn": True}, small={"batch": 1}),
        "deadline": Preset(Deadline),
    }
)


def build(
    name: str,
    *,
    bound: int | None = None,
    batch: int | None = None,
    settings: Mapping[str, Any] | None = None,
    small: bool = False,
) -> Policy:
    """Set up a policy.

    Args:
        name: one of ``POLICIES``.
        bound: set the framework's own knob to the value whose conversion is this; None leaves its default.
        batch: groups per published version.
        settings: knobs to override, by name; texts are read as the knob's type.
        small: use the sizes of the prover where nothing else is said.

    Raises:
        AuditError: no such policy or knob, the knobs don't fit, or no value of the knob stands for the bound.
    """
    if name not in POLICIES:
        raise AuditError(f"There is no policy {name!r}; {choices(name, POLICIES)}")
    preset = POLICIES[name]
    knobs: dict[str, Any] = {**preset.rules.small, **preset.small} if small else {}
    knobs |= preset.knobs
    if batch is not None:
        knobs["batch"] = batch
    if bound is not None:
        try:
            own = preset.rules.knobs_for(bound, knobs.get("batch", preset.rules.batch))
        except ValueError as error:
            raise AuditError(f"{name}: {error}.") from error
        knobs |= {knob: value for knob, value in own.items() if knob not in preset.fixed}
    policy = preset.rules(**knobs)
    known = {knob.name: str(knob.type) for knob in fields(policy)}
    changes: dict[str, Any] = {}
    for knob, value in (settings or {}).items():
        if knob not in known:
            raise AuditError(f"{name} has no knob {knob!r}; {choices(knob, known)}")
        changes[knob] = _read(name, knob, known[knob], value) if isinstance(value, str) else value
    policy = replace(policy, **changes)
    if reason := _out_of_range(policy) or policy.unfit() or _dead(policy):
        raise AuditError(f"{name}: {reason}.")
    return policy


MOST = 1_000_000
"""No number of groups, tokens or versions in a knob is larger: what it lets in has to fit into memory."""


def _out_of_range(policy: Policy) -> str | None:
    """Return what is wrong with a number among the knobs, as a sentence without its end."""
    if policy.batch < 1:
        return "a batch has at least one group"
    for knob in fields(policy):
        value, default = getattr(policy, knob.name), knob.default
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        least = (
            1
            if knob.name in ("batch", *policy.positive)
            else min(0, default)
            if isinstance(default, int | float)
            else 0
        )
        if not least <= value <= MOST:  # which nan is not, either
            return f"{knob.name} = {value} is not between {least} and {MOST:,}"
    return None


def _dead(policy: Policy) -> str | None:
    """Return why nothing ever happens under these knobs, as a sentence without its end; None if something does.

    Such a control would keep every bound, and every run of it would stall before its first step.
    """
    if _begins(policy):
        return None
    zeros = [
        knob.name
        for knob in fields(policy)
        if (value := getattr(policy, knob.name)) == 0 and not isinstance(value, bool)
    ]
    guilty = [knob for knob in zeros if _begins(replace(policy, **{knob: 1}))] or zeros
    return f"no group can ever begin with {' and '.join(f'{knob} = 0' for knob in guilty) or 'these knobs'}"


def _begins(policy: Policy) -> bool:
    """Whether a fresh run under this policy has anything to do."""
    state = initial(policy)
    return bool(state.running or state.done or state.held or policy.own(state) or policy.room(state) > 0)


def _read(name: str, knob: str, kind: str, text: str) -> Any:
    """Read a knob's value from the command line by the knob's annotation."""
    if "None" in kind and text.lower() in ("none", "null"):
        return None
    try:
        if kind.startswith("bool"):
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        if kind.startswith("int"):
            return int(text)
        return float(text) if kind.startswith("float") else text
    except (KeyError, ValueError) as error:
        raise AuditError(f"{name}: {knob} is of type {kind}, and {text!r} is not.") from error
