"""One trajectory's life as the logs tell it, line by line, ending with what follows (the explainer).

The checker finds violations; the story proves one: who admitted it, which versions made its tokens, where it waited, which step
trained it, and the subtraction that breaks the bound. Every entry names the log line it stands on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import duckdb

from staleness_audit.check.intervals import Interval
from staleness_audit.errors import AuditError
from staleness_audit.rebuild import Rebuilt, zoom


@dataclass(frozen=True)
class Entry:
    """One thing that happened. ``kind``: a kind of the events table, ``span``, ``trained`` or ``step``.

    ``first_step``: it happened in some of the steps from this one to ``step``; None = in ``step`` itself.
    """

    kind: str
    ts: datetime | None
    version: Interval | None
    tokens: Interval | None
    step: int | None
    reason: str | None
    evidence: str | None
    source: str | None
    line: int | None
    locator: str | None
    first_step: int | None = None


@dataclass(frozen=True)
class StoryUse:
    """One use of the trajectory and its arithmetic: ``staleness = v_train - oldest``.

    ``first_step``: trained in some of the steps from this one to ``step``, whose versions ``v_train`` covers; None = in
    ``step`` itself. ``staleness`` may be narrower than the arithmetic says: logs may state or limit it.
    """

    attempt: int
    step: int
    certain: bool
    v_train: Interval
    oldest: Interval
    staleness: Interval
    in_flight: Interval
    in_queue: Interval
    loss_tokens: Interval
    first_step: int | None = None

    @property
    def narrowed(self) -> Interval | None:
        """What version arithmetic alone says of the staleness, if the logs know it better; else None."""
        if self.v_train.lo is None or self.oldest.hi is None:
            low: float = 0
        else:
            low = max(self.v_train.lo - self.oldest.hi, 0)
        high = None if self.v_train.hi is None or self.oldest.lo is None else self.v_train.hi - self.oldest.lo
        least, most = self.staleness.lo or 0, self.staleness.hi
        better = low < least or (most is not None and (high is None or most < high))
        return Interval(low, high) if better else None


@dataclass(frozen=True)
class Story:
    """A trajectory's life. ``fates``: ``kind:reason``, one = certain.

    ``multiplicity``: how many trajectories without names share this story; None = it is one trajectory by name.
    """

    trajectory_id: str
    group_id: str | None
    attempt: int
    tokens: Interval
    fates: tuple[str, ...]
    entries: tuple[Entry, ...]
    uses: tuple[StoryUse, ...]
    bound: int | None = None
    multiplicity: Interval | None = None
    diagnostics: tuple[Mapping[str, Any], ...] = field(default_factory=tuple)

    def json(self) -> dict[str, Any]:
        """Plain values, intervals as ``{"lo", "hi"}``, times in ISO 8601."""
        return {
            "trajectory_id": self.trajectory_id,
            "group_id": self.group_id,
            "attempt": self.attempt,
            "multiplicity": (self.multiplicity or Interval.exact(1)).json(),
            "tokens": self.tokens.json(),
            "fates": list(self.fates),
            "bound": self.bound,
            "entries": [_plain(entry) for entry in self.entries],
            "uses": [_plain(use) for use in self.uses],
        }


def tell(rebuilt: Rebuilt, trajectory_id: str, bound: int | None = None) -> Story:
    """Tell one trajectory's life.

    Raises:
        AuditError: the run has no trajectory of that name.
    """
    stories = tell_all(rebuilt, [trajectory_id], bound)
    if trajectory_id not in stories:
        raise AuditError(
            f'No training trajectory is called {trajectory_id!r}; `sql RUN "SELECT trajectory_id FROM trajectory_lives"` lists them.'
        )
    return stories[trajectory_id]


def tell_all(rebuilt: Rebuilt, trajectory_ids: Sequence[str], bound: int | None = None) -> dict[str, Story]:
    """Tell the lives of some trajectories, all rebuilt at once; those that the run doesn't have are left out."""
    if not trajectory_ids:
        return {}
    with zoom(rebuilt, trajectory_ids) as connection:
        entries, uses = _entries(connection), _uses(connection)
        return {
            life["trajectory_id"]: Story(
                trajectory_id=life["trajectory_id"],
                group_id=life["group_id"] if life["grouped"] else None,
                attempt=life["attempt"],
                tokens=Interval(life["tokens_lo"], life["tokens_hi"]),
                fates=tuple(life["fates"]),
                entries=entries.get(life["trajectory_id"], ()),
                uses=uses.get(life["trajectory_id"], ()),
                bound=bound,
                multiplicity=Interval(life["multiplicity_lo"], life["multiplicity_hi"]) if life["anonymous"] else None,
            )
            for life in _rows(connection, "SELECT * FROM named_trajectories")
        }


