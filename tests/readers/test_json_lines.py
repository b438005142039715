"""Lines that Arrow's own parser does not survive are bad lines."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from staleness_audit.discovery import discover
from staleness_audit.readers.json_lines import read_json_lines


@pytest.mark.parametrize("bad", ["null", " null, 1", '{"a": 7} null', "{}\tnull"])
def test_a_null_where_an_object_should_be_is_a_bad_line(tmp_path: Path, bad: str) -> None:
    """A null beside an object ended the process: found by fuzzing. One inside a text or an object is nothing new."""
    (tmp_path / "x.jsonl").write_text(f'{{"a": 1, "b": null}}\n{bad}\n{{"a": 3, "b": "}} null"}}\n')
    run, lines = discover(tmp_path), []
    schema = pa.schema({"a": pa.int64(), "b": pa.string()})
    tables = list(read_json_lines(run, run.whole("x.jsonl"), schema, lambda line: lines.append(line.line)))
    assert pa.concat_tables(tables).to_pydict() == {"a": [1, 3], "b": [None, "} null"], "line": [1, 3]}
    assert lines == [2]
