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
    guilty = _guilty(happenings)
    version, culprit = guilty
    lines = [f"Let {_name(culprit)} be the group that ends up too old. Versions and steps count from 0."]
    for happening in happenings:
        for line in _sentences(happening.effect, culprit):
            lines.append(f"{happening.moment:>4}  {line}")
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
        flying: dict[int, int] = {}  # group in flight -> version of the tokens it is making
        batch: tuple[Group, ...] = ()
        began = 0
        for happening in replay(policy, schedule):
            moment, (kind, version, groups, reason) = happening.moment, happening.effect
            if kind == "admitted":
                for group in groups:
                    flying[group.id] = group.first
                    log.write("admitted", f'{_ids(group)}, "ts": {moment}')
            elif kind == "serving":
                for number, before in flying.items():
                    _span(log, number, before, moment)
                    flying[number] = version
            elif kind in ("finished", "cancelled", "lost"):
                for group in groups:
                    if group.id in flying:
                        _span(log, group.id, flying.pop(group.id), moment)
                    why = f', "reason": "{reason}"' if reason else ""
                    log.write(kind, f'"trajectory_id": "{_name(group)}", "ts": {moment}{why}')
            elif kind == "dropped":
                for group in groups:
                    fields = f'"trajectory_id": "{_name(group)}", "reason": "{reason}", "step": {version}, "ts": {moment}'
                    log.write("dropped", fields)
            elif kind == "trained":
                batch, began = groups, moment
                for group in groups:
                    log.write("trained", f'"trajectory_id": "{_name(group)}", "step": {version}')
            elif kind == "published":
                _step(log, version - 1, batch, began, moment)
                batch = ()
        if batch:
            # The schedule ends where the violating step begins; for the log, it completes.
            _step(log, version, batch, began, len(schedule) + 1)


def _ids(group: Group) -> str:
    return f'"trajectory_id": "{_name(group)}", "group_id": "{_name(group)}"'


def _span(log: EventLog, number: int, version: int, moment: int) -> None:
    log.write("span", f'"trajectory_id": "g{number}", "tokens": {TOKENS}, "version": {version}, "ts": {moment}')


def _step(log: EventLog, version: int, batch: tuple[Group, ...], began: int, ended: int) -> None:
    log.write(
        "step",
        f'"step": {version}, "version": {version}, "started": {began}, "ended": {ended}, "trajectories": {len(batch)}',
    )
    log.write("sync", f'"version": {version + 1}, "ts": {ended}')