def _entries(connection: duckdb.DuckDBPyConnection) -> dict[str, tuple[Entry, ...]]:
    """By trajectory: events, spans and uses in order of time; where times are missing, in the order in which lives go."""
    rows = _rows(
        connection,
        """
        SELECT members.trajectory_id, kind, ts, version_lo, version_hi, NULL::BIGINT AS tokens_lo, NULL::BIGINT AS tokens_hi, step, NULL::INTEGER AS first_step, reason, evidence,
               source, line, locator, CASE kind WHEN 'admitted' THEN 0 WHEN 'started' THEN 1 WHEN 'finished' THEN 4 WHEN 'enqueued' THEN 5
               WHEN 'sampled' THEN 6 WHEN 'paused' THEN 3 WHEN 'resumed' THEN 3 ELSE 8 END AS rank, seq AS nth, NULL AS upto
        FROM events JOIN members ON events.trajectory_id = members.trajectory_id
            OR events.trajectory_id IS NULL AND members.grouped AND events.group_id = members.group_id
        UNION ALL
        SELECT trajectory_id, 'span', coalesce(ended, started), version_lo, version_hi, tokens_lo, tokens_hi, NULL, NULL, NULL, evidence,
               source, line, locator, 2, span_index, NULL
        FROM spans
        UNION ALL
        SELECT uses.trajectory_id, 'trained', max(coalesce(step_lives.started, step_lives.ended)), min(v_first_lo), max(v_train_hi), min(loss_lo), max(loss_hi),
               uses.step, CASE WHEN min(first_step) < uses.step THEN min(first_step) END, CASE WHEN bool_and(step_lives.certain) THEN NULL WHEN bool_or(rolled_back) THEN 'rolled back' WHEN bool_or(possible) THEN 'not confirmed'
               ELSE 'the step did not complete' END, min(evidence), min(source), min(line), min(locator), 7, uses.step, CASE WHEN bool_and(uses.span_index IS NOT NULL) THEN max(uses.span_index) END
        FROM uses
        JOIN step_lives ON step_lives.attempt = coalesce(uses.attempt, 0) AND step_lives.step = uses.step
        LEFT JOIN use_lives AS own ON own.step_key = step_lives.step_key AND own.key = key_of(uses.trajectory_id)
        GROUP BY uses.trajectory_id, step_lives.attempt, uses.step
        """,
    )
    lives: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        lives.setdefault(row["trajectory_id"], []).append(row)
    return {name: tuple(_entry(row) for row in _ordered(life)) for name, life in lives.items()}


