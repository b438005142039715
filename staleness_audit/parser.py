"""What a parser is: the published interface between a log format and the audit.

A parser is found through the entry-point group ``staleness_audit.parsers``. It is asked four things, in this order:

1. ``detect(run)``: is this directory yours, and which files say so?
2. ``plan(run)``: which independent units of input are there? Units are read in parallel and remembered by the digest of
   their input, so that an unchanged unit is never read twice. A unit must not look at anything outside its pieces.
3. ``read(unit, run, sink)``: write what one unit says, either straight to event tables (``staleness_audit.tables``)
   or to *staged* tables of the parser's own making (any name and columns) when the rows can only be understood
   together.
4. ``finish(staged, run, sink)``: join what the units left, write the remaining event-table rows, and return the
   ``RunFacts`` that belong to the run as a whole.

A parser knows a format and the tables. It never knows the bound that is audited, and never judges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from datetime import datetime

    import duckdb
    import polars as pl
    import pyarrow as pa

    from staleness_audit.discovery import Piece, RunFiles

INTERFACE_VERSION = 1
"""Raised when this interface changes in a way that parsers must follow."""


@dataclass(frozen=True)
class Detection:
    """Why a directory is taken for a run of this parser's framework.

    ``evidence`` holds one sentence per clue, each naming a file. ``strong`` clues are unique to the format; a parser
    that only has weak ones (file names others could use) yields to any with a strong one.
    """

    evidence: tuple[str, ...]
    strong: bool = True
    dialect: str | None = None


@dataclass(frozen=True)
class Unit:
    """An independent piece of work: ``kind`` is the parser's own word, ``pieces`` the bytes it reads.

    ``options`` (small, JSON-able) is handed back to ``read``, and belongs to the unit's identity like its bytes.
    """

    kind: str
    pieces: tuple[Piece, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sign:
    """A log line that tells how the run was doing: see DESIGN ``run.health``.

    ``kind``: ``finished`` and ``crashed`` only for markers the framework's guide names; ``waiting`` for a line that
    says who waits for what; ``progress`` for any line that proves the run moved on.
    """

    kind: Literal["finished", "crashed", "waiting", "progress"]
    ts: datetime | None
    what: str
    source: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class Attempt:
    """One launch of the training process. It continued after step ``resumed_after`` (None = started afresh).

    The framework's step numbers; -1 (or the number before the first step) = it began the same run anew, so that all
    earlier steps are superseded; None also for a run of its own in the same folder, which supersedes nothing. Where
    only a range is known, ``resumed_after`` is its upper and ``resumed_after_lo`` its lower end; steps between the two
    are superseded only possibly. With ``resumed_after_lo`` alone the attempt itself is only possible: a launch of
    which the logs lost the record.
    """

    attempt: int
    resumed_after: int | None = None
    resumed_after_lo: int | None = None
    started: datetime | None = None
    ended: datetime | None = None


@dataclass(frozen=True)
class Bound:
    """The bound as the run's configuration states it; ``value`` is in ``v_train - v_gen`` (None = states none)."""

    value: int | None
    key: str | None = None
    configured: Any = None
    conversion: str | None = None


@dataclass(frozen=True)
class Guarantee:
    """What the mechanism promises in every schedule about true versions: the largest possible staleness.

    ``limit``: that number, ``"none"`` (unbounded), or None (not known). ``reason``: one sentence.
    """

    limit: int | Literal["none"] | None
    reason: str


@dataclass(frozen=True)
class Hint:
    """Something the logs could not tell, and the setting that would make them tell it."""

    missing: str
    remedy: str


