"""Values of untrusted files that are not of the shape a parser looks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MISSHAPEN: Final = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What taking a value apart raises that has another shape: a text for a list, half a pair, no such key."""


@contextmanager
def shaped(error: Callable[[str], Exception]) -> Iterator[None]:
    """Turn what a value of another shape raises in the block into an error that says so.

    For blocks that do nothing but take one value apart: a pickle may hold anything anywhere, and to ask each part of
    it for its type would say no more to the reader than that its file is none of the format.
    """
    try:
        yield
    except MISSHAPEN as why:
        raise error(f"it holds something else where a part of it belongs ({type(why).__name__}: {why})") from why
