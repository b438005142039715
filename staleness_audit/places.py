"""Places: a path of this machine, or the URL of one on any file system that fsspec reaches (``s3://bucket/run``).

A URL becomes a ``UPath`` (universal-pathlib), which has the interface of ``pathlib.Path``: whoever takes a place takes
either. Credentials and endpoints are the file system's own matter: its environment variables, or fsspec's
configuration. Without a URL nothing is imported and no network is asked.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from staleness_audit.errors import AuditError, OptionalReaderMissing, Unreachable, UnreadableInput

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")
WHOLE_BYTES = 8 << 20
"""Objects up to this size are fetched in one request; larger ones as they are read, this much at a time."""
AT_ONCE = 16
"""Requests to an object store that one process makes at the same time."""
_CONTENT = ("ETag", "etag", "md5Hash", "content_md5", "blob_id", "oid", "checksum")
_CHANGED = ("LastModified", "mtime", "updated", "last_modified", "last_commit", "created")


def place(path: str | os.PathLike[str]) -> Path:
    """Return a path, or what a URL names, with the interface of a path.

    Raises:
        AuditError: the URL holds a password.
        OptionalReaderMissing: its file system needs a package that is not installed.
    """
    if not isinstance(path, str) or not (url := _URL.match(path)):
        return Path(path) if isinstance(path, str) else path  # type: ignore[return-value]
    if url["scheme"].lower() in ("file", "local"):
        return Path(unquote(urlsplit(path).path))
    if urlsplit(path).password:
        raise AuditError(f"{url[0]}...: a URL is printed and stored, so no password may be in it; see docs/scale.md.")
    with reaching(path):
        try:
            from upath import UPath  # noqa: PLC0415 - an optional extra
        except ImportError as error:
            raise OptionalReaderMissing(
                f"{path}: URLs need an extra: pip install 'staleness-audit[remote]'."
            ) from error
        found = UPath(path.rstrip("/"))
        _ = found.fs  # loads the package of this file system
        return found  # type: ignore[return-value]


def is_url(path: Path) -> bool:
    """Whether a place is elsewhere."""
    return not isinstance(path, Path)


def files_at(path: Path) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and its path there."""
    return path.fs, str(path.path)  # type: ignore[attr-defined]


@contextmanager
def reaching(path: object) -> Iterator[None]:
    """Turn what a file system's library raises, after its own retries, into one sentence.

    Raises:
        Unreachable: unlike damage, nothing that a reader may go on from.
    """
    try:
        yield
    except AuditError:
        raise
    except FileNotFoundError as error:
        raise Unreachable(f"{path}: there is nothing of this name; check the URL.") from error
    except PermissionError as error:
        raise Unreachable(f"{path}: access is denied; check the credentials in the environment.") from error
    except ImportError as error:
        raise OptionalReaderMissing(f"{path}: its file system needs a package that is missing ({error}).") from error
    except Exception as error:  # libraries of file systems have no common base for what they raise
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise Unreachable(f"{path}: cannot be reached ({why}); check URL, endpoint and credentials.") from error


def signature(info: Mapping[str, Any]) -> str:
    """What tells whether an object is still the same, from its listing: size, time of change, digest of its content."""
    changed = next((value for name in _CHANGED if (value := info.get(name)) is not None), 0)
    seconds = changed.timestamp() if hasattr(changed, "timestamp") else changed
    nanoseconds = int(seconds * 1e9) if isinstance(seconds, int | float) else 0
    content = [str(info[name]) for name in _CONTENT if info.get(name)]
    told = sha256("\0".join([*content, *([] if content else [str(changed)])]).encode()).hexdigest()[:32]
    return f"{info.get('size') or 0}:{nanoseconds}:{nanoseconds}:{told}"


