"""What is new in the files of a run: lines behind those that were read before, without reading those again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from staleness_audit.discovery import GUARD, Piece, RunFile, RunFiles, Tail, inode_of


class Rewritten(Exception):
    """A file does not begin with what was read of it: it was cut, replaced, compressed or taken away."""


@dataclass
class NewLines(RunFiles):
    """A run of which only the lines behind ``tails`` can be cut into pieces; how far that is, ``reached`` says.

    Files are taken as appended to: that the bytes before ``Tail.end`` are the same is concluded from the file being the
    same one, no shorter, and the same just before that place. A last line without its end is left for the next time.
    """

    tails: dict[str, Tail] = field(default_factory=dict)
    reached: dict[str, Tail] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Files that were read before must still be there."""
        self._pieces: dict[str, list[Piece]] = {}
        here = {file.source for file in self.files}
        if gone := sorted(set(self.tails) - here):
            raise Rewritten(f"{gone[0]} is gone")

    def split(
        self,
        source: str,
        target_bytes: int = 64 << 20,
        *,
        at_least: int = 64,
        begins: re.Pattern[bytes] | None = None,
    ) -> Iterator[Piece]:
        """Pieces of the lines that are new; ``ValueError`` if earlier ones are needed to understand them."""
        if begins is not None:
            raise ValueError(f"{source}: a parser whose units stand alone needs no lines to begin with")
        if source not in self._pieces:
            file = self.file(source)
            self._pieces[source] = list(self._compressed(file) if file.compressed else self._grown(file, target_bytes))
        yield from self._pieces[source]

    def digest(self, source: str) -> str:
        """SHA-256 of what was read of a file."""
        for _ in self.split(source):
            pass
        return str(self.reached[source].digest.hexdigest())

    def _compressed(self, file: RunFile) -> Iterator[Piece]:
        tail = self.tails.get(file.source)
        if tail is not None:
            if tail.signature != file.signature:
                raise Rewritten(f"{file.source} has changed")
            self.reached[file.source] = tail
            return
        piece = super().whole(file.source)
        digest = _Known(piece.digest)
        self.reached[file.source] = Tail((0, 0), piece.end, 0, digest, b"", file.signature)
        yield piece

    def _grown(self, file: RunFile, target_bytes: int) -> Iterator[Piece]:
        with file.path.open("rb", buffering=0) as stream:
            inode = inode_of(stream)
            tail = self.tails.get(file.source, Tail(inode, 0, 0, hashlib.sha256(), b""))
            if not tail.goes_on(stream):
                raise Rewritten(f"{file.source} does not go on where it ended")
            digest, end, lines, last = tail.digest.copy(), tail.end, tail.lines, tail.last
            rest = b""
            while chunk := stream.read(target_bytes):
                newline = chunk.rfind(b"\n") + 1
                if not newline:
                    rest += chunk
                    continue
                data, rest = rest + chunk[:newline], chunk[newline:]
                digest.update(data)
                count = data.count(b"\n")
                yield Piece(file.source, end, end + len(data), lines + 1, digest.hexdigest(), count)
                end, lines, last = end + len(data), lines + count, (last + data[-GUARD:])[-GUARD:]
        if file.source not in self.tails and end == 0:
            yield Piece(file.source, 0, 0, 1, digest.hexdigest())  # a file without a line is something to tell, too
        self.reached[file.source] = Tail(inode, end, lines, digest, last)


@dataclass(frozen=True)
class _Known:
    """A hash that is known and does not go on."""

    value: str

    def hexdigest(self) -> str:
        return self.value
