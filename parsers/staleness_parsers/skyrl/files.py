"""Which files of a run this format knows (guide section 5)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from staleness_audit.discovery import RunFile, RunFiles
from staleness_parsers.skyrl.console import looks_like_console

_HEAD_BYTES = 1 << 16
_CONSOLE = re.compile(r"(?:.*/)?[^/]+\.(?:log|txt|out|stdout|err|stderr)(?:\.\d+)?|(?:.*/)?[^/.]+")
_EVENTS = re.compile(r"(?:.*/)?events\.out\.tfevents\.[^/]*")
_OFFLINE = re.compile(r"(?:.*/)?run-[^/]*\.wandb")
_DUMP = re.compile(r"(?P<root>(?:.*/)?)global_step_(?P<step>\d{1,9})_training_input\.pkl")
_CHECKPOINT = re.compile(
    r"(?P<root>(?:.*/)?)global_step_(?P<step>\d{1,9})/(?P<part>fully_async_state|trainer_state)\.pt"
)
_OWN_KEY = b"async/staleness_"


@dataclass(frozen=True)
class Files:
    """The files of one run; ``other_roots``: folders with batches or checkpoints of another run, which are not read."""

    consoles: tuple[RunFile, ...]
    events: tuple[RunFile, ...]
    offline: tuple[RunFile, ...]
    dumps: tuple[tuple[RunFile, int], ...]
    checkpoints: tuple[tuple[RunFile, int, str], ...]
    other_roots: tuple[str, ...] = ()


def survey(run: RunFiles) -> Files:
    """Sort the files of a directory by what they are, by name and first bytes."""
    # Where a file lies beside its compressed copy, one of them is enough.
    files = list({file.name: file for file in sorted(run.files, key=lambda file: not file.compressed)}.values())
    files.sort(key=lambda file: (file.name.count("/"), file.name))
    dumps = [(found, file) for file in files if (found := _DUMP.fullmatch(file.name))]
    checkpoints = [(found, file) for file in files if (found := _CHECKPOINT.fullmatch(file.name))]
    dump_roots = sorted({found["root"] for found, _ in dumps})
    checkpoint_roots = sorted({found["root"] for found, _ in checkpoints})
    return Files(
        consoles=_distinct(run, (file for file in files if _CONSOLE.fullmatch(file.name) and _is_console(run, file))),
        events=_distinct(
            run,
            (file for file in files if _EVENTS.fullmatch(file.name) and _OWN_KEY in run.head(file.source, _HEAD_BYTES)),
        ),
        offline=_distinct(run, (file for file in files if _OFFLINE.fullmatch(file.name) and _is_offline(run, file))),
        dumps=tuple((file, int(found["step"])) for found, file in dumps if found["root"] == dump_roots[0]),
        checkpoints=tuple(
            (file, int(found["step"]), found["part"])
            for found, file in checkpoints
            if found["root"] == checkpoint_roots[0]
        ),
        other_roots=(*dump_roots[1:], *checkpoint_roots[1:]),
    )


def _distinct(run: RunFiles, files: Iterable[RunFile]) -> tuple[RunFile, ...]:
    """Leave out copies: of a log that somebody kept a second time no launch is told twice."""
    by_size: dict[int, list[RunFile]] = {}
    for file in files:
        same = by_size.setdefault(file.bytes, [])
        if all(run.digest(file.source) != run.digest(other.source) for other in same):
            same.append(file)
    return tuple(sorted((file for same in by_size.values() for file in same), key=lambda file: file.name))


def _is_offline(run: RunFiles, file: RunFile) -> bool:
    head = run.head(file.source, _HEAD_BYTES)
    return _OWN_KEY in head or b"max_staleness_steps" in head


def _is_console(run: RunFiles, file: RunFile) -> bool:
    return file.bytes > 0 and looks_like_console(run.head(file.source, _HEAD_BYTES))