def listing(root: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """List all objects below a URL: path relative to it and what the file system says of it. Folders in parallel.

    A single object lists itself, with an empty relative path.

    Raises:
        Unreachable: there is nothing, or it cannot be listed.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - without a URL it is not needed

    with reaching(root):
        system, base = files_at(root)
        system.invalidate_cache()
        if (info := system.info(base))["type"] == "file":
            return [("", info)]
        entries = system.ls(base, detail=True)
        folders = [entry["name"] for entry in entries if entry["type"] == "directory"]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            below = pool.map(lambda folder: system.find(folder, detail=True).values(), folders)
            found = [entry for entry in entries if entry["type"] == "file"] + [each for one in below for each in one]
        start = base.rstrip("/") + "/"
        # A folder's own marker is an object without content whose name ends with a slash.
        return [(name, entry) for entry in found if (name := entry["name"].removeprefix(start)) and name[-1] != "/"]


class _ObjectStream(io.RawIOBase):
    """An object read in ranges; where that fails for good, ``Unreachable`` and not what readers take for damage."""

    def __init__(self, path: Path, block_bytes: int) -> None:
        self._path = path
        system, name = files_at(path)
        with reaching(path):
            self._file = system.open(name, "rb", block_size=block_bytes, cache_type="readahead")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with reaching(self._path):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with reaching(self._path):
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def open_object(path: Path, size: int) -> io.BufferedIOBase:
    """Open an object of ``size`` bytes for reading; ``Unreachable`` if that fails after the retries of its library."""
    if size <= WHOLE_BYTES:
        return io.BytesIO(fetch(path, 0, size))
    return io.BufferedReader(_ObjectStream(path, WHOLE_BYTES), WHOLE_BYTES)


def fetch(path: Path, start: int, end: int) -> bytes:
    """Return the bytes ``[start, end)`` of an object."""
    if start >= end:
        return b""
    with reaching(path):
        system, name = files_at(path)
        data: bytes = system.cat_file(name, start=start, end=end)
        if len(data) != end - start:
            raise Unreachable(f"{path}: it changed while it was read; read it again when nobody writes it.")
        return data


def fetch_each(ranges: Sequence[tuple[Path, int, int]]) -> Iterator[bytes]:
    """Yield the bytes of ranges in order, fetched at the same time, a few ahead of what is taken."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - without a URL it is not needed

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for at in range(0, len(ranges), AT_ONCE):
            yield from pool.map(lambda each: fetch(*each), ranges[at : at + AT_ONCE])


def ranged(path: Path) -> Any:
    """Return the file system of a URL for readers of Parquet: it fetches little more than what they ask for.

    What libraries choose by themselves suits whole files: s3fs would fetch 50 MB to read a footer.
    """
    return _ranged(files_at(path)[0])


@lru_cache(8)
def _ranged(system: Any) -> Any:
    from staleness_audit.ranged import RangedFileSystem  # noqa: PLC0415 - needs fsspec, an optional extra

    return RangedFileSystem(system)


def matching(pattern: Path) -> list[Path]:
    """Return what a pattern matches."""
    if not is_url(pattern):
        return list(Path(pattern.anchor or ".").glob(str(pattern.relative_to(pattern.anchor))))
    with reaching(pattern):
        system, name = files_at(pattern)
        return [place(system.unstrip_protocol(found)) for found in system.glob(name)]


def read_text(path: Path) -> str:
    """Return the text of a file; ``OSError`` if there is none, ``Unreachable`` if a URL cannot be reached."""
    if not is_url(path):
        return path.read_text(encoding="utf-8")
    with reaching(path):
        system, name = files_at(path)
        if system.exists(name):
            return str(system.cat_file(name).decode())
    raise FileNotFoundError(str(path))


def upload(folder: Path, target: Path) -> None:
    """Copy the files of a local folder to a URL, at the same time; ``Unreachable`` if that fails."""
    with reaching(target):
        system, base = files_at(target)
        files = [file for file in folder.iterdir() if file.is_file()]
        system.put([str(file) for file in files], [f"{base}/{file.name}" for file in files])


def fetched(path: Path, folder: Path) -> Path:
    """Move a file into a folder of this machine; one that a URL names is copied."""
    target = folder / path.name
    if not is_url(path):
        return path.rename(target)
    with reaching(path):
        system, name = files_at(path)
        system.get_file(name, str(target))
    return target


def local_only(path: Path, what: str) -> Path:
    """Return a path of this machine; ``UnreadableInput`` for a URL, of which ``what`` is not possible."""
    if is_url(path):
        raise UnreadableInput(f"{path}: {what} a path of this machine; copy it, or mount it.")
    return path
