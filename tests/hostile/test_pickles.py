"""Pickles that would execute, or that stand for far more than they hold: refused in bounded time, and nothing runs."""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest
import zstandard

from staleness_audit.discovery import discover
from staleness_audit.readers import torch_files
from staleness_audit.readers.pickle_values import BadPickle, read_pickle
from staleness_audit.readers.torch_files import BadTorchFile, Opaque, Stub, load, open_torch

MARK = "executed"
SHELL = f"touch {MARK}"


class Reduced:
    """An object that asks to be made by a call."""

    def __init__(self, *reduction: object) -> None:
        self.reduction = reduction

    def __reduce__(self):
        return self.reduction


class Registered:
    """An object that asks to be made by a number of the extension registry."""

    def __reduce__(self):
        return os.system, (SHELL,)


def registered() -> bytes:
    """A pickle with EXT1, as it is written where ``os.system`` is registered."""
    module = os.system.__module__
    copyreg.add_extension(module, "system", 201)
    try:
        return pickle.dumps(Registered(), 2)
    finally:
        copyreg.remove_extension(module, "system", 201)


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def stack_global(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


CALLS = {
    "os.system": (os.system, (SHELL,)),
    "eval": (eval, (f"__import__('os').system('{SHELL}')",)),
    "exec": (exec, (f"import os; os.system('{SHELL}')",)),
    "getattr": (getattr, ("", "join")),
    "open": (open, (MARK, "w")),
    "__import__": (__import__, ("os",)),
    "os.popen": (os.popen, (SHELL,)),
    "Path.write_text": (Path(MARK).write_text, ("x",)),
    "pickle.loads": (pickle.loads, (pickle.dumps(Reduced(os.system, (SHELL,))),)),
}
EXPLOITS = {
    **{f"reduce {name}, protocol {p}": pickle.dumps(Reduced(*call), p) for name, call in CALLS.items() for p in (2, 4)},
    **{
        f"nested in {name}": pickle.dumps(wrap(Reduced(os.system, (SHELL,))), 4)
        for name, wrap in {
            "a list": lambda evil: [1, [evil]],
            "a value": lambda evil: {"samples": [{"tokens": [1], "x": evil}]},
            "a key": lambda evil: {(1, evil): 2},
            "a tuple": lambda evil: (0, (1, (2, evil))),
            "state": lambda evil: Reduced(dict, (), {"x": evil}),
            "items": lambda evil: Reduced(list, (), None, iter([evil])),
            "arguments of a tensor's maker": lambda evil: Reduced(dict, ([("a", evil)],)),
        }.items()
    },
    "extension registry": registered(),
    "ext2": b"\x80\x02\x83\x01\x00.",
    "inst": f"\x80\x02(S'{SHELL}'\nios\nsystem\n.".encode("latin-1"),
    "inst of a builtin": b"\x80\x02(S'1'\ni__builtin__\neval\n.",
    "obj": b"\x80\x02(cos\nsystem\n" + text(SHELL) + b"o.",
    "newobj": b"\x80\x04" + stack_global("os", "system") + text(SHELL) + b"\x85\x81.",
    "newobj_ex": b"\x80\x04" + stack_global("subprocess", "Popen") + b")}\x92.",
    "stack_global of joined text": b"\x80\x04" + stack_global("posix", "system") + text(SHELL) + b"\x85R.",
    "dotted name": b"\x80\x04" + stack_global("builtins", "bytes.fromhex.__self__") + text(SHELL) + b"\x85R.",
    "build on a class": b"\x80\x04" + stack_global("builtins", "bytes") + b"}b.",
    "build with slots": b"\x80\x04" + stack_global("os", "environ") + b"N}" + text("PATH") + text("x") + b"s\x86b.",
    "a call of text": b"\x80\x04" + text("os.system") + text(SHELL) + b"\x85R.",
    "a call of a set": b"\x80\x04\x8f)R.",
    "memo of a name": b"\x80\x04" + stack_global("os", "system") + b"\x94" + text(SHELL) + b"\x850h\x00)R.",
    "persistent id that is a call": b"\x80\x04" + stack_global("os", "system") + text(SHELL) + b"\x85RQ.",
    "old protocol": pickle.dumps(Reduced(os.system, (SHELL,)), 0),
    "readonly buffers": b"\x80\x05\x97.",
}
"""Payloads that run something, or look something up, in the standard unpickler."""

NOTED = {
    "a loader of torch": b"\x80\x04" + stack_global("torch", "load") + text("x.pt") + b"\x85R.",
    "a hub of torch": b"\x80\x04" + stack_global("torch.hub", "load") + text("x/y") + b"\x85R.",
    "a runner of numpy": b"\x80\x04" + stack_global("numpy.testing._private.utils", "runstring") + b")R.",
    "a path": b"\x80\x04" + stack_global("pathlib", "Path.unlink") + text(MARK) + b"\x85R.",
    "a tensor's private loader": b"\x80\x04" + stack_global("torch.storage", "_load_from_bytes") + b"C\x01x\x85R.",
}
"""Payloads in modules whose objects are data in dumps: a note of the name remains."""


def archive(body: bytes) -> bytes:
    """The zip that ``torch.save`` writes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as members:
        members.writestr("x/data.pkl", body)
    return stream.getvalue()


def legacy(body: bytes) -> bytes:
    """Torch's older layout of several pickles."""
    return b"".join(pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {})) + body


@pytest.mark.parametrize("name", EXPLOITS)
def test_a_payload_is_refused_in_every_layout_and_nothing_runs(name: str) -> None:
    payload = EXPLOITS[name]
    with pytest.raises(BadPickle):
        read_pickle(payload)
    for layout in (payload, archive(payload), legacy(payload)):
        with pytest.raises(BadTorchFile):
            load(io.BytesIO(layout))
        try:
            kept = load(io.BytesIO(layout), stubs=True)
        except BadTorchFile:
            kept = None
        assert kept is None or isinstance(kept, Stub | Opaque | dict | list | tuple)
    assert not Path(MARK).exists()


