"""What became of sessions that reached no dump, and when sessions finished (guide section 6).

A finished session in no batch was dropped or was left over at the end. Which of the two follows where

* its group did reach a batch: an attempt that failed took it along (section 4, rule 5);
* the lines of failed groups name its prompt, and say that as many members had completed as there are such sessions;
* as many whole groups are left over as lines of stale drops were printed;
* in partial mode all drops are explained so: what is left then is queued work (rules 13 and 14).

Else both are given as alternatives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from staleness_audit.parser import Sink, Staged
from staleness_parsers.dressage.sessions import REJECTIONS, UNREAD
from staleness_parsers.dressage.story import Story
from staleness_parsers.slime.calls import label_number
from staleness_parsers.slime.console import metrics_of
from staleness_parsers.slime.eras import with_names
from staleness_parsers.slime.finish import Model, completed, rollouts_of
from staleness_parsers.slime.life import write_anonymous
from staleness_parsers.slime.pauses import BATCH
from staleness_parsers.slime.processes import policy

_DROPPED: Final = "staleness/dropped_groups"
"""Metric: groups that a rollout's call dropped as stale."""
_TIME: Final = pl.Datetime("us", "UTC")
_TRAJECTORIES: Final[dict[str, Any]] = {
    "trajectory_id": pl.String,
    "group_id": pl.String,
    "attempt": pl.Int64,
    "role": pl.String,
    "anonymous": pl.Boolean,
    "multiplicity_lo": pl.Int64,
    "multiplicity_hi": pl.Int64,
    "evidence": pl.String,
    "source": pl.String,
    "line": pl.Int64,
}
_EVENTS: Final[dict[str, Any]] = {
    "seq": pl.Int64,
    "ts": _TIME,
    "kind": pl.String,
    "trajectory_id": pl.String,
    "group_id": pl.String,
    "attempt": pl.Int64,
    "reason": pl.String,
    "evidence": pl.String,
    "source": pl.String,
    "line": pl.Int64,
}
_SPANS: Final[dict[str, Any]] = {
    "trajectory_id": pl.String,
    "span_index": pl.Int64,
    "tokens_lo": pl.Int64,
    "tokens_hi": pl.Int64,
    "loss_tokens_lo": pl.Int64,
    "loss_tokens_hi": pl.Int64,
    "version_lo": pl.Int64,
    "version_hi": pl.Int64,
    "monotone": pl.Boolean,
    "evidence": pl.String,
    "source": pl.String,
    "line": pl.Int64,
}


_USES: Final[dict[str, Any]] = {
    "trajectory_id": pl.String,
    "attempt": pl.Int64,
    "step": pl.Int64,
    "member": pl.Boolean,
    "evidence": pl.String,
    "source": pl.String,
}


@dataclass
class Session:
    """A session by its name: where it is told of, whether it finished, and what stopped it.

    ``labels``: those the proxy says it had when it was rejected. ``stopped``: ``cancelled``, ``lost``, or ``either``.
    """

    name: str
    source: str | None
    line: int | None = None
    instance: str | None = None
    group_index: int | None = None
    finished: bool = False
    stopped: str | None = None
    ended: Any = None
    labels: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class Fate:
    """A certain end of a finished session, with the place that tells it (None: the session's own), and its time."""

    reason: str
    source: str | None = None
    line: int | None = None
    ts: Any = None


