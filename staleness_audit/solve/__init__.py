"""Solving what aggregates say: from counts, sums, extremes and shares to the tightest sound statement about members.

A log that reports per step "8 groups, mean staleness 1.25, largest 4, three of them at 0" says more than each number
by itself. The functions here take such facts as integers and exact fractions, and return what *every* multiset that
fits them has in common. They know no framework, no step, no policy version.

``Facts`` in, ``Solution`` out (``solve``, ``either``): how many members have each value, how many exceed each value,
and what is known of the i-th largest (``Solution.bands``, which is how a parser makes rows of it: one anonymous class
per band). ``rounded``, ``single``: what a printed decimal or a 32-bit float can stand for. ``whole``: the
integers in such an interval. ``pick``: between what the sum of any k of some amounts lies.
"""

from __future__ import annotations

from staleness_audit.solve.amounts import Range, pick, rounded, single, whole
from staleness_audit.solve.multiset import Band, Facts, Solution, either, solve

__all__ = ["Band", "Facts", "Range", "Solution", "either", "pick", "rounded", "single", "solve", "whole"]
