"""What holds of the tables and the audit of any run, whatever its files say; cheap enough to ask of every input."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
from jsonschema import Draft202012Validator

from fuzz.held import Told
from staleness_audit.discovery import RunFiles
from staleness_audit.ingest import describe
from staleness_audit.plugins import Choice
from staleness_audit.tables import EVENT_KINDS, EVIDENCE, OPENS, QUANTITIES, REASONS, SCHEMAS, SEVERITIES

DOCUMENT = Path(__file__).parents[2] / "docs" / "schema" / "staleness-audit-1.schema.json"
WORDS: Mapping[str, tuple[str, ...]] = {
    "evidence": EVIDENCE,
    "kind": EVENT_KINDS,
    "role": ("train", "eval"),
    "quantity": QUANTITIES,
    "op": ("eq", "le", "ge"),
    "severity": SEVERITIES,
    "opens": OPENS,
}
COUNTED_FROM = {"line": 1, "span_index": 0, "token_start": 0, "prompt_tokens": 0, "multiplicity": 0, "waited_us": 0}
COUNTED_FROM |= {"updates": 0, "step": 0, "attempt": 0}
PAIRED_FROM = {"tokens": 0, "loss_tokens": 0, "multiplicity": 0, "members": 0, "version": 0, "v_train": 0}


def broken(told: Told, run: RunFiles, choice: Choice) -> Iterator[str]:
    """Yield what a run's tables and facts break of what parsers promise."""
    for table, rows in told.tables.items():
        tests = _tests(table)
        found = rows.select(**tests).row(0, named=True)
        yield from (f"{table}: {name} ({count} of {len(rows)} rows)" for name, count in found.items() if count)
        if "source" in rows.columns:
            yield from _places(table, rows, run)
    attempts = [attempt.attempt for attempt in told.facts.attempts]
    if len(set(attempts)) < len(attempts):
        yield f"attempts {attempts}"
    for table, rows in told.tables.items():
        if "attempt" in rows.columns:
            strange = set(rows["attempt"].drop_nulls().unique()) - set(attempts)
            if strange:
                yield f"{table}: attempts {sorted(strange)} are not among those of the run, {attempts}"
    bound = told.facts.bound.value
    if bound is not None and not (isinstance(bound, int) and bound >= 0):
        yield f"the bound is {bound!r}"
    json.dumps(describe(run, choice, told.facts), allow_nan=False, ensure_ascii=False).encode()


@cache
def _tests(table: str) -> dict[str, pl.Expr]:
    """Expressions that count the rows of a table which break a promise, by its name."""
    names = SCHEMAS[table].names
    tests = {}
    for pair in (name.removesuffix("_lo") for name in names if name.endswith("_lo")):
        low, high = pl.col(f"{pair}_lo"), pl.col(f"{pair}_hi")
        tests[f"{pair}_lo above {pair}_hi"] = (low > high).sum()
        if pair in PAIRED_FROM:
            tests[f"{pair} below {PAIRED_FROM[pair]}"] = ((low < PAIRED_FROM[pair]) | (high < PAIRED_FROM[pair])).sum()
    for name, least in COUNTED_FROM.items():
        if name in names:
            tests[f"{name} below {least}"] = (pl.col(name) < least).sum()
    for name, words in WORDS.items():
        if name in names:
            tests[f"{name} is no word for it"] = (~pl.col(name).is_in(words)).sum()
    if "reason" in names:
        tests["reason is no word for it"] = (
            ~(pl.col("reason").is_in(REASONS) | pl.col("reason").str.starts_with("other:"))
        ).sum()
    return tests


def _places(table: str, rows: pl.DataFrame, run: RunFiles) -> Iterator[str]:
    """Yield places that are none: files that the run does not have, lines beyond the end of a file."""
    known = {file.source for file in run.files} | {source for source, _ in (*run.skipped, *run.repeated)}
    for source, line in rows.group_by("source").agg(pl.col("line").max()).iter_rows():
        if source is not None and source not in known:
            yield f"{table}: {source!r} is no file of the run"
        elif source is not None and line is not None and line > 1 and line > _lines(run, source):
            yield f"{table}: line {line} is beyond the {_lines(run, source)} of {source}"


def _lines(run: RunFiles, source: str) -> int:
    try:
        with run.open(source) as stream:
            return stream.read().count(b"\n") + 1
    except (OSError, EOFError):  # damaged; it has as many lines as could be read
        return 1 << 31


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(json.loads(DOCUMENT.read_text()))


def broken_document(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield what an audit's document breaks."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False)
    text.encode()
    for error in _validator().iter_errors(json.loads(text)):
        yield f"{error.json_path}: {error.message[:200]}"
    yield from _crossed(data, "")
    violations = {unit: data["violations"][unit] for unit in ("tokens", "trajectories")}
    if data["verdict"] == "fail" and not any(count["lo"] for count in violations.values()):
        yield f"the verdict is fail, and no violation is proven: {violations}"
    if data["verdict"] == "pass" and any(count["hi"] != 0 for count in violations.values()):
        yield f"the verdict is pass, and violations are possible: {violations}"
    if data["verdict"] == "pass" and any(item["opens"] == "training" for item in data["diagnostics"]["items"]):
        yield "the verdict is pass, and what was not read may have held trained tokens"


def _crossed(value: Any, path: str) -> Iterator[str]:
    """Yield intervals whose ends are crossed."""
    if isinstance(value, Mapping):
        low, high = value.get("lo"), value.get("hi")
        if low is not None and high is not None and low > high:
            yield f"{path}: {low} to {high}"
        for key, item in value.items():
            yield from _crossed(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _crossed(item, f"{path}[{index}]")


def shape(told: Told) -> int:
    """A number for what the tables look like: which columns hold nothing or great numbers, which diagnostics there are.

    What adds up the rows of tables comes to grief over those, and not over what differs beside.
    """
    seen = []
    for table, rows in sorted(told.tables.items()):
        names = [name for name, kind in rows.schema.items() if kind.is_numeric()]
        ends = rows.select(
            *((pl.col(name).max() > 10**9).alias(name) for name in names),
            *(pl.col(name).has_nulls().alias(f"{name} is null") for name in names),
        ).row(0)
        seen.append((table, ends))
    codes = told.tables.get("diagnostics")
    said = () if codes is None else tuple(sorted(set(codes["code"])))
    return hash((tuple(seen), said))
