"""Numbers as logs print them, as exact intervals; and sums over an unknown choice of amounts."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction

_LARGEST_SINGLE = (2 - 2**-23) * 2.0**127

Range = tuple[int, int]
"""A closed interval of integers, both ends included."""

Share = tuple[Fraction, Fraction]
"""A closed interval of fractions."""


def rounded(value: float | str | Fraction, decimals: int) -> Share:
    """Return what a number printed with so many decimals can stand for: half a unit of the last place each way."""
    half = Fraction(1, 2 * 10**decimals)
    middle = Fraction(str(value)) if isinstance(value, float) else Fraction(value)
    return middle - half, middle + half


def single(value: float) -> Share:
    """Return what a 32-bit float can stand for: everything that rounds to it, and a little more at powers of two.

    A finite number beyond those of 32 bits stands for itself.
    """
    if value == 0 or abs(value) >= _LARGEST_SINGLE:
        return Fraction(value), Fraction(value)
    # Neighbours of the stored pattern: the step between floats is at most the distance to the larger one.
    (bits,) = struct.unpack("<I", struct.pack("<f", abs(value)))
    (above,) = struct.unpack("<f", struct.pack("<I", bits + 1))
    middle = Fraction(value)
    step = (Fraction(above) - Fraction(struct.unpack("<f", struct.pack("<I", bits))[0])) / 2
    return middle - step, middle + step


def whole(share: Share, times: int = 1) -> Range | None:
    """Return the integers that ``times`` such a number can be; None if there are none."""
    low, high = math.ceil(share[0] * times), math.floor(share[1] * times)
    return (low, high) if low <= high else None


def pick(amounts: Sequence[int], count: int) -> Range:
    """Return between what the sum of ``count`` of the amounts lies, whichever they are.

    Raises:
        ValueError: fewer amounts than that are given, or ``count`` is negative.

    """
    if not 0 <= count <= len(amounts):
        raise ValueError(f"{count} of {len(amounts)} amounts cannot be picked")
    ordered = sorted(amounts)
    return sum(ordered[:count]), sum(ordered[len(ordered) - count :])
