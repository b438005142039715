"""Changes of an input that keep most of its structure: of lines, of numbers and words in them, of members of archives.

Bytes changed at random are refused by the first reader they meet; these reach what stands behind it.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from random import Random

Plain = Callable[[bytes, int], bytes]
"""Changes bytes at random, up to a size."""
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
WORD = re.compile(rb'"[^"\n]{0,80}"|[A-Za-z_][\w./-]{1,40}')
ODD = [b"0", b"-1", b"1", b"2", b"1000000", b"2147483648", b"9223372036854775808", b"1e308", b"-1e400", b"0.5", b"NaN"]
ODD += [b"null", b"true", b'""', b'"1"', b"[]", b"{}", b"Infinity", b"1" * 400, b"1" * 5000, b"'", b"\xff", b"\x00"]


def mutate(data: bytes, most: int, seed: int, plain: Plain, *, leading: int = 0) -> bytes:
    """Return a changed input; the first ``leading`` bytes choose something and are changed seldom."""
    chance = Random(seed)
    if chance.random() < 0.05 or len(data) <= leading:
        return plain(data, most)
    head, body = data[:leading], data[leading:]
    for _ in range(chance.choice((1, 1, 2, 4))):
        body = _changed(body, chance, plain, most - leading)
    return (head + body)[:most]


def _changed(body: bytes, chance: Random, plain: Plain, most: int) -> bytes:
    if body.startswith(b"PK\x03\x04") and chance.random() < 0.9:
        return _member(body, chance, plain, most)
    way = chance.random()
    if way < 0.25:
        return plain(body, most)
    if way < 0.5:
        return _lines(body, chance)
    places = list((NUMBER if way < 0.8 else WORD).finditer(body))
    if not places:
        return plain(body, most)
    at = chance.choice(places)
    return body[: at.start()] + chance.choice((chance.choice(ODD), chance.choice(places)[0])) + body[at.end() :]


def _lines(body: bytes, chance: Random) -> bytes:
    """Lose, repeat, exchange, cut or join lines."""
    lines = body.splitlines(keepends=True) or [b""]
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    way = chance.randrange(5)
    if way == 0:
        del lines[one]
    elif way == 1:
        lines.insert(other, lines[one])
    elif way == 2:
        lines[one], lines[other] = lines[other], lines[one]
    elif way == 3:
        lines[one] = lines[one][: chance.randrange(len(lines[one]) + 1)]
    else:
        lines[one] = lines[one].rstrip(b"\r\n") + lines[other]
    return b"".join(lines)


def _member(body: bytes, chance: Random, plain: Plain, most: int) -> bytes:
    """Change one member of an archive and pack it again, so that its lengths and checksums are right."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as packed:
            members = {name: packed.read(name) for name in packed.namelist()}
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError, RuntimeError):
        return plain(body, most)
    if not members:
        return plain(body, most)
    name = next((name for name in members if name.endswith(".pkl") and chance.random() < 0.7), None)
    name = name or chance.choice(list(members))
    members[name] = plain(members[name], len(members[name]) + 64)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as again:
        for each, data in members.items():
            again.writestr(zipfile.ZipInfo(each), data)
    return stream.getvalue()
