"""Which trajectories of a part are done with, and setting them aside in blocks.

A *block* holds the rows of trajectories whose groups are complete and over, and the products rebuilt from them. It stays
right as long as no new row speaks of one of its trajectories or groups (``keys``), and as long as what it took from the
run as a whole stays: the steps that were complete, the attempts, the start of the clock (``Frozen``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from staleness_audit.engine import connect, read_parquet, write_parquet
from staleness_audit.ingest import Dataset
from staleness_audit.rebuild.partial import views
from staleness_audit.rebuild.partitions import DIVIDED

_GROUP = "hash('group', key_of(group_id))"
"""Key of a group; that of a trajectory is ``key_of(trajectory_id)``, and the two may have the same name."""

PRODUCTS = ("step_lives", "use_lives", "trajectory_lives", "members", "occupancy")


@dataclass(frozen=True)
class Frozen:
    """What blocks took from the run as a whole, as it was when the last one was sealed.

    ``steps``: file with the rows of ``step_lives`` that were complete or had begun; ``last_started``: when the last of
    them did. ``wall``: start and end of the time that is looked at. ``facts``: attempts, and whether versions ascend.
    """

    steps: Path
    last_started: Any
    wall: tuple[int | None, int | None]
    facts: tuple[Any, ...]

    def still_holds(self, part: Path, facts: Mapping[str, Any]) -> bool:
        """Whether nothing of it has changed in a newer part of the run."""
        with duckdb.connect() as connection:
            views(connection, part, ("step_lives", "occupancy"))
            connection.execute(f"CREATE VIEW frozen AS SELECT * FROM {read_parquet([self.steps])}")
            changed = connection.execute("FROM frozen EXCEPT FROM step_lives LIMIT 1").fetchone()
            early = connection.execute(
                "SELECT min(started) FROM step_lives ANTI JOIN frozen USING (step_key) WHERE started IS NOT NULL"
            ).fetchone()
            wall = connection.execute("SELECT wall_started, wall_ended FROM occupancy").fetchone()
        assert early is not None
        assert wall is not None
        in_order = early[0] is None or (self.last_started is not None and early[0] > self.last_started)
        started, ended = self.wall
        same_wall = wall[0] == started and (wall[1] == ended if ended is None else (wall[1] or ended) >= ended)
        return changed is None and in_order and same_wall and frozen_facts(facts) == self.facts


def frozen_facts(facts: Mapping[str, Any]) -> tuple[Any, ...]:
    """What products depend on beside the tables."""
    attempts = [
        (attempt["attempt"], attempt["resumed_after"], attempt["resumed_after_lo"]) for attempt in facts["attempts"]
    ]
    return (tuple(attempts), facts["ascending"])


_OPEN = """
    WITH wall AS (SELECT wall_started, wall_ended FROM occupancy),
    taken AS (
        SELECT key, epoch_us(min(started)) AS moment FROM use_lives JOIN step_lives USING (step_key) GROUP BY key
    ),
    begun AS (SELECT max(started) AS last FROM step_lives),
    judged AS (
        SELECT
            lives.key,
            fates = 'trained:'
                OR (NOT contains(fates, chr(31)) AND split_part(fates, ':', 1) IN ('dropped', 'cancelled', 'lost')) AS over,
            -- Times that reach to the end of the log, or beyond, go on with it.
            wall_started IS NULL OR wall_ended IS NULL OR anonymous OR coalesce(
                coalesce(finished, enqueued, ended, CASE WHEN has_finished THEN wall_ended END) <= wall_ended, false
            ) AND (
                NOT has_finished OR coalesce(enqueued, finished) IS NULL
                OR coalesce(coalesce(lives.sampled, taken.moment, ended) <= wall_ended, false)
            ) AS timed,
            -- The step that was being collected at a drop must have begun.
            split_part(fates, ':', 1) <> 'dropped' OR (
                (fate_step IS NULL OR (coalesce(fate_attempt, 0), fate_step) IN (SELECT (attempt, step) FROM step_lives WHERE certain))
                AND (ended IS NULL OR begun.last IS NULL OR make_timestamptz(ended) <= begun.last)
            ) AS collected
        FROM trajectory_lives AS lives CROSS JOIN wall CROSS JOIN begun LEFT JOIN taken USING (key)
    )
    SELECT key FROM judged WHERE NOT (over AND timed AND collected)
    UNION
    SELECT key_of(trajectory_id) FROM uses
    JOIN step_lives ON coalesce(uses.attempt, 0) = step_lives.attempt AND uses.step = step_lives.step
    WHERE NOT step_lives.certain
    UNION
    -- Evaluation rollouts count nowhere; while they are generated, more rows of them come.
    SELECT key FROM members WHERE NOT training AND key NOT IN (
        SELECT key_of(trajectory_id) FROM events WHERE trajectory_id IS NOT NULL AND kind IN ('finished', 'enqueued')
    )"""

_NUMBERED = f"""
    WITH last_used AS (SELECT key, max(step_key) AS step FROM use_lives GROUP BY key),
    clusters AS (
        SELECT {_GROUP} AS cluster, count(*) AS trajectories, coalesce(max(step), 0) AS step
        FROM members LEFT JOIN last_used USING (key)
        GROUP BY cluster
        HAVING NOT bool_or(key IN (SELECT key FROM open_keys))
    )
    SELECT cluster, (sum(trajectories) OVER (ORDER BY step, cluster) - trajectories) // {{size}} AS block FROM clusters"""

