"""Audits side by side: the same figures of several runs, and which of them are proven to differ.

Every run is compared with the first. Two figures differ if no value lies in both intervals, and are the same if both are
exact and equal; otherwise the logs can't tell. Figures that do not mean the same in both runs, because a version counts
something else or another bound was judged, are not compared at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from staleness_audit import __version__
from staleness_audit.check.figures import BY_REASON, FIGURES, Data, Figure, figure_at, value_at
from staleness_audit.check.intervals import Interval

Differs = Literal["yes", "no", "unknown", "incomparable"]
SCHEMA = "staleness-compare/1"
_OF_BOUND = ("violations.", "waste.doomed_tokens", "waste.needless_drop_tokens", "throughput.in_bound_tokens_per_s")
_UNITLESS = ("staleness.optimizer_steps.",)


def compare(documents: Sequence[Data]) -> dict[str, Any]:
    """Return the comparison of two or more audits as the document that ``compare --format json`` prints.

    ``figures``: for each figure the value of every run (an interval, a word or null), and for each run but the first
    whether it ``differs`` from the first: yes, no, unknown, incomparable (null for the first itself).
    """
    return {
        "schema": SCHEMA,
        "tool": {"version": __version__},
        "runs": [_run(data) for data in documents],
        "figures": [_row(figure, documents) for figure in _figures(documents)],
        "caveats": list(_caveats(documents)),
    }


def _run(data: Data) -> dict[str, Any]:
    return {
        "path": data["run"]["path"],
        "framework": data["run"]["framework"],
        "framework_version": data["run"]["framework_version"],
        "unit": data["staleness"]["unit"],
        "bound": data["bound"]["value"],
        "verdict": data["verdict"],
    }


def _figures(documents: Sequence[Data]) -> Iterator[Figure]:
    """Yield all figures, and behind those that are split by reason the reasons that some run has."""
    for figure in FIGURES:
        yield figure
        if figure.path in BY_REASON:
            block, fate = figure.path.split(".")
            reasons = {reason for data in documents for reason in data[block][fate]}
            yield from (figure_at(f"{figure.path}.{reason}") for reason in sorted(reasons - {"unknown"}))
            if "unknown" in reasons:
                yield figure_at(f"{figure.path}.unknown")


def _row(figure: Figure, documents: Sequence[Data]) -> dict[str, Any]:
    first, *others = documents
    values = [value_at(data, figure.path) for data in documents]
    return {
        "figure": figure.path,
        "title": figure.title,
        "kind": figure.kind,
        "values": [value.json() if isinstance(value, Interval) else value for value in values],
        "differs": [
            None,
            *(
                differs(values[0], value) if _comparable(figure, first, data) else "incomparable"
                for value, data in zip(values[1:], others, strict=True)
            ),
        ],
    }


def differs(one: Interval | str | bool | None, other: Interval | str | bool | None) -> Differs:
    """Whether two figures are proven to differ (``yes``) or to be the same (``no``)."""
    if one is None or other is None:
        return "unknown"
    if not isinstance(one, Interval) or not isinstance(other, Interval):
        return "no" if one == other else "yes"
    if one.is_exact and other.is_exact:
        assert one.lo is not None and other.lo is not None
        return "no" if math.isclose(one.lo, other.lo, rel_tol=1e-9) else "yes"
    return "yes" if _below(one, other) or _below(other, one) else "unknown"


def _below(one: Interval, other: Interval) -> bool:
    return one.hi is not None and other.lo is not None and one.hi < other.lo


def _comparable(figure: Figure, first: Data, data: Data) -> bool:
    """Whether a figure means the same in both runs."""
    if figure.path.startswith(_OF_BOUND) and first["bound"]["value"] != data["bound"]["value"]:
        return False
    counts_versions = figure.kind == "versions" or figure.path.startswith("violations.")
    if not counts_versions or figure.path.startswith(_UNITLESS):
        return True
    return bool(first["staleness"]["unit"] == data["staleness"]["unit"])


def _caveats(documents: Sequence[Data]) -> Iterator[dict[str, Any]]:
    """Say what stands between the figures and the conclusions that one might draw; ``runs`` are positions from 0."""
    everyone = list(range(len(documents)))
    if len({data["staleness"]["unit"] for data in documents}) > 1:
        yield {
            "code": "units",
            "runs": everyone,
            "message": "A version does not count the same in all of them, so figures of staleness are not compared "
            "between runs of different units.",
        }
    if len({data["bound"]["value"] for data in documents}) > 1:
        yield {
            "code": "bounds",
            "runs": everyone,
            "message": "They were judged by different bounds, so violations are not compared between those; "
            "--bound judges all by one.",
        }
    exact = [data["coverage"]["tokens_exact"] for data in documents]
    if blurred := [index for index, share in enumerate(exact) if share is None or share < 1]:
        yield {
            "code": "coverage",
            "runs": blurred,
            "message": "The logs tell the staleness of some tokens only within limits, or not at all; what looks larger "
            "may only be less known.",
        }
    unread = [
        index
        for index, data in enumerate(documents)
        if any(item["opens"] == "training" for item in data["diagnostics"]["items"])
    ]
    if unread:
        yield {
            "code": "unread",
            "runs": unread,
            "message": "A part of the logs that may hold training data went unread, so counts have no upper end.",
        }
    if len({(data["run"]["steps"]["lo"], data["run"]["steps"]["hi"]) for data in documents}) > 1:
        yield {
            "code": "length",
            "runs": everyone,
            "message": "They are not equally long, and counts grow with the number of steps; compare means, shares and "
            "rates, or the same steps with --steps.",
        }
