"""The canonical event log: ``*.staleness.jsonl`` (DESIGN section 6, ``docs/events.md``).

Versions in it *are* policy versions: ``version`` of a span is ``v_gen``, of a step ``v_train``, of a sync the version
published. No off-by-one anywhere.

What betrays a loss: every line of a writer carries its number ``n``, and the last line is ``{"kind": "end"}``. A gap in
the numbers or a missing end means that lines are missing which may have held anything, so the upper ends open. A step
line's ``trajectories`` and ``loss_tokens`` betray lost ``trained`` lines even where the writer's tail is gone. Nothing
betrays the loss of a whole file.

A file is cut into pieces of lines that DuckDB parses and sorts into the tables; a piece it objects to is read again
line by line with the same queries, so that only the bad lines are lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from staleness_audit.discovery import RunFiles
from staleness_audit.engine import literal, session
from staleness_audit.errors import UnreadableInput
from staleness_audit.parser import Artifact, Card, Detection, Mode, RunFacts, Sink, Staged, Unit
from staleness_audit.tables import PARSER_TABLES
from staleness_parsers.events.columns import FORMAT, PATTERN, first_number, read_header, whole_number
from staleness_parsers.events.facts import facts
from staleness_parsers.events.lines import load_events
from staleness_parsers.events.numbering import check_numbering, repeats, report_repeats
from staleness_parsers.events.rows import QUERIES, stage_numbering, write_version_lists


class EventsParser:
    """Reads canonical event logs; see the module's docstring."""

    name = "events"
    version = "3"
    uses_processes = False  # DuckDB already works on all cores
    units_stand_alone = True
    card = Card(
        title="Canonical event log",
        unit="as the writer states it (training steps by default)",
        artifacts=(
            Artifact(
                "*.staleness.jsonl",
                "written by the recorder, the simulator, or your own code (docs/events.md)",
                "every token's version, every use, every fate: exact, as far as it was written",
            ),
        ),
        modes=(
            Mode(
                "any",
                "bound (header)",
                "v_train - v_gen <= bound, as written",
                None,
                "not known",
                "an event log says what happened, not which mechanism was at work",
            ),
        ),
        betrays="gaps in the line numbers of a writer and a missing end line; step lines that count more than was "
        "recorded. The loss of a writer's whole file is betrayed by nothing, "
        "unless it was the only one that told of training.",
    )

    def detect(self, run: RunFiles) -> Detection | None:
        """Any ``*.staleness.jsonl``."""
        found = run.match(PATTERN)
        if not found:
            return None
        return Detection(tuple(f"{file.source} is a canonical event log" for file in found[:3]), dialect=FORMAT)

    def belong_together(self, run: RunFiles, folders: Sequence[str]) -> bool:
        """Writers and attempts are named in the files: of two that begin alike, one belongs to another run."""
        begun = Counter(
            (str(header["writer"]), whole_number(header.get("attempt")) or 0)
            for file in run.match(PATTERN)
            if any(file.name.startswith(folder + "/") for folder in folders)
            and (header := read_header(run, file)[0]) is not None
            and header.get("writer") is not None
            and first_number(run, file) == 1
        )
        return max(begun.values(), default=0) < 2

    def plan(self, run: RunFiles) -> Iterator[Unit]:
        """One unit per piece of lines; a file that repeats another byte for byte is read once."""
        files = run.match(PATTERN)
        repeated = {copy.source for copy, _ in repeats(run, files)}
        for file in files:
            if file.source in repeated:
                continue
            header, _ = read_header(run, file)
            clock = "relative" if header and header.get("clock") == "relative" else "epoch"
            options = {"attempt": whole_number(header.get("attempt")) if header else None, "clock": clock}
            yield from (Unit("lines", (piece,), options) for piece in run.split(file.source, at_least=1))

    def read(self, unit: Unit, run: RunFiles, sink: Sink) -> None:
        """Sort the lines of one piece into the event tables, and stage the range of its line numbers."""
        piece = unit.pieces[0]
        with session() as connection:
            load_events(run, piece, connection, sink)
            connection.execute(f"CREATE TEMP TYPE source_word AS ENUM ({literal(piece.source)})")
            connection.execute("CREATE TEMP TYPE evidence_word AS ENUM ('recorded')")
            connection.execute("SET VARIABLE source = ?", [piece.source])
            connection.execute("SET VARIABLE attempt = ?", [unit.options.get("attempt") or 0])
            stage_numbering(connection, sink)
            kinds = {kind for (kind,) in connection.execute("SELECT DISTINCT kind FROM events_").fetchall()}
            for table, of, query in QUERIES:
                if kinds.intersection(of):
                    sink.write_query(table, connection, query)
            write_version_lists(connection, sink)

    def finish(self, staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
        """Check the numbering of every writer; take bound, configuration and attempts from the headers."""
        headers = []
        files = run.match(PATTERN)
        for file in files:
            header, line = read_header(run, file)
            if header is None:
                sink.diagnose(
                    "error",
                    "bad-header",
                    f"The first line is not a header with format {FORMAT}; the writer's first line is lost or not of this format.",
                    source=file.source,
                    line=line,
                    opens="training",
                )
                continue
            headers.append((file, header))
            if header["format"] != FORMAT:
                sink.diagnose(
                    "error",
                    "other-format",
                    f"The header says format {str(header['format'])[:40]!r}; it was read as {FORMAT}, and what else it may mean is not known.",
                    source=file.source,
                    line=line,
                    opens="training",
                )
        complete = any(not file.compressed and b"\n" in run.head(file.source, 1 << 20) for file in files)
        if complete and not headers and not any(staged.has(table) for table in PARSER_TABLES):
            raise UnreadableInput(
                f"{run.path}: no line of {files[0].source}{' and the others' if len(files) > 1 else ''} is a header or an "
                f"event of {FORMAT}; docs/events.md describes the format."
            )
        report_repeats(run, files, sink)
        check_numbering(staged, headers, files, sink)
        return facts(staged, headers, len(files), sink)


PARSER = EventsParser()
