"""Files that a user named appear whole: the old one, the new one, or none, also if the writer is killed in between."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from staleness_audit.scratch import scratch_folder


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield where to write what shall be ``path``, and put it there if all went well.

    A pipe or a device (``/dev/stdout``) is written itself. What killed writers left beside it is removed.

    Raises:
        OSError: the file cannot be put there; also whatever the writing raises.
    """
    target = path.resolve()
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and not stat.S_ISREG(mode):
        yield path
        return
    with scratch_folder(f".{target.name[:40]}.part-", target.parent) as folder:
        aside = folder / "whole"
        yield aside
        if mode is not None:
            aside.chmod(stat.S_IMODE(mode))
        aside.replace(target)
