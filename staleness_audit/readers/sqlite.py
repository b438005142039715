"""SQLite databases, read without leaving a trace beside them and without trusting what is in them.

SQLite opens a database in WAL mode by writing files next to it, so a run's own file is opened ``immutable`` (no locks,
no journal, no write) when it has no ``-wal`` beside it. A database with a ``-wal`` is still being written, or was when
the run died, and its newest rows are only in there: both are copied to a folder of our own and the copy is opened. So
is a compressed database, or one that a URL names. Extensions can't be loaded, schema code is not trusted, and size,
values and time are bounded.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from staleness_audit.discovery import RunFile, RunFiles
from staleness_audit.places import is_url
from staleness_audit.scratch import scratch_folder

MAGIC: Final = b"SQLite format 3\x00"
MAX_COPY_BYTES: Final = 4 << 30
MAX_VALUE_BYTES: Final = 64 << 20
MAX_SECONDS: Final = 600.0
_STEPS_PER_CHECK: Final = 100_000


class DamagedDatabase(Exception):
    """The file is no database, is damaged, or exceeds a limit; rows yielded before are good. One clause says why."""


class Database:
    """An open database; made by ``open_database``."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def columns(self, table: str) -> tuple[str, ...]:
        """Columns of a table; empty if there is none of this name (a view is none: its code is not ours to run)."""
        try:
            named = self._connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
            if named.fetchone() is None:
                return ()
            return tuple(row[0] for row in self._connection.execute("SELECT name FROM pragma_table_info(?)", (table,)))
        except (sqlite3.Error, UnicodeError) as error:  # the message may quote damaged text
            raise DamagedDatabase(str(error)) from error

    def rows(self, table: str, wanted: Sequence[str], order: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield a table's rows with the wanted columns, ordered; a column it does not have is None in every row.

        Text that is not UTF-8 comes as bytes. A table that does not exist yields nothing.

        Raises:
            DamagedDatabase: at the first row that cannot be read.

        """
        known = {name.lower(): name for name in self.columns(table)}
        if not known:
            return
        picked = [_quoted(known[name]) if name in known else "NULL" for name in wanted]
        by = [_quoted(known[name]) for name in order if name in known]
        query = f"SELECT {', '.join(picked)} FROM {_quoted(table)}" + (f" ORDER BY {', '.join(by)}" if by else "")  # noqa: S608
        try:
            for row in self._connection.execute(query):
                yield dict(zip(wanted, row, strict=True))
        except (sqlite3.Error, UnicodeError) as error:  # the message may quote damaged text
            raise DamagedDatabase(str(error)) from error


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def wal_of(run: RunFiles, file: RunFile) -> RunFile | None:
    """Return the write-ahead log beside a database, if it holds anything."""
    for other in run.files:
        if other.name == f"{file.name}-wal" and other.bytes:
            return other
    return None


@contextmanager
def open_database(run: RunFiles, source: str) -> Iterator[Database]:
    """Open a run's database for reading, with what its write-ahead log holds.

    Raises:
        DamagedDatabase: it is no database, or larger than ``MAX_COPY_BYTES`` where it has to be copied.
        UnreadableInput: it cannot be opened.

    """
    file = run.file(source)
    if not run.head(source, len(MAGIC)).startswith(MAGIC):
        raise DamagedDatabase("it is not an SQLite database")
    wal = wal_of(run, file)
    if wal is None and not file.compressed and not is_url(file.path):
        with _connect(file.path, "mode=ro&immutable=1") as connection:
            yield Database(connection)
        return
    with scratch_folder("staleness-audit-db-") as folder:
        copy = folder / "copy.db"
        _copy(run, file, copy)
        if wal is not None:
            _copy(run, wal, folder / "copy.db-wal")
        with _connect(copy, "mode=rw") as connection:
            yield Database(connection)


@contextmanager
def _connect(path: Path, options: str) -> Iterator[sqlite3.Connection]:
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?{options}", uri=True, isolation_level=None)
    except (sqlite3.Error, UnicodeError) as error:  # the message may quote damaged text
        raise DamagedDatabase(str(error)) from error
    with closing(connection):
        deadline = time.monotonic() + MAX_SECONDS
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_PER_CHECK)
        connection.text_factory = _text
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON", "temp_store = MEMORY"):
            try:
                connection.execute(f"PRAGMA {pragma}")
            except (sqlite3.Error, UnicodeError) as error:  # the message may quote damaged text
                raise DamagedDatabase(str(error)) from error
        yield connection


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _copy(run: RunFiles, file: RunFile, target: Path) -> None:
    size = 0
    try:
        with run.open(file.source) as source, target.open("wb") as sink:
            while chunk := source.read(1 << 20):
                size += len(chunk)
                if size > MAX_COPY_BYTES:
                    raise DamagedDatabase(f"it is larger than {MAX_COPY_BYTES >> 30} GiB")
                sink.write(chunk)
    except (OSError, EOFError) as error:
        raise DamagedDatabase(f"it cannot be copied ({error})") from error
