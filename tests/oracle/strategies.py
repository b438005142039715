"""Random lifecycles. Everything drawn is consistent (no version from the future); nothing need be likely."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from .lives import Chunk, Happening, Life, Run, Step, Use

REASONS = ("stale", "group", "zero_advantage", "filtered", "surplus", "overload", "error", "unknown", "other:tired")


@st.composite
def attempts(draw: Any) -> tuple[dict[int, int | None], list[Step]]:
    """Attempts with their steps: repeated, skipped and rolled-back ones, a version for each."""
    after: dict[int, int | None] = {0: None}
    steps: list[Step] = []
    clock, first, version = 10.0, draw(st.integers(0, 2)), draw(st.integers(0, 1))
    for attempt in range(draw(st.sampled_from((1, 1, 1, 2, 2, 3)))):
        if attempt:
            done = [step.step for step in steps if step.completed and not _rolled_back(after, step)]
            after[attempt] = resumed = (
                draw(st.sampled_from(sorted({first - 1, *done})))
                if first
                else draw(st.sampled_from(sorted({0, *done})))
            )
            kept = [step for step in steps if step.step <= resumed and not _rolled_back(after, step)]
            first = resumed + 1
            version = max((step.version for step in kept), default=0) + (1 if kept else 0)
        count = draw(st.integers(0 if attempt else 1, 4))
        for number in range(count):
            crashed = number == count - 1 and draw(st.integers(0, 4)) == 0
            started = clock + draw(st.integers(0, 3))
            clock = started + draw(st.integers(1, 4))
            waited = draw(st.sampled_from((None, 0.5, 1.0)))
            steps.append(
                Step(
                    attempt,
                    first + number,
                    version,
                    completed=not crashed,
                    started=started,
                    ended=clock,
                    waited=waited,
                    stated=draw(st.booleans()),
                )
            )
            version += draw(st.sampled_from((0, 1, 1, 1, 2)))
        clock += 5
    return after, steps


def _rolled_back(after: dict[int, int | None], step: Step) -> bool:
    return any(
        resumed is not None and number > step.attempt and step.step > resumed for number, resumed in after.items()
    )


@st.composite
def chunks(draw: Any, newest: int) -> tuple[Chunk, ...]:
    """Tokens in runs of versions up to ``newest``: rising, skipping, returning; masks that leave no doubt."""
    found = []
    version = draw(st.integers(max(0, newest - 4), newest))
    for _ in range(draw(st.sampled_from((1, 1, 2, 3)))):
        if draw(st.booleans()):
            versions = draw(st.lists(st.integers(max(0, newest - 4), newest), min_size=0, max_size=5))
            masked = draw(st.integers(0, 4)) == 0
            found.append(Chunk(tuple(versions), (not masked,) * len(versions), listed=True))
        else:
            size = draw(st.integers(0, 6))
            in_loss = draw(st.one_of(st.just(size), st.integers(0, size)))
            found.append(Chunk((version,) * size, (True,) * in_loss + (False,) * (size - in_loss)))
        version = min(newest, max(0, version + draw(st.sampled_from((0, 1, 1, 2, -1)))))
    return tuple(found)


@st.composite
def life(draw: Any, name: str, group: str | None, run: tuple[dict[int, int | None], list[Step]]) -> Life:
    """One trajectory with its tokens, uses and happenings, each at its time."""
    after, steps = run
    attempt = draw(st.sampled_from(sorted(after)))
    role = "eval" if group is None and draw(st.integers(0, 5)) == 0 else "train"
    clock = float(draw(st.integers(1, 40)))
    tell: list[Happening] = [Happening("admitted", clock)]
    if draw(st.booleans()):
        tell.append(Happening("started", clock + 0.25))
    plan = draw(st.sampled_from(("trained", "trained", "trained", "dropped", "cancelled", "lost", "left", "returned")))
    open_steps = [step for step in steps if step.attempt >= attempt]
    uses: tuple[Use, ...] = ()
    newest = max((step.version for step in steps), default=0)
    if plan in ("trained", "returned") and open_steps and role == "train":
        times = draw(st.sampled_from((1, 1, 1, 2, 3)))
        taken = draw(st.lists(st.sampled_from(open_steps), min_size=1, max_size=times, unique=True))
        uses = tuple(Use(step.attempt, step.step) for step in taken)
        newest = min(step.version for step in taken)
    parts = []
    for chunk in draw(chunks(newest)):
        clock += 0.5
        parts.append(Chunk(chunk.versions, chunk.loss, chunk.listed, clock))
    clock += 0.5
    if plan == "returned":
        tell.append(Happening(draw(st.sampled_from(("cancelled", "lost"))), clock, "error"))
        tell.append(Happening("requeued", clock + 0.25))
        clock += 0.5
    if plan in ("trained", "dropped") or (plan in ("returned", "left") and draw(st.booleans())):
        tell.append(Happening("finished", clock))
    if plan in ("dropped", "cancelled", "lost"):
        reason = draw(st.sampled_from(REASONS))
        step = None
        if plan == "dropped":
            own = [step for step in steps if step.attempt == attempt]
            if own:
                step = draw(st.sampled_from(own)).step
            elif reason in ("stale", "group", "unknown"):
                reason = "filtered"
        tell.append(Happening(plan, clock + 0.5, reason, step))
    uses = tuple(_masked(draw, use, parts) for use in uses)
    return Life(name, group, attempt, role, tuple(parts), uses, tuple(tell))


def _masked(draw: Any, use: Use, parts: list[Chunk]) -> Use:
    """Sometimes a use states its own mask: all of the tokens, or none."""
    flags = tuple(flag for chunk in parts for flag in chunk.loss)
    choice = draw(st.integers(0, 7))
    if choice == 0 and all(flags):
        return Use(use.attempt, use.step, flags)
    if choice == 1:
        return Use(use.attempt, use.step, (False,) * len(flags))
    return use


@st.composite
def runs(draw: Any) -> Run:
    """A whole run."""
    after, steps = draw(attempts())
    lives = []
    for group in range(draw(st.integers(0, 4))):
        alone = draw(st.integers(0, 3)) == 0
        for member in range(1 if alone else draw(st.integers(1, 3))):
            lives.append(draw(life(f"g{group}/{member}", None if alone else f"g{group}", (after, steps))))
    bound = draw(st.sampled_from((None, 0, 1, 1, 2, 3)))
    timed = draw(st.sampled_from((True, True, False)))
    clock = draw(st.sampled_from(("epoch", "relative")))
    return Run(tuple(lives), tuple(steps), after, bound, timed, clock)
