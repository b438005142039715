"""An audit beside one derived again from the same run: where they differ.

The path of the run and the gate are no part of what is derived: a run may be moved, and a gate judges by what its caller
asked for. The version of the tool differs without harm as long as nothing else does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from staleness_audit.check.figures import FIGURES, Data

_NOT_DERIVED = {"gate", "tool", "inputs", "options"}
_TOLERANCE = 1e-9
"""Relative; sums of the same numbers in another order."""
_LEADING = ("verdict", "bound", *dict.fromkeys(figure.path.partition(".")[0] for figure in FIGURES))


@dataclass(frozen=True)
class Difference:
    """``what`` differs: ``recorded`` in the audit that was given, ``derived`` in the new one (None = not there).

    ``kind``: ``input`` (a file; the values are digests, or sizes), ``version`` (tool or parser), ``figure`` (anything
    else; its dotted path in the document), ``unchecked`` (what can't be compared).
    """

    kind: Literal["input", "version", "figure", "unchecked"]
    what: str
    recorded: Any
    derived: Any

    def json(self) -> dict[str, Any]:
        """Return it as a row of ``verify --format json``."""
        return {"kind": self.kind, "what": self.what, "recorded": self.recorded, "derived": self.derived}


def differences(recorded: Data, derived: Data) -> list[Difference]:
    """Compare two documents of ``audit``: inputs first, then versions, then figures in the document's order."""
    derived = json.loads(json.dumps(derived, default=str))  # as it would have been written
    found = list(_inputs(recorded.get("inputs"), derived.get("inputs")))
    for what, block, key in (("staleness-audit", "tool", "version"), ("parser", "run", "parser")):
        old, new = recorded.get(block, {}).get(key), derived[block][key]
        if old != new:
            found.append(Difference("version", what, old, new))
    old_rest, new_rest = _derived_part(recorded), _derived_part(derived)
    for key in sorted(old_rest.keys() | new_rest.keys(), key=_place):
        found += _unlike(old_rest.get(key), new_rest.get(key), key)
    return found


def is_same(found: Sequence[Difference]) -> bool:
    """Whether the audit holds: nothing differs but versions of tool or parser, or how files are known."""
    return all(difference.kind in {"version", "unchecked"} for difference in found)


def _place(key: str) -> tuple[int, str]:
    return (_LEADING.index(key) if key in _LEADING else len(_LEADING), key)


def _derived_part(data: Data) -> dict[str, Any]:
    rest = {key: value for key, value in data.items() if key not in _NOT_DERIVED}
    rest["run"] = {key: value for key, value in data["run"].items() if key not in {"path", "parser"}}
    items = data["diagnostics"].get("items") or []
    rest["diagnostics"] = {
        **data["diagnostics"],
        "items": sorted(items, key=lambda item: json.dumps(item, default=str)),
    }
    return rest


def _inputs(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[Difference]:
    if old is None or new is None:
        if old is not new:
            yield Difference("input", "inputs", old and old.get("digest"), new and new.get("digest"))
        return
    if old.get("digest") == new.get("digest"):
        return
    compared = "digest"
    known, found = (block.get("of", "bytes") for block in (old, new))  # older documents do not say
    if known != found:
        # A copy of objects, or the other way round: what a store says of an object is no digest of its bytes.
        yield Difference("unchecked", "contents of the inputs", f"by their {known}", f"by their {found}")
        compared = "bytes"
    before, after = ({row["path"]: row.get(compared) for row in block.get("listed") or ()} for block in (old, new))
    if compared == "bytes" and before == after and all(old.get(sum_) == new.get(sum_) for sum_ in ("files", "bytes")):
        return
    changed = [path for path in sorted(before.keys() | after.keys()) if before.get(path) != after.get(path)]
    if not before or not after or not changed:  # too many to be listed
        yield Difference("input", "inputs", old.get("digest"), new.get("digest"))
        return
    for path in changed:
        yield Difference("input", path, before.get(path), after.get(path))


def _unlike(old: Any, new: Any, path: str) -> Iterator[Difference]:
    """Yield the innermost differences below two values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        if _is_interval(old) and _is_interval(new):
            if any(not _alike(old[end], new[end]) for end in ("lo", "hi")):
                yield Difference("figure", path, dict(old), dict(new))
            return
        for key in dict.fromkeys((*old, *new)):
            yield from _unlike(old.get(key), new.get(key), f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            one, other = (values[index] if index < len(values) else None for values in (old, new))
            yield from _unlike(one, other, f"{path}[{index}]")
    elif not _alike(old, new):
        yield Difference("figure", path, old, new)


def _is_interval(value: Mapping[str, Any]) -> bool:
    return value.keys() == {"lo", "hi"}


def _alike(old: Any, new: Any) -> bool:
    if isinstance(old, int | float) and isinstance(new, int | float) and not isinstance(old, bool):
        return math.isclose(old, new, rel_tol=_TOLERANCE)
    return bool(old == new and type(old) is type(new))