def _ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A life without times goes admitted, generated, finished, queued, trained; with times they decide.

    But clocks differ, and some count whole seconds: whatever they say, a step trains on tokens that have been made.
    """
    timed = all(row["ts"] is not None for row in rows)
    moments = {id(row): row["ts"].timestamp() if timed else 0.0 for row in rows}
    uses = [row for row in rows if row["kind"] == "trained"]
    made = max((moments[id(row)] for row in rows if row["kind"] in {"span", "finished", "enqueued"}), default=0.0)
    last = max((row["nth"] or 0 for row in rows if row["kind"] == "span"), default=0)
    if len(uses) == 1 and (uses[0]["upto"] is None or uses[0]["upto"] >= last):
        for row in rows:
            if row["kind"] == "trained" or (row["kind"] == "sampled" and row["step"] in (None, uses[0]["step"])):
                moments[id(row)] = max(moments[id(row)], made)
    return sorted(rows, key=lambda row: (moments[id(row)], row["rank"], row["nth"] or 0))


def _entry(row: Mapping[str, Any]) -> Entry:
    return Entry(
        kind=row["kind"],
        ts=row["ts"],
        version=Interval(row["version_lo"], row["version_hi"])
        if row["version_lo"] is not None or row["version_hi"] is not None
        else None,
        tokens=Interval(row["tokens_lo"], row["tokens_hi"]) if row["tokens_lo"] is not None else None,
        step=row["step"],
        reason=row["reason"],
        evidence=row["evidence"],
        source=row["source"],
        line=row["line"],
        locator=row["locator"],
        first_step=row["first_step"],
    )


def _uses(connection: duckdb.DuckDBPyConnection) -> dict[str, tuple[StoryUse, ...]]:
    uses: dict[str, tuple[StoryUse, ...]] = {}
    rows = _rows(
        connection,
        """
        SELECT named_uses.*, oldest_lo, oldest_hi
        FROM named_uses LEFT JOIN (
            SELECT
                key, step_key, min(coalesce(version_lo, 0)) AS oldest_lo,
                -- Of spans that may all be masked, some holds the oldest token.
                coalesce(
                    min(version_hi) FILTER (token_uses.loss_lo > 0),
                    CASE WHEN count(version_hi) = count(*) THEN max(version_hi) END
                ) AS oldest_hi
            FROM token_uses LEFT JOIN token_spans USING (key, span_index)
            WHERE token_uses.loss_hi IS DISTINCT FROM 0
            GROUP BY key, step_key
        ) USING (key, step_key)
        ORDER BY attempt, step
        """,
    )
    for row in rows:
        uses[row["trajectory_id"]] = (*uses.get(row["trajectory_id"], ()), _use(row))
    return uses


def _use(row: Mapping[str, Any]) -> StoryUse:
    return StoryUse(
        attempt=row["attempt"],
        step=row["step"],
        certain=row["certain"],
        v_train=Interval(row["v_train_lo"], row["v_train_hi"]),
        oldest=_oldest(row),
        staleness=Interval(row["staleness_lo"], row["staleness_hi"]),
        in_flight=Interval(row["flight_lo"], row["flight_hi"]),
        in_queue=Interval(row["queue_lo"], row["queue_hi"]),
        loss_tokens=Interval(row["loss_lo"], row["loss_hi"]),
        first_step=row["first_step"],
    )


def _oldest(row: Mapping[str, Any]) -> Interval:
    """Version of the oldest trained token: within its spans, and as far from the weights as its staleness allows."""
    lows, highs = [row["oldest_lo"]], [row["oldest_hi"]]
    if row["v_train_lo"] is not None and row["staleness_hi"] is not None:
        lows.append(row["v_train_lo"] - row["staleness_hi"])
    if row["v_train_hi"] is not None and row["staleness_lo"] is not None:
        highs.append(row["v_train_hi"] - row["staleness_lo"])
    low = max((value for value in lows if value is not None), default=None)
    high = min((value for value in highs if value is not None), default=None)
    # Logs that contradict themselves leave nothing between; findings say so, and the staleness that is judged stands.
    return Interval(lows[-1], highs[-1]) if low is not None and high is not None and low > high else Interval(low, high)


def _plain(value: Any) -> Any:
    result = {}
    for name in value.__dataclass_fields__:
        item = getattr(value, name)
        result[name] = (
            item.json() if isinstance(item, Interval) else item.isoformat() if isinstance(item, datetime) else item
        )
    return result


def _rows(connection: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    cursor = connection.execute(query)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
