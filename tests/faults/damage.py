"""Damage to a run: each changes the files below a folder, by chance, and says what it did."""

from __future__ import annotations

import dataclasses
import gzip
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zstandard
from helpers.soundness import kind_of

from faults import content

Change = Callable[[bytes, random.Random], bytes | None]
TEXT = {".log", ".jsonl", ".txt"}
WRITTEN_WHOLE = {".json", ".yaml", ".yml"}


@dataclass(frozen=True)
class Wound:
    """What was done: in words, and to which files (relative to the run)."""

    text: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Damage:
    """A kind of damage.

    ``visible``: what is left is no sound file of its format, so if any figure changes, a diagnostic must name the file.
    ``early``: the logs end early, so there may have been more than they say. ``shortens``: so they do where the file
    is the run's only one. ``forges``: what it leaves can be a
    record that could be true, so nothing needs to betray it.
    """

    name: str
    inflict: Callable[[Path, random.Random], Wound | None]
    visible: bool = False
    early: bool = False
    forges: bool = False
    shortens: bool = False

    def ends_early(self, run: Path) -> bool:
        """Whether nothing that is left of the run can tell how it went on."""
        records = [path for path in run.rglob("*") if path.is_file() and plain_name(path).suffix not in WRITTEN_WHOLE]
        return self.early or (self.shortens and len(records) == 1)


def plain_name(path: Path) -> Path:
    return path.with_suffix("") if path.suffix in {".gz", ".zst"} else path


