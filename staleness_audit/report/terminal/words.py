"""Values as words: numbers, intervals, shares, times, places. Nothing here knows a console or a page.

Text from logs passes through ``plain`` before it is shown, and is shown as text, never as markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from staleness_audit.check.intervals import Interval

JsonInterval = Mapping[str, Any]
CLOCK_YEAR = 1980
"""Times before it are no dates: the clock of those logs starts at zero."""


@dataclass(frozen=True)
class Glyphs:
    """Characters beyond ASCII, with what stands for them where the encoding has no others."""

    full: str = "█"
    thin: str = "▏"
    maybe: str = "░"
    more: str = "→"
    at_least: str = "≥"
    at_most: str = "≤"
    dot: str = "·"
    dash: str = "–"
    rule: str = "─"
    cut: str = "…"
    down: str = "↓"
    to: str = "–"
    foreign: str = "\N{REPLACEMENT CHARACTER}"
    spark: str = "▁▂▃▄▅▆▇█"


UNICODE = Glyphs()
ASCII = Glyphs("#", "|", ".", ">", ">=", "<=", "-", "-", "-", "...", "v", "-", "?", "_.:-=+*#")


def plain(value: object, glyphs: Glyphs = UNICODE, limit: int = 500) -> str:
    """Text from a log, unable to steer a terminal: one line, no control characters, at most ``limit`` long."""
    # No more is looked at than can be shown: a log line may be megabytes long.
    text = str(value)[: limit + 1]
    shown = "".join(_harmless(character, glyphs) for character in text)
    return shown if len(text) <= limit else shown[: limit - len(glyphs.cut)] + glyphs.cut


def _harmless(character: str, glyphs: Glyphs) -> str:
    if character in "\n\t\r":
        return " "
    shown = character.isprintable() and (glyphs is not ASCII or character.isascii())
    return character if shown else glyphs.foreign


def shorten(text: str, limit: int, glyphs: Glyphs) -> str:
    """Cut the middle out of a long text, so that both ends (a folder, a file name) can be recognised."""
    if len(text) <= limit:
        return text
    left = (limit - len(glyphs.cut)) // 2
    return text[:left] + glyphs.cut + text[len(text) - (limit - len(glyphs.cut) - left) :]


def number(value: float) -> str:
    """``20,112``, ``2.35``, ``0.004``: whole numbers in full, others to three figures."""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def times_as_long(ratio: float) -> str:
    """``1.01 times as long``, or ``as long``: how a ratio of lengths reads before ``as``."""
    shown = number(round(ratio, 2))
    return "as long" if shown == "1" else f"{shown} times as long"


def reach(first: object, last: object, glyphs: Glyphs = UNICODE) -> str:
    """``7–30``, ``7`` if both are the same, ``-2 to 3``: how a range reads wherever a person reads one."""
    if str(first) == str(last):
        return str(first)
    return f"{first}{' to ' if str(first).startswith('-') else glyphs.to}{last}"


def interval(value: JsonInterval | None, glyphs: Glyphs = UNICODE) -> str:
    """``17``, ``7–30``, ``≥ 5``, ``≤ 9``, ``unknown``: what is known of a quantity that is never negative."""
    low, high = (None, None) if value is None else (value["lo"], value["hi"])
    if high is None:
        return "unknown" if not low else f"{glyphs.at_least} {number(low)}"
    if low is None:
        return f"{glyphs.at_most} {number(high)}"
    return reach(number(low), number(high), glyphs)


def version_name(low: float | None, high: float | None, glyphs: Glyphs = UNICODE) -> str:
    """``v3``, ``v3–v5``, ``v ≥ 3``, ``v?``: a policy version of which so much is known."""
    if low is not None and high is not None:
        return reach(f"v{low}", f"v{high}", glyphs)
    shown = interval({"lo": low, "hi": high}, glyphs)
    return "v?" if shown == "unknown" else f"v {shown}"


def count(value: JsonInterval, noun: str, glyphs: Glyphs = UNICODE) -> str:
    """``1 trajectory``, ``7–30 trajectories``, ``an unknown number of trajectories``."""
    shown = interval(value, glyphs)
    if shown == "unknown":
        return f"an unknown number of {plural(noun)}"
    return f"{shown} {noun if shown == '1' else plural(noun)}"


def step_words(step: int, first_step: int | None = None) -> str:
    """``step 8``, ``some step from 5 to 8``: where a use took place."""
    return f"step {step}" if first_step is None else f"some step from {first_step} to {step}"


def step_number(row: Mapping[str, Any], glyphs: Glyphs = UNICODE) -> str:
    """``8``, ``5–8``: the same of a listed violation, for tables."""
    first = row.get("first_step")
    return reach(row["step"] if first is None else first, row["step"], glyphs)


def class_size(multiplicity: JsonInterval | None, glyphs: Glyphs = UNICODE) -> str:
    """``2–4`` for a row that stands for so many trajectories without names; empty for a single trajectory."""
    if multiplicity is None or multiplicity["lo"] == multiplicity["hi"] == 1:
        return ""
    low, high = multiplicity["lo"] or 0, multiplicity["hi"]
    return f"{glyphs.at_least} {number(low)}" if high is None else interval({"lo": low, "hi": high}, glyphs)


def class_words(multiplicity: JsonInterval | None, glyphs: Glyphs = UNICODE) -> str:
    """``a class of 2–4 trajectories without names``, ``a trajectory without a name``; empty for one with a name."""
    if multiplicity is None:
        return ""
    size = class_size(multiplicity, glyphs)
    return f"a class of {size} trajectories without names" if size else "a trajectory without a name"


def plural(noun: str) -> str:
    """Plural of the few nouns that are counted here."""
    return noun[:-1] + "ies" if noun.endswith("y") else noun + "s"


def is_zero(value: JsonInterval | None) -> bool:
    """Whether a quantity is known to be nothing."""
    return value is not None and value["lo"] == 0 and value["hi"] == 0


def is_exact(value: JsonInterval) -> bool:
    """Whether both ends are known and equal."""
    return value["lo"] is not None and value["lo"] == value["hi"]


def percent(share: float) -> str:
    """``76%``; what is not quite nothing or all does not read as such."""
    if 0 < share < 0.01:
        return "<1%"
    if 0.99 < share < 1:
        return ">99%"
    return f"{100 * share:.0f}%"


def percent_interval(value: JsonInterval | None, glyphs: Glyphs = UNICODE) -> str:
    """``24%``, ``24–31%``, ``≥ 24%``, ``unknown`` for a share."""
    if value is None or (value["lo"] in (None, 0) and value["hi"] in (None, 1)):
        return "unknown"
    low, high = percent(value["lo"] or 0), percent(1 if value["hi"] is None else value["hi"])
    if low != high:  # an end of an interval is a number
        low, high = (f"{number(100 * (value['lo'] or 0))}%" if low == "<1%" else low), high.replace(">99%", "100%")
    if value["hi"] in (None, 1) and low != high:
        return f"{glyphs.at_least} {low}"
    return low if low == high else reach(low.removesuffix("%"), high, glyphs)


def duration(seconds: float) -> str:
    """``0.4 s``, ``4 min 33 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if seconds < 60:
        return f"{round(seconds, 1):g} s"
    whole = round(seconds)
    for size, big, small in ((86400, "d", "h"), (3600, "h", "min"), (60, "min", "s")):
        if whole >= size:
            rest = whole % size // {"h": 3600, "min": 60, "s": 1}[small]
            return f"{whole // size} {big}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def moment(text: str) -> str:
    """``2025-10-09 08:53:36 UTC`` from ISO 8601, or ``9 s`` by a clock that starts at zero with the run."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return plain(text)
    if when.year < CLOCK_YEAR:
        return f"{max(when.timestamp(), 0):.1f} s by the logs' own clock"
    return when.strftime("%Y-%m-%d %H:%M:%S UTC")


def place(row: Mapping[str, Any], glyphs: Glyphs = UNICODE) -> str:
    """``train.log:17``, ``rollout_3.pt samples[24]``: where the log says so; empty if nowhere."""
    source, line, locator = row.get("source"), row.get("line"), row.get("locator")
    shown = "" if source is None else plain(source, glyphs) + ("" if line is None else f":{line}")
    return " ".join(part for part in (shown, plain(locator, glyphs, 80) if locator else "") if part)


@dataclass
class Words:
    """The same in the characters that one medium can show; the sentences of a report are written with it."""

    glyphs: Glyphs = UNICODE

    def plain(self, value: object, limit: int = 500) -> str:
        """Text from a log, harmless and in characters that can be shown."""
        return plain(value, self.glyphs, limit)

    def interval(self, value: JsonInterval | None) -> str:
        """Say what is known of a quantity."""
        return interval(value, self.glyphs)

    def version(self, version: Interval) -> str:
        """Name a policy version."""
        return version_name(version.lo, version.hi, self.glyphs)

    def count(self, value: JsonInterval, noun: str) -> str:
        """So many of them."""
        return count(value, noun, self.glyphs)
