"""What nothing that is left of a run betrays: figures that may then be too exact, per format (docs/trust.md says why).

A figure is named as the judge names it; a pattern must match the whole name up to its colon. A record that is gone can
only make a count too small, so that is all that is forgiven, but where ``any_way`` says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Untold:
    """Damage of these names to a file of this name may make these figures wrong; ``why`` nothing can betray it."""

    format: str
    damages: Sequence[str]
    file: str
    figures: str
    why: str
    any_way: bool = False


LOST_LINES = ("lose_line", "lose_block", "interleave", "cut_at_line_end", "cut_mid_line", "latin_1")
LOST_FILES = ("delete_file", "emptied")
DROPPED = r"(trajectories|tokens)\.(dropped|seen|generated)|dropped_trajectories|step \S+ dropped"
ENDED = r"(trajectories|tokens)\.(cancelled|lost|pending)|cancelled_trajectories|" + DROPPED
EVERYTHING = r".*"

UNTOLD: tuple[Untold, ...] = (
    Untold(
        "events", LOST_FILES, r"staleness\.jsonl", EVERYTHING, "who writes is told by the writers only", any_way=True
    ),
    Untold("prime-rl", LOST_LINES, r"orchestrator\.log|all/traces\.jsonl", ENDED, "each is told once, and not counted"),
    Untold("psrl", LOST_LINES, r"route_trace\.log", ENDED, "requests that are never trained are told of in one file"),
)


def told(format_: str, damage: str, files: Sequence[str], errors: Sequence[str]) -> Iterator[str]:
    """Yield the errors that something could have betrayed."""
    known = [
        entry
        for entry in UNTOLD
        if entry.format == format_ and damage in entry.damages and any(re.search(entry.file, file) for file in files)
    ]
    for error in errors:
        name = error.split(": ")[0]
        if not any(re.fullmatch(entry.figures, name) and (entry.any_way or too_low(error)) for entry in known):
            yield error


def too_low(error: str) -> bool:
    """Whether the upper end of what is said lies below what is true, or possible by the whole run's audit."""
    numbers = [float(number) for number in re.findall(r"(?<![\w.])(?:\d[\d.e+]*|inf)", error.partition(": ")[2])]
    return len(numbers) > 2 and numbers[-1] < numbers[0]
