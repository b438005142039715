"""What nothing that is left of a run betrays: figures that may then be too exact, per format (docs/trust.md says why).

A figure is named as the judge names it; a pattern must match the whole name up to its colon.
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


LOST_LINES = ("lose_line", "lose_block", "interleave", "cut_at_line_end", "cut_mid_line", "latin_1")
LOST_FILES = ("delete_file", "emptied")
TIMES = ("clock_jump", "other_zone")
FATES = (
    r"(trajectories|tokens)\.(dropped|cancelled|lost|pending|seen|unknown|generated)"
    r"|(dropped|cancelled)_trajectories|step \S+ dropped"
)
EVERYTHING = r".*"

UNTOLD: tuple[Untold, ...] = (
    Untold("events", LOST_FILES, r"staleness\.jsonl", EVERYTHING, "who writes is told by nobody but the writers"),
    Untold("roll", TIMES, r"traces\.jsonl|\.log", EVERYTHING, "spans and lines are put in order by nothing but times"),
    Untold("areal", TIMES, r"tracer", FATES, "tasks are put into steps by times"),
    *(
        Untold(
            name, LOST_LINES, r"\.(log|jsonl|txt)(\.gz|\.zst)?$", FATES, "a lone line about a fate is told nowhere else"
        )
        for name in ("dressage", "dryrun", "openrlhf", "prime-rl", "psrl", "roll", "slime", "trl", "skyrl", "areal")
    ),
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
        if not any(re.fullmatch(entry.figures, name) for entry in known):
            yield error
