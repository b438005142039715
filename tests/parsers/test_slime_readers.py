"""The readers slime's parser brought along: torch files, pickles as data, TensorBoard records, printed dicts."""

from __future__ import annotations

import contextlib
import io
import math
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from staleness_parsers.slime.calls import read_sample
from staleness_parsers.slime.dumps import _whole_number

from staleness_audit.discovery import discover
from staleness_audit.errors import OptionalReaderMissing
from staleness_audit.readers.console import parse_dict, parse_local_time
from staleness_audit.readers.pickle_values import BadPickle, read_pickle
from staleness_audit.readers.records import DamagedRecords
from staleness_audit.readers.scalars import read_scalars
from staleness_audit.readers.torch_files import BadTorchFile, load, open_torch

CASES = Path(__file__).parents[2] / "sample_traces" / "slime"
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.tuples(inner, inner)
        | st.sets(st.integers())
    ),
    max_leaves=40,
)


@given(values, st.sampled_from([2, 3, 4, 5]))
@settings(max_examples=200, deadline=None)
def test_data_is_read_as_the_standard_unpickler_reads_it(value, protocol):
    assert read_pickle(pickle.dumps(value, protocol)).value == value


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_noise_is_bad_never_worse(noise):
    for start in (b"", b"\x80\x02", b"\x80\x02]("):
        with contextlib.suppress(BadPickle):
            read_pickle(start + noise)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_cut_pickle_is_bad(data):
    whole = pickle.dumps({"a": [1, 300, 70000, 2.5, "x", (None, True)]}, 2)
    with pytest.raises(BadPickle):
        read_pickle(whole[: data.draw(st.integers(0, len(whole) - 1))])


class Evil:
    def __init__(self, reduction):
        self.reduction = reduction

    def __reduce__(self):
        return self.reduction


