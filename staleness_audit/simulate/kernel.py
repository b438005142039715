"""Moves: how the rules of a policy carry a run from one state to the next."""

from __future__ import annotations

from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.state import Group, State

Move = tuple[str, int | str]
"""Kind and argument: ``("admit", how many)``, ``("finish", group id)``, ``("reject", group id)``, ``("collect", 0)``,
``("publish", 0)``, ``("own", name)``."""


REJECTS = "rejects"
"""Counter of a state: how many groups a schedule of the prover may still reject; without it, none."""


def initial(policy: Policy) -> State:
    """Return the state in which a fresh run begins."""
    state = State()
    policy.start(state)
    settle(policy, state)
    return state


def admit(policy: Policy, state: State, count: int) -> list[Group]:
    """L1: let ``count`` groups begin. Their oldest tokens are of the version that serves now."""
    begun = []
    for _ in range(count):
        label, target = policy.stamp(state)
        group = Group(state.next_id, label, state.serving, state.serving, target)
        state.next_id += 1
        state.running[group.id] = group
        state.tell("admitted", state.serving, (group,))
        policy.admitted(state, group)
        begun.append(group)
    return begun


def apply(policy: Policy, state: State, move: Move) -> None:
    """Make a move that is possible, and what follows from it at once.

    Raises:
        ValueError: there is no such kind of move.
    """
    kind, argument = move
    serving = state.serving
    if kind == "admit":
        admit(policy, state, int(argument))
    elif kind == "finish":
        group = state.running.pop(int(argument))._replace(last=state.serving)
        state.done[group.id] = group
        state.tell("finished", state.serving, (group,))
        policy.finished(state, group)
    elif kind == "reject":
        _reject(policy, state, state.running.pop(int(argument)))
    elif kind == "collect":
        policy.collect(state)
    elif kind == "publish":
        _publish(policy, state)
    elif kind == "own":
        policy.move(state, str(argument))
    else:
        raise ValueError(f"no such move: {kind}")
    if state.serving != serving:
        state.tell("serving", state.serving)
    settle(policy, state)


def _reject(policy: Policy, state: State, group: Group) -> None:
    """A group has ended and is of no use: a filter discards it."""
    if REJECTS in state.counts:
        state.counts[REJECTS] -= 1
    state.tell("dropped", state.v, (group,), "filtered")
    policy.rejected(state, group)


def _publish(policy: Policy, state: State) -> None:
    state.training = False
    state.v += 1
    state.tell("published", state.v)
    policy.published(state)
    for group in list(policy.cancel(state)):
        state.stop(group)


def settle(policy: Policy, state: State) -> None:
    """Do what a policy does at once: eager admissions, prompt collecting, the step whose batch is complete."""
    while True:
        if policy.prompt:
            policy.collect(state)
        if not state.training and (size := policy.ready(state)):
            batch, state.held = state.held[:size], state.held[size:]
            state.training = True
            state.tell("trained", state.v, tuple(batch))
            serving = state.serving
            policy.began(state)
            if state.serving != serving:
                state.tell("serving", state.serving)
        elif policy.eager and (count := policy.room(state)) > 0:
            admit(policy, state, count)
        else:
            return


def moves(policy: Policy, state: State) -> list[Move]:
    """Return every move that may come next. Of groups that no rule can tell apart, only one is moved."""
    possible: list[Move] = []
    if not policy.eager and (count := policy.room(state)) > 0:
        possible.append(("admit", count if policy.whole else 1))
    seen = set()
    for group in state.running.values():
        alike = (group.first, *(getattr(group, name) for name in policy.sees))
        if alike not in seen:
            seen.add(alike)
            possible.append(("finish", group.id))
            if state.counts.get(REJECTS):
                possible.append(("reject", group.id))
    if not policy.prompt and state.done and (policy.ahead or not state.training):
        possible.append(("collect", 0))
    if state.training and policy.may_publish(state):
        possible.append(("publish", 0))
    possible.extend(("own", name) for name in policy.own(state))
    return possible
