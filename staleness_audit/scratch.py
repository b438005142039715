"""Folders for what is written on the way to something else; what killed processes left of theirs goes with the next."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_HELD = ".held"
"""A file that its maker keeps locked. The kernel drops the lock when a process dies, on shared disks of another machine
too, which a number of a process would not tell."""


@contextmanager
def scratch_folder(prefix: str, base: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder of its own below ``base``; it goes with the block.

    Args:
        prefix: what its name begins with. Folders of this prefix that dead processes left are removed first.
        base: where it is made; default: where the system keeps temporary files.

    Raises:
        OSError: it cannot be made.
    """
    base = base or Path(tempfile.gettempdir())
    _remove_left(base, prefix)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=base, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with (folder / f"{_HELD}.new").open("wb") as held:
            with suppress(OSError):  # without locks nobody can tell who is dead, so nobody removes it
                fcntl.flock(held, fcntl.LOCK_EX)
                # Under the name that others look for it is never seen unlocked.
                Path(held.name).rename(folder / _HELD)
            (folder / "work").mkdir()
            yield folder / "work"


def _remove_left(base: Path, prefix: str) -> None:
    for folder in base.glob(f"{glob.escape(prefix)}*"):
        try:
            held = os.open(folder / _HELD, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # another user's, or being made at this moment
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # somebody works in it
            continue
        else:
            if not folder.is_symlink():
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(held)
