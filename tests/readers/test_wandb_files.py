"""Offline W&B files, written here by the package's own message classes where it is installed, else by hand."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from helpers.wandb_log import field, history, run_record, wandb_file

from staleness_audit.discovery import discover
from staleness_audit.readers.records import DamagedRecords, read_records
from staleness_audit.readers.wandb_files import read_wandb


def read(folder: Path, content: bytes, name: str = "run-abc.wandb") -> list[tuple[str, dict[str, Any]]]:
    (folder / name).write_bytes(content)
    run = discover(folder)
    told = read_records(run, run.whole(name), read_wandb)
    return [(record.kind, record.values) for records in told for record in records]


ROWS = [{"async/staleness_mean": 1.25, "_step": 3}, {"text": "x" * 70_000, "_step": 4}, {"a": None, "b": True}]


def test_rows_and_configuration(tmp_path: Path) -> None:
    content = wandb_file([run_record({"trainer": {"epochs": 1}}), *map(history, ROWS), field(13, b"output")])
    expected = [("config", {"trainer": {"epochs": 1}}), *(("history", row) for row in ROWS)]
    assert read(tmp_path, content) == expected
    (tmp_path / "run-abc.wandb").unlink()
    assert read(tmp_path, gzip.compress(content), "run-abc.wandb.gz") == expected


def test_the_package_writes_what_is_read(tmp_path: Path) -> None:
    proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    record = proto.Record(num=1)
    item = record.history.item.add()
    item.nested_key.append("async/staleness_max")
    item.value_json = "4"
    record.history.step.num = 12
    config = proto.Record()
    update = config.run.config.update.add()
    update.key, update.value_json = "trainer", '{"epochs": 2}'
    content = wandb_file([config.SerializeToString(), record.SerializeToString()])
    assert read(tmp_path, content) == [("config", {"trainer": {"epochs": 2}}), ("history", {"async/staleness_max": 4})]


@pytest.mark.parametrize("size", [1, 6, 7, 40, 5000, 66_000])
def test_a_cut_file_ends_before_the_record(tmp_path: Path, size: int) -> None:
    content = wandb_file([history(row) for row in ROWS])
    with pytest.raises(DamagedRecords) as damage:
        read(tmp_path, content[:-size])
    assert damage.value.cut


def test_damage_and_other_files(tmp_path: Path) -> None:
    content = bytearray(wandb_file([history(row) for row in ROWS]))
    content[20] ^= 1
    for broken in (bytes(content), b"something else", b"", wandb_file([b"\x12\xff\xff\x01x"])):
        with pytest.raises(DamagedRecords) as damage:
            read(tmp_path, broken)
        assert not damage.value.cut
