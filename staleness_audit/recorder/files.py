"""The files of one writer: created under a name of their own, appended to, rotated, compressed when full."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from staleness_audit.recorder.lines import header_line

NAME = 100
"""Characters of a writer's name that its files are called by; a whole file name may have 255."""

_SUFFIX = ".staleness.jsonl"


class LogFiles:
    """The log of one writer in one process: one file, or several in a row if they are rotated.

    Nothing exists before the first line is written. Names are ``<writer>-<host>-<pid>-<n>.staleness.jsonl``, rotated
    ``<writer>-<host>-<pid>-<n>.<part>.staleness.jsonl``; the first free ``n`` is taken, as process numbers return after
    a restart (in a container nearly always). Every part's header names the same writer, so that the audit joins them.

    Arguments:
        folder: where; made if it is missing.
        header: the header's fields but ``writer`` and ``format``.
        rotate_bytes: a new part begins when one has reached this size; None for one file.
        compress: whether full parts are compressed with zstd in the background, where a module for it is found.
        uncompressed: called in the background with the error that kept a full part from being compressed.
    """

    def __init__(
        self,
        folder: Path,
        writer: str,
        header: dict[str, Any],
        rotate_bytes: int | None,
        compress: bool,
        uncompressed: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self.folder = folder
        self.header = header
        self.rotate_bytes = rotate_bytes
        self.compress = compress
        self._writer = writer
        self._uncompressed = uncompressed
        self._compressing: list[threading.Thread] = []
        self._name: str | None = None
        self._descriptor: int | None = None
        self._path: Path | None = None
        self._part = 0
        self._size = 0
        self._torn = False

    @property
    def begun(self) -> bool:
        """Whether a file was made."""
        return self._name is not None

    def append(self, data: bytes) -> tuple[int, OSError | None]:
        """Append whole lines; return how many bytes of them were written and, if not all, why.

        Raises ``OSError`` if no file can be opened. A line that was cut by an error is ended before the next one.
        """
        if self._descriptor is not None and not self._torn and self.rotate_bytes is None:
            written, error = _write(self._descriptor, data)  # nearly always
            if error is None:
                return written, None
            return self._cut(data, written), error
        if self._descriptor is not None and self.rotate_bytes is not None and self._size >= self.rotate_bytes:
            self.end_part()
        if self._descriptor is None:
            self._descriptor = self._open()
        if self._torn:
            newline, error = _write(self._descriptor, b"\n")
            if not newline:
                return 0, error
            self._torn = False
        written, error = _write(self._descriptor, data)
        return self._cut(data, written), error

    def _cut(self, data: bytes, written: int) -> int:
        """Note where the file ends now, in the midst of a line or not."""
        self._torn = written < len(data) and data[written - 1 : written] not in (b"", b"\n")
        self._size += written
        return written

    def close(self) -> None:
        """Close the file; a later ``append`` goes on in it."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def removed(self) -> bool:
        """Whether somebody has removed the open file, so that what is written to it goes nowhere."""
        if self._descriptor is None or os.fstat(self._descriptor).st_nlink:
            return False
        # Not every file system counts names.
        return self._path is None or not self._path.exists()

    def end_part(self) -> None:
        """Close the file, if there is one; what follows goes into the next part."""
        self.close()
        full, self._path, self._torn = self._path, None, False
        if full is None:
            return
        self._part += 1
        if self.compress and full.exists():
            self._compress(full)

    def settle(self, seconds: float) -> None:
        """Wait, up to ``seconds``, until full parts are compressed."""
        until = time.monotonic() + seconds
        for thread in self._compressing:
            thread.join(max(0.0, until - time.monotonic()))
        self._compressing = [thread for thread in self._compressing if thread.is_alive()]

    def _open(self) -> int:
        if self._path is not None:  # closed before: go on
            with suppress(FileNotFoundError):
                return os.open(self._path, os.O_WRONLY | os.O_APPEND)
            self.end_part()
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor, name, path = self._create()
        head = header_line({**self.header, "writer": self._name or name})
        _, error = _write(descriptor, head)
        if error is not None:
            # A file without a header would be read as damage of an unknown writer.
            os.close(descriptor)
            path.unlink()
            raise error
        self._name = self._name or name
        self._path = path
        self._size = len(head)
        return descriptor

    def _create(self) -> tuple[int, str, Path]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        # Not before: a recorder may be made in one process and used in its forks.
        parts = (self._writer[:NAME], socket.gethostname(), str(os.getpid()))
        stem = "-".join(_word(part) for part in parts)
        for number in count():
            name = f"{stem}-{number}" if self._name is None else f"{self._name}.{self._part + number}"
            path = self.folder / (name + _SUFFIX)
            # The name may be taken by a file that has been compressed since.
            if not path.with_name(path.name + ".zst").exists():
                with suppress(FileExistsError):
                    return os.open(path, flags, 0o666), name, path
        raise AssertionError("count() never ends")

    def _compress(self, full: Path) -> None:
        """Compress a full part in the background: it may take a second, and the next lines must not wait for it."""
        opener = _zstd()
        if opener is None:
            return
        arguments = (full, opener, self._uncompressed)
        thread = threading.Thread(target=_compress, args=arguments, name="staleness-recorder-zstd")
        try:
            thread.start()
        except RuntimeError as error:  # no thread to be had, or the interpreter is shutting down
            self._uncompressed(error)
            return
        self._compressing = [*(each for each in self._compressing if each.is_alive()), thread]


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "_", text) or "_"


def _write(descriptor: int, data: bytes) -> tuple[int, OSError | None]:
    """Write all of it, or as much as the system takes; return how many bytes, and the error that stopped it."""
    written = 0
    try:
        written = os.write(descriptor, data)
        while written < len(data):  # a disk filling up, or more than 2 GiB
            written += os.write(descriptor, memoryview(data)[written:])
    except OSError as error:
        return written, error
    return written, None


def _zstd() -> Callable[[Path], BinaryIO] | None:
    """Return what opens a file for writing zstd: Python's own module (3.14), the `zstandard` package, or nothing."""
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
    except ImportError:
        try:
            import zstandard as zstd  # noqa: PLC0415
        except ImportError:
            return None
    return lambda path: zstd.open(path, "wb")  # type: ignore[no-any-return,unused-ignore]


def _compress(path: Path, opener: Callable[[Path], BinaryIO], failed: Callable[[Exception], None]) -> None:
    """Replace a file by its compressed copy; on any error the file stays. A reader who sees both takes one."""
    part = path.with_name(path.name + ".zst.part")
    try:
        with path.open("rb") as source, opener(part) as target:
            while block := source.read(1 << 20):
                target.write(block)
        part.replace(path.with_name(path.name + ".zst"))
        path.unlink()
    except Exception as error:  # whatever a codec may raise, the log itself is whole
        with suppress(OSError):
            part.unlink(missing_ok=True)
        failed(error)
