"""What the streams betray about their own gaps: lost rows, rows that contradict each other, and what that opens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from staleness_audit.parser import Sink
from staleness_parsers.dryrun.simulations import Simulation

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True)
class Findings:
    """Counts over the joined streams. ``completed``: steps with a train row by attempt; ``blurred``: requests with an
    interval of versions; the rest are (attempt, ...) rows of what is missing or contradicts itself."""

    requests: int
    completed: dict[int, int]
    blurred: int
    short_steps: list[tuple[Any, ...]]
    crowded_steps: list[tuple[Any, ...]]
    silent_steps: list[tuple[Any, ...]]
    lost_requests: list[tuple[Any, ...]]
    odd_versions: list[tuple[Any, ...]]
    contradictions: list[tuple[Any, ...]]
    odd_staleness: list[tuple[Any, ...]]

    @classmethod
    def collect(cls, db: duckdb.DuckDBPyConnection) -> Findings:
        """Run the checks (guide 3: check of v_traj, self-check of segments; guide 5: n_reqs; rids without gaps)."""
        completed = db.execute(
            "SELECT attempt, count(*) FROM step WHERE train_line IS NOT NULL GROUP BY ALL"
        ).fetchall()
        return cls(
            requests=_count(db, "FROM req"),
            completed=dict(completed),
            blurred=_count(
                db, "FROM (SELECT DISTINCT attempt, rid FROM span WHERE version_lo IS DISTINCT FROM version_hi)"
            ),
            short_steps=db.execute(
                "SELECT attempt, k, n_reqs - members, train_source, train_line FROM step WHERE members < n_reqs ORDER BY ALL"
            ).fetchall(),
            crowded_steps=db.execute(
                "SELECT attempt, k, members - n_reqs, train_source, train_line FROM step WHERE members > n_reqs ORDER BY ALL"
            ).fetchall(),
            silent_steps=db.execute("SELECT attempt, k FROM step WHERE source IS NULL ORDER BY ALL").fetchall(),
            lost_requests=db.execute(
                "SELECT attempt, max(rid) + 1 - count(*) AS lost, any_value(source) FROM req GROUP BY attempt HAVING lost > 0"
            ).fetchall(),
            odd_versions=db.execute(
                "SELECT attempt, k, served_lo, served_hi, rule, source, line FROM step JOIN simulation USING (attempt)"
                " WHERE policy IS NOT NULL AND (served_lo <> rule OR served_hi <> rule) ORDER BY ALL"
            ).fetchall(),
            contradictions=db.execute(
                "SELECT attempt, rid, source, line FROM chunk WHERE bad UNION ALL"
                " SELECT attempt, rid, source, final_line FROM req WHERE generated_lo <> generated_hi ORDER BY ALL"
            ).fetchall(),
            odd_staleness=db.execute(
                "SELECT attempt, rid, source, line FROM request"
                " WHERE event = 'consume' AND staleness_true <> consume_version - v_min ORDER BY ALL"
            ).fetchall(),
        )


def _count(db: duckdb.DuckDBPyConnection, source: str) -> int:
    row = db.execute(f"SELECT count(*) {source}").fetchone()
    return int(row[0]) if row else 0


def report_damage(db: duckdb.DuckDBPyConnection, sink: Sink) -> None:
    """Judge each unreadable line beside the other streams.

    A line of ``request.jsonl`` may have been anything, but where ``train.jsonl`` is whole, it counts the members of every
    completed step, and who is missing there is audited as unknown: then only fates are open. A line of ``train.jsonl``
    may have been the last step's, which is then unconfirmed; all others are proven by the step after them. Instance rows
    only narrow versions.
    """
    torn = {
        folder
        for (folder,) in db.execute(
            "SELECT DISTINCT folder FROM dryrun_damage WHERE kind = 'train' AND NOT cut"
        ).fetchall()
    }
    counted = {folder for (folder,) in db.execute("SELECT DISTINCT folder FROM train").fetchall()} - torn
    requested = {folder for (folder,) in db.execute("SELECT DISTINCT folder FROM dryrun_request").fetchall()}
    rows = db.execute(
        "SELECT folder, source, line, why, cut, rest, kind FROM dryrun_damage ORDER BY source, line"
    ).fetchall()
    for folder, source, line, why, cut, rest, kind in rows:
        opens: Literal["training", "fates"] | None = None
        if cut:
            sink.diagnose(
                "note",
                "cut-line",
                f"The last line is cut, the record did not happen ({kind}).",
                source=source,
                line=line,
            )
            continue
        if kind == "request":
            opens = "fates" if folder in counted else "training"
        elif kind == "train" and folder not in requested:
            opens = "training"
        severity: Literal["error", "warning", "note"] = (
            "error" if opens else "note" if kind in {"rollout", "console"} else "warning"
        )
        what = "Everything from this line on could not be read" if rest else "This line could not be read"
        sink.diagnose(
            severity,
            f"damaged-{kind}",
            f"{what}: {why}. Restore the file from the machine that wrote it.",
            source=source,
            line=line,
            opens=opens,
        )


def report_findings(findings: Findings, found: Sequence[Simulation], sink: Sink, *, settings_open: bool) -> None:
    """Say what the joined streams lack or contradict."""
    if len(found) > 1:
        sink.diagnose(
            "warning",
            "appended-runs",
            f"{len(found)} simulations were written into the same streams; each is audited as an attempt of its own that "
            "supersedes nothing, with request numbers prefixed by its number. Give every run an output_dir of its own.",
            source=found[-1].parts[0].source if found[-1].parts else None,
            line=found[-1].parts[0].first_line if found[-1].parts else None,
        )
    if settings_open:
        sink.diagnose(
            "warning",
            "settings-unknown",
            "Not every simulation here has a .hydra/config.yaml that is surely its own; the configuration shown, the bound "
            "and the guarantee may not hold for all of them. Name the bound with --bound.",
        )
    if not findings.requests:
        sink.diagnose(
            "warning",
            "no-request-stream",
            "Without rows in request.jsonl no token can be attributed. Run with log_telemetry=true and keep logs/.",
            opens=None if findings.completed else "training",
        )
    for attempt, k, missing, source, line in findings.short_steps:
        sink.diagnose(
            "error",
            "consume-rows-missing",
            f"Step {k + 1} of simulation {attempt} trained {missing} requests more than request.jsonl has consume rows for.",
            source=source,
            line=line,
            opens="fates",
        )
    for attempt, k, more, source, line in findings.crowded_steps:
        sink.diagnose(
            "warning",
            "consume-rows-surplus",
            f"Step {k + 1} of simulation {attempt} has {more} consume rows more than its train row counts.",
            source=source,
            line=line,
        )
    for attempt, k in findings.silent_steps:
        sink.diagnose(
            "error",
            "step-without-rows",
            f"Step {k + 1} of simulation {attempt} left no row, but a later one did; what it trained is unknown.",
            opens="training",
        )
    for attempt, lost, source in findings.lost_requests:
        sink.diagnose(
            "error",
            "requests-missing",
            f"{lost} request numbers of simulation {attempt} occur in no row; what became of those requests is unknown.",
            source=source,
            opens="fates",
        )
    _report_contradictions(findings, sink)


def _report_contradictions(findings: Findings, sink: Sink) -> None:
    for attempt, k, lo, hi, rule, source, line in findings.odd_versions:
        sink.diagnose(
            "warning",
            "engine-version-differs",
            f"After the start of step {k + 1} of simulation {attempt} the engines served version {lo} to {hi}, not {rule} as "
            "the policy's rule says; what the admissions show is used.",
            source=source,
            line=line,
        )
    for attempt, rid, source, line in findings.contradictions:
        sink.diagnose(
            "warning",
            "segments-contradict",
            f"Request {rid} of simulation {attempt}: its rows and the instance streams disagree; only its v_min, v_max and "
            "token count are used.",
            source=source,
            line=line,
        )
    for attempt, rid, source, line in findings.odd_staleness:
        sink.diagnose(
            "warning",
            "staleness-differs",
            f"Request {rid} of simulation {attempt}: staleness_true is not consume_version - v_min; both are kept as ends.",
            source=source,
            line=line,
        )
