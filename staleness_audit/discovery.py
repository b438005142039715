"""Discovery: which files a run consists of, and how their bytes are reached (the first station).

A run is a directory or a single file. Files are known by their path relative to the run, with ``/`` between parts;
a compressed log (``.gz``, ``.zst``) goes by the name it has without that suffix. Nothing outside the run directory is
read: links that lead out of it, and anything that is not a regular file, are listed in ``RunFiles.skipped``;
files that only repeat another in ``RunFiles.repeated``.
"""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import io
import os
import re
import stat
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from staleness_audit.errors import UnreadableInput
from staleness_audit.limits import limits
from staleness_audit.places import fetch, fetch_each, is_url, listing, open_object
from staleness_audit.places import signature as signature_of

CACHE_FOLDER = ".staleness-audit"
_COMPRESSED = (".gz", ".zst")
_READ_BYTES = 1 << 22
_HEAD_STEP = 1 << 12
_HEAD_BYTES = 1 << 16
_HEADS_AT_ONCE = 2048
UNPACKED_BYTES = 1 << 30
MAX_EXPANSION = 1100
"""What a compressed file may unpack to: ``UNPACKED_BYTES``, or this many times its own bytes if that is more (gzip
reaches 1032, and so do logs of long runs of equal numbers; a bomb of Zstandard reaches 30,000)."""
MANY_PIECES = 64
"""Pieces of a file from which small ones are joined."""
BUNDLE_BYTES = 8 << 20
"""Bytes of neighbouring small files that are read as one unit, where there is little."""
_SHARED_FROM = 1 << 20
"""Bytes of a piece below which it is not worth giving it to another reader."""
GUARD = 4096
"""Bytes before the place reached that are compared, so that a file that was cut and has grown again is noticed."""
_TAIL_FROM = 1 << 20
"""Bytes of a file from which it is worth keeping how far it was hashed."""
_RECORDS_BYTES = 8 << 20
"""Bytes of a piece of a file of records, about."""
_DIGITS = re.compile(r"\d+")
_COUNTED = re.compile(r"[0-9a-fA-F-]{8,}|\d+")
"""What tells one file from others of its kind: numbers, digests, ids."""

Read = Callable[[int], bytes]
"""Reads up to so many bytes."""


@dataclass(frozen=True)
class RunFile:
    """One file: ``source`` is its real relative path, ``name`` the same without a compression suffix.

    What is derived from its name is kept with it: a run can have very many files, which a watch lists again and again.
    """

    source: str
    name: str
    path: Path
    bytes: int
    signature: str

    @property
    def compressed(self) -> bool:
        """Whether reading it means decompressing it."""
        return self.source != self.name

    @cached_property
    def changed(self) -> int:
        """When it last changed, in nanoseconds since the epoch: for a file its status too, so a new name counts."""
        return int(self.signature.split(":")[2])

    @cached_property
    def order(self) -> str:
        """Sort key of ``source``: see ``natural``."""
        return natural(self.source)

    @cached_property
    def kind(self) -> str:
        """Its name without what tells it from others of its kind."""
        return _COUNTED.sub("#", self.name)


@dataclass(frozen=True)
class Piece:
    """The bytes ``[start, end)`` of a file. ``first_line`` is the number of the line that begins at ``start``.

    ``digest`` is the SHA-256 of the file's bytes from 0 to ``end`` (compressed bytes of a compressed file), so that a
    piece is the same only if all before it is. Of an object that a URL names it is ``object:`` and what the listing
    says of its content, so that it need not be fetched to be known. ``lines``: how many begin in it (0 for a compressed
    or binary file, or where they were not counted).
    """

    source: str
    start: int
    end: int
    first_line: int
    digest: str
    lines: int = 0


Known = dict[str, tuple[str, tuple[Piece, ...]]]
"""By source the signature of a file that was read, and its pieces in order."""


@dataclass(frozen=True)
class Tail:
    """How far a file was read: ``end`` bytes and ``lines`` lines, whose hash and last bytes are kept.

    A file that is the same one, no shorter, and the same just before that place is taken as appended to.
    """

    inode: tuple[int, int]
    end: int
    lines: int
    digest: Any
    last: bytes
    signature: str = ""

    def goes_on(self, stream: BinaryIO) -> bool:
        """Whether an open file does so; it is left where new bytes begin."""
        stream.seek(self.end - len(self.last))
        return inode_of(stream) == self.inode and stream.read(len(self.last)) == self.last


