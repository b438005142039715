"""A schedule as a story to read and as a canonical event log to audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from staleness_audit.simulate.eventlog import EventLog
from staleness_audit.simulate.kernel import Move, apply, initial
from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.state import Effect, Group, State

TOKENS = 8
"""Tokens that every group in flight makes under each version that serves meanwhile."""


@dataclass(frozen=True)
class Happening:
    """One thing that a move did: its moment (number of the move), the serving version then, and what."""

    moment: int
    serving: int
    effect: Effect


def replay(policy: Policy, schedule: Sequence[Move]) -> Iterator[Happening]:
    """Go through a schedule once more and yield all that happens in it."""
    state = initial(policy)
    yield from _told(0, state)
    for moment, move in enumerate(schedule, start=1):
        apply(policy, state, move)
        yield from _told(moment, state)


def _told(moment: int, state: State) -> Iterator[Happening]:
    for effect in state.effects:
        yield Happening(moment, state.serving, effect)
    state.effects.clear()


def tell(policy: Policy, schedule: Sequence[Move], bound: int) -> list[str]:
    """Return a schedule as lines of a story that ends with what breaks the bound.

    Args:
        policy: whose schedule it is.
        schedule: as ``explore`` found it.
        bound: the largest allowed staleness.
    """
    happenings = list(replay(policy, schedule))
    version, culprit = _guilty(happenings)
    lines = [f"Let {_name(culprit)} be the group that ends up too old. Versions and steps count from 0."]
    for happening in happenings:
        lines.extend(f"{happening.moment}  {line}" for line in _sentences(happening.effect, culprit))
    lines.append(
        f"The step from v{version} trains tokens of v{culprit.first}: "
        f"{version} - {culprit.first} = {version - culprit.first} > {bound}."
    )
    return lines


def _guilty(happenings: Sequence[Happening]) -> tuple[int, Group]:
    """Return version and group of the last training whose oldest group is the oldest of all."""
    trained = [
        (version, group)
        for happening in happenings
        for kind, version, groups, _ in (happening.effect,)
        if kind == "trained"
        for group in groups
    ]
    return max(trained, key=lambda use: use[0] - use[1].first)


def _name(group: Group) -> str:
    return f"g{group.id}"


def _sentences(effect: Effect, culprit: Group) -> Iterator[str]:
    kind, version, groups, reason = effect
    names = ", ".join(_name(group) + ("*" if group.id == culprit.id else "") for group in groups)
    if kind == "admitted":
        yield f"{names} is admitted, its first tokens are of v{groups[0].first}"
    elif kind == "finished":
        yield f"{names} is finished under v{version}"
    elif kind == "trained":
        ages = ", ".join(str(version - group.first) for group in groups)
        yield f"the step from v{version} begins with {names} (staleness {ages})"
    elif kind == "published":
        yield f"the step ends: v{version} is published"
    elif kind == "turn":
        yield f"a later turn of {names} is made by an instance that still serves v{version}"
    elif kind == "serving":
        yield f"the engines serve v{version}"
    elif kind in ("dropped", "cancelled", "lost"):
        yield f"{names} is {kind}" + (f" ({reason})" if reason else "")
    else:
        yield reason


def write_log(policy: Policy, name: str, schedule: Sequence[Move], bound: int, path: Path) -> None:
    """Write a schedule as a canonical event log whose audit gives what the schedule does.

    One move takes a second; a group makes ``TOKENS`` tokens under each version it is in flight.

    Args:
        policy: whose schedule it is.
        name: of the policy.
        schedule: as ``explore`` found it.
        bound: goes into the header.
        path: the file, ``*.staleness.jsonl``.
    """
    header = {"framework": name, "bound": bound, "groups_per_step": policy.batch, "config": asdict(policy)}
    with EventLog(path, header) as log:
        scribe = _Scribe(log)
        for happening in replay(policy, schedule):
            scribe.write(happening.moment, *happening.effect)
        # The schedule ends where the violating step begins; for the log, it completes.
        scribe.step(len(schedule) + 1)


class _Scribe:
    """Turns what moves did into events: remembers which version each group in flight is sampling."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._flying: dict[str, int] = {}
        self._serving = 0
        self._training: tuple[int, int, int] | None = None  # version, groups, moment of its beginning

    def write(self, moment: int, kind: str, version: int, groups: tuple[Group, ...], reason: str) -> None:
        if kind == "serving":
            for name, sampling in self._flying.items():
                self._span(name, sampling, moment)
                self._flying[name] = version
            self._serving = version
        elif kind == "published":
            self.step(moment)
            self._log.write("sync", f'"version": {version}, "ts": {moment}')
        elif kind == "trained":
            self._training = (version, len(groups), moment)
        for group in groups:
            self._of_group(moment, kind, version, group, reason)

    def _of_group(self, moment: int, kind: str, version: int, group: Group, reason: str) -> None:
        name = _name(group)
        fields = f'"trajectory_id": "{name}"'
        if kind == "admitted":
            self._flying[name] = group.first
            fields += f', "group_id": "{name}"'
        elif name in self._flying:
            self._span(name, self._flying.pop(name), moment)
        if kind == "turn":
            # Its own instance goes on with it afterwards.
            self._span(name, version, moment)
            self._flying[name] = self._serving
            return
        if kind in ("trained", "dropped"):
            fields += f', "step": {version}'
        if reason:
            fields += f', "reason": "{reason}"'
        self._log.write(kind, f'{fields}, "ts": {moment}')

    def _span(self, name: str, version: int, moment: int) -> None:
        self._log.write("span", f'"trajectory_id": "{name}", "tokens": {TOKENS}, "version": {version}, "ts": {moment}')

    def step(self, ended: int) -> None:
        if self._training is not None:
            version, groups, began = self._training
            times = f'"started": {began}, "ended": {ended}'
            self._log.write("step", f'"step": {version}, "version": {version}, {times}, "trajectories": {groups}')
            self._training = None
