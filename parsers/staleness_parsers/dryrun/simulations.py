"""Telling apart the simulations that were appended to the same streams (guide 8, first pitfall).

Streams are opened for appending, so a second simulation into the same ``output_dir`` continues the files, with time,
request numbers and versions back at zero. Each stream is split by its own rule, then the parts of the other streams are
laid beside those of ``request.jsonl``: in order, and so that times agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from staleness_audit.discovery import natural
from staleness_parsers.dryrun.control import Launch, launch_from_config

if TYPE_CHECKING:
    import duckdb

_BREAKS: Final = {
    # A new simulation starts at time 0 with request 0; numbers only grow within one.
    "request": """
        SELECT *, t < lag(t) OVER file OR (event = 'admit' AND rid <= last_value(
            CASE WHEN event = 'admit' THEN rid END IGNORE NULLS
        ) OVER (PARTITION BY source ORDER BY line ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) AS fresh
        FROM dryrun_request WINDOW file AS (PARTITION BY source ORDER BY line)""",
    "train": """
        SELECT *, t < lag(t) OVER file OR version <= lag(version) OVER file AS fresh
        FROM dryrun_train WINDOW file AS (PARTITION BY source ORDER BY line)""",
    "instance": """
        SELECT *, t < lag(t) OVER file AS fresh
        FROM dryrun_instance WINDOW file AS (PARTITION BY source ORDER BY line)""",
}
"""All rows, with ``fresh``: whether a new simulation starts with this one (null on a file's first row)."""


MAX_PARTS: Final = 1000


@dataclass(frozen=True)
class Part:
    """Rows of one stream from ``first_line`` on, up to the next part of the same ``source``."""

    kind: str
    folder: str
    source: str
    number: int
    first_line: int


@dataclass
class Simulation:
    """One simulation = one attempt. ``parts``: its part of every stream; ``shift``: seconds added to its times."""

    attempt: int
    folder: str
    parts: list[Part] = field(default_factory=list)
    launch: Launch = field(default_factory=Launch)
    shift: int = 0

    @property
    def root(self) -> str:
        """The output folder: the one that holds ``logs``."""
        return self.folder.removesuffix("logs").removesuffix("/")

    def has(self, kind: str) -> bool:
        """Whether some part of this kind of stream belongs to it."""
        return any(part.kind == kind for part in self.parts)


def split(connection: duckdb.DuckDBPyConnection) -> list[Part]:
    """Find the parts of every stream, in natural order of their files."""
    parts = []
    for kind, breaks in _BREAKS.items():
        rows = connection.execute(
            f"SELECT folder, source, line FROM ({breaks}) WHERE fresh IS NOT false ORDER BY source, line"  # noqa: S608
        ).fetchall()
        numbers: dict[str, int] = {}
        for folder, source, line in rows:
            number = numbers[source] = numbers.get(source, -1) + 1
            parts.append(Part(kind, folder, source, number, line))
    return sorted(parts, key=lambda part: (natural(part.source), part.number))


def simulations(connection: duckdb.DuckDBPyConnection) -> list[Simulation]:
    """Split all streams and lay the parts side by side; leaves table ``part`` (kind, source, first_line, attempt).

    ``request.jsonl`` leads. A part of ``train.jsonl`` that fits none of its parts is a simulation of its own.
    """
    parts = split(connection)
    found = [Simulation(i, part.folder, [part]) for i, part in enumerate(p for p in parts if p.kind == "request")]
    _publish(connection, found)
    for part, owner in _owners(found, [p for p in parts if p.kind == "train"], _train_scores(connection)):
        if owner is not None:
            owner.parts.append(part)
        else:
            found.append(Simulation(len(found), part.folder, [part]))
    _publish(connection, found)
    streams: dict[str, list[Part]] = {}
    for part in parts:
        if part.kind == "instance":
            streams.setdefault(part.source, []).append(part)
    # One part beside one simulation needs no comparing, and these streams can be very large.
    alone = len(found) == 1 and all(len(stream) == 1 for stream in streams.values())
    scores = {} if alone else _instance_scores(connection)
    for stream in streams.values():
        for part, owner in _owners(found, stream, scores):
            if owner is not None:
                owner.parts.append(part)
    if not found:
        folders = sorted({part.folder for part in parts}) or [""]
        found = [Simulation(i, folder) for i, folder in enumerate(folders)]
    _publish(connection, found)
    return found


def _publish(connection: duckdb.DuckDBPyConnection, found: Sequence[Simulation]) -> None:
    """(Re)make table ``part``; parts that belong to nobody get a null attempt by the outer query's filter."""
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE part"
        " (kind VARCHAR, source VARCHAR, number BIGINT, first_line BIGINT, attempt INTEGER)"
    )
    rows = [(p.kind, p.source, p.number, p.first_line, s.attempt) for s in found for p in s.parts]
    if rows:
        connection.executemany("INSERT INTO part VALUES (?, ?, ?, ?, ?)", rows)


Scores = Mapping[tuple[str, int, int], int]
"""(source, part number, attempt): update instants that agree, less those that contradict."""


def _train_scores(connection: duckdb.DuckDBPyConnection) -> Scores:
    """Compare each step's start in ``train.jsonl`` with the time of its consume rows."""
    return _scores(
        connection,
        f"""
        WITH consumed AS (
            SELECT p.attempt, r.folder, r.consume_version AS k, min(r.t) AS t
            FROM dryrun_request r ASOF JOIN part p ON r.source = p.source AND r.line >= p.first_line
            WHERE r.event = 'consume' GROUP BY ALL
        ), trained AS ({_parted("train", "folder, version - 1 AS k, start AS t")})
        SELECT source, number, attempt, sum(CASE WHEN consumed.t = trained.t THEN 1 ELSE -1 END)::BIGINT
        FROM trained JOIN consumed USING (folder, k) GROUP BY ALL""",  # noqa: S608
    )


def _instance_scores(connection: duckdb.DuckDBPyConnection) -> Scores:
    """Count the update instants at which an instance stream has a row: it has one at every update of its simulation."""
    return _scores(
        connection,
        f"""
        WITH instants AS (
            SELECT DISTINCT p.attempt, r.folder, r.t
            FROM dryrun_request r ASOF JOIN part p ON r.source = p.source AND r.line >= p.first_line
            WHERE r.event = 'consume'
        ), occupied AS (
            SELECT * FROM ({_parted("instance", "folder, t")}) WHERE t IN (SELECT t FROM instants)
        )
        SELECT source, number, attempt, count(DISTINCT t) FROM occupied JOIN instants USING (folder, t) GROUP BY ALL""",  # noqa: S608
    )


def _parted(kind: str, columns: str) -> str:
    """Rows of a stream with the number of their part, whether or not it has an owner yet."""
    number = "count(*) FILTER (fresh) OVER (PARTITION BY source ORDER BY line) AS number"
    return f"SELECT source, {number}, {columns} FROM ({_BREAKS[kind]})"  # noqa: S608


def _scores(connection: duckdb.DuckDBPyConnection, query: str) -> Scores:
    return {(source, number, attempt): score for source, number, attempt, score in connection.execute(query).fetchall()}


def _owners(
    found: Sequence[Simulation], parts: Sequence[Part], scores: Scores
) -> Iterable[tuple[Part, Simulation | None]]:
    """Give parts of one kind to simulations of their folder: one to one if there are as many, else by agreement."""
    for folder in dict.fromkeys(part.folder for part in parts):
        mine = [part for part in parts if part.folder == folder]
        theirs = [simulation for simulation in found if simulation.folder == folder]
        table = [[scores.get((part.source, part.number, s.attempt), 0) for s in theirs] for part in mine]
        if len(mine) == len(theirs) and all(table[i][i] >= 0 for i in range(len(mine))):
            yield from zip(mine, theirs, strict=True)
            continue
        pairs = align(table)
        for index, part in enumerate(mine):
            yield part, theirs[pairs[index]] if index in pairs else None


def align(scores: Sequence[Sequence[int]]) -> dict[int, int]:
    """Pair rows with columns in order, each at most once, so that the sum of scores is largest; only pairs above 0.

    Beyond ``MAX_PARTS`` nothing is paired: so many parts mean that simulations wrote at the same time, in turns.
    """
    rows, columns = len(scores), len(scores[0]) if scores else 0
    if rows * columns > MAX_PARTS**2:
        return {}
    best = [[0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            best[i][j] = max(
                best[i + 1][j], best[i][j + 1], scores[i][j] + best[i + 1][j + 1] if scores[i][j] > 0 else 0
            )
    pairs: dict[int, int] = {}
    i = j = 0
    while i < rows and j < columns:
        if scores[i][j] > 0 and best[i][j] == scores[i][j] + best[i + 1][j + 1]:
            pairs[i] = j
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


Settings = tuple[str, Launch]
"""(source, what it says)"""


def assign_launches(found: Sequence[Simulation], configs: Sequence[Settings], starts: Sequence[Settings]) -> bool:
    """Say for each simulation which settings it ran with; return whether anything had to be left open.

    ``configs``: the configurations; ``starts``: the start lines of the logs, in their order. With as many as there are
    simulations they go in order (Hydra's folders are named by date and time); otherwise the last configuration belongs
    to the last simulation, for each run overwrites ``.hydra`` (guide 8), and no other has one. Where the simulations
    have several output folders, this holds for each by itself.
    """
    roots = list(dict.fromkeys(simulation.root for simulation in found))
    for root in roots:
        mine = [simulation for simulation in found if simulation.root == root]
        _assign(mine, _below(root, roots, configs), _below(root, roots, starts))
    return any(not simulation.launch.config for simulation in found)


def _below(root: str, roots: Sequence[str], settings: Sequence[Settings]) -> list[Launch]:
    """Pick the settings in a root (and in no root below it); those outside of all roots belong to the only one."""
    return [launch for source, launch in settings if _owner(source, roots) == root]


def _owner(source: str, roots: Sequence[str]) -> str | None:
    above = [root for root in roots if not root or source.startswith(root + "/")]
    if above:
        return max(above, key=len)
    return roots[0] if len(roots) == 1 else None


def _assign(mine: Sequence[Simulation], configs: Sequence[Launch], starts: Sequence[Launch]) -> None:
    if len(starts) == len(mine):
        for simulation, launch in zip(mine, starts, strict=True):
            simulation.launch = launch
    as_many = len(configs) == len(mine)
    for simulation, launch in (
        zip(mine, configs, strict=True) if as_many else zip(mine[-1:], configs[-1:], strict=False)
    ):
        known = simulation.launch
        if known.policy is None or (known.policy, known.batch_size) == (launch.policy, launch.batch_size):
            simulation.launch = launch


def launch_settings(configs: Iterable[tuple[str, str]]) -> list[Settings]:
    """Turn (source, JSON text) of configurations into settings, in natural order of their names."""
    ordered = sorted(configs, key=lambda config: natural(config[0]))
    return [(source, launch_from_config(orjson.loads(text))) for source, text in ordered]


def start_settings(starts: Iterable[tuple[str, Sequence[str]]]) -> list[Settings]:
    """Turn the words of start lines into settings; a simulation without telemetry left no rows and is passed over."""
    return [(source, _launch_from_line(words)) for source, words in starts if words[4] == "True"]


def _launch_from_line(words: Sequence[str]) -> Launch:
    policy, versions, _instances, batch, _telemetry = words
    return Launch(policy, int(versions), int(batch))


def config_of(found: Sequence[Simulation]) -> Mapping[str, Any]:
    """Return the configuration of the last simulation, as found."""
    return found[-1].launch.config if found else {}