MARK = "staleness_audit_was_here"
HOSTILE = {
    "reduce": pickle.dumps(Evil((os.system, (f"touch {MARK}",))), 2),
    "reduce, protocol 4": pickle.dumps(Evil((os.system, (f"touch {MARK}",))), 4),
    "eval": pickle.dumps(Evil((eval, ("1",))), 2),
    "build on a list": b"\x80\x02]}b.",
    "inst": b"\x80\x02(ios\nsystem\n.",
    "obj": b"\x80\x02(cos\nsystem\nU\x01xo.",
    "newobj": b"\x80\x02cos\nsystem\n)\x81.",
    "newobj_ex": b"\x80\x04\x8c\x02os\x8c\x06system\x93)}\x92.",
    "ext1": b"\x80\x02\x82\x01.",
    "ext4": b"\x80\x02\x84\x01\x00\x00\x00.",
    "call of a value": b"\x80\x02K\x01)R.",
    "persistent id": b"\x80\x02U\x01xQ.",
    "text persistent id": b"\x80\x02Px\n.",
    "deep torch": b"\x80\x02ctorch.serialization\nload\nU\x01x\x85R.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_are_refused_and_run_nothing(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("evil.pt", "w") as archive:
        archive.writestr("evil/data.pkl", HOSTILE[name])
    for stream in (io.BytesIO(HOSTILE[name]), io.BytesIO(Path("evil.pt").read_bytes())):
        if name == "deep torch":  # a name of a data module is noted, never looked up or called
            assert "torch.serialization.load" in load(stream).name
        else:
            with pytest.raises(BadTorchFile):
                load(stream)
    assert not Path(MARK).exists()


def test_sizes_in_the_file_allocate_nothing():
    for code in (b"r\xff\xff\xff\xff", b"\x8e" + b"\xff" * 8, b"X\xff\xff\xff\x7f", b"\x8b\xff\xff\xff\x7f"):
        with pytest.raises(BadPickle):
            read_pickle(b"\x80\x04N" + code)


def tensor_file(dtype: str, data: bytes, size, stride, offset=0) -> io.BytesIO:
    def count(value):
        return b"J" + struct.pack("<i", value)

    def tuple_of(items):
        return b"(" + b"".join(map(count, items)) + b"t"

    storage = b"(U\x07storagectorch\n" + dtype.encode() + b"\nU\x010U\x03cpu" + count(99) + b"tQ"
    body = (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + count(offset)
        + tuple_of(size)
        + tuple_of(stride)
        + b"\x89ccollections\nOrderedDict\n)RtR."
    )
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x/data.pkl", body)
        archive.writestr("x/data/0", data)
    stream.seek(0)
    return stream


@pytest.mark.parametrize(
    ("dtype", "layout", "numbers"),
    [
        ("LongStorage", "6q", [1, -2, 3, 4, 5, 2**60]),
        ("IntStorage", "6i", [1, -2, 3, 4, 5, 6]),
        ("ByteStorage", "6B", [1, 2, 3, 4, 5, 255]),
        ("BoolStorage", "6?", [True, False, True, True, False, True]),
        ("FloatStorage", "6f", [0.5, 1.5, -2.0, 3.0, 4.0, 5.0]),
        ("HalfStorage", "6e", [0.5, 1.5, -2.0, 3.0, 4.0, 5.0]),
        ("DoubleStorage", "6d", [0.1, 1.5, -2.0, 3.0, 4.0, 5.0]),
    ],
)
def test_tensors(dtype, layout, numbers):
    data = struct.pack("<" + layout, *numbers)
    assert load(tensor_file(dtype, data, (6,), (1,))).tolist() == numbers
    assert load(tensor_file(dtype, data, (2, 3), (3, 1))).tolist() == [numbers[:3], numbers[3:]]
    assert load(tensor_file(dtype, data, (3, 2), (1, 3))).tolist() == [
        list(pair) for pair in zip(numbers[:3], numbers[3:], strict=True)
    ]
    assert load(tensor_file(dtype, data, (2,), (2,), offset=1)).tolist() == [numbers[1], numbers[3]]
    assert load(tensor_file(dtype, data, (), (), offset=2)).tolist() == numbers[2]
    assert load(tensor_file(dtype, data, (0,), (1,))).tolist() == []
    assert load(tensor_file(dtype, data, (3,), (0,))).tolist() == [numbers[0]] * 3


def test_bfloat16():
    assert load(tensor_file("BFloat16Storage", struct.pack("<2H", 0x3F80, 0xC000), (2,), (1,))).tolist() == [1.0, -2.0]


@pytest.mark.parametrize(
    ("size", "stride", "offset"), [((7,), (1,), 0), ((2,), (6,), 0), ((1,), (1,), 6), ((1 << 40,), (0,), 0)]
)
def test_a_tensor_beyond_its_storage_is_bad(size, stride, offset):
    if max(size) < 1 << 31:
        tensor = load(tensor_file("IntStorage", b"\0" * 24, size, stride, offset))
        with pytest.raises(BadTorchFile):
            tensor.tolist()


def test_the_older_sequential_layout():
    def one(value):
        return pickle.dumps(value, 2)

    body = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nLongStorage\nU\x01kU\x03cpuK\x02NtQ"
    body += b"K\x00K\x02\x85K\x01\x85\x89}tR."
    raw = (
        one(0x1950A86A20F9469CFC6C)
        + one(1001)
        + one({"little_endian": True})
        + body
        + one(["k"])
        + struct.pack("<3q", 2, 11, 12)
    )
    assert load(io.BytesIO(raw)).tolist() == [11, 12]
    with pytest.raises(BadTorchFile):
        load(io.BytesIO(raw[:-1]))


def test_every_cut_of_a_genuine_file_is_bad():
    data = (CASES / "fully_async_balanced/run/train_data/0.pt").read_bytes()
    for size in range(0, len(data), 997):
        with pytest.raises(BadTorchFile):
            load(io.BytesIO(data[:size]))


def test_a_flipped_byte_is_noticed():
    data = bytearray((CASES / "fully_async_balanced/run/rollout_data/0.pt").read_bytes())
    data[2000] ^= 0xFF
    with pytest.raises(BadTorchFile, match="damaged"):
        load(io.BytesIO(bytes(data)))


def test_tensors_of_a_genuine_train_dump():
    run = discover(CASES / "fully_async_balanced/run")
    with open_torch(run, "train_data/0.pt") as value:
        first = value["samples"][0]
        assert (
            sum(first["loss_masks"].tolist()) == first["response_lengths"] == int(first["rollout_mask_sums"].tolist())
        )
        assert len(first["tokens"].tolist()) == first["total_lengths"]


def event_file() -> Path:
    return next((CASES / "fully_async_longtail_console_only/run/tensorboard").iterdir())


def test_scalars_of_a_genuine_event_file(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "e").write_bytes(event_file().read_bytes())
    scalars = list(read_scalars(run := discover(tmp_path), run.whole("e")))
    assert len(scalars) == 531
    assert (scalars[0].tag, scalars[0].step, scalars[0].value) == ("rollout/response_len/mean", 0, 49.5)


@pytest.mark.parametrize(
    ("damage", "cut"),
    [(lambda d: d[:-5], True), (lambda d: d[:5000] + b"x" + d[5001:], False), (lambda d: b"\0" * 50, False)],
)
def test_damaged_event_files(damage, cut, tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "e").write_bytes(damage(event_file().read_bytes()))
    with pytest.raises(DamagedRecords) as error:
        list(read_scalars(run := discover(tmp_path), run.whole("e")))
    assert error.value.cut is cut


def test_a_missing_extra_says_what_to_install(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    (tmp_path / "e").write_bytes(event_file().read_bytes())
    with pytest.raises(OptionalReaderMissing, match="pip install"):
        list(read_scalars(run := discover(tmp_path), run.whole("e")))


def test_printed_dicts():
    found = parse_dict("{'a': 1, 'b': -inf, 'c': np.float64(0.5), 'd': tensor(2., device='cuda:0'), 'nan': nan}")
    assert found is not None
    assert math.isnan(found.pop("nan"))
    assert found == {"a": 1, "b": -math.inf, "c": 0.5, "d": 2.0}


@pytest.mark.parametrize("text", ["{'a': 1", "[1]", "{'a': __import__('os')}", "{'a': x}", "", "{" * 5000])
def test_what_is_no_printed_dict(text):
    assert parse_dict(text) is None


def test_local_times():
    moment, rest = parse_local_time("[2026-11-29 15:30:20] timer.py:24 - Timer train start")
    assert moment is not None
    assert (moment.isoformat(), rest) == ("2026-11-29T15:30:20", "timer.py:24 - Timer train start")
    assert parse_local_time("[2026-13-29 15:30:20] x")[0] is None


def test_a_sample_may_hold_anything() -> None:
    """A list in a mask, numbers that are none: found by fuzzing, and by looking for its like."""
    sample = read_sample({"response_length": 2, "loss_mask": [[], 1]})
    assert sample is not None and "its loss_mask does not fit its response_length" in sample.problems
    assert [_whole_number(value) for value in (2.0, 3, 2.5, math.nan, math.inf, True, "2")] == [2, 3, *[None] * 5]
