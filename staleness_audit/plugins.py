"""Parsers as plug-ins: found by entry point, chosen by what they recognise."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points

from staleness_audit.discovery import RunFile, RunFiles
from staleness_audit.errors import BrokenPlugin, NothingRecognised, SeveralFrameworks, SeveralRuns, choices
from staleness_audit.parser import Detection, Parser

GROUP = "staleness_audit.parsers"
_OF_A_STEP = re.compile(r"(?:\w+_)?(?:step|iter|checkpoint)[_-]?\d+(?:_\w+)?")


@dataclass(frozen=True)
class Choice:
    """The parser that will read a run, and why it."""

    parser: Parser
    detection: Detection


def parsers() -> dict[str, Parser]:
    """All installed parsers by name, in alphabetical order.

    Raises:
        TypeError: an entry point does not name a ``Parser``.
    """
    found: dict[str, Parser] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            parser = entry.load()
        except ImportError as error:
            # One broken plug-in must not take the others down with it.
            warnings.warn(
                f"The parser {entry.name} ({entry.value}) cannot be loaded: {error}", BrokenPlugin, stacklevel=2
            )
            continue
        if not isinstance(parser, Parser):
            raise TypeError(f"The entry point {entry.name} = {entry.value} is not a staleness_audit.parser.Parser.")
        found[parser.name] = parser
    return found


def choose(run: RunFiles, framework: str | None = None, among: dict[str, Parser] | None = None) -> Choice:
    """Pick the parser for a run: the one named, or the finest of those that recognise it.

    Raises:
        NothingRecognised: no parser recognises the files (or none has the given name).
        SeveralFrameworks: several do and none of them refines all others.
        SeveralRuns: the files look like those of several runs side by side.
    """
    known = parsers() if among is None else among
    if framework is not None:
        if framework not in known:
            raise NothingRecognised(f"No parser is called {framework!r}; {choices(framework, known)}")
        forced = known[framework].detect(run)
        return Choice(known[framework], forced or Detection(("named on the command line",)))
    found = {name: detection for name, parser in known.items() if (detection := parser.detect(run))}
    strong = {name: detection for name, detection in found.items() if detection.strong}
    candidates = strong or found
    refined = {coarse for name in candidates for coarse in known[name].card.refines}
    finest = [name for name in candidates if name not in refined]
    if len(finest) == 1 and (others := [known[name] for name in found if name != finest[0]]):
        beside = _beside(run, known[finest[0]], others)
        finest, candidates = [*finest, *beside], {**candidates, **beside}
    if len(finest) == 1:
        parser = known[finest[0]]
        if runs := several_runs(run, parser, *(known[name] for name in candidates if name in refined)):
            raise SeveralRuns(
                f"{run.path}: {', '.join(runs[:4])}{' ...' if len(runs) > 4 else ''} each hold {parser.name} logs of "
                "the same names, as runs of their own do. Audit each by itself; if they are attempts of one run, say "
                f"--framework {parser.name}."
            )
        return Choice(parser, candidates[finest[0]])
    if finest:
        listed = "; ".join(f"{name} ({candidates[name].evidence[0]})" for name in finest)
        raise SeveralFrameworks(
            f"{run.path}: files of several frameworks: {listed}. Choose one with --framework, or name each run by "
            "itself."
        )
    if run.is_directory and not run.files:
        raise NothingRecognised(f"{run.path}: it holds no files; give the run's own output directory.")
    what = f"none of its files ({len(run.files)}) belongs" if run.is_directory else "it does not belong"
    raise NothingRecognised(
        f"{run.path}: {what} to a known log format ({', '.join(known)}); give the run's own output directory, or name "
        "the format with --framework (`staleness-audit frameworks NAME` lists the files of one)."
    )


def _beside(run: RunFiles, parser: Parser, others: Sequence[Parser]) -> dict[str, Detection]:
    """What other parsers recognise beside the one folder in which all is that this one recognises.

    What this one refines has files in its runs: they are another run's only if there are such in its own folder, too.
    """
    folders = {name: replace(run, files=tuple(files.values())) for name, files in _folders(run).items()}
    home = [name for name, folder in folders.items() if parser.detect(folder)]
    if len(home) != 1:
        return {}
    rest = replace(run, files=tuple(file for name, each in folders.items() if name != home[0] for file in each.files))
    if parser.detect(rest):
        return {}
    return {
        other.name: detection
        for other in others
        if (detection := other.detect(rest))
        and (other.name not in parser.card.refines or (detection.strong and other.detect(folders[home[0]])))
    }


def several_runs(run: RunFiles, parser: Parser, *coarser: Parser) -> list[str]:
    """Folders side by side that look like runs of their own: the parser recognises each by files that another has too.

    A folder that only a parser recognises which this one refines is a run of that one.
    What one run keeps in several folders (rollouts here, training there) has different names, but for files that are
    named by a number only, and for the folders of its steps. A parser whose launches have folders of their own says
    whether these are such.
    """
    folders = {
        folder: {name: file for name, file in files.items() if not re.fullmatch(r"\d+\.\w+", name)}
        for folder, files in _folders(run).items()
        if folder
    }
    above = _shared_folder(run)
    counts = Counter(name for files in folders.values() for name in files)
    found = []
    for folder, files in folders.items():
        shared = tuple(file for name, file in files.items() if counts[name] > 1)
        alone = replace(run, files=shared)
        detected = (each.detect(alone) for each in (parser, *coarser)) if shared else ()
        if any(detection and detection.strong for detection in detected):
            found.append(above + folder)
    if all(_OF_A_STEP.fullmatch(folder.rpartition("/")[2]) for folder in found):
        return []
    belong_together = getattr(parser, "belong_together", None)
    if len(found) < 2 or (belong_together is not None and belong_together(run, found)):
        return []
    return found


def _folders(run: RunFiles) -> dict[str, dict[str, RunFile]]:
    """Files by the folder of the run that they are in ("" for none), and by their name below it."""
    found: dict[str, dict[str, RunFile]] = {}
    above = _shared_folder(run)
    for file in run.files:
        folder, slash, name = file.name.removeprefix(above).partition("/")
        found.setdefault(folder if slash else "", {})[name or folder] = file
    return found


def _shared_folder(run: RunFiles) -> str:
    """The folder that all files are in, with a slash at its end, or nothing."""
    folders = {file.name[: file.name.rfind("/") + 1] for file in run.files}
    # What the first and the last have in common, all have: each ends with a slash.
    shared = os.path.commonpath([min(folders), max(folders)])
    return f"{shared}/" if shared else ""
