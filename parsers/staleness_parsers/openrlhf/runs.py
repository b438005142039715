"""Launches of another run in the same folder: no launch of a run does steps while another one of it does them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from staleness_audit.readers.agreement import same_figures, strangers
from staleness_parsers.openrlhf.launches import Batch, Launch
from staleness_parsers.openrlhf.stamps import seconds, turns

_T = TypeVar("_T")


def of_another_run(launches: Sequence[Launch]) -> set[str]:
    """Return sources whose launches cannot be of the run of the others.

    Event files are dated in UTC, consoles in local time of no known zone or year. Where no launch has both, an event
    file must tell the same of the console's steps; else launches need only follow one another.
    """
    turned = turns([batch.stamp for launch in launches for batch in launch.batches if batch.stamp])
    walls = _told(launches, lambda batch: batch.wall)
    local = _told(launches, lambda batch: seconds(batch.stamp, turned=turned) if batch.stamp else None)
    found = strangers({}, walls, in_turn=True) | strangers({}, local, in_turn=True)
    if local and not walls.keys() & local.keys():
        figures = _told(launches, lambda batch: batch.metrics or None)
        logs = sorted(local.keys() - found)
        found |= strangers(_joined(local[source] for source in logs), walls, in_turn=False)
        known = _joined(figures.get(source, {}) for source in logs)
        found |= {source for source in walls if not same_figures(known, figures.get(source, {}))}
    return found


def _told(launches: Sequence[Launch], what: Callable[[Batch], _T | None]) -> dict[str, dict[int, list[_T]]]:
    """Return what each source says of its steps, by number."""
    found: dict[str, dict[int, list[_T]]] = {}
    for launch in launches:
        source = launch.source
        for batch in launch.batches:
            if source and (told := what(batch)) is not None:
                found.setdefault(source, {}).setdefault(batch.step, []).append(told)
    return found


def _joined(parts: Iterable[Mapping[int, Sequence[_T]]]) -> dict[int, list[_T]]:
    found: dict[int, list[_T]] = {}
    for step, told in chain.from_iterable(part.items() for part in parts):
        found.setdefault(step, []).extend(told)
    return found
