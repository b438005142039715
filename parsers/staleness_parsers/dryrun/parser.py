"""The parser: reads the units, joins them, says what holds for the run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pyarrow as pa

from staleness_audit.discovery import RunFiles, natural
from staleness_audit.parser import Attempt, Bound, Detection, Hint, RunFacts, Sign, Sink, Staged, Unit
from staleness_parsers.dryrun import control, rebuild, streams
from staleness_parsers.dryrun.simulations import (
    Simulation,
    assign_launches,
    config_of,
    launch_settings,
    simulations,
    start_settings,
)
from staleness_parsers.dryrun.verdicts import Findings, find, report_damage, report_findings

if TYPE_CHECKING:
    import duckdb

_RUN_LOG: Final = re.compile(r"(^|/)run\.log(\.gz|\.zst)?$")
_BATCH: Final = 100_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT_COLUMNS: Final = [("folder", pa.string()), ("source", pa.string())]
_STAGED: Final = {
    "dryrun_request": pa.schema([*streams.REQUEST, ("line", pa.int64()), *_TEXT_COLUMNS]),
    "dryrun_train": pa.schema([*streams.TRAIN, ("line", pa.int64()), *_TEXT_COLUMNS]),
    "dryrun_instance": pa.schema(
        [("t", pa.float64()), ("line", pa.int64()), ("start", pa.int64()), ("size", pa.int64()), *_TEXT_COLUMNS]
    ),
    "dryrun_damage": pa.schema(
        [
            ("line", pa.int64()),
            ("why", pa.string()),
            ("cut", pa.bool_()),
            ("rest", pa.bool_()),
            ("kind", pa.string()),
            *_TEXT_COLUMNS,
        ]
    ),
}
_STATE: Final = pa.schema(
    [
        ("attempt", pa.int32()),
        ("rid", pa.int64()),
        ("k", pa.int64()),
        ("generated", pa.int64()),
        ("source", pa.string()),
        ("line", pa.int64()),
    ]
)
_CONSOLE_FIGURES: Final = {
    "consumed": "Consumed",
    "dropped": "Dropped",
    "throughput": "Throughput",
    "max_true": "Max staleness (true)",
    "max_reported": "Max staleness (reported)",
}


class DryRunParser:
    """Logs of the DryRun-RL simulator. See the package's docstring for versions and meanings."""

    name = "dryrun"
    version = "1"
    card = control.CARD
    writes_blocks = True

    def detect(self, run: RunFiles) -> Detection | None:
        """Recognise the streams by their first row, the configuration and ``run.log`` by their words."""
        found = streams.find(run)
        if found.clues:
            return Detection(tuple(found.clues[:5]), strong=True)
        names = [file.source for _, _, file in found.streams]
        if names:
            return Detection(tuple(f"{name} is named like a stream of DryRun-RL." for name in names[:5]), strong=False)
        return None

    def plan(self, run: RunFiles) -> Iterator[Unit]:
        """One unit per piece of a stream and per configuration and console file."""
        yield from streams.units(run)

    def read(self, unit: Unit, run: RunFiles, sink: Sink) -> None:
        """Stage what one unit says."""
        streams.read(unit, run, sink)

    def finish(self, staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
        """Tell simulations apart, join their streams, write all event tables."""
        return _Finish(staged, run, sink).facts()


class _Finish:
    """The join of all units, over one DuckDB connection."""

    def __init__(self, staged: Staged, run: RunFiles, sink: Sink) -> None:
        self._staged = staged
        self._run = run
        self._sink = sink
        self._db: duckdb.DuckDBPyConnection = staged.connect()

    def facts(self) -> RunFacts:
        with self._db:
            for table, schema in _STAGED.items():
                if not self._staged.has(table):
                    self._db.register(table, schema.empty_table())
            found = simulations(self._db)
            console = self._console()
            open_settings = self._settings(found, console)
            rebuild.prepare(self._db)
            self._simulation_table(found, console)
            rebuild.join(self._db)
            tally = rebuild.write(self._db, self._sink, self._read_occupancy)
            self._write_console_figures(found, console)
            findings = find(self._db, tally)
            report_damage(self._db, self._sink)
            report_findings(self._db, findings, found, self._sink, settings_open=open_settings)
            self._report_copies()
            return self._run_facts(found, console, findings)

    def _report_copies(self) -> None:
        """Say which files were passed over because they bear the name of another one, and whether they differ."""
        for kept, passed in streams.find(self._run).copies:
            same = streams.same_bytes(self._run, kept, passed)
            self._sink.diagnose(
                "note" if same else "error",
                "stream-twice",
                f"It has the name of {kept}{' and its content' if same else ' but not its content'} and is not read; "
                "remove the one that does not belong here.",
                source=passed,
                opens=None if same else "training",
            )

    # -- what belongs to whom ------------------------------------------------------------------------------------

    def _console(self) -> list[dict[str, Any]]:
        """Lines of consoles that tell something, in the order of files and lines."""
        if not self._staged.has("dryrun_console"):
            return []
        rows = self._staged.scan("dryrun_console").collect().to_dicts()
        return sorted(rows, key=lambda row: (natural(row["source"]), row["line"]))

    def _settings(self, found: list[Simulation], console: list[dict[str, Any]]) -> bool:
        """Give every simulation its settings; return whether some had to be left open."""
        configs: list[tuple[str, str]] = []
        if self._staged.has("dryrun_config"):
            configs = list(self._staged.scan("dryrun_config").select("source", "config").collect().iter_rows())
        # A capture of stdout may repeat what run.log says.
        starts = [(row["source"], row["words"]) for row in console if row["what"] == "start"]
        logs = [(source, words) for source, words in starts if _RUN_LOG.search(source)] or starts
        return assign_launches(found, launch_settings(configs), start_settings(logs))

    def _simulation_table(self, found: list[Simulation], console: list[dict[str, Any]]) -> None:
        """Make table ``simulation``: what SQL needs of each attempt. Times of one begin after the one before."""
        ends = dict(
            self._db.execute(
                "SELECT attempt, max(t) FROM"
                ' (SELECT attempt, t FROM request UNION ALL SELECT attempt, "end" FROM train) GROUP BY attempt'
            ).fetchall()
        )
        unsure = {
            folder
            for (folder,) in self._db.execute(
                "SELECT DISTINCT folder FROM dryrun_damage WHERE kind = 'train' AND NOT cut"
            ).fetchall()
        }
        announced = [int(row["words"][0]) for row in console if row["what"] == "complete"]
        self._db.execute(
            "CREATE TEMP TABLE simulation (attempt INTEGER, shift BIGINT, finish DOUBLE, rule_known BOOLEAN,"
            " push_interval BIGINT, drop_reason VARCHAR, cancel_reason VARCHAR, announced BIGINT,"
            " train_whole BOOLEAN, fixed_prompt BIGINT)"
        )
        shift = 0
        for simulation in found:
            simulation.shift = shift
            end = ends.get(simulation.attempt) or 0.0
            policy = simulation.launch.policy or ""
            row = [
                simulation.attempt,
                shift,
                end,
                simulation.launch.serving_rule_known,
                simulation.launch.push_interval,
                control.DROP_REASONS.get(policy, "unknown"),
                control.CANCEL_REASONS.get(policy, "unknown"),
                announced[simulation.attempt] if len(announced) == len(found) else 0,
                simulation.folder not in unsure and self._train_rows_whole(simulation),
                simulation.launch.fixed_prompt,
            ]
            self._db.execute("INSERT INTO simulation VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            shift += int(end) + 1

    def _train_rows_whole(self, simulation: Simulation) -> bool:
        """Whether a step without a train row is known not to have completed.

        ``train.jsonl`` is made with its first row. Where it is missing and only one step was begun, the simulation
        stopped in it; with two begun, the row of the first is lost, and who knows what else.
        """
        if simulation.has("train"):
            return True
        begun = self._db.execute(
            "SELECT count(DISTINCT consume_version) FROM request WHERE event = 'consume' AND attempt = ?",
            [simulation.attempt],
        ).fetchone()
        return begun is not None and begun[0] <= 1 and simulation.launch.n_versions not in {None, 1}

    # -- instance streams ----------------------------------------------------------------------------------------

    def _read_occupancy(self) -> None:
        """Read the rows that matter to a block from the instance streams into ``state``."""
        wanted = 'SELECT DISTINCT source, attempt, k, line, "start", size FROM block_places ORDER BY source, "start"'
        last = (
            'SELECT source, attempt, NULL AS k, line, "start", size FROM last_place '
            'WHERE attempt IN (SELECT attempt FROM block_cands WHERE latest IS NOT NULL) ORDER BY source, "start"'
        )
        needed_of = "block_insides USING (attempt, rid, k)", "block_cands USING (attempt, rid)"
        for places, needed in zip((wanted, last), needed_of, strict=True):
            for batch in self._states(places):
                self._db.register("batch", batch)
                self._db.execute(f"INSERT INTO state SELECT b.* FROM batch b SEMI JOIN {needed}")  # noqa: S608
                self._db.unregister("batch")

    def _states(self, query: str) -> Iterator[pa.Table]:
        """Yield (attempt, rid, k, generated, source, line) of the rows a query names, many at a time."""
        places = self._db.execute(query).fetchall()
        columns: dict[str, list[Any]] = {name: [] for name in _STATE.names}
        for source, group in groupby(places, key=lambda place: place[0]):
            mine = list(group)
            rows = streams.read_rows(self._run, source, [(place[3], place[4], place[5]) for place in mine])
            for place, row in zip(mine, rows, strict=False):
                if row.why:
                    self._db.execute("INSERT INTO unreadable VALUES (?, ?, ?)", [source, place[3], row.why])
                count = len(row.generated)
                columns["attempt"] += [place[1]] * count
                columns["rid"] += row.generated.keys()
                columns["k"] += [place[2]] * count
                columns["generated"] += row.generated.values()
                columns["source"] += [source] * count
                columns["line"] += [place[3]] * count
                if len(columns["rid"]) >= _BATCH:
                    yield pa.table(columns, schema=_STATE)
                    columns = {name: [] for name in _STATE.names}
        if columns["rid"]:
            yield pa.table(columns, schema=_STATE)

    # -- writing -------------------------------------------------------------------------------------------------

    def _write_console_figures(self, found: list[Simulation], console: list[dict[str, Any]]) -> None:
        """Keep what the summary on stdout says; its place in a run of several simulations is not known."""
        attempt = found[0].attempt if len(found) == 1 else None
        rows = [
            {
                "attempt": attempt,
                "raw_name": _CONSOLE_FIGURES[row["what"]],
                "value": float(row["words"][0]),
                "evidence": "recorded",
                "source": row["source"],
                "line": row["line"],
            }
            for row in console
            if row["what"] in _CONSOLE_FIGURES
        ]
        if rows:
            self._db.register("figures", pl.DataFrame(rows, schema_overrides={"attempt": pl.Int32}))
            self._sink.write_query("reported", self._db, "FROM figures")

    # -- facts ---------------------------------------------------------------------------------------------------

    def _run_facts(self, found: list[Simulation], console: list[dict[str, Any]], findings: Findings) -> RunFacts:
        last = found[-1]
        policies = dict.fromkeys(simulation.launch.policy for simulation in found if simulation.launch.policy)
        return RunFacts(
            framework="dryrun",
            unit="training steps",
            dialect=", ".join(policies) or None,
            config=config_of(found),
            bound=control.bound(last.launch) if last.launch.config else Bound(None),
            guarantee=control.weakest([control.guarantee(simulation.launch) for simulation in found]),
            attempts=self._attempts(found),
            signs=self._signs(found, console, findings),
            unseen=frozenset() if findings.requests else frozenset({"dropped", "cancelled", "pending"}),
            hints=_hints(found, findings),
            groups_per_step=last.launch.requests_per_step or findings.requests_per_step,
        )

    def _attempts(self, found: list[Simulation]) -> list[Attempt]:
        ends = dict(self._db.execute("SELECT attempt, finish FROM simulation").fetchall())
        return [
            Attempt(
                s.attempt,
                started=_instant(s.shift),
                ended=_instant(s.shift + ends[s.attempt]) if ends[s.attempt] else None,
            )
            for s in found
        ]

    def _signs(self, found: list[Simulation], console: list[dict[str, Any]], findings: Findings) -> list[Sign]:
        """Markers of the guide: the summary on stdout, the livelock warning, the assertion; else all steps trained."""
        end = self._db.execute("SELECT max(finish + shift) FROM simulation").fetchone()
        ts = _instant(end[0]) if end and end[0] else None
        kinds = {"complete": "finished", "livelock": "waiting", "assertion": "crashed"}
        latest: dict[str, dict[str, Any]] = {row["what"]: row for row in console if row["what"] in kinds}
        signs = [Sign("progress", ts, "last event of the streams")] if ts else []
        for what, row in latest.items():
            signs.append(Sign(kinds[what], ts, row["text"].strip(), row["source"], row["line"]))  # type: ignore[arg-type]
        planned = found[-1].launch.n_versions
        if not latest and planned is not None and findings.completed.get(found[-1].attempt, 0) >= planned:
            signs.append(Sign("finished", ts, f"all {planned} steps of job.n_versions have their row in train.jsonl"))
        return signs


def _instant(seconds: float) -> datetime:
    return _EPOCH + timedelta(microseconds=round(seconds * 1_000_000))


def _hints(found: list[Simulation], findings: Findings) -> list[Hint]:
    """Name the settings that would have made these logs tell more."""
    hints = []
    if not findings.requests:
        hints.append(
            Hint("which requests were trained, and by which version they were made", "log_telemetry=true (keep logs/)")
        )
    elif findings.blurred:
        hints.append(
            Hint("how many tokens of a request each version made", "keep logs/instance/*.jsonl beside request.jsonl")
        )
    if any(not simulation.launch.config for simulation in found):
        hints.append(
            Hint(
                "policy and bound of a simulation",
                "a hydra.run.dir and output_dir of its own for every run; keep .hydra/",
            )
        )
    return hints
