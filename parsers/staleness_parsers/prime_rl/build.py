"""Which code wrote the run: it decides what is guaranteed and how fates are told (guide sections 1, 4.5, 4.6, 5.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from staleness_parsers.prime_rl.launches import Launch

Dialect = Literal["episodes", "traces", "rollouts", "logs"]


@dataclass(frozen=True)
class Build:
    """The code's traits as far as its files betray them.

    ``enforces``: queue time is checked (PR #3313); None if no file tells. ``early_label``: a group may be labelled with
    a version the engines do not have yet (PR #3050 up to #3385; files don't show the latter, so newer code counts as
    having it). ``zero_based``: steps are counted from 0 (up to v0.6.0). ``label_assumed``: the user says
    that labels are never early.
    """

    dialect: Dialect
    enforces: bool | None
    early_label: bool
    zero_based: bool
    why: str
    label_assumed: bool = False

    @property
    def records_cancelled(self) -> bool:
        """Whether cancelled members are on record as failed episodes: lines of traces have no place for them."""
        return self.dialect == "episodes" and self.enforces is False

    @property
    def states_recorded_max(self) -> bool:
        """Whether `Max Off-Policy` is that of the shipped traces: since 2026-07-22, which only newer shapes prove."""
        return self.dialect == "episodes" or self.enforces is True

    def v_train(self, step: int) -> int:
        """Version the trainer starts a step from."""
        return step if self.zero_based else step - 1


def recognise(
    forms: set[str], errors: Iterable[str], launches: Sequence[Launch], *, labels_assumed_exact: bool = False
) -> Build:
    """Tell the code from the shape of its lines, its messages and the keys of its rows."""
    messages = [row for launch in launches for row in launch.log("orchestrator")]
    dialect: Dialect = "logs"
    for form, name in (("episode", "episodes"), ("trace", "traces"), ("rollout", "rollouts")):
        if form in forms:
            dialect = name  # type: ignore[assignment]
            break
    old_lines = any(row["kind"] == "step" and row["word"] == "old" for row in messages)
    steps = [row for launch in launches for row in launch.log("trainer") if row["kind"] == "step"]
    steps += [row for row in messages if row["kind"] == "step"]
    numbers = {row["number"] for row in steps} | {
        row["step"] for launch in launches for row in launch.metrics("trainer")
    }
    zero_based = dialect == "rollouts" or (dialect == "logs" and (0 in numbers or old_lines))
    enforces, why = _enforces(dialect, errors, messages, launches, old_lines)
    early_label = dialect in ("episodes", "traces") or (dialect == "logs" and not old_lines and not zero_based)
    assumed = early_label and labels_assumed_exact
    return Build(dialect, enforces, early_label and not assumed, zero_based, why, assumed)


def _enforces(
    dialect: Dialect,
    errors: Iterable[str],
    messages: Sequence[dict[str, Any]],
    launches: Sequence[Launch],
    old_lines: bool,
) -> tuple[bool | None, str]:
    if dialect in ("traces", "rollouts") or old_lines:
        return False, "the shape of its files is that of v0.8.0 or older"
    if any(error.startswith("Cancelled: Off-policy cancel") for error in errors):
        return False, "cancelled members are recorded as failed episodes"
    for row in messages:
        if row["kind"] == "drop":
            return (
                (False, "its log says `drain train`") if row["what"] == "drain" else (True, "its log says `drop train`")
            )
        if row["kind"] == "swept":
            return True, "its log tells of queued traces dropped"
        if row["kind"] == "step" and row["word"] == "cancelled":
            return True, "its step lines have a field `Cancelled`"
        if row["kind"] == "step" and row["word"] == "no cancelled":
            return False, "its step lines have no field `Cancelled`"
    rows = [row for launch in launches for row in launch.metrics("orchestrator")]
    if rows:
        enforcing = any(row["enforcing"] for row in rows)
        return enforcing, f"its metrics rows have {'' if enforcing else 'no '}keys `off_policy/*`"
    return None, "no file tells whether queue time was enforced"
