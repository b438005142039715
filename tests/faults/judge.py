"""The judge: what an audit of a damaged run says, against the truth and the audit of the whole run."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from helpers.soundness import Range, pair, unsound

from faults.damage import Damage, Wound
from staleness_audit.api import load
from staleness_audit.check.checker import check
from staleness_audit.check.figures import FIGURES
from staleness_audit.errors import AuditError
from staleness_audit.rebuild import rebuild

SECONDS = 60
"""Of processor time: more than any audit of these cases may take."""
KINDS = {"count", "tokens", "versions"}
BLOCKS = {"run", "staleness", "violations", "trajectories", "tokens"}
GROWS_AND_FALLS = ("mean", "max", "pending", "unknown", "unaccounted", "lost")
"""Ends of the names of what can be more at an earlier moment of a run than at its end."""
PER_STEP = ("v_train", "trajectories", "tokens", "max", "mean", "violations", "dropped")


@dataclass(frozen=True)
class Case:
    """A recorded run, and a folder to work in."""

    folder: Path
    work: Path

    @property
    def name(self) -> str:
        return f"{self.folder.parent.name}/{self.folder.name}"

    @cached_property
    def truth(self) -> Mapping[str, Any]:
        truth: dict[str, Any] = json.loads((self.folder / "expected.json").read_text())["truth"]
        return truth

    def copy(self) -> Path:
        """Return a run to be damaged; files are links, which damage replaces."""
        run = self.work / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(self.folder / "run", run, copy_function=_link)
        return run

    @cached_property
    def whole(self) -> Mapping[str, Any]:
        """What the audit says of the run as it is."""
        return check(rebuild(load(self.copy(), tables=self.work / "tables")), 1)


class TooSlow(Exception):
    """Not a ``TimeoutError``, which is an ``OSError``: what writes files would take it for one of the disk."""


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@dataclass
class Judgement:
    """What came of one damage.

    ``outcome``: ``refused`` with one sentence; the ``same`` figures; ``wider`` ones (or others, where the damage
    forges); ``wrong`` with ``errors``.
    """

    case: str
    damage: str
    wound: Wound
    outcome: Literal["refused", "same", "wider", "wrong"]
    errors: list[str] = field(default_factory=list)
    said: str = ""


def judge(case: Case, damage: Damage, wound: Wound) -> Judgement:
    """Audit the damaged copy of a case."""
    early = damage.ends_early(case.work / "run")
    try:
        with _bounded_time():
            built = rebuild(load(case.work / "run", tables=case.work / "tables"))
            data = check(built, 1)
            errors = [] if damage.forges else list(unsound(built, case.truth, early=early))
    except AuditError as refusal:
        text = str(refusal)
        errors = [] if "\n" not in text and text.rstrip().endswith((".", ")")) else [f"no sentence: {text}"]
        return Judgement(case.name, damage.name, wound, "wrong" if errors else "refused", errors, text)
    except Exception as error:
        import traceback

        where = "".join(traceback.format_tb(error.__traceback__)[-3:])
        return Judgement(case.name, damage.name, wound, "wrong", [f"{type(error).__name__}: {error}\n{where}"])
    changed = figures(data) != figures(case.whole)
    if not damage.forges:
        errors += excluded(case.whole, data, early=early)
    if damage.visible and changed and not _named(data, wound):
        errors.append(f"no diagnostic names {wound.files[0]}")
    said = "; ".join(sorted({f"{item['code']}({item['opens']})" for item in data["diagnostics"]["items"]}))
    return Judgement(case.name, damage.name, wound, "wrong" if errors else "wider" if changed else "same", errors, said)


def _named(data: Mapping[str, Any], wound: Wound) -> bool:
    items = data["diagnostics"]["items"]
    return any(file == item["source"] or file in item["message"] for file in wound.files for item in items)


def figures(data: Mapping[str, Any]) -> dict[str, Range]:
    """The figures that a run is judged by, and those of its steps, as intervals."""
    found: dict[str, Range] = {}
    for figure in FIGURES:
        block, _, key = figure.path.rpartition(".")
        if figure.kind in KINDS and block in BLOCKS:
            value = data[block][key]
            if isinstance(value, Mapping):
                found[figure.path] = (0, 0) if value == {} else pair(value)
    for row in data["per_step"]:
        for name in PER_STEP:
            if row[name] is not None:
                found[f"step {row['attempt']}/{row['step']} {name}"] = pair(row[name])
    return found


def excluded(whole: Mapping[str, Any], damaged: Mapping[str, Any], *, early: bool) -> Iterator[str]:
    """Yield figures of which nothing that the whole run's audit allows is allowed by the damaged one's."""
    before, after = figures(whole), figures(damaged)
    kinds = {figure.path: figure.kind for figure in FIGURES}
    for path in before.keys() & after.keys():
        if path.startswith("step ") and whole["run"]["attempts"] != damaged["run"]["attempts"]:
            continue
        (low, high), (least, most) = before[path], after[path]
        if early and (kinds.get(path) == "versions" or path.endswith(GROWS_AND_FALLS)):
            continue
        if least > high * (1 + 1e-9) or (most < low * (1 - 1e-9) and not early):
            yield f"{path}: {low} to {high} became {least} to {most}"


@contextmanager
def _bounded_time() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TooSlow(f"more than {SECONDS} s of processor time")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
