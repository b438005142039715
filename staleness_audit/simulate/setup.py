"""A timed run from its inputs: read them, describe them, run it, write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from staleness_audit.errors import AuditError, choices
from staleness_audit.simulate.engine import Cost
from staleness_audit.simulate.eventlog import EventLog
from staleness_audit.simulate.kernel import initial
from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.summary import Summary
from staleness_audit.simulate.timed import Progress, Resources, Simulation
from staleness_audit.simulate.workload import Workload

MOST_A_STEP = 1_000_000
"""Trajectories that a step may train."""

SYNCS = ("continue", "resume", "wait")


@dataclass(frozen=True)
class Setup:
    """All that determines a run. ``bound``: what its log is to be checked against, if anything."""

    name: str
    policy: Policy
    workload: Workload
    cost: Cost
    resources: Resources
    seed: int = 0
    bound: int | None = None

    def __post_init__(self) -> None:
        """Refuse what would not fit into memory; ``AuditError`` says so."""
        trajectories = self.policy.batch * self.workload.group
        if trajectories > MOST_A_STEP:
            raise AuditError(
                f"{self.name}: {self.policy.batch:,} groups of {self.workload.group:,} are {trajectories:,} "
                f"trajectories a step, which may not fit into memory; simulate at most {MOST_A_STEP:,}."
            )
        if self.resources.crash_steps and initial(self.policy).v:
            raise AuditError(f"{self.name}: a run that begins from a checkpoint can't have crash_steps too.")

    def described(self) -> dict[str, Any]:
        """Return the inputs as plain values, for the header of the log and for tables of results."""
        workload = {name: value for name, value in asdict(self.workload).items() if name != "lengths"}
        return {
            "policy": self.name,
            "bound": self.bound,
            "knobs": asdict(self.policy),
            "workload": workload,
            "cost": asdict(self.cost),
            "resources": asdict(self.resources),
            "seed": self.seed,
        }

    def run(self, steps: int, path: Path | None = None, progress: Progress | None = None) -> Summary:
        """Simulate so many training steps; write the event log to ``path`` if one is given.

        Raises:
            AuditError: the file can't be written.
        """
        if path is None:
            return self._simulation(None).run(steps, progress)
        inputs = self.described()
        header = {"framework": self.name, "groups_per_step": self.policy.batch, "config": inputs}
        if self.bound is not None:
            header["bound"] = self.bound
        try:
            with EventLog(path, header) as log:
                return self._simulation(log).run(steps, progress)
        except OSError as error:
            raise AuditError(f"{path}: cannot be written ({error.strerror}).") from error

    def _simulation(self, log: EventLog | None) -> Simulation:
        return Simulation(self.policy, self.workload, self.cost, self.resources, seed=self.seed, log=log)


def read_costs(values: Mapping[str, str]) -> tuple[Resources, Cost]:
    """Read resources and costs by name.

    Raises:
        AuditError: no such name, or a value that is none.
    """
    resources, cost = Resources(), Cost()
    kinds = {knob.name: str(knob.type) for knob in (*fields(Resources), *fields(Cost))}
    for name, text in values.items():
        if name not in kinds:
            raise AuditError(f"--cost {name}={text}: there is no {name!r}; {choices(name, kinds)}")
        value = _value(name, kinds[name], text)
        if name in {knob.name for knob in fields(Resources)}:
            resources = replace(resources, **{name: value})
        else:
            cost = replace(cost, **{name: value})
    if cost.floor_s + cost.step_s + cost.token_s <= 0:
        raise AuditError("--cost: an engine step must take some time; set floor_s, step_s or token_s above 0.")
    if resources.crash_steps and resources.crash_steps <= resources.checkpoint_steps:
        raise AuditError("--cost crash_steps: a run gets nowhere unless checkpoint_steps is smaller.")
    return resources, cost


def _value(name: str, kind: str, text: str) -> Any:
    if name == "sync":
        if text not in SYNCS:
            raise AuditError(f"--cost sync={text}: it is one of {', '.join(SYNCS)}.")
        return text
    try:
        value = int(text) if kind == "int" else float(text)
    except ValueError as error:
        raise AuditError(f"--cost {name}={text}: {name} is a number.") from error
    least, most = 1 if kind == "int" and name != "crash_steps" else 0, 10_000 if name == "engines" else 1_000_000_000
    if not least <= value <= most:  # which nan is not, either
        raise AuditError(f"--cost {name}={text}: {name} is a number from {least} to {most:,}.")
    return value
