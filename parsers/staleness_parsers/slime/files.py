"""Which files of a run are slime's, and which belong together.

Dumps are told apart by the first bytes of their pickle (the keys slime writes first), because their paths are templates
of the user's; names decide only where the bytes are damaged, and tell evaluation dumps (``eval_<id>``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from staleness_audit.discovery import RunFile, RunFiles

Kind = Literal["rollout", "eval", "train", "dataset"]

_TEXT_SUFFIXES: Final = (".log", ".out", ".err", ".txt")
_TEXT_NAMES: Final = ("console", "stdout", "stderr", "nohup", "output")
_ROLLOUT_ID: Final = re.compile(rb"rollout_id(?:q.|r.{4}|\x94)?(?:K(.)|M(..)|J(.{4}))", re.DOTALL)
_EVAL_NAME: Final = re.compile(r"eval_(\d{1,9})(?!\d)[^/]*$")
_LAST_NUMBER: Final = re.compile(r"(?<!\d)(\d{1,9})(?=\D*$)")
_DATASET_NAME: Final = re.compile(r"global_dataset_state_dict_(\d{1,9})\.pt$")
CONSOLE_MARKS: Final = (
    b"fully-async rollout ",
    b"starting fully-async rollout worker",
    b"Save debug rollout data to ",
    b"Starting async rollout generation for ",
)
CONSOLE_WEAK_MARKS: Final = (b"Timer train_wait start", b"Timer update_weights start")
HEAD_BYTES: Final = 64 << 10


@dataclass(frozen=True)
class Dump:
    """A torch file of slime. ``rollout``: the id its first bytes or, if those are damaged, its name gives.

    ``sure``: its first bytes say what it is.
    """

    source: str
    kind: Kind
    rollout: int
    sure: bool


def dumps(run: RunFiles) -> Iterator[Dump]:
    """Yield the torch files that are slime's, in natural order of their names."""
    for file in run.named(lambda name: name.endswith((".pt", ".pth", ".pkl"))):
        if (dump := _classify(run, file)) is not None:
            yield dump


def _classify(run: RunFiles, file: RunFile) -> Dump | None:
    if dataset := _DATASET_NAME.search(file.name):
        return Dump(file.source, "dataset", int(dataset[1]), sure=True)
    head = run.head(file.source)
    by_bytes = _kind_of_bytes(head)
    kind = by_bytes or _kind_of_name(file.name)
    if kind is None:
        return None
    if kind == "rollout" and (found := _EVAL_NAME.search(file.name)):
        return Dump(file.source, "eval", int(found[1]), sure=by_bytes is not None)
    rollout = _rollout_id(head) if by_bytes else None
    if rollout is None:
        number = _LAST_NUMBER.search(file.name.rsplit("/", 1)[-1])
        rollout = int(number[1]) if number else None
    return None if rollout is None else Dump(file.source, kind, rollout, sure=by_bytes is not None)


def _kind_of_bytes(head: bytes) -> Kind | None:
    if b"rollout_id" not in head:
        return None
    if b"rollout_data" in head or (b"format_version" in head and b"rank" in head):
        return "train"
    if b"samples" in head and (b"group_index" in head or b"index" in head or b"samplesq\x02]" in head):
        return "rollout"
    return None


def _kind_of_name(name: str) -> Kind | None:
    """Kind by the folders of ``--dump-details``: all that is left of a file whose first bytes are damaged."""
    parts = name.split("/")[:-1]
    if parts[-1:] == ["rollout_data"]:
        return "rollout"
    return "train" if parts[-1:] == ["train_data"] else None


def _rollout_id(head: bytes) -> int | None:
    found = _ROLLOUT_ID.search(head)
    return int.from_bytes(next(part for part in found.groups() if part is not None), "little") if found else None


def consoles(run: RunFiles) -> list[RunFile]:
    """Text logs: anything named like one. Lines that are not slime's cost only their reading."""
    return run.named(lambda name: name.endswith(_TEXT_SUFFIXES) or name.startswith(_TEXT_NAMES))


def roots(found: list[Dump]) -> dict[str, str]:
    """Map each dump to the folder that stands for its run, so that a rollout's two dumps meet.

    A folder of train dumps belongs to the folder of rollout dumps with which it shares the longest path.
    """
    rollout_folders = sorted({_folder(dump.source) for dump in found if dump.kind in {"rollout", "eval"}})
    home = {}
    for dump in found:
        folder = _folder(dump.source)
        if dump.kind == "train" and rollout_folders:
            folder = max((_shared(folder, other), other) for other in rollout_folders)[1]
        home[dump.source] = folder
    return home


def _folder(source: str) -> str:
    return source.rpartition("/")[0]


def _shared(one: str, other: str) -> int:
    count = 0
    for left, right in zip(one.split("/"), other.split("/"), strict=False):
        if left != right:
            break
        count += 1
    return count