def rows_of_left(
    model: Model, members: pl.DataFrame, payloads: pl.DataFrame, staged: Staged, story: Story, sink: Sink
) -> dict[str, pl.DataFrame]:
    """Return trajectories, spans, uses and fates of sessions in no dump, by table.

    ``payloads``: of ``of_this_run``. ``unit``: that of a dump in which others of the session's group are, if any is.
    """
    dumped, homes = _dumped(model)
    known = _gather(dumped, members, payloads, story)
    aside = [dumped.rename("name"), members["alias"].rename("name")]
    if staged.has("dressage_evals"):
        aside.append(staged.scan("dressage_evals").collect()["session"].rename("name"))
    names = pl.DataFrame({"name": list(known)}, schema={"name": pl.String})
    names = names.join(pl.concat(aside).to_frame(), on="name", how="anti", maintain_order="left")
    left = [known[name] for name in names["name"]]
    groups = _groups(left, known, members)
    finished = [session for session in left if session.finished]
    lacking = _lacking(model)
    open_ = bool(lacking) or model.torn or _tell_lost_drops(model, story, sink)
    fates, leftover = ({}, False) if open_ else _explain(finished, known, members, model, story)
    attempt = max(len(model.processes) - 1, 0)
    prefix = f"{attempt}/" if attempt else ""
    trajectories, events = [], []
    for session in left:
        group = groups.get(session.instance)
        place = {
            "trajectory_id": prefix + session.name,
            "group_id": prefix + (f"instance:{session.instance}" if group is None else str(group)),
            "attempt": attempt,
            "source": session.source,
            "line": session.line,
            "evidence": "recorded",
        }
        trajectories.append({**place, "role": "train", "anonymous": False, "multiplicity_lo": 1, "multiplicity_hi": 1})
        ends = _ends(session, place, fates, leftover=leftover, single=story.single)
        events += [{**event, "seq": at} for at, event in enumerate(ends)]
    spans = _spans(model, left, payloads, prefix, staged, story)
    found = {
        "trajectories": _frame(trajectories, _TRAJECTORIES),
        "events": _frame(events, _EVENTS),
        "spans": _frame(spans, _SPANS),
        "uses": _frame(_possible_uses(finished, spans, lacking, prefix), _USES),
    }
    at_home = found["trajectories"].select("trajectory_id", "group_id").join(homes, on="group_id")
    at_home = at_home.select("trajectory_id", "unit").unique("trajectory_id")
    return {table: rows.join(at_home, on="trajectory_id", how="left") for table, rows in found.items()}


def write_left(left: Mapping[str, pl.DataFrame], units: pl.Series | None, sink: Sink) -> None:
    """Write the rows of ``rows_of_left`` that are of some units; None: those that are of no unit."""
    wanted = pl.col("unit").is_null() if units is None else pl.col("unit").is_in(units.unique().implode())
    for table, rows in left.items():
        sink.write(table, rows.filter(wanted).drop("unit"))


def _dumped(model: Model) -> tuple[pl.Series, pl.DataFrame]:
    """Return the names of all dumped sessions, and a ``unit`` in which each ``group_id`` is."""
    if model.names.is_empty():
        return pl.Series([], dtype=pl.String), pl.DataFrame(schema={"group_id": pl.String, "unit": pl.String})
    batches = [{name: batch[name] for name in (*BATCH, "attempt", "unit")} for batch in model.batches]
    names = with_names(model.names.join(pl.DataFrame(batches, infer_schema_length=None), on=BATCH))
    return names["key"], names.select("group_id", "unit").unique("group_id", keep="first", maintain_order=True)


def ends_of(members: pl.DataFrame, payloads: pl.DataFrame) -> pl.DataFrame:
    """Return when sessions finished, by ``unit`` and ``key`` of their samples, with the ``payload`` that tells."""
    finished, ended = pl.col("finished"), pl.col("ended")
    told = payloads.group_by("session").agg(
        finished.any(),
        pl.coalesce(ended.filter(finished).drop_nulls().last(), ended.filter(~finished).drop_nulls().first()).alias(
            "ts"
        ),
        pl.col("source").filter(finished).last().alias("payload"),
    )
    told = told.filter(finished & pl.col("ts").is_not_null()).select("session", "ts", "payload")
    found = members.select("unit", "session").unique().join(told, on="session")
    return found.select("unit", pl.col("session").alias("key"), "ts", "payload")


def _groups(left: list[Session], known: Mapping[str, Session], members: pl.DataFrame) -> dict[str | None, int]:
    """Return the ``group_index`` of the prompts of sessions in no dump, where any session of theirs tells it."""
    groups = {session.instance: session.group_index for session in known.values() if session.group_index is not None}
    wanted = pl.Series([session.instance for session in left], dtype=pl.String).unique()
    theirs = members.filter(pl.col("instance").is_in(wanted.implode()) | pl.col("instance").is_null())
    theirs = theirs.filter(pl.col("group_index").is_not_null())
    return groups | dict(theirs.select("instance", "group_index").iter_rows())


def write_finished(samples: pl.DataFrame, ends: pl.DataFrame, sink: Sink) -> None:
    """Write when the sessions of dumped samples (``rows.place_samples``) finished; ``ends``: of ``ends_of``."""
    found = samples.unique("key", keep="last", maintain_order=True).join(
        ends, on=["unit", "key"], maintain_order="left"
    )
    events = found.select(
        *("trajectory_id", "group_id", "attempt", "ts"),
        pl.col("payload").alias("source"),
        pl.lit("finished").alias("kind"),
        pl.lit("recorded").alias("evidence"),
        pl.lit(0, pl.Int64).alias("seq"),
    )
    sink.write("events", events)


