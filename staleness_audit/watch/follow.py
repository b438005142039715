"""From a growing run to its state, again and again."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from staleness_audit import plugins
from staleness_audit.check.checker import check
from staleness_audit.check.worst import worst_violations
from staleness_audit.discovery import RunFiles, Tail, discover
from staleness_audit.errors import AuditError
from staleness_audit.ingest import ingest
from staleness_audit.parser import Parser
from staleness_audit.rebuild import Rebuilt, rebuild
from staleness_audit.watch.divided import DividedRun
from staleness_audit.watch.growing import GrowingRun
from staleness_audit.watch.state import Speed, State

NEWEST = 5
HEADS = 64 << 20
"""Bytes of beginnings of files that are kept from one look to the next, to recognise the framework by."""
_HEAD = 1 << 18
"""Bytes of a file's beginning that may tell what it is."""
QUIET = 60.0
"""Seconds without a new line after which a run is not called running any more."""


class Follower:
    """Audits a growing run again and again.

    Arguments:
        path: the run's directory or file.
        bound: as for ``api.audit``.
        framework: name of the parser, instead of detection.
        folder: where the tables of the watch live; its own, not the cache that ``audit`` uses.
    """

    def __init__(self, path: Path, bound: int | None, *, framework: str | None, folder: Path) -> None:
        self._path = path
        self._bound = bound
        self._framework = framework
        self._parsers = plugins.parsers()
        self._folder = folder
        self._key: str | None = None
        self._heads: dict[tuple[str, int], tuple[str, bytes]] = {}
        self._tails: dict[str, Tail] = {}
        self._texts: dict[str, str] = {}
        self._listed: RunFiles | None = None
        self._chosen: tuple[dict[str, int], plugins.Choice] | None = None
        self._growing: GrowingRun | DividedRun | None = None
        self._state: State | None = None
        self._moved = time.monotonic()
        self._speed = Speed()

    def refresh(self) -> State:
        """Read what is new and judge all that was written so far.

        A run that cannot be read for the moment (its files are being moved, or made anew) leaves the last state, with
        the ``trouble``.

        Raises:
            AuditError: the run cannot be read, and never could.
        """
        begun = time.monotonic()
        try:
            rebuilt = self._rebuilt()
        except (AuditError, OSError) as error:
            if self._state is None:
                raise
            self._state = replace(self._state, trouble=str(error), changed=False, at=time.time())
            return self._state
        if self._state is None or rebuilt is not None:
            assert rebuilt is not None
            self._moved = time.monotonic()
            data = check(rebuilt, self._bound, worst=0)
            in_flight, queued = _under_way(rebuilt)
            generated, trained = self._speed.read(data)
            self._state = State(
                data, _newest(rebuilt, data), in_flight, queued, generated, trained, time.time(), 0.0, changed=True
            )
        else:
            generated, trained = self._speed.read(self._state.data)
            self._state = replace(
                self._state,
                generated_per_s=generated,
                trained_per_s=trained,
                at=time.time(),
                changed=False,
                trouble=None,
            )
        self._note_health()
        self._state = replace(self._state, took=time.monotonic() - begun)
        return self._state

    def settle(self) -> None:
        """Do what makes the next refresh cheap; between two of them."""
        if self._growing is not None:
            self._growing.settle()
        # What is kept from look to look would be looked at by every full collection.
        gc.collect()
        gc.freeze()

    def _rebuilt(self) -> Rebuilt | None:
        """Return the run rebuilt so far, or None if nothing changed."""
        run = self._listed = discover(self._path, self._listed)
        if sum(len(head) for _, head in self._heads.values()) > HEADS:
            self._heads.clear()
        run.heads, run.tails, run.texts = self._heads, self._tails, self._texts
        choice = self._choose(run)
        kind = _kind_of(choice.parser)
        if kind is not None:
            if self._growing is None or self._growing.parser is not choice.parser:
                self._growing = kind(choice.parser, self._folder / "growing")
            return self._growing.update(run, choice)
        self._growing = None
        dataset = ingest(run, choice, self._folder / "tables")
        if dataset.key == self._key:
            return None
        rebuilt = rebuild(dataset)
        self._key = dataset.key
        return rebuilt

    def _choose(self, run: RunFiles) -> plugins.Choice:
        """Ask all parsers only when a file of a new kind has come, or one of a known kind shows more of its beginning."""
        kinds: dict[str, int] = {}
        for file in run.files:
            kinds[file.kind] = max(kinds.get(file.kind, 0), min(file.bytes, _HEAD).bit_length())
        if self._chosen is not None and self._chosen[0] == kinds:
            parser = self._chosen[1].parser
            if detection := parser.detect(run):
                return plugins.Choice(parser, detection)
        self._chosen = kinds, plugins.choose(run, self._framework, self._parsers)
        return self._chosen[1]

    def _note_health(self) -> None:
        """A run that the logs say nothing of, and that still writes, is running."""
        assert self._state is not None
        run: Any = self._state.data["run"]
        if run["health"]["state"] in ("unknown", "running"):
            running = time.monotonic() - self._moved < QUIET
            run["health"]["state"] = "running" if running else "unknown"


def _kind_of(parser: Parser) -> type[GrowingRun] | type[DividedRun] | None:
    """How a parser's runs are followed at the price of what is new, if they can be."""
    if getattr(parser, "units_stand_alone", False):
        return GrowingRun
    return DividedRun if getattr(parser, "writes_blocks", False) else None


def _under_way(rebuilt: Rebuilt) -> tuple[int, int]:
    """Trajectories that are being generated, and that are done and wait."""
    pending = rebuilt.scan("trajectory_lives").filter((pl.col("fates") == "pending:") & ~pl.col("anonymous"))
    row = pending.select((~pl.col("has_finished")).sum(), pl.col("has_finished").sum().alias("queued")).collect()
    return int(row.item(0, 0)), int(row.item(0, 1))


def _newest(rebuilt: Rebuilt, data: dict[str, Any]) -> list[dict[str, Any]]:
    if data["verdict"] != "fail":
        return []
    lost = any(item["opens"] == "training" for item in data["diagnostics"]["items"])
    found = worst_violations(rebuilt, data["bound"]["value"], NEWEST, None, lost, newest=True)
    return [row for row in found if row["proven"]]
