"""What the line numbers of the writers betray: gaps, repeats, missing ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import polars as pl

from staleness_audit.discovery import RunFile, RunFiles
from staleness_audit.errors import AuditError
from staleness_audit.parser import Sink, Staged
from staleness_parsers.events.columns import whole_number


def repeats(run: RunFiles, files: list[RunFile]) -> Iterator[tuple[RunFile, RunFile]]:
    """Yield files that repeat another byte for byte, each with the first one of these bytes."""
    looks = {file.source: (file.bytes, file.compressed, run.head(file.source)) for file in files}
    alike = Counter(looks.values())
    first: dict[str, RunFile] = {}
    for file in files:
        # Files of different sizes or beginnings differ: no need to hash the whole of one before its first piece is read.
        if file.bytes and alike[looks[file.source]] > 1:
            original = first.setdefault(run.digest(file.source), file)
            if original is not file:
                yield file, original


def report_repeats(run: RunFiles, files: list[RunFile], sink: Sink) -> None:
    """Note files that repeat another byte for byte."""
    for file, original in repeats(run, files):
        sink.diagnose(
            "note", "repeated-file", f"The same bytes as {original.source}; it counts once.", source=file.source
        )


def check_numbering(
    staged: Staged, headers: list[tuple[RunFile, dict[str, Any]]], files: list[RunFile], sink: Sink
) -> None:
    """Every writer's lines must be numbered without gaps from 1 (or 0) to the number of its end line."""
    if not staged.has("numbering"):
        return
    for (writer,), own in pieces_by_writer(staged, headers).group_by("writer", maintain_order=True):
        ranges = own.filter(pl.col("n_min").is_not_null()).sort("n_min")
        source, last_line = own["source"][-1], own["last_line"].max()
        if (ranges["n_min"] <= ranges["n_max"].shift(1)).any() and (repeat := _first_repeat(staged, ranges)):
            raise AuditError(
                f"{source}: line number n = {repeat} of writer {writer} occurs in more than one file or far apart in one; "
                "remove the copy (or give each writer a name of its own)."
            )
        _diagnose_numbering(str(writer), str(source), last_line, own, sink)


def _first_repeat(staged: Staged, ranges: pl.DataFrame) -> int | None:
    """Return a number that occurs in two of the pieces whose ranges overlap, if any does."""
    whole = ranges.filter(pl.col("n_max") - pl.col("n_min") + 1 == pl.col("numbers"))
    numbers = [pl.int_ranges(pl.col("n_min").cast(pl.Int64), pl.col("n_max").cast(pl.Int64) + 1).alias("n")]
    every = whole.select(numbers).explode("n")
    if whole.height < ranges.height:
        loose = staged.scan("loose_numbers").filter(pl.col("source").is_in(ranges["source"].unique().to_list()))
        every = pl.concat([every, loose.select(pl.col("n").cast(pl.Int64)).collect()])
    repeated = every.filter(pl.col("n").is_duplicated())["n"]
    return None if repeated.is_empty() else int(repeated.min())  # type: ignore[arg-type]


def _diagnose_numbering(writer: str, source: str, last_line: Any, own: pl.DataFrame, sink: Sink) -> None:
    unnumbered = int(own["unnumbered"].sum())
    if unnumbered:
        sink.diagnose(
            "warning",
            "unnumbered-lines",
            f"{unnumbered} lines of writer {writer} have no number n, so that lost lines could not be noticed.",
            source=source,
            opens="training",
        )
    if own["n_max"].max() is None:
        missing = 0
    else:
        low, high = int(own["n_min"].min()), int(own["n_max"].max())  # type: ignore[arg-type]
        missing = high - min(low, 1) + 1 - int(own["numbers"].sum())
    if missing > 0:
        sink.diagnose(
            "error",
            "lines-missing",
            f"{missing} {'line' if missing == 1 else 'lines'} of writer {writer} {'is' if missing == 1 else 'are'} missing, or could not be used (gaps in its numbers n); what they said is not known.",
            source=source,
            opens="training",
        )
    end = own["n_end"].max()
    if end is None or end < own["n_max"].max():  # type: ignore[operator]
        sink.diagnose(
            "warning",
            "no-end-line",
            f"Writer {writer} has no end line: it was stopped, or its last lines are lost.",
            source=source,
            line=last_line,
            opens="training",
        )


def pieces_by_writer(staged: Staged, headers: list[tuple[RunFile, dict[str, Any]]]) -> pl.DataFrame:
    """Return the numbering of every piece with its ``writer``, who may have written several files one after another.

    A writer may start counting anew in every attempt. Without a name it is its file.
    """
    writers = {
        file.source: f"{header['writer']} of attempt {whole_number(header.get('attempt')) or 0}"
        for file, header in headers
        if header.get("writer")
    }
    pieces = staged.scan("numbering").sort("source", "first_line").collect()
    return pieces.with_columns(pl.col("source").replace_strict(writers, default=pl.col("source")).alias("writer"))


def intact(staged: Staged, headers: list[tuple[RunFile, dict[str, Any]]]) -> bool:
    """Whether no line is missing anywhere, so that the first step seen of an attempt is its first step."""
    if not staged.has("numbering"):
        return True
    by_writer = pieces_by_writer(staged, headers).group_by("writer")
    ranges = by_writer.agg(pl.col("n_min").min(), pl.col("n_max").max(), pl.col("n_end").max(), pl.col("numbers").sum())
    whole = (pl.col("n_max") - pl.min_horizontal("n_min", 1.0) + 1 == pl.col("numbers")) & (
        pl.col("n_end") == pl.col("n_max")
    )
    return bool(ranges.select(whole.fill_null(False).all()).item())
