"""Changes of an input that keep most of its structure: of lines, of numbers and words in them, of values of JSON, of
records of trackers, of operations of pickles, of members of archives, of cells of databases.

Bytes changed at random are refused by the first reader they meet; these reach what stands behind it.
"""

from __future__ import annotations

import io
import json
import pickletools
import re
import sqlite3
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

from fuzz.framing import event_record, event_records, wandb_messages, wandb_record
from staleness_audit.readers.wandb_files import HEADER

Plain = Callable[[bytes, int], bytes]
"""Changes bytes at random, up to a size."""
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
WORD = re.compile(rb'"[^"\n]{0,80}"|[A-Za-z_][\w./-]{1,40}')
ODD = [b"0", b"-1", b"1", b"2", b"1000000", b"2147483648", b"9223372036854775808", b"1e308", b"-1e400", b"0.5", b"NaN"]
ODD += [b"null", b"true", b'""', b'"1"', b"[]", b"{}", b"Infinity", b"1" * 400, b"1" * 5000, b"'", b"\xff", b"\x00"]
VALUES: list[Any] = [None, True, False, 0, 1, -1, 2, 7, 1000, 2**31 - 1, 2**31, 2**53 + 1]
VALUES += [2**63 - 1, 2**63, -(2**63) - 1, 0.5, -0.0, 1e18, 1e308, float("nan"), float("inf")]
VALUES += ["", "1", "a", "\ud800", "\x00", "x" * 300, [], [0], [None]]
VALUES += [["a", 1], {}, {"a": 1}, [[1], [2, 3]], {"": None}, 10**400]


def mutate(data: bytes, most: int, seed: int, plain: Plain, *, leading: int = 0) -> bytes:
    """Return a changed input; the first ``leading`` bytes choose something and stay as they are."""
    chance = Random(seed)
    if len(data) <= leading:
        return data[:leading] + plain(data[leading:], most - leading)
    head, body = data[:leading], data[leading:]
    for _ in range(chance.choice((1, 1, 2, 4))):
        body = _changed(body, chance, plain, most - leading)
    return (head + body)[:most]


def _changed(body: bytes, chance: Random, plain: Plain, most: int) -> bytes:
    if chance.random() < 0.85 and (structured := _structured(body)):
        return structured(body, chance) or plain(body, most)
    way = chance.random()
    if way < 0.15:
        return plain(body, most)
    if way < 0.4:
        return _lines(body, chance)
    if way < 0.65 and (changed := _json(body, chance)):
        return changed
    places = list((NUMBER if way < 0.85 else WORD).finditer(body))
    if not places:
        return plain(body, most)
    at = chance.choice(places)
    return body[: at.start()] + _instead(at[0], places, chance) + body[at.end() :]


