"""Writes the canonical event log (docs/events.md) of a simulated run, one writer, numbered without gaps."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from staleness_audit import __version__

FORMAT = "staleness-events/1"
BUFFERED_LINES = 20_000


class EventLog:
    """An event log being written; use it as a context manager, which writes the end line.

    A name that ends in ``.zst`` is compressed. Ids must not need escaping in JSON: they are the simulator's own.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._path, self._header = path, dict(header)
        self._lines: list[str] = []
        self._attempt = 0
        self._open(path)

    def _open(self, path: Path) -> None:
        self._number = 0
        self._file: IO[bytes]
        if path.suffix == ".zst":
            import zstandard  # noqa: PLC0415 - only where it is asked for

            self._file = zstandard.ZstdCompressor(level=3).stream_writer(path.open("wb"), closefd=True)
        else:
            self._file = io.BufferedWriter(path.open("wb", buffering=0))
        writer = f"staleness-audit {__version__}"
        self._lines.append(json.dumps({"format": FORMAT, **self._header, "clock": "relative", "writer": writer}))

    def restart(self, resumed_after: int) -> None:
        """Go on in another file, as the next attempt, which builds on the steps up to ``resumed_after``."""
        self._end()
        self._attempt += 1
        self._header |= {"attempt": self._attempt, "resumed_after": resumed_after}
        stem, dot, rest = self._path.name.partition(".")
        self._open(self._path.with_name(f"{stem}-{self._attempt}{dot}{rest}"))

    def write(self, kind: str, fields: str) -> None:
        """Write an event; ``fields`` are its other fields as JSON members, without braces."""
        self._number += 1
        self._lines.append(f'{{"kind": "{kind}", "n": {self._number}, {fields}}}')
        if len(self._lines) >= BUFFERED_LINES:
            self._flush()

    def _flush(self) -> None:
        self._lines.append("")
        self._file.write("\n".join(self._lines).encode())
        self._lines.clear()

    def __enter__(self) -> EventLog:
        """Return the log itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the end line, also after an exception: what is in the log did happen."""
        self._end()

    def _end(self) -> None:
        self._lines.append(f'{{"kind": "end", "n": {self._number + 1}}}')
        self._flush()
        self._file.close()
