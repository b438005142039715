"""Console logs: what terminals and launchers add around a message is taken off, the message is left."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
import polars as pl

from staleness_audit.parser import Sink
from staleness_audit.readers.config import within_64_bits
from staleness_audit.readers.lines import DamagedStream
from staleness_audit.readers.numbers import is_figure

ANSI = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"
"""A terminal escape sequence; the regular expression means the same to Python and to Polars."""
_ANSI = re.compile(ANSI)
_RAY = re.compile(
    r"\((?P<actor>[^()]{0,256}?)\s{0,9}(?:\([^()]{0,256}\)\s{0,9})?pid=(?P<pid>\d{1,12})"
    r"(?:,\s{0,9}ip=(?P<ip>[^)]{1,256}))?\)\s?"
)
"""Lengths are limited, here and below, so that no line takes longer than in proportion to its length."""
_TIME = re.compile(r"^\[?(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{3,6})?)\]?\s*")
_BAR = re.compile(r"[^|\n]{0,200}?\d{1,3}%\|[^|]*\| *[\d.,]+\w?/[\d.,]+\w? \[[^\]]*\](?=\s*\S)")
"""A progress bar to whose end a message is glued, for bars end without a newline."""
_REPEATED = re.compile(r"\[repeated (?P<times>\d{1,12})x across cluster\].*$")

_NOT_FINITE = re.compile(r"(?<![\w'\"])(-?)(nan|inf|infinity)(?![\w'\"])", re.IGNORECASE)
_WRAPPED = re.compile(
    r"\b(?:np|numpy|torch)\.\w+\((-?[\w.+-]+)(?:, dtype=[\w.]+|, device='[\w:]+')*\)"
    r"|\btensor\((-?[\w.+-]+)(?:, [^()]*)?\)"
)
_NAMED = re.compile(r"\(\?P<\w+>")
MAX_LITERAL_CHARS = 1 << 20
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class ConsoleLine:
    """A message without decoration. ``actor`` and ``pid`` from Ray's prefix; ``repeated`` = how often it stands for.

    Of several prefixes (a log that was printed by a process of its own) the innermost is the speaker's.
    """

    text: str
    actor: str | None = None
    pid: int | None = None
    repeated: int = 1


class Messages:
    """What a process may say, by kind: pairs of a kind and a regular expression, of which the first that fits counts.

    All are tried in one pass. Groups may be named, and unnamed ones are not told; a kind may have several patterns.
    """

    def __init__(self, patterns: Iterable[tuple[str, str]]) -> None:
        whole = []
        self._kinds: dict[int, tuple[str, dict[str, int]]] = {}
        at = 1
        for kind, pattern in patterns:
            alone = re.compile(pattern)
            self._kinds[at] = kind, {name: at + index for name, index in alone.groupindex.items()}
            whole.append(f"({_NAMED.sub('(', pattern)})")
            at += 1 + alone.groups
        self._pattern = re.compile("|".join(whole))

    def match(self, text: str) -> tuple[str, dict[str, str | None]] | None:
        """Return the kind of message that ``text`` begins with, and its named groups; None if it is none of them."""
        found = self._pattern.match(text)
        if found is None:
            return None
        # The group around a whole pattern is the last one to be closed.
        kind, groups = self._kinds[found.lastindex or 0]
        return kind, {name: found[index] for name, index in groups.items()}


def stage_lines(
    rows: Iterator[Mapping[str, Any]], sink: Sink, table: str, schema: Mapping[str, Any], source: str
) -> None:
    """Write rows to a staged table as they come; where the log's data ends in damage, say so and keep what was read."""
    waiting: list[Mapping[str, Any]] = []
    try:
        for row in rows:
            waiting.append(row)
            if len(waiting) >= _ROWS_AT_ONCE:
                sink.write(table, pl.DataFrame(waiting, schema=dict(schema)))
                waiting = []
    except DamagedStream as damage:
        sink.diagnose(
            "error",
            "console-damaged",
            f"Console log not read whole: {damage}; restore it.",
            source=source,
            line=damage.line,
            opens="training",
        )
    sink.write(table, pl.DataFrame(waiting, schema=dict(schema)))


