"""What the streams betray about their own gaps: lost rows, rows that contradict each other, and what that opens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from staleness_audit.parser import Sink
from staleness_parsers.dryrun.simulations import Simulation

if TYPE_CHECKING:
    import duckdb

Severity = Literal["error", "warning", "note"]
Opens = Literal["training", "fates"] | None


@dataclass(frozen=True)
class Check:
    """A query whose every row is a finding: its columns fill ``message``, ``source`` and ``line`` place it."""

    code: str
    severity: Severity
    opens: Opens
    query: str
    message: str


CHECKS: Final = (
    Check(
        "consume-rows-missing",
        "error",
        "fates",  # the step's count and its tokens are constraints, so no training is open
        """
        SELECT attempt, k + 1 AS step, n_reqs - members AS missing, train_source AS source, train_line AS line
        FROM step WHERE members < n_reqs AND attempt IN (SELECT attempt FROM req) ORDER BY ALL
        """,
        "Step {step} of simulation {attempt} trained {missing} requests more than request.jsonl has consume rows for; "
        "restore that file from the machine that wrote it.",
    ),
    Check(
        "consume-rows-surplus",
        "warning",
        None,
        """
        SELECT attempt, k + 1 AS step, members - n_reqs AS more, train_source AS source, train_line AS line
        FROM step WHERE members > n_reqs ORDER BY ALL
        """,
        "Step {step} of simulation {attempt} has {more} consume rows more than its train row counts; all are audited.",
    ),
    Check(
        "step-without-rows",
        "error",
        "training",
        "SELECT attempt, k + 1 AS step, source, line FROM step WHERE source IS NULL ORDER BY ALL",
        "Step {step} of simulation {attempt} left no row but a later one did; what it trained is unknown.",
    ),
    Check(
        "step-unconfirmed",
        "warning",
        None,
        "SELECT attempt, k + 1 AS step, source, line FROM step WHERE completed IS NULL ORDER BY ALL",
        "Whether step {step} of simulation {attempt} completed is not known, for rows of train.jsonl are missing; keep "
        "that file beside request.jsonl.",
    ),
    Check(
        "requests-missing",
        "error",
        "fates",
        """
        SELECT attempt, max(rid) + 1 - count(*) AS lost, any_value(source) AS source, NULL AS line
        FROM req GROUP BY attempt HAVING lost > 0 ORDER BY ALL
        """,
        "{lost} request numbers of simulation {attempt} occur in no row; what became of those requests is unknown.",
    ),
    Check(
        "occupancy-unreadable",
        "warning",
        None,
        "SELECT DISTINCT source, line, why FROM tally WHERE what = 'unreadable' ORDER BY ALL",
        "It should tell the tokens at a weight update, but {why}; versions become intervals.",
    ),
    Check(
        "requests-unaccounted",
        "error",
        "fates",
        # A step's row is written before anything else happens at its end.
        """
        WITH change AS (
            SELECT attempt, t, sum(CASE event WHEN 'admit' THEN 1 WHEN 'complete' THEN 0 ELSE -1 END) AS more
            FROM request GROUP BY ALL
        ), level AS (SELECT attempt, t, sum(more) OVER (PARTITION BY attempt ORDER BY t) AS alive FROM change)
        SELECT train.attempt AS attempt, min(k) + 1 AS step, arg_min(n_inflight + n_ready, k) AS stated,
            arg_min(alive, k)::BIGINT AS told, arg_min(train.source, k) AS source, arg_min(train.line, k) AS line
        FROM train ASOF JOIN level ON train.attempt = level.attempt AND train."end" > level.t
        WHERE n_inflight + n_ready <> alive GROUP BY train.attempt ORDER BY ALL
        """,
        "At the end of step {step} of simulation {attempt} {stated} requests were under way or ready, but by "
        "request.jsonl {told}; rows of it are lost. Restore that file from the machine that wrote it.",
    ),
    Check(
        "occupancy-missing",
        "warning",
        None,
        """
        SELECT attempt, sum(requests)::BIGINT AS requests,
            len(list_distinct(flatten(list(updates)))) AS updates, NULL AS source, NULL AS line
        FROM tally WHERE what = 'untold' GROUP BY attempt ORDER BY ALL
        """,
        "No readable row of the instance streams tells how far {requests} requests of simulation {attempt} were at "
        "{updates} weight updates; their versions are intervals. Keep logs/instance/*.jsonl.",
    ),
    Check(
        "engine-version-differs",
        "warning",
        None,
        """
        SELECT attempt, k + 1 AS step, served_lo AS lo, served_hi AS hi, rule, source, line
        FROM step JOIN simulation USING (attempt)
        WHERE rule_known AND (served_lo <> rule OR served_hi <> rule) ORDER BY ALL
        """,
        "After the start of step {step} of simulation {attempt} the engines served version {lo} to {hi}, not {rule} as "
        "the policy's rule has it; what the admissions show is used.",
    ),
    Check(
        "segments-contradict",
        "warning",
        None,
        """
        SELECT attempt, rid, source, line FROM tally WHERE what = 'contradicted'
        UNION ALL
        SELECT attempt, rid, source, final_line FROM req WHERE generated_lo <> generated_hi ORDER BY ALL
        """,
        "The rows of request {rid} of simulation {attempt} and the instance streams disagree; only its v_min, v_max "
        "and token count are used.",
    ),
    Check(
        "staleness-differs",
        "warning",
        None,
        """
        SELECT attempt, rid, source, line FROM request
        WHERE event = 'consume' AND staleness_true <> consume_version - v_min ORDER BY ALL
        """,
        "staleness_true of request {rid} of simulation {attempt} is not consume_version - v_min; both are kept.",
    ),
)
"""Guide 3 (check of v_traj, self-check of segments), 5 (n_reqs, staleness) and 4.2 (request numbers without gaps)."""


@dataclass(frozen=True)
class Findings:
    """Counts over the joined streams.

    ``completed``: steps with a train row, by attempt. ``blurred``: requests with an interval of versions.
    ``requests_per_step``: of the train rows, if all agree.
    """

    requests: int
    blurred: int
    completed: dict[int, int]
    requests_per_step: int | None


_TALLY: Final = (
    "what VARCHAR, attempt INTEGER, rid BIGINT, requests BIGINT, updates BIGINT[], source VARCHAR, line BIGINT, "
    "why VARCHAR"
)
"""Columns of ``sql/tally``."""


def find(db: duckdb.DuckDBPyConnection, tally: Sequence[tuple[Any, ...]]) -> Findings:
    """Count what facts and hints depend on; ``tally``: rows of ``sql/tally`` of all blocks, which become a table."""
    db.execute(f"CREATE TEMP TABLE tally ({_TALLY})")
    for row in tally:
        db.execute("INSERT INTO tally VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    blurred = "SELECT coalesce(sum(requests), 0)::BIGINT FROM tally WHERE what = 'blurred'"
    rows = db.execute("SELECT attempt, count(*) FROM step WHERE train_line IS NOT NULL GROUP BY attempt").fetchall()
    sizes = db.execute("SELECT DISTINCT n_reqs FROM step WHERE n_reqs IS NOT NULL").fetchall()
    return Findings(
        _number(db, "SELECT count(*) FROM req"),
        _number(db, blurred),
        dict(rows),
        sizes[0][0] if len(sizes) == 1 else None,
    )


def _number(db: duckdb.DuckDBPyConnection, query: str) -> int:
    row = db.execute(query).fetchone()
    return int(row[0]) if row else 0


def report_damage(db: duckdb.DuckDBPyConnection, sink: Sink) -> None:
    """Judge each unreadable line beside the other streams.

    A line of ``request.jsonl`` may have been anything, but where ``train.jsonl`` is whole, it counts the members of
    every completed step, and who is missing there is audited as unknown: then only fates are open. A line of
    ``train.jsonl`` may have been the last step's, which is then unconfirmed; all others are proven by the step after
    them. Instance rows only narrow versions.
    """
    torn = _folders(db, "dryrun_damage WHERE kind = 'train' AND NOT cut")
    torn |= _folders(db, "request WHERE attempt IN (SELECT attempt FROM step WHERE completed AND n_reqs IS NULL)")
    counted = _folders(db, "train") - torn
    requested = _folders(db, "dryrun_request")
    rows = db.execute("SELECT folder, source, line, why, cut, rest, kind FROM dryrun_damage ORDER BY source, line")
    for folder, source, line, why, cut, rest, kind in rows.fetchall():
        if cut:
            sink.diagnose(
                "note", "cut-line", "The last line is cut, its record did not happen.", source=source, line=line
            )
            continue
        opens: Opens = None
        if kind == "request":
            opens = "fates" if folder in counted else "training"
        elif kind == "train" and folder not in requested:
            opens = "training"
        what = "Everything from this line on could not be read" if rest else "This line could not be read"
        sink.diagnose(
            "error" if opens else "note" if kind in {"rollout", "console"} else "warning",
            f"damaged-{kind}",
            f"{what}: {why}. Restore the file from the machine that wrote it.",
            source=source,
            line=line,
            opens=opens,
        )


def _folders(db: duckdb.DuckDBPyConnection, rows: str) -> set[str]:
    return {folder for (folder,) in db.execute(f"SELECT DISTINCT folder FROM {rows}").fetchall()}  # noqa: S608


def report_findings(
    db: duckdb.DuckDBPyConnection, findings: Findings, found: Sequence[Simulation], sink: Sink, *, settings_open: bool
) -> None:
    """Say what the joined streams lack or contradict."""
    if len(found) > 1:
        first = found[-1].parts[0] if found[-1].parts else None
        sink.diagnose(
            "warning",
            "appended-runs",
            f"{len(found)} simulations were written into these streams; each is audited as an attempt of its own that "
            "supersedes nothing, its request numbers prefixed. Give every run an output_dir of its own.",
            source=first.source if first else None,
            line=first.first_line if first else None,
        )
    if settings_open:
        sink.diagnose(
            "warning",
            "settings-unknown",
            "Not every simulation here has a .hydra/config.yaml that is surely its own; the bound and the guarantee "
            "may not be those of all of them. Name the bound with --bound.",
        )
    if not findings.requests:
        sink.diagnose(
            "warning",
            "no-request-stream",
            "Without rows in request.jsonl no token can be attributed. Run with log_telemetry=true and keep logs/.",
            opens=None if findings.completed else "training",
        )
    for check in CHECKS:
        rows = db.execute(check.query)
        names = [column[0] for column in rows.description]
        for row in rows.fetchall():
            values = dict(zip(names, row, strict=True))
            sink.diagnose(
                check.severity,
                check.code,
                check.message.format(**values),
                source=values["source"],
                line=values["line"],
                opens=check.opens,
            )