def _structured(body: bytes) -> Callable[[bytes, Random], bytes | None] | None:
    """What changes a file that is no text, by how it begins."""
    if body.startswith(b"PK\x03\x04"):
        return _member
    if body.startswith(b"SQLite format 3\x00"):
        return _cell
    if body.startswith(HEADER):
        return _history
    if body[:1] == b"\x80" and body[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return pickled
    return _events if next(event_records(body), None) else None


def _instead(text: bytes, places: list[re.Match[bytes]], chance: Random) -> bytes:
    """Choose what stands instead of a number or word: an odd one, another of the file, one beside it."""
    way = chance.randrange(4)
    if way < 2 and text.lstrip(b"-").isdigit() and len(text) < 18:
        number = int(text)
        return str(chance.choice((number + 1, number - 1, -number, number * 2, number // 2, number + 1000))).encode()
    return chance.choice(ODD) if way == 2 else chance.choice(places)[0]


def _lines(body: bytes, chance: Random) -> bytes:
    """Lose, repeat, exchange, cut or join lines."""
    lines = body.splitlines(keepends=True) or [b""]
    return b"".join(_rearranged(lines, chance))


def _rearranged(parts: list[bytes], chance: Random) -> list[bytes]:
    """Lose, repeat, exchange, cut or join parts, or lose or repeat a stretch of them."""
    one, other = sorted((chance.randrange(len(parts)), chance.randrange(len(parts))))
    way = chance.randrange(8)
    if way == 0:
        del parts[one]
    elif way == 1:
        parts.insert(other, parts[one])
    elif way == 2:
        parts[one], parts[other] = parts[other], parts[one]
    elif way == 3:
        parts[one] = parts[one][: chance.randrange(len(parts[one]) + 1)]
    elif way == 4:
        parts[one] = parts[one].rstrip(b"\r\n") + parts[other]
    elif way == 5:
        del parts[one:other]
    elif way == 6:
        parts[other:other] = parts[one : min(other, one + 30)]
    else:
        parts.append(parts.pop(one))
    return parts


def _json(body: bytes, chance: Random) -> bytes | None:
    """Change a value of a file of JSON, or of a line that is JSON; None if there is none."""
    lines = [body] if body[:1] in b"{[" and body.count(b"\n{") == 0 else body.splitlines(keepends=True)
    those = [index for index, line in enumerate(lines) if line[:1] in (b"{", b"[")]
    if not those:
        return None
    index = chance.choice(those)
    try:
        value = json.loads(lines[index])
        _change_value(value, chance)
        lines[index] = json.dumps(value).encode() + (b"\n" if lines[index].endswith(b"\n") else b"")
    except (ValueError, RecursionError):
        return None
    return b"".join(lines)


def _change_value(value: Any, chance: Random) -> None:
    """Change one value inside a list or an object: another, none, one of its neighbours, a key lost or renamed."""
    while isinstance(value, dict | list) and value:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = chance.choice(keys)
        if isinstance(value[key], dict | list) and value[key] and chance.random() < 0.9:
            value = value[key]
            continue
        way = chance.randrange(6)
        if way == 0:
            del value[key]
        elif way == 1:
            value[key] = value[chance.choice(keys)]
        elif way == 2:
            value[key] = chance.choice(([value[key]], {"a": value[key]}, str(value[key])))
        elif way == 3 and isinstance(value, list):
            value.append(value[key])
        elif way == 3 and isinstance(value[key], int | float) and abs(value[key]) < 1e300:
            value[key] = chance.choice((value[key] + 1, value[key] - 1, -value[key], value[key] * 2))
        else:
            value[key] = chance.choice(VALUES)
        return


def _member(body: bytes, chance: Random) -> bytes | None:
    """Change one member of an archive and pack it again, so that its lengths and checksums are right."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as packed:
            members = {name: packed.read(name) for name in packed.namelist()}
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError, RuntimeError):
        return None
    if not members:
        return None
    name = next((name for name in members if name.endswith(".pkl") and chance.random() < 0.8), None)
    name = name or chance.choice(list(members))
    changed = pickled(members[name], chance) if name.endswith(".pkl") else None
    members[name] = changed or bytes(chance.randrange(256) for _ in range(min(64, len(members[name]))))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as again:
        for each, data in members.items():
            again.writestr(zipfile.ZipInfo(each), data)
    return stream.getvalue()


_SCALARS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "NONE", "NEWTRUE"}
_SCALARS |= {"NEWFALSE", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "BINGET", "LONG_BINGET"}


def pickled(body: bytes, chance: Random) -> bytes | None:
    """Put another value instead of one of a pickle, without its frames; None if it is none."""
    try:
        found = [(code.name, at) for code, _, at in pickletools.genops(body)]
    except Exception:  # as many as the module knows
        return None
    ends = [at for _, at in found[1:]] + [found[-1][1] + 1]
    parts = [(name, body[at:end]) for (name, at), end in zip(found, ends, strict=True) if name != "FRAME"]
    places = [index for index, (name, _) in enumerate(parts) if name in _SCALARS]
    if not places:
        return None
    for _ in range(chance.choice((1, 1, 1, 3))):
        index = chance.choice(places)
        other = parts[chance.choice(places)][1] if chance.random() < 0.4 else _operation(chance)
        parts[index] = ("", other)
    return b"".join(part for _, part in parts)


def _operation(chance: Random) -> bytes:
    """An operation that puts a value on a pickle's stack."""
    whole = chance.choice((0, 1, 2, -1, 5, 255, 2**31, 2**63, -(2**63) - 1, 10**30))
    size = whole.bit_length() // 8 + 1
    number = b"\x8a" + bytes([size]) + whole.to_bytes(size, "little", signed=True)
    plain = [b"N", b"\x88", b"\x89", b"]", b"}", b")", number, number, b"G\x7f\xf8" + bytes(6), b"G\x3f\xe0" + bytes(6)]
    return chance.choice([*plain, b"X\x01\x00\x00\x00a", b"X\x00\x00\x00\x00", b"X\x02\x00\x00\x0012"])


def _events(body: bytes, chance: Random) -> bytes | None:
    """Rearrange the records of an event file, or change what one says."""
    from tensorboard.compat.proto import event_pb2

    records = list(event_records(body))
    if chance.random() < 0.35:
        return b"".join(_rearranged(records, chance))
    index = chance.randrange(len(records))
    try:
        event, other = (event_pb2.Event.FromString(each[12:-4]) for each in (records[index], chance.choice(records)))
    except Exception:  # protobuf has no common base for what damage makes it raise
        return None
    values = list(event.summary.value)
    way = chance.randrange(5)
    if way == 0 or not values:
        near = max(min(event.step, 1 << 40), -(1 << 40))
        event.step = chance.choice((0, 1, -1, near + 1, near - 1, near * 3, 2**31, 2**62))
    elif way == 1:
        event.wall_time = chance.choice(
            (0.0, -1.0, float("nan"), 1e300, event.wall_time + 3600, event.wall_time - 3600)
        )
    elif way == 2:
        value = chance.choice(values)
        old = value.simple_value
        value.simple_value = chance.choice((0.0, -1.0, float("nan"), float("inf"), 1e30, 0.5, old + 1, old * 2, -old))
    elif way == 3:
        chance.choice(values).tag = other.summary.value[0].tag if other.summary.value else ""
    else:
        chance.choice(values).tensor.string_val.append(chance.choice(ODD))
    records[index] = event_record(event.SerializeToString())
    return b"".join(records)


def _history(body: bytes, chance: Random) -> bytes | None:
    """Rearrange the records of a W&B log, or change a number or word that one holds, keeping its length."""
    messages = list(wandb_messages(body))
    if not messages:
        return None
    if chance.random() < 0.35:
        messages = _rearranged(messages, chance)
    else:
        index = chance.randrange(len(messages))
        message = messages[index]
        places = list((NUMBER if chance.random() < 0.7 else WORD).finditer(message))
        if not places:
            return None
        at = chance.choice(places)
        other = _instead(at[0], places, chance)[: len(at[0])].ljust(len(at[0]))
        messages[index] = message[: at.start()] + other + message[at.end() :]
    return HEADER + b"".join(wandb_record(message) for message in messages if len(message) < 30_000)


def _cell(body: bytes, chance: Random) -> bytes | None:
    """Change, lose or repeat a row of a database."""
    with sqlite3.connect(":memory:") as database:
        try:
            database.deserialize(body)
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            table = chance.choice(names)
            columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
            rows = database.execute(f'SELECT rowid, * FROM "{table}"').fetchall()
            row, column = chance.choice(rows), chance.randrange(len(columns))
            old = row[column + 1]
            new: Any = chance.choice((*(value for value in VALUES if _storable(value)), b"\xff"))
            if isinstance(old, str) and chance.random() < 0.8:
                text = old.encode(errors="replace")
                new = (_json(text, chance) or text[: len(text) // 2]).decode(errors="replace")
            if chance.random() < 0.2:
                database.execute(f'DELETE FROM "{table}" WHERE rowid = ?', row[:1])
            else:
                database.execute(f'UPDATE "{table}" SET "{columns[column]}" = ? WHERE rowid = ?', (new, row[0]))
            database.commit()
            return database.serialize()
        except (sqlite3.Error, IndexError, UnicodeError, OverflowError):
            return None


def _storable(value: Any) -> bool:
    """Whether a database can hold it."""
    if isinstance(value, str):
        return value.isprintable()
    return value is None or isinstance(value, float) or (isinstance(value, int) and -(2**63) <= value < 2**63)
