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
_WORK = "work"


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
    folder, held = _made(base, prefix)
    try:
        (folder / _WORK).mkdir()
        yield folder / _WORK
    finally:
        _remove(folder)
        os.close(held)


def _made(base: Path, prefix: str) -> tuple[Path, int]:
    """Make a folder and hold its lock; whoever removes what is left may have taken it for that until it was locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        try:
            held = os.open(folder / _HELD, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        except OSError:
            _remove(folder)
            raise
        with suppress(OSError):  # without locks nobody can tell who is dead, so nobody removes it
            fcntl.flock(held, fcntl.LOCK_EX)
        if (folder / _HELD).exists():
            return folder, held
        os.close(held)


def _remove(folder: Path) -> None:
    """Remove a folder; if that ends on the way, what is left can still be told to be nobody's."""
    shutil.rmtree(folder / _WORK, ignore_errors=True)
    with suppress(OSError):
        (folder / _HELD).unlink(missing_ok=True)
        folder.rmdir()


def _remove_left(base: Path, prefix: str) -> None:
    # Tables of a run that is called as the prefix have longer names than ``mkdtemp`` gives: eight characters more.
    for folder in base.glob(f"{glob.escape(prefix)}????????"):
        if folder.is_symlink():
            continue
        with suppress(OSError):  # its maker was killed at once, or makes another one
            folder.rmdir()
            continue
        try:
            held = os.open(folder / _HELD, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # another user's, or none of ours
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # somebody works in it
            continue
        else:
            _remove(folder)
        finally:
            os.close(held)
