"""Small runs to fuzz: of each recorded case two files of each kind, cut short, so that reading them costs little."""

from __future__ import annotations

import gzip
import re
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import zstandard

from fuzz.framing import event_records
from staleness_audit.discovery import discover

SAMPLES = Path(__file__).parents[2] / "sample_traces"
PACKERS = {".gz": partial(gzip.compress, compresslevel=1, mtime=0), ".zst": zstandard.compress}
LOGS = {".jsonl", ".log", ".txt", ".out", ".err"}
NAMED = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[a-z]*\d[0-9a-z]*")
"""Numbers and digests in names, by which files of one kind are told apart."""
OF_A_KIND = 2
LINES_BYTES = 12_000
RECORDS_BYTES = 8_000


@dataclass(frozen=True)
class SmallRun:
    """A recorded case cut short. ``files``: one of each kind, by their paths in it."""

    case: str
    root: Path
    files: tuple[str, ...]

    def content(self, name: str) -> bytes:
        """What a file holds, unpacked."""
        run = discover(self.root)
        with run.open(name) as stream:
            return stream.read()


def cases(format_name: str) -> list[str]:
    """Names of the recorded cases of a format, in order."""
    return sorted(path.parent.name for path in (SAMPLES / format_name).glob("*/expected.json"))


def cut_short(format_name: str, case: str, target: Path) -> SmallRun:
    """Make a small run of a recorded case in a folder."""
    kinds: dict[str, list[str]] = {}
    run = discover(SAMPLES / format_name / case / "run")
    for file in run.files:
        kept = kinds.setdefault(NAMED.sub("0", file.source), [])
        if len(kept) == OF_A_KIND:
            continue
        kept.append(file.source)
        copy = target / file.source
        copy.parent.mkdir(parents=True, exist_ok=True)
        with run.open(file.source) as stream:
            whole = stream.read()
        begun = beginning(file.name, whole)
        if len(begun) == len(whole):
            shutil.copyfile(file.path, copy)
        else:
            copy.write_bytes(pack(file.source, begun))
    return SmallRun(case, target, tuple(kept[0] for kept in kinds.values()))


def beginning(name: str, data: bytes) -> bytes:
    """The first lines of a log and the first records of an event file; another file as it is."""
    if Path(name).suffix in LOGS and len(data) > LINES_BYTES:
        return data[: data.rfind(b"\n", 0, LINES_BYTES) + 1 or data.find(b"\n") + 1 or len(data)]
    if "tfevents" in name:
        kept = 0
        for record in event_records(data):
            if kept + len(record) > RECORDS_BYTES:
                break
            kept += len(record)
        return data[:kept] or data
    return data


def pack(name: str, data: bytes) -> bytes:
    """Compress bytes as a file of this name is."""
    packer = PACKERS.get(Path(name).suffix)
    return packer(data) if packer else data
