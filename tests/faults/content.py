"""Damage to the bytes of one file: functions of bytes and a source of chance; None where there is nothing to hit."""

from __future__ import annotations

import io
import random
import re
import zipfile

Bytes = bytes | None


def middle(size: int, rng: random.Random, first: float = 0.25, last: float = 0.9) -> int:
    """Choose a place inside, away from both ends."""
    return rng.randrange(int(size * first), max(int(size * last), int(size * first) + 1))


def lines_of(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


# ------------------------------------------------------------------------------------------------------------ cut short


def cut_mid_line(data: bytes, rng: random.Random) -> Bytes:
    at = middle(len(data), rng)
    while at < len(data) and data[at - 1 : at + 1].count(b"\n"):
        at += 1
    return data[:at] if at < len(data) else None


def cut_at_line_end(data: bytes, rng: random.Random) -> Bytes:
    lines = lines_of(data)
    return b"".join(lines[: middle(len(lines), rng)]) if len(lines) > 3 else None


def cut_mid_record(data: bytes, rng: random.Random) -> Bytes:
    """End a log after a whole line inside a record of several: the next one is indented, or a row of a box."""
    lines = lines_of(data)
    inside = [at for at in range(1, len(lines)) if re.match(rb"[ \t]+\S|\xe2\x94\x82|\|", lines[at])]
    return b"".join(lines[: rng.choice(inside)]) if inside else None


def emptied(data: bytes, rng: random.Random) -> Bytes:
    return b"" if data else None


def cut_anywhere(data: bytes, rng: random.Random) -> Bytes:
    """End a pickle, an archive, a compressed frame or another binary file early."""
    return data[: middle(len(data), rng, 0.05, 0.98)] if len(data) > 20 else None


def cut_mid_member(data: bytes, rng: random.Random) -> Bytes:
    """End a zip archive inside one of its members."""
    try:
        members = zipfile.ZipFile(io.BytesIO(data)).infolist()
    except zipfile.BadZipFile:
        return None
    member = rng.choice(members)
    return data[: member.header_offset + 30 + len(member.filename) + member.compress_size // 2]


# ---------------------------------------------------------------------------------------------------- lines gone astray


def lose_line(data: bytes, rng: random.Random) -> Bytes:
    lines = lines_of(data)
    if len(lines) < 5:
        return None
    del lines[middle(len(lines), rng)]
    return b"".join(lines)


def lose_block(data: bytes, rng: random.Random) -> Bytes:
    lines = lines_of(data)
    if len(lines) < 10:
        return None
    at = middle(len(lines), rng, 0.2, 0.7)
    del lines[at : at + max(len(lines) // 10, 2)]
    return b"".join(lines)


def repeat_line(data: bytes, rng: random.Random) -> Bytes:
    lines = lines_of(data)
    if len(lines) < 5:
        return None
    at = middle(len(lines), rng)
    lines.insert(at, lines[at])
    return b"".join(lines)


def repeat_block(data: bytes, rng: random.Random) -> Bytes:
    """Write a block twice, the second time later: a buffer flushed again."""
    lines = lines_of(data)
    if len(lines) < 10:
        return None
    at, size = middle(len(lines), rng, 0.2, 0.7), max(len(lines) // 10, 2)
    return b"".join([*lines[: at + 2 * size], *lines[at : at + size], *lines[at + 2 * size :]])


def shuffle_near(data: bytes, rng: random.Random) -> Bytes:
    """Change the order of lines that stand close together."""
    lines = lines_of(data)
    if len(lines) < 5:
        return None
    order = sorted(range(len(lines)), key=lambda at: at + (rng.uniform(0, 4) if at else -1))
    return b"".join(lines[at] for at in order)


def shuffle_all(data: bytes, rng: random.Random) -> Bytes:
    lines = lines_of(data)
    if len(lines) < 5:
        return None
    rng.shuffle(lines)
    return b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines)


def interleave(data: bytes, rng: random.Random) -> Bytes:
    """Two writers without a lock: a line is written into the middle of another."""
    lines = lines_of(data)
    if len(lines) < 5:
        return None
    at = middle(len(lines), rng)
    outer, inner = lines[at - 1], lines[at]
    half = len(outer) // 2
    lines[at - 1 : at + 1] = [outer[:half] + inner, outer[half:]]
    return b"".join(lines)


# ------------------------------------------------------------------------------------------------------------ bytes


def flip_bytes(data: bytes, rng: random.Random) -> Bytes:
    """Flip the highest bit of three bytes: in text that makes no other character of it, but none at all."""
    if len(data) < 20:
        return None
    broken = bytearray(data)
    for _ in range(3):
        broken[rng.randrange(len(data))] ^= 0x80
    return bytes(broken)


def flip_low_bits(data: bytes, rng: random.Random) -> Bytes:
    """Flip a low bit of five bytes: a digit may become another digit."""
    if len(data) < 20:
        return None
    broken = bytearray(data)
    for _ in range(5):
        broken[rng.randrange(len(data))] ^= 1 << rng.randrange(3)
    return bytes(broken)


def zero_page(data: bytes, rng: random.Random) -> Bytes:
    """Zeros in place of a page that never reached the disk."""
    if len(data) < 40:
        return None
    size = min(4096, len(data) // 8)
    at = middle(len(data), rng, 0.2, 0.8)
    return data[:at] + b"\0" * size + data[at + size :]


def zero_tail(data: bytes, rng: random.Random) -> Bytes:
    """Zeros to the end: room taken on the disk, and never written."""
    at = middle(len(data), rng)
    return data[:at] + b"\0" * (len(data) - at) if len(data) > 40 else None


def utf_16(data: bytes, rng: random.Random) -> Bytes:
    return data.decode("utf-8", errors="replace").encode("utf-16") if data else None


def latin_1(data: bytes, rng: random.Random) -> Bytes:
    """Letters that are no UTF-8, in three lines."""
    lines = lines_of(data)
    if len(lines) < 5:
        return None
    for _ in range(3):
        at = rng.randrange(len(lines))
        half = len(lines[at]) // 2
        lines[at] = lines[at][:half] + "é".encode("latin-1") + lines[at][half:]
    return b"".join(lines)


def windows_text(data: bytes, rng: random.Random) -> Bytes:
    """A byte order mark and carriage returns: what an editor elsewhere makes of it."""
    return b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n") if data else None


# ---------------------------------------------------------------------------------------------------- numbers and times

_NUMBER = re.compile(rb"(?<=[:=(\[ ,])-?\d+(?:\.\d+)?(?=[,}\])\s])")
_SECONDS = re.compile(rb"(?<![\d.])1[5-9]\d{8}(?=[.\d]*\b)")
_CLOCK = re.compile(rb"(\d\d-\d\d[ T_])(\d\d)(:\d\d:\d\d)")
_SINCE_START = re.compile(rb'("(?:t|ts|started|ended|start|end)": ?)(\d{1,6}(?:\.\d+)?)(?=[,}])')


def _replace_number(data: bytes, rng: random.Random, value: bytes, count: int = 3) -> Bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return None
    for match in sorted(rng.sample(found, min(count, len(found))), key=lambda match: -match.start()):
        data = data[: match.start()] + value + data[match.end() :]
    return data


def not_a_number(data: bytes, rng: random.Random) -> Bytes:
    return _replace_number(data, rng, b"NaN")


def huge_number(data: bytes, rng: random.Random) -> Bytes:
    return _replace_number(data, rng, rng.choice([b"1e308", b"9" * 40, b"9223372036854775808", b"-1e400"]))


def _replace_version(data: bytes, rng: random.Random, value: bytes) -> Bytes:
    found = list(re.finditer(rb"(?i)(version|step|policy|rollout_id|label)\w*[\"']?\s*[:=]?\s*[\"']?(\d+)", data))
    if not found:
        return None
    match = rng.choice(found)
    return data[: match.start(2)] + value + data[match.end(2) :]


def negative_version(data: bytes, rng: random.Random) -> Bytes:
    return _replace_version(data, rng, b"-3")


def future_version(data: bytes, rng: random.Random) -> Bytes:
    return _replace_version(data, rng, rng.choice([b"987654", b"1999999999"]))


def _shift_clock(data: bytes, at: int, hours: int) -> Bytes:
    def later(match: re.Match[bytes]) -> bytes:
        return match[1] + b"%02d" % ((int(match[2]) + hours) % 24) + match[3]

    tail = _CLOCK.sub(later, data[at:])
    tail = _SECONDS.sub(lambda match: b"%d" % (int(match[0]) + 3600 * hours), tail)
    if hours < 0:  # no zone changes what counts from the start
        tail = _SINCE_START.sub(lambda match: match[1] + b"%r" % (float(match[2]) + 3600 * hours), tail)
    return data[:at] + tail if tail != data[at:] else None


def clock_jump(data: bytes, rng: random.Random) -> Bytes:
    """The clock is set back by an hour."""
    return _shift_clock(data, middle(len(data), rng), -1)


def other_zone(data: bytes, rng: random.Random) -> Bytes:
    """The whole file is written by a host of another time zone."""
    return _shift_clock(data, 0, 2)


def restart_numbering(data: bytes, rng: random.Random) -> Bytes:
    """A process started again counts from the first again, and appends."""
    lines = lines_of(data)
    return b"".join([*lines, *lines[: len(lines) // 3]]) if len(lines) > 5 else None