def _frame(rows: list[dict[str, Any]], schema: Mapping[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=dict(schema))


def _lacking(model: Model) -> list[tuple[int, int, int]]:
    """Return (attempt, rollout, v_train) of batches that may have held sessions no dump names."""
    named = {
        (batch["attempt"], batch["rollout"]) for batch in model.batches if batch["readable"] and not batch["skipped"]
    }
    return [
        (attempt, rollout, policy(process, rollout))
        for attempt, process in enumerate(model.processes)
        for rollout in rollouts_of(process)
        if (attempt, rollout) not in named and completed(model, attempt, rollout)[0] is not False
    ]


def _tell_lost_drops(model: Model, story: Story, sink: Sink) -> bool:
    """Return, and say, whether fewer lines about stale groups are left than the rollouts' metrics count."""
    console = {line["rollout"]: values.get(_DROPPED, 0.0) for line, values in metrics_of(iter(model.lines))}
    events = model.scalars.filter(pl.col("tag") == _DROPPED) if not model.scalars.is_empty() else model.scalars
    written = dict(events.select("x", "value").iter_rows()) if not events.is_empty() else {}
    stated, told = max(sum(console.values()), sum(written.values())), len(story.of("stale"))
    if not story.single or not story.lines or stated <= told:
        return False
    message = (
        f"{stated:.0f} stale groups were dropped by the rollouts' metrics, but {told} lines tell of one; restore it."
    )
    sink.diagnose("warning", "drops-not-logged", message, source=story.lines[0]["source"], opens="fates")
    return True


def _possible_uses(
    finished: list[Session], spans: list[dict[str, Any]], lacking: list[tuple[int, int, int]], prefix: str
) -> list[dict[str, Any]]:
    """Make uses for sessions that may have been in a batch whose dump is lost: none older than their tokens."""
    newest: dict[str, int] = {}
    for span in spans:
        newest[span["trajectory_id"]] = max(newest.get(span["trajectory_id"], 0), span["version_lo"] or 0)
    return [
        {
            "trajectory_id": prefix + session.name,
            "attempt": attempt,
            "step": rollout,
            "member": False,
            "evidence": "inferred",
            "source": session.source,
        }
        for session in finished
        for attempt, rollout, v_train in lacking
        if v_train >= newest.get(prefix + session.name, 0)
    ]


def write_counted(model: Model, story: Story, sink: Sink) -> None:
    """Write what lines count where no session is on record: members of stale groups, and completed ones of failed."""
    sizes = story.numbers("worker", "members") or {batch["members"] for batch in model.batches if batch["members"]}
    size = next(iter(sizes)) if len(sizes) == 1 else None
    attempt = max(len(model.processes) - 1, 0)
    for line in [*story.of("stale"), *story.of("failed_group")]:
        stale = line["kind"] == "stale"
        count = size if stale else line["completed"]
        if stale or count:
            write_anonymous(
                sink,
                attempt,
                {"source": line["source"], "line": line["line"]},
                members=count,
                groups=1,
                kind="dropped",
                reason="stale" if stale else "group",
                step=None,
                ts=model.utc(line["local"]),
            )


def _gather(dumped: pl.Series, members: pl.DataFrame, payloads: pl.DataFrame, story: Story) -> dict[str, Session]:
    """Collect sessions by name, from payloads, then the proxy's and the console's lines, then dumps.

    Of those that are ``dumped`` the payloads are left out, but where something else rests on them: a line that names
    them, or the group that they tell.
    """
    known: dict[str, Session] = {}
    named = {name for line in story.of("failed_group") for name in line["sessions"]}
    for row in _telling(dumped, payloads, named).iter_rows(named=True):
        session = known.setdefault(row["session"], Session(row["session"], row["source"]))
        session.instance = session.instance or row["instance"]
        session.group_index = row["group_index"] if session.group_index is None else session.group_index
        if row["finished"]:
            session.finished, session.source = True, row["source"]
            session.ended = row["ended"] or session.ended
        else:
            session.stopped = "either" if row["rejection"] == UNREAD else "cancelled" if row["rejection"] else "lost"
            session.ended = session.ended or row["ended"]
    for line in story.of("rejected"):
        session = known.setdefault(line["session"], Session(line["session"], line["source"], line["line"]))
        session.instance, session.stopped = session.instance or line["instance"], "cancelled"
        session.labels = tuple(label_number(label) for label in line["labels"])
    for line in story.of("failed"):
        session = known.setdefault(line["session"], Session(line["session"], line["source"], line["line"]))
        rejected = any(reason in line.get("text", "") for reason in REJECTIONS)
        session.stopped = "cancelled" if rejected else session.stopped or "lost"
    for member in members.filter(pl.col("failed").list.len() > 0).iter_rows(named=True):
        for name in member["failed"]:
            session = known.setdefault(name, Session(name, member["source"]))
            session.instance = session.instance or member["instance"]
            session.stopped = session.stopped or "either"
    return known


def _telling(dumped: pl.Series, payloads: pl.DataFrame, named: set[str]) -> pl.DataFrame:
    in_dump = dumped.unique().rename("session").to_frame().with_columns(pl.lit(True).alias("dumped"))
    rows = payloads.join(in_dump, on="session", how="left", maintain_order="left")
    tells = pl.col("dumped").is_null() | pl.col("group_index").is_not_null() | pl.col("session").is_in(list(named))
    return rows.join(rows.filter(tells).select("session").unique(), on="session", how="semi", maintain_order="left")


def of_this_run(members: pl.DataFrame, payloads: pl.DataFrame, sink: Sink) -> pl.DataFrame:
    """Return the payloads, less those of other runs that share LOG_DIR: none of their sessions is in a dump."""
    run_name = pl.col("source").str.split("/").list.get(-4, null_on_oob=True)
    rows = payloads.with_columns(run_name.alias("run"))
    own = rows.join(members.select("session"), on="session", how="semi")["run"].unique().drop_nulls().to_list()
    others = rows.filter(pl.col("run").is_not_null() & ~pl.col("run").is_in(own))
    if not own or others.is_empty():
        return rows
    names = ", ".join(sorted(others["run"].unique()))
    message = (
        f"Sessions under {names} are left out: none of them is in a dump, so they are taken for those of other runs."
    )
    sink.diagnose("note", "sessions-of-other-runs", message, source=others["source"][0], opens="fates")
    return rows.filter(pl.col("run").is_null() | pl.col("run").is_in(own))


def _explain(
    finished: list[Session], known: Mapping[str, Session], members: pl.DataFrame, model: Model, story: Story
) -> tuple[dict[str, Fate], bool]:
    """Return the certain fates of finished sessions in no dump, and whether all others were simply left over."""
    fates: dict[str, Fate] = {}
    if not story.single:
        return fates, False
    by_instance: dict[str | None, list[Session]] = defaultdict(list)
    for session in finished:
        by_instance[session.instance].append(session)
    collected = set(members["instance"].unique()) if _prompts_come_once(members, known, story) else set()
    failed = _failed_lines(known, story)
    for instance in collected & set(by_instance):
        fate, lines = Fate("group"), failed.get(instance, [])
        if len(lines) == 1 and lines[0]["completed"] == len(by_instance[instance]):
            fate = Fate("group", lines[0]["source"], lines[0]["line"], model.utc(lines[0]["local"]))
        fates |= {session.name: fate for session in by_instance[instance]}
    if not story.orderly:
        return fates, False
    unexplained = _failed_groups(by_instance, failed, collected, fates)
    stale = story.of("stale")
    sizes = story.numbers("worker", "members")
    size = sizes.pop() if len(sizes) == 1 else None
    open_groups = {
        instance: rest
        for instance, sessions in by_instance.items()
        if len(rest := [session for session in sessions if session.name not in fates]) >= (size or 1)
    }
    if stale and size and len(open_groups) == len(stale) and all(len(rest) == size for rest in open_groups.values()):
        # Which line is which group's does not matter: all of them are stale.
        place = stale[0] if len(stale) == 1 else {"source": None, "line": None}
        for rest in open_groups.values():
            fates |= {session.name: Fate("stale", place["source"], place["line"]) for session in rest}
        stale = []
    return fates, story.mode == "partial" and not stale and not unexplained


def _failed_lines(known: Mapping[str, Session], story: Story) -> dict[str | None, list[dict[str, Any]]]:
    """Return the lines of failed groups by the prompt of the sessions that they name (None: of none that is known)."""
    lines: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for line in story.of("failed_group"):
        names = [known[name].instance for name in line["sessions"] if name in known]
        lines[names[0] if names else None].append(line)
    return lines


def _failed_groups(
    by_instance: Mapping[str | None, list[Session]],
    failed: Mapping[str | None, list[dict[str, Any]]],
    collected: set[Any],
    fates: dict[str, Fate],
) -> bool:
    """Settle members that completed in groups that failed; return whether some such member was not found."""
    members = {instance: sum(line["completed"] for line in lines) for instance, lines in failed.items()}
    unexplained = bool(members.get(None))
    for instance, count in members.items():
        sessions = by_instance.get(instance, [])
        if instance is None or instance in collected or not count:
            continue
        if len(sessions) == count:
            line = failed[instance][-1]
            fates.update({session.name: Fate("group", line["source"], line["line"]) for session in sessions})
        else:
            unexplained = True
    return unexplained


def _prompts_come_once(members: pl.DataFrame, known: Mapping[str, Session], story: Story) -> bool:
    """Whether a prompt's id stands for one group: each went in once (no second epoch)."""
    indices = {members["group_index"].max(), *(session.group_index for session in known.values())}
    highest = max((index for index in indices if isinstance(index, int)), default=None)
    sizes = story.numbers("prompts", "count")
    if highest is None or len(sizes) != 1:
        return False
    groups = members.group_by("instance").agg(pl.col("group_index").n_unique())
    once = groups["instance"].is_not_null().all() and (groups["group_index"] == 1).all()
    return bool(highest < sizes.pop() and once)


def _ends(
    session: Session, place: dict[str, Any], fates: Mapping[str, Fate], *, leftover: bool, single: bool
) -> list[dict[str, Any]]:
    """Make the last events of a session that is in no dump."""
    ended = {**place, "ts": session.ended}
    if not session.finished:
        if session.stopped == "cancelled":
            return [{**ended, "kind": "cancelled", "reason": "stale"}]
        if session.stopped == "lost":
            return [{**ended, "kind": "lost", "reason": "error"}]
        maybe = {**ended, "evidence": "inferred"}
        return [{**maybe, "kind": "cancelled", "reason": "stale"}, {**maybe, "kind": "lost", "reason": "error"}]
    events = [{**ended, "kind": "finished"}]
    if fate := fates.get(session.name):
        source = {"source": fate.source, "line": fate.line, "ts": fate.ts} if fate.source else {}
        return [*events, {**place, **source, "kind": "dropped", "reason": fate.reason, "evidence": "derived"}]
    if leftover:
        return events
    maybe = {**place, "evidence": "inferred"}
    ends = [{**maybe, "kind": "dropped", "reason": "unknown"}, {**maybe, "kind": "pending"}]
    return [*events, *ends, *([] if single else [{**maybe, "kind": "lost", "reason": "unknown"}])]


def _spans(
    model: Model, left: list[Session], payloads: pl.DataFrame, prefix: str, staged: Staged, story: Story
) -> list[dict[str, Any]]:
    """Make spans: of finished sessions as recorded, of others as many tokens as nobody knows."""
    names = pl.DataFrame({"session": [session.name for session in left if session.finished]}, {"session": pl.String})
    units = set(payloads.join(names, on="session", how="semi")["unit"])
    parts = staged.scan("dressage_spans", units=units).join(names.lazy(), on="session", how="semi") if units else None
    rows = []
    for row in parts.sort("session", "span_index").collect().iter_rows(named=True) if parts is not None else ():
        lo, hi = _versions(model, (row["label_lo"], row["label_hi"]), story)
        exact = lo is not None and lo == hi
        rows.append(
            {
                "trajectory_id": prefix + row["session"],
                "span_index": row["span_index"],
                "tokens_lo": row["tokens_lo"],
                "tokens_hi": row["tokens_hi"],
                "loss_tokens_lo": row["loss_lo"],
                "loss_tokens_hi": row["loss_hi"],
                "version_lo": lo,
                "version_hi": hi,
                "monotone": True,
                "evidence": "derived" if exact and row["tokens_lo"] == row["tokens_hi"] else "inferred",
                "source": row["source"],
            }
        )
    for session in left:
        if not session.finished:
            labels = [label for label in session.labels if label is not None]
            ends = (min(labels), max(labels)) if labels and len(labels) == len(session.labels) else (None, None)
            lo, hi = _versions(model, ends, story)
            place = {"source": session.source, "line": session.line, "evidence": "inferred", "monotone": True}
            versions = {"version_lo": lo, "version_hi": hi, "tokens_lo": 0, "span_index": 0}
            rows.append({"trajectory_id": prefix + session.name, **versions, **place})
    return rows


def _versions(model: Model, labels: tuple[int | None, int | None], story: Story) -> tuple[int | None, int | None]:
    """Turn labels into versions, where one launch makes them mean one thing."""
    if not story.single or labels[1] is None:
        return None, None
    versions = model.versions[-1]
    hi = versions.by_label.get(labels[1])
    lo = (versions.start[0], None) if labels[0] is None else versions.by_label.get(labels[0])
    return (lo[0] if lo else None), (hi[1] if hi else None)
