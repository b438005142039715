"""Axes of time and bars along them: what the timeline and the rates are drawn with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Clock:
    """Turns microseconds since 1970 into the units of the axis, from the first moment shown."""

    zero: int
    last: int
    unit: str
    size: float

    @classmethod
    def over(cls, moments: list[int]) -> Clock:
        """Choose seconds, minutes or hours by what is to be shown; ``moments`` must not be empty."""
        zero, last = min(moments), max(moments)
        seconds = (last - zero) / 1e6
        for unit, size in (("hours", 3600.0), ("minutes", 60.0)):
            if seconds >= 3 * size:
                return cls(zero, last, unit, size * 1e6)
        return cls(zero, last, "seconds", 1e6)

    def at(self, moment: int | None) -> float | None:
        """Return its place on the axis."""
        return None if moment is None else round((moment - self.zero) / self.size, 5)


@dataclass
class Bars:
    """Horizontal bars of one kind, as Plotly wants them."""

    name: str
    base: list[float]
    length: list[float]
    row: list[int]
    colour: list[str]
    text: list[str]

    @classmethod
    def none(cls, name: str) -> Bars:
        """Begin without any."""
        return cls(name, [], [], [], [], [])

    def add(self, start: float | None, end: float | None, row: int, colour: str, text: str) -> None:
        """Add one, unless an end of it isn't known."""
        if start is None or end is None or end < start:
            return
        self.base.append(start)
        self.length.append(round(end - start, 5))
        self.row.append(row)
        self.colour.append(colour)
        self.text.append(text)

    def trace(self, width: float, axis_name: str = "y", legend: bool = True) -> dict[str, Any]:
        """Return them as a trace."""
        return {
            "type": "bar",
            "orientation": "h",
            "name": self.name,
            "base": self.base,
            "x": self.length,
            "y": self.row,
            "yaxis": axis_name,
            "width": width,
            "marker": {"color": self.colour, "line": {"width": 0}},
            "text": self.text,
            "textposition": "none",
            "hovertemplate": "%{text}<extra></extra>",
            "showlegend": legend,
        }