_ROWS_OF = {
    "trajectories": "key_of(trajectory_id)",
    "spans": "key_of(trajectory_id)",
    "uses": "key_of(trajectory_id)",
    # An event of a group goes with its members.
    "events": f"CASE WHEN trajectory_id IS NULL THEN {_GROUP} ELSE key_of(trajectory_id) END",
}


@contextmanager
def open_keys(dataset: Dataset, part: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection with the tables and ``open_keys``: the hashes of trajectories that are not done with."""
    with dataset.connect() as connection:
        _find_open(connection, part)
        yield connection


def _find_open(connection: duckdb.DuckDBPyConnection, part: Path) -> None:
    views(connection, part, PRODUCTS)
    connection.execute(f"CREATE TEMP TABLE open_keys AS {_OPEN}")


def assign(dataset: Dataset, part: Path, size: int, least: int) -> duckdb.DuckDBPyConnection | None:
    """Say which trajectories can be set aside, if there are ``least`` of them, in blocks of about ``size``.

    Returns a connection with the tables and ``assigned`` (``key`` of a trajectory, or the hash of a group, and
    ``block``), which the caller closes; None if there are too few.
    """
    connection = dataset.connect()
    if connection.execute("SELECT 1 FROM events WHERE evidence = 'inferred' LIMIT 1").fetchone():
        # The check counts alternatives over the rows of the whole run.
        connection.close()
        return None
    _find_open(connection, part)
    connection.execute(f"CREATE TEMP TABLE numbered AS {_NUMBERED.format(size=int(size))}")
    connection.execute(
        f"CREATE TEMP TABLE assigned AS SELECT key, block FROM members JOIN numbered ON {_GROUP} = cluster "
        "UNION SELECT cluster, block FROM numbered"
    )
    row = connection.execute("SELECT count(*) FROM members WHERE key IN (SELECT key FROM assigned)").fetchone()
    if row is None or row[0] < least:
        connection.close()
        return None
    return connection


def divide(connection: duckdb.DuckDBPyConnection, folder: Path) -> tuple[list[Path], dict[str, list[Path]]]:
    """Write the rows of each block into a folder ``block=<n>`` of its own, and those that stay into ``open``.

    Returns the folders of the blocks, and the parts of the tables that stay.
    """
    stay: dict[str, list[Path]] = {}
    for table in DIVIDED:
        key = _ROWS_OF[table]
        aside = folder / table
        keyed = f"(SELECT *, {key} AS key_ FROM {table}) AS rows"
        write_parquet(
            connection,
            f"SELECT rows.* EXCLUDE (key_), block FROM {keyed} JOIN assigned ON key_ = assigned.key",
            aside,
            "PARTITION_BY (block)",
        )
        for part in aside.glob("block=*"):
            target = folder / "blocks" / part.name / table
            target.parent.mkdir(parents=True, exist_ok=True)
            part.rename(target)
        left = folder / f"{table}.parquet"
        others = "key_ IS NULL OR key_ NOT IN (SELECT key FROM assigned)"
        rows = write_parquet(connection, f"SELECT * EXCLUDE (key_) FROM {keyed} WHERE {others}", left)
        stay[table] = [left] if rows else []
    blocks = sorted((folder / "blocks").iterdir())
    for block in blocks:
        number = int(block.name.removeprefix("block="))
        keys = f"SELECT DISTINCT key FROM assigned WHERE block = {number} ORDER BY key"
        write_parquet(connection, keys, block / "keys.parquet")
    return blocks, stay


def freeze(dataset: Dataset, part: Path, target: Path) -> Frozen:
    """Note what the blocks that are being sealed take from the run as a whole."""
    with duckdb.connect() as connection:
        views(connection, part, ("step_lives", "occupancy"))
        write_parquet(connection, "SELECT * FROM step_lives WHERE certain OR started IS NOT NULL", target)
        last = connection.execute("SELECT max(started) FROM step_lives").fetchone()
        wall = connection.execute("SELECT wall_started, wall_ended FROM occupancy").fetchone()
    assert last is not None
    assert wall is not None
    return Frozen(target, last[0], (wall[0], wall[1]), frozen_facts(dataset.facts))


def keys_of(tables: Mapping[str, Sequence[Path]]) -> str | None:
    """SQL of the hashes of all trajectories and groups that rows speak of; None if there are no rows."""
    keys = []
    for table, key, told in (
        ("trajectories", "key_of(trajectory_id)", "trajectory_id"),
        ("trajectories", _GROUP, "group_id"),
        ("spans", "key_of(trajectory_id)", "trajectory_id"),
        ("uses", "key_of(trajectory_id)", "trajectory_id"),
        ("events", _ROWS_OF["events"], "coalesce(trajectory_id, group_id)"),
    ):
        if tables.get(table):
            files = read_parquet(tables[table], union_by_name=True)
            keys.append(f"SELECT {key} AS key FROM {files} WHERE {told} IS NOT NULL")
    return " UNION ".join(keys) or None


def touched(new: Mapping[str, Sequence[Path]], blocks: Sequence[Path]) -> list[Path]:
    """Return the blocks that new rows speak of."""
    if not blocks or (keys := keys_of(new)) is None:
        return []
    with connect() as connection:
        return holding(connection, keys, blocks)


def holding(connection: duckdb.DuckDBPyConnection, keys: str, blocks: Sequence[Path]) -> list[Path]:
    """Return the blocks (one at least) that hold any key of a query."""
    by_file = {str(block / "keys.parquet"): block for block in blocks}
    listed = read_parquet([block / "keys.parquet" for block in blocks], filename=True)
    rows = connection.execute(f"SELECT DISTINCT filename FROM {listed} SEMI JOIN ({keys}) USING (key)").fetchall()
    return [by_file[file] for (file,) in rows]
