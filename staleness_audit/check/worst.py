"""The worst violations and where the logs prove them.

Only what is listed is explained: the trajectories that were picked are rebuilt once more by themselves, with all the
detail that the products of the whole run leave out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb

from staleness_audit.check.intervals import Interval
from staleness_audit.engine import literal
from staleness_audit.rebuild import Rebuilt, zoom

Rows = list[dict[str, Any]]
_Use = tuple[str | None, int, int]
"""Trajectory, attempt and step."""


def worst_violations(
    rebuilt: Rebuilt, bound: int, count: int, groups_per_step: int | None, lost: bool, *, newest: bool = False
) -> Rows:
    """Return up to ``count`` uses that violate the bound, proven ones first, the most stale first; of a step, the largest.

    ``lost``: lines are missing that may have held older tokens of any of them, so upper ends are open. ``newest``: those
    of the latest steps come first instead.
    """
    latest, of_step = ("step_key DESC, ", "attempt DESC, step DESC, ") if newest else ("", "")
    with rebuilt.connect() as connection:
        picked = _rows(
            connection,
            # Picked by numbers first and named afterwards: names of all uses would have to be joined to drop most of them.
            f"""WITH picked AS (
                    SELECT key, step_key, certain AND loss_lo > 0 AND staleness_lo > {bound} AS proven
                    FROM use_lives
                    WHERE (staleness_hi IS NULL OR staleness_hi > {bound}) AND (loss_hi IS NULL OR loss_hi > 0)
                    ORDER BY proven DESC, {latest}staleness_lo DESC, staleness_hi DESC NULLS FIRST, step_key, loss_lo DESC, key
                    LIMIT {count}
                )
                SELECT * FROM named_uses JOIN picked USING (key, step_key)
                ORDER BY proven DESC, {of_step}staleness_lo DESC, staleness_hi DESC NULLS FIRST, attempt, step, loss_lo DESC, key""",
        )
        admitted_before = _admitted_before(connection, [row["key"] for row in picked]) if groups_per_step else {}
    if not picked:
        return []
    with zoom(rebuilt, [row["trajectory_id"] for row in picked]) as connection:
        tokens = _by_use(
            connection,
            """SELECT members.trajectory_id, step_lives.attempt, step, token_uses.*
               FROM token_uses JOIN members USING (key) JOIN step_lives USING (step_key)""",
        )
        places = _evidence(connection)
    return [
        _describe(
            row,
            tokens.get(_use_of(row), []),
            places.get(_use_of(row), []),
            bound,
            groups_per_step,
            admitted_before,
            lost,
        )
        for row in picked
    ]


def _describe(
    use: Mapping[str, Any],
    spans: Rows,
    places: Rows,
    bound: int,
    groups_per_step: int | None,
    admitted_before: Mapping[int, int],
    lost: bool,
) -> dict[str, Any]:
    exceeding = [row for row in spans if row["staleness_hi"] is None or row["staleness_hi"] > bound]
    tokens = Interval(
        sum(row["loss_lo"] for row in spans if row["staleness_lo"] > bound),
        None if any(row["loss_hi"] is None for row in exceeding) else sum(row["loss_hi"] for row in exceeding),
    )
    if use["proven"] and not tokens.lo:
        tokens = Interval(1, tokens.hi)
    return {
        "trajectory_id": use["trajectory_id"],
        "group_id": use["group_id"] if use["grouped"] else None,
        "multiplicity": Interval(use["multiplicity_lo"], use["multiplicity_hi"]).json() if use["anonymous"] else None,
        "attempt": use["attempt"],
        "step": use["step"],
        "first_step": use["first_step"],
        "proven": use["proven"],
        "staleness": Interval(use["staleness_lo"], use["staleness_hi"]).open_above(lost).json(),
        "tokens": tokens.open_above(lost).json(),
        "in_flight": Interval(use["flight_lo"], use["flight_hi"]).open_above(lost).json(),
        "in_queue": Interval(use["queue_lo"], use["queue_hi"]).open_above(lost).json(),
        "stoppable_at": _stoppable(use, bound, groups_per_step, admitted_before.get(use["key"])),
        "evidence": places,
    }


def stoppable_at(rebuilt: Rebuilt, trajectory_id: str, bound: int) -> dict[int, list[str]]:
    """For each training step of one trajectory, the controls that could have stopped it, as for listed violations."""
    groups_per_step = rebuilt.dataset.facts.get("groups_per_step")
    with rebuilt.connect() as connection:
        wanted = literal(trajectory_id)
        uses = _rows(connection, f"SELECT key, step, flight_lo FROM named_uses WHERE trajectory_id = {wanted}")
        admitted_before = _admitted_before(connection, [row["key"] for row in uses]) if groups_per_step else {}
    return {row["step"]: _stoppable(row, bound, groups_per_step, admitted_before.get(row["key"])) for row in uses}


def _stoppable(
    use: Mapping[str, Any], bound: int, groups_per_step: int | None, admitted_before: int | None
) -> list[str]:
    """Which of the controls could have stopped it (DESIGN ``stoppable_at``)."""
    levels = []
    if groups_per_step and admitted_before is not None and admitted_before > bound * groups_per_step:
        levels.append("L1")
    if (use["flight_lo"] or 0) > bound:
        levels.append("L2")
    return [*levels, "L3"]


def _admitted_before(connection: duckdb.DuckDBPyConnection, keys: Sequence[int]) -> dict[int, int]:
    """For each trajectory, how many groups were admitted and untrained when it was admitted; unknown ones are left out.

    A group is untrained until the step that takes its last member starts, or until nothing is left of it.
    """
    if not keys:
        return {}
    listed = ", ".join(str(int(key)) for key in keys)
    rows = _rows(
        connection,
        f"""WITH taken AS (
                SELECT key, epoch_us(min(step_lives.started)) AS taken
                FROM use_lives JOIN step_lives USING (step_key) GROUP BY key
            ),
            groups_ AS (
                SELECT group_id, min(coalesce(admitted, started)) AS admitted, max(coalesce(taken, ended, 9223372036854775807)) AS gone,
                       count(*) AS members, count(coalesce(admitted, started)) AS timed
                FROM named_trajectories LEFT JOIN taken USING (key) WHERE NOT anonymous GROUP BY group_id
            )
            SELECT own.key, count(*) FILTER (others.admitted < own.admitted AND others.gone > own.admitted) AS before
            FROM (SELECT key, group_id, coalesce(admitted, started) AS admitted FROM named_trajectories WHERE key IN ({listed})) AS own
            JOIN groups_ AS others ON own.group_id <> others.group_id
            WHERE own.admitted IS NOT NULL
            GROUP BY own.key
            HAVING bool_and(others.timed > 0)""",
    )
    return {row["key"]: row["before"] for row in rows}


def _evidence(connection: duckdb.DuckDBPyConnection) -> dict[_Use, Rows]:
    """Return, for every use, the log lines that prove its staleness: its oldest trained span, the use, the step."""
    oldest = _by_use(
        connection,
        """SELECT members.trajectory_id, step_lives.attempt, step, spans.source, spans.line, spans.locator, spans.evidence
           FROM token_uses JOIN members USING (key) JOIN step_lives USING (step_key)
           JOIN spans ON spans.trajectory_id = members.trajectory_id AND spans.span_index IS NOT DISTINCT FROM token_uses.span_index
           WHERE loss_hi IS NULL OR loss_hi > 0
           ORDER BY token_uses.staleness_lo DESC, spans.span_index""",
    )
    uses = _by_use(
        connection,
        "SELECT trajectory_id, coalesce(attempt, 0) AS attempt, step, source, line, locator, evidence FROM uses",
    )
    steps = _by_use(
        connection,
        """SELECT NULL AS trajectory_id, coalesce(attempt, 0) AS attempt, step, source, line, locator, evidence FROM steps
           WHERE (coalesce(attempt, 0), step) IN (SELECT (coalesce(attempt, 0), step) FROM uses)""",
    )
    found: dict[_Use, Rows] = {}
    for use in uses:
        told = (
            ("oldest trained tokens", oldest.get(use, [])),
            ("taken by the step", uses[use]),
            ("the step", steps.get((None, *use[1:]), [])),
        )
        found[use] = [
            {
                "source": row["source"],
                "line": row["line"],
                "locator": row["locator"],
                "what": what,
                "known": row["evidence"],
            }
            for what, rows in told
            for row in rows[:1]
            if row["source"] is not None
        ]
    return found


def _use_of(row: Mapping[str, Any]) -> _Use:
    return row["trajectory_id"], row["attempt"], row["step"]


def _by_use(connection: duckdb.DuckDBPyConnection, query: str) -> dict[_Use, Rows]:
    """Return the rows of a query by the use that they speak of, in their order."""
    found: dict[_Use, Rows] = {}
    for row in _rows(connection, query):
        found.setdefault(_use_of(row), []).append(row)
    return found


def _rows(connection: duckdb.DuckDBPyConnection, query: str) -> Rows:
    cursor = connection.execute(query)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
