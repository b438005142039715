"""Several runs where one path was given: patterns, and folders that hold runs side by side."""

from __future__ import annotations

import glob
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from staleness_audit import plugins
from staleness_audit.discovery import CACHE_FOLDER, discover, natural
from staleness_audit.errors import AuditError, NothingRecognised, SeveralFrameworks, SeveralRuns, UnreadableInput
from staleness_audit.ingest import is_tables
from staleness_audit.places import is_url, matching


def named(patterns: Iterable[Path]) -> list[Path]:
    """Return the paths that patterns like ``runs/*/seed-[0-9]`` match, in natural order; others stay as they are.

    A path that exists is no pattern, whatever its name looks like (``lr=[1,2]``).

    Raises:
        UnreadableInput: nothing matches a pattern.
    """
    found: list[Path] = []
    for pattern in patterns:
        if not glob.has_magic(str(pattern)) or (not is_url(pattern) and pattern.exists()):
            found.append(pattern)
            continue
        matches = sorted(matching(pattern), key=lambda path: natural(str(path)))
        if not matches:
            raise UnreadableInput(f"{pattern}: nothing matches this pattern; give directories or files of runs.")
        found += matches
    return found


@dataclass(frozen=True)
class Side:
    """What a folder holds: ``runs`` side by side, and ``others``, in which no known log format was found."""

    runs: tuple[Path, ...]
    others: tuple[Path, ...]


def side_by_side(folder: Path) -> Side | None:
    """Look into a folder that is no run itself; None if it does not hold two runs or folders of tables at least."""
    if not folder.is_dir():
        return None
    below = sorted((path for path in folder.iterdir() if path.name != CACHE_FOLDER), key=lambda at: natural(at.name))
    if len(below) == 1:
        return side_by_side(below[0])
    runs: list[Path] = []
    others: list[Path] = []
    for path in below:
        found = _runs_at(path) if path.is_dir() else Side((), (path,))
        runs += found.runs
        others += found.others
    return Side(tuple(runs), tuple(others)) if len(runs) > 1 else None


def _told_apart(folder: Path, side: Side) -> bool:
    """Whether runs of one framework, in a folder that holds those of others too, are no parts of one run."""
    run = discover(folder)
    homes: dict[str, list[Path]] = {}
    for path in side.runs:
        with suppress(AuditError):  # to be told when it is audited
            homes.setdefault(plugins.choose(discover(path)).parser.name, []).append(path)
    for name, paths in homes.items():
        files = tuple(file for file in run.files if any(file.path.is_relative_to(path.resolve()) for path in paths))
        if len(paths) > 1 and not plugins.several_runs(replace(run, files=files), plugins.parsers()[name]):
            return False
    return True


def _runs_at(folder: Path) -> Side:
    """The folder if it is a run (or cannot be told to be none), the runs in it, or nothing."""
    if is_tables(folder):
        return Side((folder,), ())
    try:
        plugins.choose(discover(folder))
    except NothingRecognised:
        return side_by_side(folder) or Side((), (folder,))
    except (SeveralRuns, SeveralFrameworks):
        return side_by_side(folder) or Side((folder,), ())
    except AuditError:  # to be told when it is audited
        pass
    return Side((folder,), ())


Result = TypeVar("Result")
Found = Callable[[Path, Side], None]
"""Is told of a folder that turned out to hold several runs."""


def each(
    patterns: Sequence[Path], work: Callable[[Path, bool], Result], found: Found | None
) -> Iterator[tuple[Path, Result | AuditError]]:
    """Work on every run that the patterns name; of a path that holds runs side by side, on each of these.

    ``work``: takes a run, and whether it is the only one. ``found``: None if every path is one run, whatever it holds.
    Yields results of the work, or its errors, in order.
    """
    pending = deque(named(patterns))
    alone = len(pending) == 1
    while pending:
        path = pending.popleft()
        try:
            yield path, work(path, alone)
        except (SeveralRuns, SeveralFrameworks, NothingRecognised) as error:
            side = None if found is None else side_by_side(path)
            if side is not None and isinstance(error, SeveralFrameworks) and not _told_apart(path, side):
                side = None
            if found is None or side is None:
                yield path, error
                continue
            alone = False
            found(path, side)
            pending.extendleft(reversed(side.runs))
        except AuditError as error:
            yield path, error