def unpack(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data


def replace(path: Path, data: bytes, *, packed: bool) -> None:
    """Put another file in the place of one (which may be linked to the recorded one)."""
    if packed and path.suffix == ".gz":
        data = gzip.compress(data, 1)
    elif packed and path.suffix == ".zst":
        data = zstandard.compress(data, 1)
    path.unlink()
    path.write_bytes(data)


def files_of(run: Path, suits: Callable[[Path], bool]) -> list[list[Path]]:
    """Files that suit, those of one kind together."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(path for path in run.rglob("*") if path.is_file() and suits(path)):
        kinds.setdefault(kind_of(path.relative_to(run)), []).append(path)
    return list(kinds.values())


def is_text(path: Path) -> bool:
    return plain_name(path).suffix in TEXT


def is_readable(path: Path) -> bool:
    return plain_name(path).suffix in TEXT | WRITTEN_WHOLE


def is_packed(path: Path) -> bool:
    return path.suffix in {".gz", ".zst"}


def is_binary(path: Path) -> bool:
    return not is_readable(path)


def anything(path: Path) -> bool:
    return True


def of_one_file(change: Change, suits: Callable[[Path], bool], *, packed: bool = True) -> Callable:
    """Damage one file, of a kind chosen by chance; ``packed``: what is inside a compressed one."""

    def inflict(run: Path, rng: random.Random) -> Wound | None:
        kinds = files_of(run, suits)
        rng.shuffle(kinds)
        for kind in kinds:
            path = rng.choice(kind)
            data = change(unpack(path) if packed else path.read_bytes(), rng)
            if data is not None:
                replace(path, data, packed=packed)
                name = path.relative_to(run).as_posix()
                return Wound(f"{change.__name__} in {name}", (name,))
        return None

    return inflict


def delete_file(run: Path, rng: random.Random) -> Wound | None:
    kinds = files_of(run, anything)
    if len(kinds) < 2 and len(kinds[0]) < 2:
        return None
    path = rng.choice(rng.choice(kinds))
    path.unlink()
    name = path.relative_to(run).as_posix()
    return Wound(f"deleted {name}", (name,))


def copy_file(run: Path, rng: random.Random) -> Wound | None:
    """A copy beside a file, or in a folder of its own, as people keep them."""
    path = rng.choice(rng.choice(files_of(run, anything)))
    name = path.relative_to(run)
    suffixes = "".join(path.suffixes[-2:])
    stem = path.name.removesuffix(suffixes)
    copy = rng.choice([path.with_name(f"{stem}-copy{suffixes}"), run / "backup" / name])
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, copy)
    return Wound(f"copied {name} to {copy.relative_to(run)}", (name.as_posix(), copy.relative_to(run).as_posix()))


def copy_old_state(run: Path, rng: random.Random) -> Wound | None:
    """A copy of a log as it was some time ago, beside it."""
    kinds = files_of(run, is_text)
    if not kinds:
        return None
    path = rng.choice(rng.choice(kinds))
    lines = content.lines_of(unpack(path))
    copy = plain_name(path).with_name(f"old-{plain_name(path).name}")
    copy.write_bytes(b"".join(lines[: len(lines) * 2 // 3]))
    names = (path.relative_to(run).as_posix(), copy.relative_to(run).as_posix())
    return Wound(f"an older state of {names[0]} as {names[1]}", names)


def lose_step(run: Path, rng: random.Random) -> Wound | None:
    """Every line and file that is named by one step is gone."""
    step = rng.randrange(2, 6)
    words = rb"(?:global_)?(?:step|rollout|iteration|rollout_id|train_step)s?"
    line = re.compile(rb"(?i)\b%s[\"']?[ :=_]{1,3}%d\b" % (words, step))
    file = re.compile(rf"(?:^|[/_.]|step_?){step}(?=[./_])")
    hit = []
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        name = path.relative_to(run).as_posix()
        if file.search(name):
            path.unlink()
            hit.append(name)
        elif is_text(path):
            lines = content.lines_of(unpack(path))
            kept = [text for text in lines if not line.search(text)]
            if len(kept) < len(lines):
                replace(path, b"".join(kept), packed=True)
                hit.append(name)
    return Wound(f"without what names step {step}", tuple(hit)) if hit else None


def cut_everything(run: Path, rng: random.Random) -> Wound | None:
    """Every log ends at the same share of its bytes: the disk is full."""
    share = rng.uniform(0.4, 0.95)
    hit = []
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        if is_text(path) or "tfevents" in path.name:
            data = unpack(path)
            replace(path, data[: int(len(data) * share)], packed=True)
            hit.append(path.relative_to(run).as_posix())
    return Wound(f"every log cut at {share:.2f}", tuple(hit)) if hit else None


def _one(change: Change, suits: Callable[[Path], bool], *, packed: bool = True, **flags: bool) -> Damage:
    return Damage(change.__name__, of_one_file(change, suits, packed=packed), **flags)


def _is_zip(path: Path) -> bool:
    return plain_name(path).suffix in {".pt", ".zip"} and unpack(path)[:2] == b"PK"


def _is_pickle(path: Path) -> bool:
    return plain_name(path).suffix in {".pkl", ".dp", ".pt"} and unpack(path)[:1] == b"\x80"


def _is_summed(path: Path) -> bool:
    """Whether a compressed file has a checksum: what flips in a Zstandard frame without one is other text."""
    return path.suffix == ".gz"


def _renamed(name: str, damage: Damage) -> Damage:
    return dataclasses.replace(damage, name=name)


DAMAGES: tuple[Damage, ...] = (
    _one(content.cut_mid_line, is_text, shortens=True),
    _one(content.cut_at_line_end, is_text, shortens=True),
    _one(content.cut_mid_record, is_text, shortens=True),
    _one(content.emptied, anything, shortens=True),
    _one(content.cut_mid_member, _is_zip, visible=True),
    _renamed("cut_pickle", _one(content.cut_anywhere, _is_pickle, visible=True)),
    _renamed("cut_compressed", _one(content.cut_anywhere, is_packed, packed=False, visible=True)),
    _renamed("cut_binary", _one(content.cut_anywhere, is_binary, shortens=True)),
    _renamed("cut_document", _one(content.cut_anywhere, lambda path: plain_name(path).suffix in WRITTEN_WHOLE)),
    Damage("cut_everything", cut_everything, early=True),
    Damage("delete_file", delete_file),
    Damage("copy_file", copy_file),
    Damage("copy_old_state", copy_old_state),
    Damage("lose_step", lose_step),
    _one(content.lose_line, is_text),
    _one(content.lose_block, is_text),
    _one(content.repeat_line, is_text, forges=True),
    _one(content.repeat_block, is_text, forges=True),
    _renamed("shuffle_records", _one(content.shuffle_near, lambda path: plain_name(path).suffix == ".jsonl")),
    _one(content.shuffle_near, lambda path: plain_name(path).suffix != ".jsonl" and is_text(path), forges=True),
    _one(content.shuffle_all, is_text, forges=True),
    _one(content.interleave, is_text),
    _one(content.flip_bytes, is_readable),
    _renamed("flip_binary", _one(content.flip_bytes, is_binary, forges=True)),
    _renamed("flip_packed", _one(content.flip_bytes, _is_summed, packed=False, visible=True)),
    _renamed("flip_frame", _one(content.flip_bytes, is_packed, packed=False, forges=True)),
    _one(content.flip_low_bits, anything, forges=True),
    _one(content.zero_page, is_readable),
    _renamed("zero_page_binary", _one(content.zero_page, is_binary, forges=True)),
    _one(content.zero_tail, is_readable),
    _one(content.utf_16, is_readable, visible=True),
    _one(content.latin_1, is_text),
    _one(content.windows_text, is_readable),
    _one(content.not_a_number, is_readable),
    _one(content.huge_number, is_readable),
    _one(content.negative_version, is_readable, forges=True),
    _one(content.future_version, is_readable, forges=True),
    _one(content.clock_jump, is_text),
    _one(content.other_zone, is_text),
    _one(content.restart_numbering, is_text, forges=True),
)
BY_NAME = {damage.name: damage for damage in DAMAGES}
