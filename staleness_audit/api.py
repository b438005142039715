"""The audit as a Python function, with the same power as the command line (the heart: it joins the stations)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from staleness_audit import plugins
from staleness_audit.check.baseline import read_documents
from staleness_audit.check.checker import check
from staleness_audit.check.gate import Gate
from staleness_audit.check.story import Story, tell
from staleness_audit.check.verify import Difference, differences, is_same
from staleness_audit.discovery import discover
from staleness_audit.errors import AuditError
from staleness_audit.ingest import Dataset, default_tables, ingest, is_tables
from staleness_audit.places import place
from staleness_audit.pool import Pool
from staleness_audit.rebuild import Rebuilt, modules, rebuild
from staleness_audit.report.terminal.words import interval
from staleness_audit.scratch import scratch_folder
from staleness_audit.store import cache_folder
from staleness_audit.tables import SCHEMAS

Progress = Callable[[int, int, str], None]
Steps = tuple[int | None, int | None]


def load(
    path: str | Path,
    *,
    framework: str | None = None,
    tables: str | Path | None = None,
    assume: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    pool: Pool | None = None,
) -> Dataset:
    """Find, detect and ingest a run; a folder of tables is opened as it is.

    Args:
        path: a run's directory or file, or a folder that ``ingest`` wrote; or a URL of one (``s3://bucket/run``).
        framework: name of the parser, instead of detection.
        tables: folder for the event tables; default: a cache below the current directory.
        assume: what the logs don't say, by the parser's own keys.
        progress: called with (done, total, what) as units are read.
        pool: who reads the units, as ``cluster.connected`` yields it; default: processes of this machine.

    Raises:
        AuditError: nothing readable, nothing recognised, or several frameworks at once.
    """
    path = place(path)
    if framework is None and tables is None and is_tables(path):
        return Dataset.load(path if pool is None else path.resolve())
    run = discover(path)
    run.assume = dict(assume or {})
    choice = plugins.choose(run, framework)
    name = choice.parser.name if run.is_directory else f"{choice.parser.name} {path.name}"
    known = getattr(choice.parser, "assumptions", {})
    if unknown := sorted(set(run.assume) - set(known)):
        takes = ", ".join(known) or "nothing"
        raise AuditError(f"The {choice.parser.name} parser knows no assumption {', '.join(unknown)}; it takes {takes}.")
    folder = place(tables) if tables is not None else default_tables(run, name)
    return ingest(run, choice, folder if pool is None else folder.resolve(), progress=progress, pool=pool)


def audit(
    path: str | Path,
    bound: int | None = None,
    *,
    framework: str | None = None,
    steps: Steps = (None, None),
    tables: str | Path | None = None,
    gate: Gate | None = None,
    worst: int = 10,
    assume: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    pool: Pool | None = None,
) -> AuditResult:
    """Audit one run: whether every trained token was within the bound, and what that cost.

    Args:
        path: the run's directory or file, or a folder of tables; or a URL of one (``s3://bucket/run``).
        bound: largest allowed ``v_train - v_gen``; None takes the one in the run's configuration.
        framework: name of the parser, instead of detection.
        steps: first and last training step that count (None = no limit).
        tables: folder for the event tables; default: a cache below the current directory.
        gate: when the run counts as failed.
        worst: how many violations to tell with their story.
        assume: what the logs don't say, by the parser's own keys.
        progress: called with (done, total, what).
        pool: who reads units and rebuilds partitions, as ``cluster.connected`` yields it; default: this machine.

    Raises:
        AuditError: the run cannot be audited; the message says what to do.
    """
    bound = _read_bound(bound)
    dataset = load(path, framework=framework, tables=tables, assume=assume, progress=progress, pool=pool)
    rebuilt = rebuild(dataset, steps, progress, pool)
    data = check(rebuilt, bound, gate=gate, worst=worst)
    data["options"] = {
        "bound": bound,
        "steps": list(steps),
        "assume": dict(dataset.manifest.get("assume", {})),
        "worst": worst,
    }
    if steps != (None, None) and not data["per_step"]:
        _refuse_no_steps(dataset, steps)
    return AuditResult(rebuilt, data)


def _read_bound(bound: object) -> int | None:
    """Return the bound as an ``int``, whatever library its whole number is from; ``AuditError`` if it is none."""
    if bound is None:
        return None
    if hasattr(bound, "__index__") and (whole := operator.index(bound)) >= 0:
        return whole
    raise AuditError(f"The bound is {bound!r}; it is a whole number of versions, 0 or more.")


def verify(audit_file: str | Path, path: str | Path, *, progress: Progress | None = None) -> Verification:
    """Derive an audit again from a run, with the format and the options that it records, and compare.

    Args:
        audit_file: what ``audit --format json`` wrote. Of several audits it is the one of this path.
        path: the run's directory or file, or a URL of one. Its tables are made afresh: no cache is trusted.
        progress: called with (done, total, what).

    Raises:
        AuditError: the file holds no audit of this run, or the run cannot be audited.
    """
    path = place(path)
    recorded = _recorded(Path(audit_file), path)
    options = recorded.get("options") or {}
    bound = recorded["bound"]["value"] if recorded["bound"].get("source") == "cli" else None
    with scratch_folder("verify-", cache_folder()) as folder:
        first, last = options.get("steps") or (None, None)
        derived = audit(
            path,
            bound,
            framework=str(recorded["run"]["parser"]).rpartition(" ")[0],
            steps=(first, last),
            tables=folder / "tables",
            worst=options.get("worst", 10),
            assume=options.get("assume"),
            progress=progress,
        ).data
    return Verification(recorded, derived, tuple(differences(recorded, derived)))


def _recorded(file: Path, path: Path) -> Mapping[str, Any]:
    """Return the audit in a file; of several the one of this path. ``AuditError`` if its options are none."""
    documents = read_documents(file)
    if len(documents) > 1:
        documents = [each for each in documents if each["run"]["path"] in {str(path), str(path.resolve())}]
    if len(documents) != 1:
        raise AuditError(f"{file}: holds {len(documents)} audits of {path}; give a file with one.")
    recorded = documents[0]
    options = recorded.get("options") or {}
    steps = options.get("steps") or [None, None]
    sound = (
        isinstance(recorded["run"].get("parser"), str)
        and isinstance(recorded["bound"].get("value"), int | None)
        and isinstance(steps, list)
        and len(steps) == 2
        and all(isinstance(number, int | None) for number in [*steps, options.get("worst", 10)])
        and isinstance(options.get("assume", {}), dict)
    )
    if not sound:
        raise AuditError(f"{file}: its run.parser, bound or options are not what `audit` writes; audit the run anew.")
    return recorded


@dataclass(frozen=True)
class Verification:
    """An audit as ``recorded`` and as ``derived`` again, and where they differ."""

    recorded: Mapping[str, Any]
    derived: Mapping[str, Any]
    differences: tuple[Difference, ...]

    @property
    def same(self) -> bool:
        """Whether the audit holds: nothing but versions of tool or parser differs."""
        return is_same(self.differences)

    def json(self) -> dict[str, Any]:
        """Return what ``verify --format json`` prints."""
        return {
            "schema": "staleness-verify/1",
            "same": self.same,
            "verdict": {"recorded": self.recorded["verdict"], "derived": self.derived["verdict"]},
            "differences": [difference.json() for difference in self.differences],
        }


def _refuse_no_steps(dataset: Dataset, steps: Steps) -> None:
    """``AuditError`` if the logs show steps, none of which was asked for."""
    shown = dataset.scan("steps").select(first=pl.col("step").min(), last=pl.col("step").max()).collect()
    first, last = shown.row(0)
    if first is None:
        return
    begin, end = ("" if limit is None else limit for limit in steps)
    raise AuditError(
        f"--steps {begin}:{end} selects no training step, so there is nothing to judge: the logs show steps {first} to "
        f"{last}."
    )


@dataclass(frozen=True)
class AuditResult:
    """An audited run. ``data`` is the document of ``--format json``; tables and products are at hand as frames."""

    rebuilt: Rebuilt
    data: dict[str, Any]

    @property
    def verdict(self) -> str:
        """``pass``, ``fail``, ``inconclusive`` or ``no-bound``."""
        return str(self.data["verdict"])

    @property
    def bound(self) -> int | None:
        """The bound that was judged, in versions."""
        value: int | None = self.data["bound"]["value"]
        return value

    @property
    def exit_code(self) -> int:
        """What the command would exit with."""
        return int(self.data["gate"]["exit"])

    @property
    def tables(self) -> tuple[str, ...]:
        """Names that ``table`` and ``sql`` know: event tables and published products."""
        return (*SCHEMAS, *(module.product for module in modules() if module.published))

    def table(self, name: str) -> pl.LazyFrame:
        """Return an event table or product as a Polars lazy frame; ``KeyError`` for an unknown name."""
        if name in SCHEMAS:
            return self.rebuilt.dataset.scan(name)
        if name not in self.tables:
            raise KeyError(f"no table or product {name!r}; there are {', '.join(self.tables)}")
        if not self.rebuilt.parts(name):  # a lens over the others
            rows: pl.DataFrame = self.connection.table(name).pl()
            return rows.lazy()
        return self.rebuilt.scan(name)

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB connection with a view per table and product, opened once and kept."""
        return self.rebuilt.connect()

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Run a query over tables and products."""
        return self.connection.sql(query)

    def explain(self, trajectory_id: str | None = None) -> Story:
        """Tell the life of a trajectory; None takes the worst violation.

        Raises:
            AuditError: there is no such trajectory, or nothing violates the bound.
        """
        if trajectory_id is None:
            worst = self.data["violations"]["worst"] or []
            if not worst and self.bound is None:
                raise AuditError("Without a bound no trajectory is the worst: give --bound, or name a trajectory.")
            if not worst:
                raise AuditError("No trajectory exceeds the bound, so there is no worst one; name a trajectory.")
            trajectory_id = str(worst[0]["trajectory_id"])
        return tell(self.rebuilt, trajectory_id, self.bound)

    def write_html(self, file: str | Path) -> None:
        """Write the HTML report, one file that opens offline; ``OSError`` if it cannot be written."""
        from staleness_audit.report.html import write_report  # noqa: PLC0415 - loads the template engine

        write_report(self, file)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the terminal's report, escaped."""
        from staleness_audit.report.terminal import notebook_html  # noqa: PLC0415 - only notebooks need it

        return notebook_html(self.data)

    def __repr__(self) -> str:
        """One line: framework, verdict, bound, observed staleness."""
        run, largest = self.data["run"], self.data["staleness"]["max"]
        return f"<AuditResult {run['framework']}: {self.verdict}, bound {self.bound}, staleness {interval(largest)}>"