@pytest.mark.parametrize("name", NOTED)
def test_a_name_in_a_module_of_data_is_only_noted(name: str) -> None:
    Path(MARK).touch()
    for layout in (NOTED[name], archive(NOTED[name])):
        assert isinstance(load(io.BytesIO(layout)), Opaque)
    assert Path(MARK).exists()


COUNT = struct.Struct("<i").pack
MANY = 20_000
MEGABYTE = b"X" + COUNT(1 << 20) + b"a" * (1 << 20)
DOUBLED = b"\x80\x04K\x01K\x01\x86\x940" + b"".join(b"j" + COUNT(i) + b"j" + COUNT(i) + b"\x86\x940" for i in range(60))
BOMBS = {
    # Each tuple holds the one before it twice: 2**60 leaves to hash.
    "a key of doubled tuples": DOUBLED + b"}j" + COUNT(60) + b"K\x01s.",
    "a set of doubled tuples": DOUBLED + b"(j" + COUNT(60) + b"\x91.",
    # One string of a megabyte, turned into bytes again and again.
    "copies of text": b"\x80\x04" + stack_global("builtins", "bytearray") + b"\x94" + MEGABYTE + b"\x85\x94"
    + b"(" + b"h\x00h\x01R" * MANY + b"l.",
    "sets of one list": b"\x80\x04" + stack_global("builtins", "set") + b"\x94(" + b"N" * 100_000 + b"l\x85\x94"
    + b"(" + b"h\x00h\x01R" * MANY + b"l.",
    "hashes of one long number": b"\x80\x04\x8b" + COUNT(1 << 20) + b"\x7f" * (1 << 20) + b"\x94("
    + b"h\x00" * MANY + b"\x91.",
    "hashes of one long tuple": b"\x80\x04(" + b"N" * 100_000 + b"t\x94(" + b"h\x00" * MANY + b"\x91.",
    "a frame of terabytes": b"\x80\x04\x95" + b"\xff" * 8,
    "text of terabytes": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 42) + b"x",
    "bytes of terabytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 42) + b"x",
    "a bytearray of terabytes": b"\x80\x05\x96" + struct.pack("<Q", 1 << 42) + b"x",
    "a number of gigabytes": b"\x80\x04\x8b\xff\xff\xff\x7f",
    "a negative length": b"\x80\x04\x8b\xff\xff\xff\xff",
    "a memo that was never written": b"\x80\x04j\xff\xff\xff\x7f.",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_makes_no_more_work_than_its_bytes(name: str) -> None:
    with pytest.raises(BadPickle):
        read_pickle(BOMBS[name])


def test_depth_and_circles_are_data_and_cost_nothing() -> None:
    deep = read_pickle(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".").value
    assert isinstance(deep, list)
    circle = read_pickle(b"\x80\x02]q\x00h\x00a.").value
    assert circle[0] is circle


def tensor(shape: bytes, stride: bytes, members: dict[str, tuple[bytes, int]], offset: bytes = b"K\x00") -> io.BytesIO:
    """A torch file with one tensor of bytes."""
    body = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nByteStorage\nU\x010U\x03cpuK\x01tQ"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x/data.pkl", body + offset + shape + stride + b"\x89}tR.")
        for name, (chunk, times) in members.items():
            with file.open(f"x/data/{name}", "w") as member:
                for _ in range(times):
                    member.write(chunk)
    stream.seek(0)
    return stream


def number(value: int) -> bytes:
    size = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little")


SMALL = {"0": (b"\1" * 8, 1)}
TENSORS = {
    "a stride of nothing": (number(1 << 30) + b"\x85", b"K\x00\x85", SMALL),
    "a size beyond 64 bits": (number(1 << 80) + b"\x85", b"K\x00\x85", SMALL),
    "a stride beyond 64 bits": (b"K\x02\x85", number(1 << 80) + b"\x85", SMALL),
    "ten thousand dimensions": (b"(" + b"K\x01" * 10_000 + b"t", b"(" + b"K\x00" * 10_000 + b"t", SMALL),
    "a storage that unpacks a thousandfold": (
        number(1 << 24) + b"\x85", b"K\x01\x85", {"0": (b"\0" * (1 << 20), 16)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_shows_no_more_than_its_file_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_files, "_FREE_BYTES", 1 << 20)
    with pytest.raises(BadTorchFile):
        load(tensor(*TENSORS[name])).tolist()


def test_a_small_tensor_may_be_expanded() -> None:
    assert load(tensor(b"K\x03\x85", b"K\x00\x85", SMALL)).tolist() == [1, 1, 1]


def test_a_storage_is_not_read_again_and_again_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million tensors may show one storage; reading it for each of them stops somewhere."""
    monkeypatch.setattr(torch_files, "_FREE_BYTES", 1 << 20)
    shown = load(tensor(b"K\x01\x85", b"K\x01\x85", {"0": (b"\0" * 1000, 1)}))
    with pytest.raises(BadTorchFile, match="far more than its size"):
        for _ in range(2000):
            shown.tolist()


def test_a_compressed_dump_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros that unpack ten thousandfold are refused before they are unpacked."""
    monkeypatch.setattr(torch_files, "_FREE_BYTES", 1 << 20)
    (tmp_path / "0.pt.zst").write_bytes(zstandard.compress(bytes(8 << 20)))
    with pytest.raises(BadTorchFile, match="unpacks to more than"), open_torch(discover(tmp_path), "0.pt.zst"):
        pass