def strip_ansi(text: str) -> str:
    """Remove terminal escape sequences (colours, titles, cursor moves)."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def undecorate(text: str) -> ConsoleLine:
    """Take escape sequences, progress bars, Ray's ``(Actor pid=N)`` and ``[repeated Nx across cluster]`` off a line.

    Of a line that a progress bar rewrote with carriage returns, what was printed last remains.
    """
    clean = strip_ansi(text)
    if "\r" in clean:
        clean = clean.rsplit("\r", 1)[-1]
    actor = pid = None
    at = 0
    bars = "%|" in clean
    while True:
        if clean.startswith("(", at) and (prefix := _RAY.match(clean, at)):
            actor, pid = prefix["actor"] or None, int(prefix["pid"])
            at = prefix.end()
        elif bars and (bar := _BAR.match(clean, at)):
            at = bar.end()
        else:
            break
    clean = clean[at:]
    repeated = 1
    if "[repeated " in clean and (suffix := _REPEATED.search(clean)):
        # Ray prints the line itself and counts the ones it held back.
        repeated = 1 + int(suffix["times"])
        clean = clean[: suffix.start()].rstrip()
    return ConsoleLine(clean, actor, pid, repeated)


def parse_local_time(text: str) -> tuple[datetime | None, str]:
    """Split ``[2026-11-29 15:30:20]``, the beginning of a line, from the rest.

    Console times name no zone: the result is naive. Milliseconds, if there are any, are kept.
    """
    found = _TIME.match(text)
    if not found:
        return None, text
    try:
        moment = datetime.fromisoformat(found["time"].replace(",", "."))
    except ValueError:
        return None, text
    return moment, text[found.end() :]


def number_of(digits: str | bytes) -> int:
    """Return the whole number that digits spell, as they do in a message that a pattern has found.

    One of more than 18 digits counts nothing that there is: it is cut to 10**18, which 64 bits hold and every check of
    a range refuses, and Python would refuse to read the longest.
    """
    if len(digits) <= 18:
        return int(digits)
    return -(10**18) if digits[:1] in ("-", b"-") else 10**18


def decimal_of(text: str) -> float | None:
    """Return the number that digits and dots spell; None if that is none (two dots), or nothing that can be counted."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if is_figure(value) else None


def parse_dict(text: str) -> dict[str, object] | None:
    """Read the printed form of a flat Python dict as loggers print metrics; None if it is none (for instance cut).

    ``nan``, ``inf`` and integers beyond 64 bits become floats; numbers wrapped by numpy or torch
    (``np.float64(0.5)``, ``tensor(1.)``) are unwrapped. Only literals are understood; nothing is evaluated.
    """
    if len(text) > MAX_LITERAL_CHARS or not text.startswith("{"):
        return None
    value = _as_json(text)
    if value is None:
        value = _as_literal(text)
    if not isinstance(value, dict):
        return None
    return {str(_writable(key)): float("nan") if item == "nan" else _writable(item) for key, item in value.items()}


def _writable(value: object) -> object:
    """Return a literal as tables and JSON can hold it."""
    if isinstance(value, str):  # an escape may stand for half of a surrogate pair
        return value.encode("utf-8", "replace").decode()
    return within_64_bits(value) if isinstance(value, int) else value


def _as_json(text: str) -> object:
    """Read a dict whose printed form is JSON but for its quotes, which a parser of JSON does many times faster."""
    if '"' in text or "\\" in text:
        return None
    try:
        return orjson.loads(text.replace("'", '"'))
    except orjson.JSONDecodeError:
        return None


def _as_literal(text: str) -> object:
    plain = _WRAPPED.sub(lambda match: match[1] or match[2], text)
    plain = _NOT_FINITE.sub(lambda match: f"{match[1]}1e999" if match[2].lower() != "nan" else "'nan'", plain)
    try:
        with warnings.catch_warnings(action="ignore"):  # of "1if", which is a number and a word
            return ast.literal_eval(plain)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