@dataclass(frozen=True)
class RunFacts:
    """What holds for the run as a whole.

    ``unit``: what one version counts, in the framework's words (DESIGN section 2). ``unseen``: classes of fates that
    this run's logs cannot show at all (``dropped``, ``cancelled``, ``lost``, ``pending``): their upper ends stay open.
    ``undone``: lines are missing that may have undone any recorded fate, or told that a trajectory was for evaluation,
    so that only training proves anything about a trajectory.
    ``groups_per_step``: B in groups, for ``stoppable_at`` L1. ``replay``: whether a trajectory can be trained in more
    than one step, so that a use without identity need not be a trajectory of its own. ``ascending``: whether no token
    of a trajectory is made by older weights than an earlier token of it, whichever engine makes it.
    """

    framework: str
    unit: str
    framework_version: str | None = None
    dialect: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    bound: Bound = field(default_factory=lambda: Bound(None))
    guarantee: Guarantee = field(
        default_factory=lambda: Guarantee(None, "the logs do not say which mechanism was at work")
    )
    attempts: Sequence[Attempt] = (Attempt(0),)
    signs: Sequence[Sign] = ()
    unseen: frozenset[str] = frozenset()
    undone: bool = False
    hints: Sequence[Hint] = ()
    groups_per_step: int | None = None
    replay: bool = False
    ascending: bool = False


@dataclass(frozen=True)
class Era:
    """A stretch of a run whose rows a parser can write without those of any other (``Sink.write_eras``).

    ``number``: where in the run it is, the same at every look; ``rows``: trajectories in it, about; ``made_from``: all
    that its rows depend on, as text: what staged rows of it there are, and what the rest of the run says of it.
    """

    number: int
    rows: int
    made_from: str


class Sink(Protocol):
    """Where a parser writes. Rows are streamed to Parquet; nothing is kept in memory beyond a row group."""

    def write(self, table: str, rows: pl.DataFrame | pa.Table) -> None:
        """Append rows to an event table or to a staged table of the parser's own.

        Rows of event tables may leave out columns (they become null) and are cast to the table's schema; an unknown
        column or a value of another type raises ``ValueError``. What no run has (a step, version or count below zero or
        beyond the table's bits, crossed ends of an interval) is a damaged digit: it is said, and counts as little as it
        can. Rows of one staged table share one schema.
        """

    def write_query(self, table: str, connection: duckdb.DuckDBPyConnection, query: str) -> None:
        """Append the rows of a DuckDB query to an event table without carrying them through Python.

        Columns are matched by name and cast as in ``write``; ``ValueError`` for one the table does not have.
        """

    def write_blocks(
        self,
        connection: duckdb.DuckDBPyConnection,
        relations: Sequence[str],
        queries: Sequence[tuple[str, str]],
        *,
        beside: Sequence[str] = (),
        first: Callable[[], None] | None = None,
        tally: str | None = None,
    ) -> list[tuple[Any, ...]]:
        """Append the rows of queries to event tables, in blocks of which a watch keeps those that stay as they are.

        ``relations``: tables or views of the connection with a column ``era`` (BIGINT): where in the run a row belongs.
        Neighbouring eras make a block, the size of which the first relation counts; eras below zero count away from it
        and share no block with the others. ``queries``: event tables and the SQL of their rows, which reads
        ``block_<relation>``, the rows of one block. Beside them it may read only tables listed in ``beside``, any
        change of which makes all blocks anew, and rows that stay as they are as long as files are only appended to.
        ``first`` is called for each block before its queries, to derive from ``block_<relation>`` what several of them
        read. Rows of a trajectory and its group should be of one era, and those of an old era should stay as they are
        while the run goes on: then each look of a watch writes and rebuilds new blocks only. For an audit all is one
        block.
        Returns the rows that ``tally`` yields for each block.
        """

    def write_eras(self, eras: Sequence[Era], write: Callable[[Sequence[int], Sink], None]) -> None:
        """Let ``write`` write the rows of eras, all or some of them, into the sink it is given.

        ``eras`` are in order; ``write`` is given the numbers of neighbours, and writes all rows and diagnostics of
        those and of no others. An audit has it write all at once; a watch only those which are made from something
        else than at its last look. So what it writes must not depend on which eras are written together.
        """

    def diagnose(
        self,
        severity: Literal["error", "warning", "note"],
        code: str,
        message: str,
        *,
        source: str | None = None,
        line: int | None = None,
        locator: str | None = None,
        opens: Literal["training", "fates"] | None = None,
    ) -> None:
        """Say what could not be read or had to be assumed.

        ``code`` is a stable kebab-case word, ``message`` one sentence that names the remedy. ``opens`` says what the
        unread piece may have held (``staleness_audit.tables.OPENS``). A code that occurs very often is
        summarised after the first hundred; its count and ``opens`` stay right.
        """


