"""prime-rl's adaptive cap on episodes in flight: it grows with what finishes and shrinks when the engines are pressed.

The prime-rl guide, 4.1, rule 5; all thresholds are constants of its code. The cap is kept in thousandths, because the
counters of a state are whole numbers.
"""

from __future__ import annotations

from staleness_audit.simulate.policy import Load
from staleness_audit.simulate.state import State

POLL_S = 5.0
GROWTH = 1.25
FULL = 0.9  # share of the cap that must be in flight for it to grow
SOFT, TRIM, CUT = 0.6, 0.8, 0.9  # cache usage from which: no growth, a smaller cap, cancelling too
PATIENCE = 6  # polls


def start_cap(state: State, cap: int) -> None:
    """Begin with a cap; nothing is known of the engines."""
    known = {"clear": 0, "waits": 0, "overloads": 0, "preempted": 0, "draining": 0, "polled": 0}
    state.counts |= {"cap": cap * 1000, "since_trim": PATIENCE, "since_drain": PATIENCE, **known}


def cap_of(state: State) -> float:
    """Return the cap."""
    return state.counts["cap"] / 1000


def grow(state: State, ceiling: int) -> None:
    """An episode has finished: grow if the last poll was calm and the cap is what limits."""
    inflight = len(state.running) + 1
    if state.counts["clear"] and not state.counts["draining"] and inflight >= FULL * cap_of(state):
        state.counts["cap"] = min(round(state.counts["cap"] * GROWTH ** (1 / inflight)), ceiling * 1000)


def look(state: State, load: Load, floor: int) -> int:
    """Read the signals of a poll, set the cap, return how many episodes in flight to cancel."""
    counts, inflight = state.counts, len(state.running)
    preempts = load.preemptions > counts["preempted"]
    counts["waits"] = counts["waits"] + 1 if load.waiting else 0
    counts["overloads"] = counts["overloads"] + 1 if load.waiting > 0.5 * load.running else 0
    overload = counts["overloads"] >= PATIENCE
    soft = counts["waits"] >= 2 or load.usage > SOFT
    counts |= {
        "polled": 1,
        "preempted": load.preemptions,
        "clear": int(not (preempts or overload or soft or load.waiting)),
        "since_trim": counts["since_trim"] + 1,
        "since_drain": counts["since_drain"] + 1,
    }
    if counts["draining"]:
        # No further cut until what is in flight fits and the engines are calm.
        if inflight <= cap_of(state) and not (preempts or overload):
            counts |= {"draining": 0, "since_drain": 0}
        return 0
    if preempts or overload:
        again = counts["since_drain"] < PATIENCE
        _set(state, inflight * (0.5 if again else 0.8 if preempts else 0.9), floor)
        counts["draining"] = 1
        return max(0, inflight - int(cap_of(state)))
    if load.usage > TRIM and counts["since_trim"] >= PATIENCE:
        _set(state, inflight * 0.7 / load.usage, floor)
        counts["since_trim"] = 0
        return max(0, inflight - int(cap_of(state))) if load.usage > CUT else 0
    return 0


def _set(state: State, cap: float, floor: int) -> None:
    state.counts["cap"] = max(round(cap * 1000), floor * 1000)