class _Hashed:
    """A stream of which the hash and the last bytes are known of all that was read, from a tail on."""

    def __init__(self, stream: BinaryIO, tail: Tail) -> None:
        self.end = tail.end
        self._stream = stream
        self._inode = tail.inode
        self._digest = tail.digest.copy()
        self._last = tail.last

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self.end += len(data)
        self._digest.update(data)
        self._last = (self._last + data[-GUARD:])[-GUARD:]
        return data

    def tail(self, lines: int) -> Tail:
        """How far it was read, if that was so many lines."""
        return Tail(self._inode, self.end, lines, self._digest.copy(), self._last)


def _between(source: str, start: Tail, end: Tail) -> Piece:
    return Piece(source, start.end, end.end, start.lines + 1, end.digest.hexdigest(), end.lines - start.lines)


def inode_of(stream: BinaryIO) -> tuple[int, int]:
    """What tells an open file from another one of its name."""
    status = os.fstat(stream.fileno())
    return status.st_dev, status.st_ino


@dataclass
class RunFiles:
    """The files of one run. ``root`` is the run directory, or the folder of the single file that was given.

    ``known`` holds the pieces of an earlier ingestion, to be reused where bytes are the same. ``assume`` is what the
    user says that the logs don't; rows that rest on it have the evidence ``assumed``. ``spool``: folder of this machine
    where pieces of objects that were fetched to be cut are kept until they are read. ``heads``: where ``head`` keeps
    what it has read, with the signature of the file, for a later look at the same run (None: nowhere). ``tails``: where
    ``split`` keeps how far it has hashed a large file, so that a later look hashes only what was appended. ``texts``:
    signatures of files that nobody reads and that are no garbled text, so that a later look need not open them.
    """

    root: Path
    files: tuple[RunFile, ...]
    is_directory: bool = True
    skipped: tuple[tuple[str, str], ...] = ()
    repeated: tuple[tuple[str, str], ...] = ()
    known: Known = field(default_factory=dict)
    assume: dict[str, str] = field(default_factory=dict)
    spool: Path | None = None
    heads: dict[tuple[str, int], tuple[str, bytes]] | None = field(default=None, repr=False, compare=False)
    tails: dict[str, Tail] | None = field(default=None, repr=False, compare=False)
    texts: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    _heads: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    @property
    def path(self) -> Path:
        """What was given: the directory, or the single file."""
        return self.root if self.is_directory else self.files[0].path

    @cached_property
    def _by_source(self) -> dict[str, RunFile]:
        return {file.source: file for file in self.files}

    @cached_property
    def _by_last_part(self) -> dict[str, list[tuple[int, RunFile]]]:
        """Files with their places, by the last part of their name: a run has many files of few such names."""
        found: dict[str, list[tuple[int, RunFile]]] = {}
        for place, file in enumerate(self.files):
            found.setdefault(file.name.rpartition("/")[2], []).append((place, file))
        return found

    def file(self, source: str) -> RunFile:
        """Return the file with this relative path; ``KeyError`` if the run has none."""
        return self._by_source[source]

    def match(self, pattern: str) -> list[RunFile]:
        """Files whose name matches a glob at any depth, in natural order (``2.pt`` before ``10.pt``).

        ``rollouts/step_*/train/effective/traces.jsonl`` matches below any number of leading folders; ``*`` stays
        within one path part.
        """
        parts = [fnmatch.translate(part).removesuffix(r"\Z").removesuffix(r"\z") for part in pattern.split("/")]
        parts = [part.replace(".*", "[^/]*") for part in parts]
        regex = re.compile("(?:.*/)?" + "/".join(parts) + r"\Z", re.DOTALL)
        last = re.compile(parts[-1] + r"\Z", re.DOTALL)
        found = [file for file in self.named(lambda name: bool(last.match(name))) if regex.match(file.name)]
        return sorted(found, key=lambda file: natural(file.name) if file.compressed else file.order)

    def named(self, fits: Callable[[str], bool]) -> list[RunFile]:
        """Files whose name ends with a part that fits, in their order; it is asked once of all that share that part."""
        alike = chain.from_iterable(files for name, files in self._by_last_part.items() if fits(name))
        return [file for _, file in sorted(alike, key=itemgetter(0))]

    def open(self, source: str) -> BinaryIO:
        """Open a file for reading its decompressed bytes; damage raises ``OSError`` or ``EOFError`` later.

        Raises:
            UnreadableInput: it cannot be opened.
        """
        file = self.file(source)
        if is_url(file.path):
            head = self._heads.get(source)
            kept = head is not None and len(head) == file.bytes
            raw = io.BytesIO(head or b"") if kept else open_object(file.path, file.bytes)
            return _opened(source, raw, file.bytes)
        return _opened(source, _open(file.path), file.bytes)

    def open_piece(self, piece: Piece) -> BinaryIO:
        """Open a file as ``open`` does, where a piece begins: nothing beyond its end may be asked for."""
        if self.spool and (kept := self._spooled(piece)).exists():
            return kept.open("rb")
        stream = self.open(piece.source)
        if piece.start:
            stream.seek(piece.start)
        return stream

    def _fetched(self, file: RunFile) -> Iterable[bytes]:
        """Fetch an object, unless all of it is known already."""
        head = self._heads.get(file.source, b"")
        return (head,) if len(head) == file.bytes else _chunks(file)

    def _spooled(self, piece: Piece) -> Path:
        assert self.spool is not None
        return self.spool / f"{hashlib.sha256(piece.source.encode()).hexdigest()[:24]}-{piece.start}"

    def forget(self, pieces: Iterable[Piece]) -> None:
        """Drop what ``spool`` keeps of pieces that need not be read any more."""
        if self.spool:
            for piece in pieces:
                self._spooled(piece).unlink(missing_ok=True)

    def head(self, source: str, size: int = 4096) -> bytes:
        """First decompressed bytes of a file for detection; of a damaged one those before the damage."""
        if self.heads is None:
            return self._read_head(source, size)
        signature, found = self.heads.get((source, size), ("", b""))
        if signature != self.file(source).signature:
            found = self._read_head(source, size)
            self.heads[source, size] = (self.file(source).signature, found)
        return found

    def _read_head(self, source: str, size: int) -> bytes:
        found = bytearray()
        try:
            with self._open_head(source, size) as stream:
                while len(found) < size and (part := stream.read(min(size - len(found), _HEAD_STEP))):
                    found += part
        except (OSError, EOFError, UnreadableInput):
            return bytes(found)
        return bytes(found)

    def unreadable(self, source: str) -> bool:
        """Whether its very beginning is damaged, so that ``head`` finds nothing. An empty file is readable."""
        try:
            with self._open_head(source, _HEAD_STEP) as stream:
                stream.read(_HEAD_STEP)
        except (OSError, EOFError, UnreadableInput):
            return True
        return False

    def _open_head(self, source: str, size: int) -> BinaryIO:
        """Open a file of which ``size`` decompressed bytes are wanted; the beginnings of objects are fetched once."""
        file = self.file(source)
        if not is_url(file.path):
            return self.open(source)
        if not self._heads:  # whoever looks at one soon looks at many
            first = [file, *(other for other in self.files[:_HEADS_AT_ONCE] if other is not file)]
            ranges = [(other.path, 0, min(other.bytes, _HEAD_BYTES)) for other in first]
            self._heads.update(zip((other.source for other in first), fetch_each(ranges), strict=True))
        wanted = min(file.bytes, max(_HEAD_BYTES, 2 * size))
        if (known := len(self._heads.get(source, b""))) < wanted:
            self._heads[source] = self._heads.get(source, b"") + fetch(file.path, known, wanted)
        return _opened(source, io.BytesIO(self._heads[source]), file.bytes)

    def __getstate__(self) -> dict[str, Any]:
        """What another process is given: it fetches what it needs itself."""
        return {**self.__dict__, "_heads": {}, "heads": None, "tails": None, "texts": {}}

    def whole(self, source: str) -> Piece:
        """Return a file as one piece."""
        file = self.file(source)
        signature, pieces = self.known.get(source, ("", ()))
        if signature == file.signature and len(pieces) == 1:
            return pieces[0]
        if is_url(file.path):
            return Piece(source, 0, file.bytes, 1, _object_digest(file))
        digest = hashlib.sha256()
        size = 0
        for chunk in _chunks(file):
            digest.update(chunk)
            size += len(chunk)
        return Piece(source, 0, size, 1, digest.hexdigest())

    def split(
        self,
        source: str,
        target_bytes: int = 64 << 20,
        *,
        at_least: int = 64,
        begins: re.Pattern[bytes] | None = None,
    ) -> Iterator[Piece]:
        """Cut a file of lines into pieces of about ``target_bytes`` that begin and end at line boundaries.

        Of a file of fewer pieces than ``at_least`` they are smaller, down to an eighth, and as many as those who read
        at the same time can share evenly.
        Bytes that an earlier ingestion has seen keep their cuts, so that of a grown file only the new lines are new
        pieces. An unterminated last line is a piece of its own. A compressed file is one piece; so is an object that a
        URL names, up to ``target_bytes``, so that it is fetched only once. A piece is yielded as soon as its bytes are
        hashed, so that it can be read while the next one is looked for.

        ``begins`` is for lines that are understood beside earlier ones: what is found in a line from which on nothing
        before it matters. All pieces but the first begin with such a line, so that of a grown file the last piece is
        read again, and an unterminated last line stays with those before it.
        """
        file = self.file(source)
        as_one = file.compressed or (is_url(file.path) and file.bytes <= target_bytes)
        target_bytes = _shared(file.bytes, min(target_bytes, max(target_bytes // 8, file.bytes // at_least)))
        signature, known = self.known.get(source, ("", ()))
        if signature == file.signature:
            yield from known
            return
        pieces: list[Piece] = []
        if as_one:
            pieces = [self.whole(source)]
            yield pieces[0]
        else:
            still = [piece for piece in (known if begins is None else known[:-1]) if piece.end <= file.bytes]
            for piece in self._cut(file, still, target_bytes, begins):
                pieces.append(piece)
                yield piece
        self.known[source] = (file.signature, tuple(pieces))

    def _cut(
        self, file: RunFile, known: list[Piece], target_bytes: int, begins: re.Pattern[bytes] | None
    ) -> Iterator[Piece]:
        """Cut a file; what it is known to begin with since the last look is neither read nor hashed again."""
        wanted = _coarser(known, target_bytes)
        ends = {piece.end for piece in wanted}
        tail = self._unchanged(file, ends)
        if tail.end:
            yield from _joined([piece for piece in known if piece.end <= tail.end], ends)
        held: deque[memoryview] = deque()
        keep = self.spool is not None and is_url(file.path)
        chunks = _held(self._fetched(file), held) if keep else _chunks(file, tail.end)
        reached = [tail]
        for piece, end in _cut(file, chunks, wanted, target_bytes, begins, tail):
            reached.append(end)
            if keep:
                _write(held, piece.end - piece.start, self._spooled(piece))
            yield piece
        if self.tails is not None and file.bytes >= _TAIL_FROM and not is_url(file.path):
            # A last piece that is read again when the file has grown, or ends within a line, is nothing to go on from.
            whole = [end for end in (reached[:-1] if begins is not None else reached) if end.last.endswith(b"\n")]
            if whole:
                self.tails[file.source] = whole[-1]

    def split_records(self, source: str, sound: Callable[[Read, Tail], Iterator[object]]) -> Iterator[Piece]:
        """Cut a file of records so that a watch (which keeps ``tails``) reads what was appended; else it is one piece.

        ``sound`` reads on from a tail, and yields after each record that is told alike whatever comes behind it. Lines
        of pieces are records here. The last piece, of no lines, is what is left: half a record, or damage and all
        behind it.
        """
        file = self.file(source)
        if self.tails is None or file.compressed or is_url(file.path):
            yield self.whole(source)
            return
        signature, known = self.known.get(source, ("", ()))
        if signature != file.signature:
            known = tuple(self._cut_records(file, [piece for piece in known if piece.end <= file.bytes], sound))
            self.known[source] = (file.signature, known)
        yield from known

    def _cut_records(
        self, file: RunFile, known: list[Piece], sound: Callable[[Read, Tail], Iterator[object]]
    ) -> Iterator[Piece]:
        wanted = {piece.end for piece in _coarser(known, _RECORDS_BYTES)}
        start = self._unchanged(file, wanted)
        yield from _joined([piece for piece in known if piece.end <= start.end], wanted)
        end = start
        with _open(file.path) as raw:
            raw.seek(start.end)
            stream = _Hashed(raw, start)
            for _ in sound(stream.read, start):
                end = stream.tail(end.lines + 1)
                if end.end in wanted or end.end - start.end >= _RECORDS_BYTES:
                    yield _between(file.source, start, end)
                    start = end
            if start.end < end.end:
                yield _between(file.source, start, end)
            while stream.read(_READ_BYTES):
                pass
            if stream.end > end.end or not stream.end:
                yield _between(file.source, end, stream.tail(end.lines))
        if file.bytes >= _TAIL_FROM and end.end:
            assert self.tails is not None
            self.tails[file.source] = end

    def _unchanged(self, file: RunFile, ends: Collection[int]) -> Tail:
        """How far a file is as it was, up to one of these ends of pieces; from its beginning if nothing tells."""
        if is_url(file.path):
            return Tail((0, 0), 0, 0, hashlib.sha256(), b"")
        with _open(file.path, buffering=0) as stream:
            tail = (self.tails or {}).get(file.source)
            if tail and tail.end in ends and tail.goes_on(stream):
                return tail
            return Tail(inode_of(stream), 0, 0, hashlib.sha256(), b"")

    def digest(self, source: str) -> str:
        """SHA-256 of a file's bytes, in hexadecimal."""
        file = self.file(source)
        if is_url(file.path):
            content = hashlib.sha256()
            for chunk in _chunks(file):
                content.update(chunk)
            return content.hexdigest()
        *_, last = self.split(source)
        return last.digest


def bundles(pieces: Iterable[Piece]) -> Iterator[tuple[Piece, ...]]:
    """Put pieces of neighbouring files together: those of steps are many and mostly small.

    A bundle is full by what is in it and before it, so that files of later steps leave earlier bundles as they are: at
    8 MiB, so that several cores share the work evenly, and where there is much, at more, up to 32 MiB. What is left is
    cut at an eighth of that, so that of a run that is watched while it grows little is read again.
    """
    bundle: list[Piece] = []
    size = before = 0
    for piece in pieces:
        bundle.append(piece)
        size += piece.end - piece.start
        if size >= min(max(BUNDLE_BYTES, before // MANY_PIECES), 4 * BUNDLE_BYTES):
            yield tuple(bundle)
            before += size
            bundle, size = [], 0
    rest: list[Piece] = []
    size = 0
    for piece in bundle:
        rest.append(piece)
        size += piece.end - piece.start
        if size >= BUNDLE_BYTES // 8:
            yield tuple(rest)
            rest, size = [], 0
    if rest:
        yield tuple(rest)


def _opened(source: str, raw: Any, size: int) -> BinaryIO:
    """Return what reads a stream's bytes, unpacked if the file is compressed."""
    stream: BinaryIO = _Unpacked(raw, source, size) if source.endswith(_COMPRESSED) else raw  # type: ignore[assignment]
    return stream


class _Unpacked(io.RawIOBase):
    """The bytes of a compressed file, forward only. A cut is an ``EOFError``, all else an ``OSError``."""

    def __init__(self, raw: BinaryIO, source: str, size: int) -> None:
        self._raw = raw
        self._zstd = source.endswith(".zst")
        self._stream: Any = (
            zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
            if self._zstd
            else gzip.GzipFile(fileobj=raw)
        )
        self._position = 0
        self._damage: OSError | EOFError | None = None
        self._most = max(UNPACKED_BYTES, MAX_EXPANSION * size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer; it stays part empty only at the end, or before damage, which is raised at the next call."""
        if self._damage is not None:
            raise self._damage
        view = memoryview(buffer).cast("B")
        filled = 0
        try:
            while filled < len(view) and (count := self._stream.readinto(view[filled:])):
                filled += count
        except (zlib.error, zstandard.ZstdError, OSError, EOFError) as error:
            self._damage = error if isinstance(error, OSError | EOFError) else OSError(str(error))
            if not filled:
                raise self._damage from error
        self._position += filled
        if self._position > self._most:
            raise OSError(f"it unpacks to more than {self._most >> 20} MiB; unpack it yourself if you trust it")
        if self._zstd and not filled and len(view) and not _is_whole_zstd(self._raw):
            raise EOFError("the file ended before the end of a Zstandard frame")
        return filled

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go forward by decompressing; ``OSError`` for going back, or from the end."""
        left = offset + (self._position if whence == os.SEEK_CUR else 0) - self._position
        if left < 0 or whence == os.SEEK_END:
            raise OSError("a compressed file is read forward only")
        while left > 0 and (part := self.read(min(left, _READ_BYTES))):
            left -= len(part)
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self._stream.close()
        self._raw.close()
        super().close()


def _is_whole_zstd(raw: BinaryIO) -> bool:
    """Walk the block headers of all frames (RFC 8878) and tell whether the last one is complete."""
    size = raw.seek(0, os.SEEK_END)
    at = 0
    while at < size:
        raw.seek(at)
        head = raw.read(18)  # the longest frame header
        if len(head) >= 8 and 0x184D2A50 <= int.from_bytes(head[:4], "little") <= 0x184D2A5F:
            at += 8 + int.from_bytes(head[4:8], "little")
            continue
        try:
            has_checksum = zstandard.get_frame_parameters(head).has_checksum
            at += zstandard.frame_header_size(head)
        except zstandard.ZstdError:
            return False
        last = False
        while not last:
            raw.seek(at)
            block = raw.read(3)
            if len(block) < 3:
                return False
            header = int.from_bytes(block, "little")
            last = bool(header & 1)
            at += 3 + (1 if (header >> 1) & 3 == 1 else header >> 3)
        at += 4 if has_checksum else 0
    return at == size


def _object_digest(file: RunFile) -> str:
    return "object:" + hashlib.sha256(file.signature.encode()).hexdigest()


def _open(path: Path, buffering: int = -1) -> BinaryIO:
    """Open a regular file; what has become something else since it was listed is not waited for or followed."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)

    try:
        stream: BinaryIO = open(path, "rb", buffering=buffering, opener=opener)  # noqa: SIM115
    except OSError as error:
        raise UnreadableInput(f"{path}: cannot be read ({error.strerror}); check its permissions.") from error
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise UnreadableInput(f"{path}: has become something else than a regular file; audit it again.")
    return stream


def _chunks(file: RunFile, start: int = 0) -> Iterator[bytes]:
    if is_url(file.path):
        yield from fetch_each(
            [(file.path, at, min(at + _READ_BYTES, file.bytes)) for at in range(0, file.bytes, _READ_BYTES)]
        )
        return
    try:
        with _open(file.path, buffering=0) as stream:
            stream.seek(start)
            while chunk := stream.read(_READ_BYTES):
                yield chunk
    except OSError as error:
        raise UnreadableInput(f"{file.path}: cannot be read ({error.strerror}); check its permissions.") from error


def _shared(size: int, piece: int) -> int:
    """Make pieces somewhat smaller, so that all who read at the same time get as many; what is small is not cut."""
    readers = limits().workers
    rounds = max(1, -(-size // (piece * readers)))
    return min(piece, max(_SHARED_FROM, -(-size // (rounds * readers))))


def _coarser(known: list[Piece], target_bytes: int) -> list[Piece]:
    """Forget cuts between small pieces where there are many, as of a log that is read again whenever it has grown.

    The last ones are kept, so that a piece is read anew once in a while only.
    """
    if len(known) <= MANY_PIECES:
        return known
    kept, start = [], 0
    for piece in known[: -MANY_PIECES // 2]:
        if piece.end - start >= target_bytes:
            kept.append(piece)
            start = piece.end
    return [*kept, *known[-MANY_PIECES // 2 - 1 :]]


def _joined(known: Iterable[Piece], ends: Collection[int]) -> Iterator[Piece]:
    """Join neighbouring pieces whose cuts are forgotten: ``ends`` are those that stay."""
    parts: list[Piece] = []
    for piece in known:
        parts.append(piece)
        if piece.end in ends:
            yield replace(
                piece, start=parts[0].start, first_line=parts[0].first_line, lines=sum(p.lines for p in parts)
            )
            parts = []


def _held(chunks: Iterable[bytes], held: deque[memoryview]) -> Iterator[bytes]:
    for chunk in chunks:
        held.append(memoryview(chunk))
        yield chunk


def _write(held: deque[memoryview], size: int, target: Path) -> None:
    """Write the next bytes of those that are held into a file."""
    with target.open("wb") as stream:
        while size > 0:
            part = held.popleft()
            if len(part) > size:
                held.appendleft(part[size:])
            size -= stream.write(part[:size])


def _cut(
    file: RunFile,
    chunks: Iterable[bytes],
    known: Sequence[Piece],
    target_bytes: int,
    begins: re.Pattern[bytes] | None,
    tail: Tail,
) -> Iterator[tuple[Piece, Tail]]:
    """Walk a file once, hashing, counting lines and cutting after the newline that follows each target.

    ``chunks`` are what follows on ``tail``. With ``begins`` the newline is one before a line in which that is found,
    within one chunk. Yields each piece and how far the file was read with it.
    """
    known_ends = {piece.end: piece.digest for piece in known if piece.end > tail.end}
    digest, last = tail.digest.copy(), tail.last
    start = position = tail.end
    line = first_line = tail.lines + 1
    at_newline = tail

    def piece(end: Tail, more: int = 0) -> tuple[Piece, Tail]:
        found = Piece(
            file.source, start, end.end, first_line, end.digest.hexdigest(), end.lines + 1 - first_line + more
        )
        return found, end

    for chunk in chunks:
        offset = 0
        while offset < len(chunk):
            stop, cut = _next_stop(chunk, offset, position, start, known_ends, target_bytes, begins)
            newline = chunk.rfind(b"\n", offset, stop) + 1
            for end in sorted({newline, stop} - {0}):
                part = memoryview(chunk)[offset:end]
                line += chunk.count(b"\n", offset, end)
                digest.update(part)
                last = (last + bytes(part[-GUARD:]))[-GUARD:]
                position += end - offset
                offset = end
                if end == newline:
                    at_newline = Tail(tail.inode, position, line - 1, digest.copy(), last)
            unchanged = known_ends.pop(position, None) in (None, digest.hexdigest())
            if cut and unchanged and at_newline.end == position > start:
                yield piece(at_newline)
                start, first_line = position, line
    if begins is None and start < at_newline.end < position:
        yield piece(at_newline)
        start, first_line = at_newline.end, line
    if position > start or position == 0:
        unterminated = position > at_newline.end
        yield piece(Tail(tail.inode, position, line - 1, digest, last), more=int(unterminated))


def _next_stop(
    chunk: bytes,
    offset: int,
    position: int,
    start: int,
    known_ends: dict[int, str],
    target_bytes: int,
    begins: re.Pattern[bytes] | None,
) -> tuple[int, bool]:
    """Return where in the chunk to stop next, and whether a piece may end there."""
    end = position + len(chunk) - offset
    wanted = min((known for known in known_ends if known > position), default=None)
    if wanted is not None and wanted <= end:
        return offset + wanted - position, True
    if wanted is None and end - start >= target_bytes:
        aim = max(offset, offset + start + target_bytes - position - 1)
        at = chunk.find(b"\n", aim) if begins is None else _line_before(chunk, aim, begins)
        if at >= 0:
            return at + 1, True
    return len(chunk), False


def _line_before(chunk: bytes, aim: int, begins: re.Pattern[bytes]) -> int:
    """Return where, from ``aim`` on, a line ends that one follows in which ``begins`` is found; -1 if none does."""
    for found in begins.finditer(chunk, aim):
        if (at := chunk.rfind(b"\n", aim, found.start())) >= 0:
            return at
    return -1


def read_fully(stream: BinaryIO, size: int) -> bytes:
    """Read up to ``size`` bytes; fewer only at the end (decompressors may return short reads)."""
    parts = []
    while size > 0 and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def natural(name: str) -> str:
    """Sort key in which numbers inside names count as numbers, and come before all else."""
    return _DIGITS.sub(_by_size, name)


def _by_size(found: re.Match[str]) -> str:
    """Write a number so that of two the one with more digits comes later; nothing in a name comes before it."""
    digits = str(int(found[0]))
    return f"\0{chr(len(digits))}{digits}"


def discover(path: Path, before: RunFiles | None = None) -> RunFiles:
    """List the files of a run directory, or take a single file as a run.

    ``before``: an earlier listing, whose entries stay for files that are as they were then.

    Raises:
        UnreadableInput: the path does not exist or cannot be listed.
    """
    if is_url(path):
        return _discover_objects(path)
    try:
        status = path.stat()
    except OSError as error:
        raise UnreadableInput(
            f"{path}: {error.strerror or error}; give the directory or file a run has written."
        ) from error
    if stat.S_ISREG(status.st_mode):
        whole = path.resolve()
        return RunFiles(whole.parent, (_run_file(whole, _as_text(whole.name), status),), is_directory=False)
    if not stat.S_ISDIR(status.st_mode):
        raise UnreadableInput(f"{path}: neither a directory nor a regular file; give the directory a run has written.")
    files: list[RunFile] = []
    skipped: list[tuple[str, str]] = []
    root = path.resolve()
    _walk(root, files, skipped, before._by_source if before is not None and before.root == root else {})
    repeated: list[tuple[str, str]] = []
    listed = tuple(sorted(_once(files, repeated), key=attrgetter("order")))
    return RunFiles(root, listed, skipped=tuple(sorted(skipped)), repeated=tuple(sorted(repeated)))


def _discover_objects(root: Path) -> RunFiles:
    """List the objects below a URL, or take a single one as a run."""
    files = []
    for source, info in listing(root):
        parts = source.split("/")
        if not source:
            return RunFiles(root.parent, (_run_object(root.parent, root.name, info),), is_directory=False)
        if CACHE_FOLDER not in parts:
            files.append(_run_object(root, source, info))
    repeated: list[tuple[str, str]] = []
    listed = tuple(sorted(_once(files, repeated), key=attrgetter("order")))
    return RunFiles(root, listed, repeated=tuple(sorted(repeated)))


def _once(files: list[RunFile], repeated: list[tuple[str, str]]) -> list[RunFile]:
    """Leave out files that only repeat another of the same name (``x.log.gz`` beside ``x.log``), or its beginning."""
    by_name: dict[str, list[RunFile]] = {}
    for file in files:
        by_name.setdefault(file.name, []).append(file)
    kept = []
    for alike in by_name.values():
        if len(alike) > 1:
            alike.sort(key=lambda file: (file.compressed, file.source))
        while len(alike) > 1 and (longer := _longer(alike[0], alike[-1])):
            shorter = alike.pop() if longer is alike[0] else alike.pop(0)
            repeated.append((shorter.source, f"it only repeats {longer.source}, which is read"))
        kept += alike
    return kept


def _longer(one: RunFile, other: RunFile) -> RunFile | None:
    """Return the one whose content goes on where that of the other ends (the first if they are equal), if so."""
    run = RunFiles(one.path.parent, (one, other))
    try:
        with run.open(one.source) as first, run.open(other.source) as second:
            while True:
                a, b = read_fully(first, _READ_BYTES), read_fully(second, _READ_BYTES)
                shared = min(len(a), len(b))
                if a[:shared] != b[:shared]:
                    return None
                if len(a) != len(b):
                    return one if len(a) > len(b) else other
                if not a:
                    return one
    except (OSError, EOFError, UnreadableInput):
        return None


def _walk(root: Path, files: list[RunFile], skipped: list[tuple[str, str]], before: Mapping[str, RunFile]) -> None:
    """List what is below the run directory; ``before``: an earlier listing."""
    waiting = [(str(root), "")]
    while waiting:
        folder, prefix = waiting.pop()
        try:
            with os.scandir(folder) as found:
                entries = {entry.name: entry for entry in found}
        except OSError as error:
            if not prefix:
                raise UnreadableInput(f"{root}: cannot be listed ({error.strerror}); check its permissions.") from error
            skipped.append((prefix, f"cannot be listed ({error.strerror})"))
            continue
        for name, entry in entries.items():
            shown = _as_text(name)
            source = f"{prefix}/{shown}" if prefix else shown
            if shown != name and shown in entries:
                skipped.append((source, "its name is no text, and another file has the name that it would go by"))
            elif entry.is_symlink():
                # A link inside the run names something that is listed anyway; one that leads out is not ours to read.
                if not Path(os.path.realpath(entry.path)).is_relative_to(root):
                    skipped.append((source, "a link that leaves the run directory"))
            elif entry.is_dir(follow_symlinks=False):
                if name != CACHE_FOLDER:
                    waiting.append((entry.path, source))
            elif entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):  # gone meanwhile, as temporary files of a run at work are
                    status = entry.stat(follow_symlinks=False)
                    known = before.get(source)
                    same = known is not None and known.signature == _signature(status)
                    files.append(known if known is not None and same else _run_file(Path(entry.path), source, status))
            else:
                skipped.append((source, "not a regular file"))


def _as_text(name: str) -> str:
    """Return the name a file goes by: its own, with bytes that are not UTF-8 written as escapes."""
    if name.isascii():
        return name
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _name(source: str) -> str:
    suffix = next((suffix for suffix in _COMPRESSED if source.endswith(suffix)), "")
    return source.removesuffix(suffix)


def _run_object(root: Path, source: str, info: Mapping[str, Any]) -> RunFile:
    return RunFile(source, _name(source), root / source, int(info.get("size") or 0), signature_of(info))


def _run_file(path: Path, source: str, status: os.stat_result) -> RunFile:
    return RunFile(source, _name(source), path, status.st_size, _signature(status))


def _signature(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_dev}:{status.st_ino}"
