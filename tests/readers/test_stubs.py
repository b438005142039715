"""Pickles of a framework's own classes, kept as data (``stubs=True``), and numpy values in them."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from staleness_audit.readers.numpy_stubs import array_values, scalar_value
from staleness_audit.readers.torch_files import BadTorchFile, Stub, load


class Partition:
    def __init__(self) -> None:
        self.tags = {1: {"status": "running"}}


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put ``Partition`` into a module that only exists while the pickle is written."""
    module = ModuleType("some.framework")
    module.Partition = Partition  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some", ModuleType("some"))
    monkeypatch.setitem(sys.modules, "some.framework", module)
    monkeypatch.setattr(Partition, "__module__", "some.framework")
    return Partition


def read(data: bytes, **options: Any) -> Any:
    return load(io.BytesIO(data), **options)


def test_objects_of_unknown_classes_become_stubs(foreign: Any) -> None:
    data = pickle.dumps({"a": foreign(), "b": 1}, protocol=5)
    value = read(data, stubs=True)
    assert (value["b"], value["a"].name, value["a"].state) == (
        1,
        "some.framework.Partition",
        {"tags": {1: {"status": "running"}}},
    )
    with pytest.raises(BadTorchFile, match=r"some\.framework\.Partition"):
        read(data)


def test_nothing_is_called() -> None:
    """A call of anything stays a note, even where stubs are kept."""
    data = b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00echo\x85R."
    value = read(data, stubs=True)
    assert isinstance(value, Stub)
    assert (value.name, value.arguments) == ("os.system", ("echo",))
    with pytest.raises(BadTorchFile):
        read(data)


def test_state_of_plain_values_is_refused_without_stubs() -> None:
    with pytest.raises(BadTorchFile):
        read(b"\x80\x02}}b.")


def dtype(code: str, order: str = "<") -> Stub:
    return Stub("numpy.dtype", (code, False, True), (3, order, None, None, None, -1, -1, 0))


def array(code: str, data: Any, order: str = "<") -> Stub:
    return Stub("numpy._core.multiarray._reconstruct", (), (1, (2,), dtype(code, order), False, data))


def test_arrays_without_numpy() -> None:
    assert array_values(array("i4", b"\x01\0\0\0\xff\xff\xff\xff")) == [1, -1]
    assert array_values(array("O8", ["x", None], "|")) == ["x", None]
    assert array_values([1, 2]) == [1, 2]
    assert scalar_value(Stub("numpy._core.multiarray.scalar", (dtype("i8"), b"\x05" + b"\0" * 7))) == 5
    assert scalar_value(7) == 7


@pytest.mark.parametrize(
    "value",
    [
        7,
        Stub("other", (), None),
        array("i4", b"\0\0\0"),
        array("i4", b"\0" * 8, ">"),
        array("M8", b"\0" * 16),
        Stub("x._reconstruct", (), (1, 2)),
    ],
)
def test_other_values_are_no_arrays(value: Any) -> None:
    with pytest.raises(BadTorchFile):
        array_values(value)


def test_tensors_that_plain_pickle_wrote(tmp_path: Path) -> None:
    """Their numbers sit in a stream of torch inside the pickle (tests/parsers/verl_run.py writes one)."""
    parsers = Path(__file__).parents[1] / "parsers"
    sys.path.insert(0, str(parsers))
    from verl_run import Run

    Run(tmp_path).storage("unit.pkl", {3: [1, 0, 1]})
    value = read((tmp_path / "unit.pkl").read_bytes(), stubs=True)
    assert value["field_data"]["response_mask"][3].tolist() == [1, 0, 1]
