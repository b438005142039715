"""Which files of a trial this format knows, and where they stand (guide section 5)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from staleness_audit.discovery import RunFile, RunFiles
from staleness_audit.readers.scalars import scalar_files

DUMP = re.compile(r"(?P<root>(?:.*/)?)rollout/(?P<version>-?\d{1,9})/(?P<task>\d{1,12})\.jsonl")
OLD_DUMP = re.compile(r"(?P<root>(?:.*/)?)generated/(?P<version>\d{1,9})/[^/]+\.txt")
SESSIONS = re.compile(r"(?P<root>(?:.*/)?)session_tracer/(?:(?P<role>[\w-]+)/)?sessions-r\d{1,6}\.jsonl")
REQUESTS = re.compile(r"(?P<root>(?:.*/)?)session_tracer/(?:(?P<role>[\w-]+)/)?requests-r\d{1,6}\.jsonl")
PERF = re.compile(r"(?P<root>(?:.*/)?)perf_tracer/(?:(?P<role>[\w-]+)/)?traces-r\d{1,6}\.jsonl")
CONFIG = re.compile(r"(?P<root>(?:.*/)?)config\.ya?ml")
LOG = re.compile(r"(?P<root>(?:.*/)?)(?P<name>[^/]+)\.(?:log|txt|out|stdout)")
EVENTS = re.compile(r"(?:.*/)?[^/]*\.?tfevents\.(?P<time>\d+)[^/]*")
ROLE_LOGS = frozenset({"rollout", "eval-rollout", "actor", "critic", "ref", "teacher"})
CONSOLE_LINE = re.compile(rb"\d{8}-\d\d:\d\d:\d\d\.\d{3} ")
CONSOLE_MARKS = (
    *(b"(AReaL)", b"AsyncTaskRunner", b"RolloutController", b"RemoteInfEngine", b"Submit rollout rid"),
    b"StatsLogger INFO: Epoch ",
)


@dataclass(frozen=True)
class Files:
    """The files of one trial. ``dumps`` by folder name (the newest version in the file); evaluation is left out.

    ``console`` is the trainer's own log, alone: ``merged.log`` repeats it. ``workers``: what the rollout workers of a
    controller printed.
    """

    config: RunFile | None
    console: RunFile | None
    dumps: dict[int, list[RunFile]]
    old_dumps: list[RunFile]
    sessions: list[RunFile]
    requests: list[RunFile]
    perf: list[RunFile]
    events: list[RunFile]
    workers: RunFile | None = None
    other_roots: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether anything but a configuration and event files was found."""
        return bool(self.console or self.dumps or self.old_dumps or self.sessions or self.requests or self.perf)


def survey(run: RunFiles) -> Files:
    """Sort the files of a directory by what they are; of several trials the first is taken and the others named."""
    # Where a file lies beside its compressed copy, one of them is enough.
    files = list({file.name: file for file in sorted(run.files, key=lambda file: not file.compressed)}.values())
    hits: dict[re.Pattern[str], list[tuple[RunFile, re.Match[str]]]] = {pattern: [] for pattern in _OWN}
    files = [file for file in files if not _hit(file, hits)]  # most are dumps
    roots = sorted({found["root"] for matches in hits.values() for _, found in matches if _training(found)})
    configs = [
        (file, found["root"]) for file in files if (found := CONFIG.fullmatch(file.name)) and _is_config(run, file)
    ]
    logs = _logs(run, files, {root for _, root in configs} | set(roots))
    for others in ({root for _, root in configs}, {root for _, root, _ in logs}):
        roots = roots or sorted(others)
    root = roots[0] if roots else ""

    def here(pattern: re.Pattern[str]) -> list[RunFile]:
        return [file for file, found in hits[pattern] if found["root"] == root and _training(found)]

    dumps: dict[int, list[RunFile]] = {}
    for file, found in hits[DUMP]:
        if found["root"] == root:
            dumps.setdefault(int(found["version"]), []).append(file)
    return Files(
        config=next(
            (file for file, at in configs if at == root), configs[0][0] if configs and len(roots) < 2 else None
        ),
        console=next((file for file, at, _ in logs if at == root), None) or next((file for file, *_ in logs), None),
        dumps=dumps,
        old_dumps=here(OLD_DUMP),
        sessions=here(SESSIONS),
        requests=here(REQUESTS),
        perf=_trainer_only(here(PERF)),
        workers=next((file for file in files if _log_of(file, root) == "rollout"), None)
        or next((file for file, at, rank in logs if at == root and rank == 1), None),
        events=_events(files, root) or scalar_files(run),
        other_roots=tuple(roots[1:]),
    )


_OWN = (DUMP, OLD_DUMP, SESSIONS, REQUESTS, PERF)
"""A name is of one of these, and then of no other kind of file."""


def _hit(file: RunFile, hits: dict[re.Pattern[str], list[tuple[RunFile, re.Match[str]]]]) -> bool:
    """Note a file whose name says what it is."""
    for pattern, found in hits.items():
        if match := pattern.fullmatch(file.name):
            found.append((file, match))
            return True
    return False


def _training(found: re.Match[str]) -> bool:
    """Tell whether a file is of training: evaluation workers have folders of their own and never count."""
    groups = found.groupdict()
    return not (groups.get("role") or "").startswith("eval") and not found["root"].endswith("eval-")


def _trainer_only(perf: Iterable[RunFile]) -> list[RunFile]:
    """Keep the trainer's spans: those of the role ``master`` or, without roles, of the only folder."""
    found = list(perf)
    masters = [file for file in found if "/master/" in file.name or file.name.startswith("master/")]
    return masters or found


def tells_staleness(run: RunFiles, file: RunFile) -> bool:
    """Whether the beginning of an event file has this framework's statistics of versions."""
    return b"/version_stats/" in run.head(file.source, 1 << 20)


def _is_config(run: RunFiles, file: RunFile) -> bool:
    """Whether a ``config.yaml`` holds this framework's knob."""
    return b"max_head_offpolicyness" in run.head(file.source, 1 << 20)


def _logs(run: RunFiles, files: Iterable[RunFile], roots: set[str]) -> list[tuple[RunFile, str, int]]:
    """Console logs with root and preference, best first; logs of workers are left out."""
    found = []
    for file in files:
        match = LOG.fullmatch(file.name)
        if match is None or match["name"] in ROLE_LOGS:
            continue
        rank = {"main": 0, "merged": 1}.get(match["name"], 2)
        head = run.head(file.source, 1 << 16)
        if any(mark in head for mark in CONSOLE_MARKS) and CONSOLE_LINE.search(head):
            found.append((file, match["root"], rank))
    return sorted(found, key=lambda entry: (entry[1] not in roots, entry[2], entry[0].name))


def _log_of(file: RunFile, root: str) -> str | None:
    """Return the role whose log a file of the trial is."""
    found = LOG.fullmatch(file.name)
    return found["name"] if found and found["root"] == root else None


def _events(files: Iterable[RunFile], root: str) -> list[RunFile]:
    """TensorBoard files, in the order in which they were begun; those below the trial's folder if there are any."""
    found = [(int(match["time"]), file) for file in files if (match := EVENTS.fullmatch(file.name))]
    inside = [entry for entry in found if entry[1].name.startswith(root)]
    return [file for _, file in sorted(inside or found, key=lambda entry: (entry[0], entry[1].name))]
