"""How the run was doing when its logs end (DESIGN ``run.health``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Any

STUCK_STEPS = 10


def health(signs: Sequence[Mapping[str, Any]], durations: Sequence[timedelta], last: datetime | None) -> dict[str, Any]:
    """Judge by the markers and waiting lines that the parser found.

    Args:
        signs: ``parser.Sign`` as JSON, in the order of the logs.
        durations: from the start of each step to the start of the next.
        last: last time in the logs.

    Finished and crashed only by markers; stuck = the last waiting line came after the last progress, and since that
    progress ten times the median step has passed in the logs.
    """
    markers = [sign for sign in signs if sign["kind"] in ("finished", "crashed")]
    times = [moment for sign in signs if (moment := _moment(sign["ts"]))]
    last = max([*times, *([last] if last else [])], default=None)
    verdict: dict[str, Any] = {"state": "unknown", "since": last.isoformat() if last else None, "waiting_for": None}
    if markers:
        return {**verdict, "state": markers[-1]["kind"]}
    waiting = [(moment, sign) for sign in signs if sign["kind"] == "waiting" and (moment := _moment(sign["ts"]))]
    progress = max(
        (moment for sign in signs if sign["kind"] == "progress" and (moment := _moment(sign["ts"]))), default=None
    )
    if not waiting or last is None or not durations:
        return verdict
    since, sign = max(waiting, key=lambda pair: pair[0])
    idle_from = progress if progress is not None else min(times)
    if (progress is None or since >= progress) and (last - idle_from).total_seconds() >= STUCK_STEPS * median(
        step.total_seconds() for step in durations
    ):
        return {"state": "stuck", "since": idle_from.isoformat(), "waiting_for": sign["what"]}
    return verdict


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