class Staged(Protocol):
    """What all units together wrote.

    ``memory``: what ``finish`` left there at an earlier look of a watch. It is empty in an audit, and again if files
    were not only appended to since. So it may rest on lines that are whole and on settings, if it tells which: more
    lines and files may have come, and an unterminated last line is another one when it is whole.
    """

    memory: dict[str, Any]

    def has(self, table: str) -> bool:
        """Whether any unit wrote rows to this table."""

    def units(self, table: str) -> Collection[str]:
        """Names of the units that wrote to a table, as ``scan`` takes and tells them; no file is opened for it."""

    def scan(self, table: str, *, units: Collection[str] | None = None, named: bool = False) -> pl.LazyFrame:
        """Rows of a staged or event table that the units wrote; for an event table nobody wrote, an empty frame.

        ``units``: only those that these have written. ``named``: with a column ``unit``, the name of the one that wrote
        the row; it names the unit's input too, as another one for ``Era.made_from`` if that has changed.
        """

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB connection with one view per written table, under the memory limit of the audit."""


@runtime_checkable
class Parser(Protocol):
    """One log format. ``card`` describes it for ``staleness-audit frameworks`` and the documentation.

    Optional attributes: ``assumptions`` (a dict from the keys of ``--assume`` that ``finish`` looks up in
    ``run.assume`` to what they mean), ``uses_processes`` (False = units are read in threads of this process),
    ``belong_together(run, folders)`` (whether folders side by side, which it recognises by files of the same names,
    are one run's; from names and first bytes like ``detect``; without it they are runs of their own),
    ``writes_blocks`` (True = ``finish`` writes by ``Sink.write_blocks`` or ``write_eras``, for the sake of a watch),
    and ``units_stand_alone`` (True = each unit writes the finished rows of its lines; ``finish`` writes diagnostics
    only and reads staged tables of the parser's own only, so that a watch need not read again what it has read).
    """

    name: str
    version: str
    card: Card

    def detect(self, run: RunFiles) -> Detection | None:
        """Recognise the format from names and first bytes; cheap, never raises on foreign files."""

    def plan(self, run: RunFiles) -> Iterable[Unit]:
        """Name the units of input, in the order in which the run wrote them where names tell.

        A generator lets the first units be read while later ones are still looked for.
        """

    def read(self, unit: Unit, run: RunFiles, sink: Sink) -> None:
        """Write what one unit says. Damage becomes diagnostics; raise only for defects of the parser itself."""

    def finish(self, staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
        """Join the units and state what holds for the run as a whole."""


@dataclass(frozen=True)
class Artifact:
    """A file the framework leaves: where, how to switch it on, and what it can prove."""

    path: str
    switch: str
    proves: str


@dataclass(frozen=True)
class Mode:
    """A control mode of the framework: its knob, the conversion to ``v_train - v_gen``, and what it really limits."""

    name: str
    bound_key: str | None
    conversion: str
    strict: bool | None
    limit: str
    reason: str


@dataclass(frozen=True)
class Figure:
    """A number the framework logs about itself that is not what the audit calls by that name.

    ``raw_name``: as in ``reported`` (``*`` stands for any part of it); ``measures``: one clause that says what it
    measures, and so why it may differ from the rebuilt figure.
    """

    raw_name: str
    measures: str


@dataclass(frozen=True)
class Card:
    """A framework on one page: shown by ``staleness-audit frameworks`` and in ``docs/frameworks.md``.

    ``refines``: names of parsers whose formats this one also matches but understands better. ``betrays``: which losses
    of input this format betrays, and which nothing can (DESIGN section 3). ``figures``: what its own figures measure.
    """

    title: str
    unit: str
    artifacts: tuple[Artifact, ...]
    modes: tuple[Mode, ...]
    betrays: str
    refines: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
