"""The nets below every audit: figures that exclude each other or the framework's own are said, and forbid ``pass``.

Contradictions in the logs are looked for where they arise (product ``findings``). Here the finished document is checked
against itself, in production as in tests, so that no verdict rests on figures that cannot all be true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from staleness_audit.check.intervals import Interval, total

Document = dict[str, Any]
Catch = tuple[str, str | None, str]
"""Code, locator, message."""

_REPORT = "please report this with the run."
_TWO_DIGITS = 0.0051


def cast_nets(document: Document) -> None:
    """Put crossed intervals in order, add an error for each contradiction, and turn ``pass`` into ``inconclusive`` then."""
    catches = [*_crossed(document), *_sums(document), *_own_figures(document)]
    for code, locator, message in reversed(catches):
        document["diagnostics"]["errors"] += 1
        document["diagnostics"]["items"].insert(
            0,
            {
                "source": None,
                "line": None,
                "locator": locator,
                "severity": "error",
                "code": code,
                "message": message,
                "opens": "training",
            },
        )
    if catches and document["verdict"] == "pass":
        document["verdict"] = "inconclusive"


def _crossed(document: Document) -> Iterator[Catch]:
    crossed: list[str] = []
    if _has_crossed(document):
        for part, value in document.items():
            _put_in_order(value, part, crossed)
        message = f"What the logs say of {len(crossed)} figures excludes itself ({', '.join(crossed[:3])})."
        yield "logs-contradict", crossed[0], message


def _has_crossed(document: Document) -> bool:
    """Whether ends of any interval are crossed: hardly ever, so that their names are made only then."""
    waiting: list[Any] = [document]
    while waiting:
        value = waiting.pop()
        if value.__class__ is dict:
            if "lo" in value:  # an interval holds nothing else
                low, high = value["lo"], value.get("hi")
                if low is not None and high is not None and low > high:
                    return True
                continue
            value = value.values()
        waiting += [part for part in value if part.__class__ is dict or part.__class__ is list]
    return False


def _put_in_order(value: Any, name: str, crossed: list[str]) -> None:
    """Put the ends of crossed intervals below ``value`` in order; append their names to ``crossed``."""
    if isinstance(value, dict):
        low, high = value.get("lo"), value.get("hi")
        if low is not None and high is not None and low > high:
            value["lo"], value["hi"] = high, low
            crossed.append(name)
        for key, part in value.items():
            if part.__class__ is dict or part.__class__ is list:  # names of plain values need not be made
                _put_in_order(part, f"{name}.{key}", crossed)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            if part.__class__ is dict or part.__class__ is list:
                _put_in_order(part, f"{name}[{index}]", crossed)


def _sums(document: Document) -> Iterator[Catch]:
    """Yield parts that cannot add up to their whole."""
    tokens, trajectories = document["tokens"], document["trajectories"]
    if said := _apart(_parts(tokens, "trained_distinct", "masked", "pending", "unaccounted"), tokens["generated"]):
        message = f"The parts of the generated tokens do not add up to all ({said}); {_REPORT}"
        yield "tokens-not-conserved", "tokens.generated", message
    stale, bound, steps = document["staleness"], document["bound"]["value"], document["per_step"]
    sums: list[tuple[str, str, Interval, Mapping[str, Any], bool]] = [
        (
            "trajectories.seen",
            "trajectories",
            _parts(trajectories, "trained", "pending", "unknown"),
            trajectories["seen"],
            True,
        ),
        ("tokens.trained", "tokens of the steps", _sum(steps, "tokens"), tokens["trained"], True),
        (
            "tokens.trained",
            "tokens of the histogram",
            _sum(stale["token_histogram"], "tokens"),
            tokens["trained"],
            True,
        ),
        # Trajectories without a loss token are trained and in no class of staleness.
        (
            "trajectories.trained",
            "trajectories of the histogram",
            _sum(stale["trajectory_histogram"], "trajectories"),
            trajectories["trained"],
            False,
        ),
    ]
    if bound is not None:
        for unit, name in (("tokens", "token_histogram"), ("trajectories", "trajectory_histogram")):
            beyond = [row for row in stale[name] if row["staleness"] > bound or row.get("or_more")]
            sums.append(
                (
                    f"violations.{unit}",
                    f"{unit} beyond the bound",
                    _sum(beyond, unit),
                    document["violations"][unit],
                    True,
                )
            )
    for locator, what, parts, whole, both in sums:
        if said := _apart(parts, whole, both=both):
            yield "figures-do-not-add-up", locator, f"The {what} do not add up to {locator} ({said}); {_REPORT}"


def _parts(block: Mapping[str, Any], *names: str) -> Interval:
    fates = [part for kind in ("dropped", "cancelled", "lost") for part in block[kind].values()]
    return total(_interval(part) for part in [*(block[name] for name in names), *fates])


def _sum(rows: list[dict[str, Any]], name: str) -> Interval:
    return total(_interval(row[name]) for row in rows)


def _interval(value: Mapping[str, Any]) -> Interval:
    return Interval(value["lo"], value["hi"])


def _apart(parts: Interval, whole: Mapping[str, Any], *, both: bool = True) -> str | None:
    """Say how the two exclude each other; None if they don't. ``both``: parts may not be too few either."""
    too_many = parts.lo is not None and whole["hi"] is not None and parts.lo > whole["hi"]
    too_few = both and parts.hi is not None and whole["lo"] is not None and parts.hi < whole["lo"]
    if not (too_many or too_few):
        return None
    return f"{_ends(parts.lo, parts.hi)}, but {_ends(whole['lo'], whole['hi'])}"


def _ends(low: float | None, high: float | None) -> str:
    return f"{0 if low is None else low} to {'any' if high is None else high}"


def _own_figures(document: Document) -> Iterator[Catch]:
    """Yield what the framework counted itself and nobody knows to mean something else, where it excludes what is rebuilt."""
    differing = [
        row
        for row in document["reported"]
        if row["agrees"] is False and row["explanation"] is None and not _is_rounded(row)
    ]
    if not differing:
        return
    first = differing[0]
    message = (
        f"The framework's own {first['raw_name'] or first['name']} of step {first['step']} is {first['reported']:g}, which "
        f"excludes what the logs otherwise say ({_ends(first['rebuilt']['lo'], first['rebuilt']['hi'])}); records are "
        f"missing or wrong: restore the logs. ({len(differing)} such figures; `reported` lists them.)"
    )
    yield "own-figures-differ", first["name"], message


def _is_rounded(row: Mapping[str, Any]) -> bool:
    """Whether a mean lies outside by no more than printing it with two digits can move it."""
    low, high = row["rebuilt"]["lo"], row["rebuilt"]["hi"]
    outside = max((low or 0) - row["reported"], 0 if high is None else row["reported"] - high)
    return bool(row["name"].endswith("_mean") and outside <= _TWO_DIGITS)
