"""The cases of the table of guarantees (docs/guarantees.md): every policy, its modes, and flaws that were mended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from staleness_audit.simulate.policies import build
from staleness_audit.simulate.prove import Proof, prove


@dataclass(frozen=True)
class Case:
    """A policy, the bound its own knob is set to, what else is set, and how many groups a filter may discard."""

    policy: str
    bound: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    batch: int | None = None
    rejects: int = 0

    def prove(self) -> Proof:
        """Explore it."""
        rules = build(self.policy, bound=self.bound, batch=self.batch, settings=self.settings, small=True)
        return prove(rules, self.bound, rejects=self.rejects)


CASES = (
    Case("verl:drop", 1),
    Case("verl:drop", 1, {"parameter_sync_step": 2, "resumes": 0}, batch=2),
    Case("verl:drop", 1, rejects=2),
    Case("verl:wait", 1, {"resumes": 0}),
    Case("verl:wait", 2, {"resumes": 0, "num_warmup_batches": 2}),
    Case("verl:wait", 2, {"resumes": 0, "num_warmup_batches": 4}),
    Case("verl:wait", 1),
    Case("verl:null", 1),
    Case("verl:fully-async", 0),
    Case("verl:fully-async", 1),
    Case("verl:one-step-off", 1),
    Case("trl", 1),
    Case("trl", 1, {"gradient_accumulation_steps": 2}, batch=2),
    Case("trl:token-budget", 1),
    Case("trl:token-budget", 1, {"gradient_accumulation_steps": 2}, batch=2),
    Case("areal", 0),
    Case("areal", 1),
    Case("skyrl", 0),
    Case("skyrl", 1),
    Case("openrlhf", 1),
    Case("openrlhf", 2, {"partial_rollout_enable": True}),
    Case("openrlhf:over-sampling", 1),
    Case("openrlhf:over-sampling", 1, {"oversampling": 4}),
    Case("slime", 1),
    Case("slime", 1, {"queue_gate": False}),
    Case("slime:pooled", 1),
    Case("roll", 1),
    Case("roll", 1, rejects=2),
    Case("roll", 2),
    Case("roll", 1, {"model_update_frequency": 3}),
    Case("roll:agentic", 1),
    Case("roll:agentic", 1, {"model_update_frequency": 2}),
    Case("prime-rl", 0),
    Case("prime-rl", 2),
    Case("prime-rl", 1, {"label_race": True}),
    Case("prime-rl", 1, {"queue_check": False}),
    Case("prime-rl", 1, {"queue_check": False, "max_inflight": 5}),
    Case("dressage", 1),
    Case("nemo-rl:windowed", 1),
    Case("nemo-rl:windowed", 2),
    Case("nemo-rl:weight_fifo", 1),
    Case("nemo-rl:weight_fifo", 2),
    Case("nemo-rl:weight_fifo", 1, {"min_groups_for_streaming_train": 1}),
    Case("nemo-rl:ready_first", 0),
    Case("nemo-rl:ready_first", 1),
    Case("nemo-rl:in_order", 2),
    Case("nemo-rl:in_order", 1, {"resumed_from_lookahead": 4}, batch=1),
    Case("nemo-rl:async_grpo", 1),
    Case("nemo-rl:async_grpo", 1, {"resumed_from_age": 4}),
    Case("nemo-rl:async_grpo", 2, {"in_flight_weight_updates": True}),
    Case("nemo-rl:async_grpo", 2, {"in_flight_weight_updates": True}, rejects=2),
    Case("psrl", 1),
    Case("psrl", 1, batch=1, rejects=2),
    Case("psrl", 2),
    Case("psrl:retag", 1),
    Case("psrl:retag", 1, batch=2),
    Case("psrl:native-multi-turn", 1),
    Case("psrl:native-multi-turn", 1, batch=2),
    Case("psrl:native-multi-turn", 2),
    Case("deadline", 1),
    Case("deadline", 1, rejects=2),
    Case("deadline", 2),
    Case("deadline", 2, {"lookahead": 1}),
)


def table() -> Iterator[dict[str, str]]:
    """Prove every case and yield a row of the table for each, as texts by heading."""
    for case in CASES:
        proof = case.prove()
        broken = proof.search.schedule is not None
        settings = {**({"batch": case.batch} if case.batch else {}), **case.settings}
        filtered = [f"{case.rejects} groups filtered"] if case.rejects else []
        yield {
            "policy": f"`{case.policy}`",
            "also set": ", ".join([f"{knob} = {value}" for knob, value in settings.items()] + filtered),
            "bound": str(case.bound),
            "strict": "not decided" if proof.strict is None else "yes" if proof.strict else "no",
            "true limit": "not known" if proof.limit is None else str(proof.limit),
            "shortest counterexample": f"{proof.search.depth} moves" if broken else "-",
            "can stall": "yes" if proof.whole.stuck is not None else "-",
            "states": f"{proof.whole.states:,}",
        }
