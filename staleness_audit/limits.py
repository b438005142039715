"""How much of the machine may be used: memory, threads, and the folder to spill to.

They live in environment variables, so that worker processes keep to them too: ``STALENESS_AUDIT_MEMORY`` (such as
``4GB``), ``STALENESS_AUDIT_THREADS``, ``STALENESS_AUDIT_TEMP_DIR``. The command line sets them from its options.
"""

from __future__ import annotations

import gc
import os
import re
from dataclasses import dataclass
from pathlib import Path

from staleness_audit.errors import AuditError

_MEMORY, _THREADS, _TEMP_DIR = (f"STALENESS_AUDIT_{name}" for name in ("MEMORY", "THREADS", "TEMP_DIR"))
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
SMALLEST_MEMORY = 100_000_000
"""Bytes below which even a short run may not fit."""


@dataclass(frozen=True)
class Limits:
    """Limits in force.

    ``memory``: bytes that DuckDB may hold; what does not fit is divided or spilled. ``threads``: of DuckDB, and units
    read at a time (None: one a core). ``spill``: folder for what is spilled (None: beside the tables).
    """

    memory: int = 1_200_000_000
    threads: int | None = None
    spill: Path | None = None

    @property
    def workers(self) -> int:
        """How many units are read at a time."""
        return self.threads or os.cpu_count() or 1


def limits() -> Limits:
    """Return the limits in force; ``AuditError`` if one of the variables is nonsense."""
    threads, spill = os.environ.get(_THREADS), os.environ.get(_TEMP_DIR)
    if threads and not (threads.isascii() and threads.isdigit() and int(threads)):
        raise AuditError(f"{_THREADS}={threads}: give a whole number from 1.")
    memory = os.environ.get(_MEMORY)
    return Limits(
        memory=parse_memory(memory) if memory else Limits.memory,
        threads=int(threads) if threads else None,
        spill=Path(spill) if spill else None,
    )


def seldom_collect() -> None:
    """Look for garbage in circles less often: rows are made by the hundred thousand, and none of them in circles."""
    gc.set_threshold(50_000, 10, 10)


def environment() -> dict[str, str]:
    """Return the variables that are set, for processes elsewhere."""
    names = (_MEMORY, _THREADS, _TEMP_DIR, "POLARS_MAX_THREADS")
    return {name: value for name in names if (value := os.environ.get(name))}


def set_limits(memory: str | None, threads: int | None, spill: Path | None) -> None:
    """Set limits for this process and those it starts; None leaves what is in force.

    Raises:
        AuditError: the memory is no size or too small, or the folder cannot be made.
    """
    if memory is not None:
        os.environ[_MEMORY] = str(parse_memory(memory))
    if threads is not None:
        os.environ[_THREADS] = str(threads)
        os.environ["POLARS_MAX_THREADS"] = str(threads)
    if spill is not None:
        try:
            spill.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AuditError(
                f"--temp-dir {spill}: cannot be made ({error.strerror}); choose another folder."
            ) from error
        os.environ[_TEMP_DIR] = str(spill.resolve())


def parse_memory(text: str) -> int:
    """Return the bytes of ``500MB``, ``4GB``, ``1.5GiB`` or a plain number; ``AuditError`` if it is none of these."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", text.strip().upper())
    if not match or match[2] not in _UNITS:
        raise AuditError(f"memory of {text}: give a size such as 500MB or 4GB.")
    size = int(float(match[1]) * _UNITS[match[2]])
    if size < SMALLEST_MEMORY:
        raise AuditError(f"memory of {text}: give at least {SMALLEST_MEMORY // 10**6}MB.")
    return size
