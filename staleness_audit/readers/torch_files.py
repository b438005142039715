"""Files of ``torch.save`` without torch: values and tensors out, no code in.

The reader knows just the opcodes that data needs and *no* way to call anything: a pickle's request to import or call a
name is answered by a table of tensor constructors (which only note where the numbers lie), or, for a few data-only
modules, by an ``Opaque`` note of the name; every other request is refused. Three layouts are read: the zip archive of
today's torch, its older sequential layout, and a plain pickle.

Where data sits inside objects of a framework's own classes, ``stubs=True`` keeps such an object as a ``Stub``: its
class's name, the arguments and the state it was given, all as data, and still nothing is looked up, called or built.

Tensors stay where they are until ``Tensor.flat`` or ``tolist`` asks for them, so that large ones (routed experts,
images) cost nothing. All damage, hostility and excess ends in one exception, ``BadTorchFile``.
"""

from __future__ import annotations

import io
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, BinaryIO, Final, TypeGuard

from staleness_audit.discovery import RunFile, RunFiles
from staleness_audit.readers.pickle_values import BadPickle, Opaque, Unpickled, drop_state, read_pickle

MAX_PICKLE_BYTES: Final = 4 << 30
MAX_TENSOR_BYTES: Final = 1 << 30
MAX_FILE_BYTES: Final = 64 << 30
MAX_DIMENSIONS: Final = 64
MAX_EXPANSION: Final = 64
"""How many times the bytes of a file what is read of it may come to, beside ``_FREE_BYTES``: ``torch.save`` compresses
nothing, and a storage that many tensors show is read once for each."""
_FREE_BYTES: Final = 256 << 20
_FREE_NUMBERS: Final = 1 << 20
"""Numbers that a tensor may show without holding them (an expanded view of a few)."""
_SPOOL_BYTES: Final = 64 << 20
_LEGACY_MAGIC: Final = 0x1950A86A20F9469CFC6C

_STORAGES: Final = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "UntypedStorage": "uint8",
}
_CODES: Final = {
    "float64": ("d", 8),
    "float32": ("f", 4),
    "float16": ("e", 2),
    "bfloat16": ("H", 2),
    "int64": ("q", 8),
    "int32": ("i", 4),
    "int16": ("h", 2),
    "int8": ("b", 1),
    "uint8": ("B", 1),
    "uint16": ("H", 2),
    "uint32": ("I", 4),
    "uint64": ("Q", 8),
    "bool": ("?", 1),
}
_OPAQUE_MODULES: Final = frozenset(
    {"torch", "numpy", "PIL", "collections", "datetime", "decimal", "uuid", "enum", "pathlib"}
)
"""Modules whose objects may occur as data in dumps; their names become ``Opaque`` notes and are never looked up."""


class BadTorchFile(Exception):
    """The file is cut, damaged, hostile or beyond the limits; the message is one clause saying which."""


@dataclass(frozen=True)
class _Dtype:
    """A storage class or ``torch.<dtype>`` named in the pickle."""

    name: str


@dataclass(frozen=True)
class _Storage:
    """A block of numbers; ``archive`` is the stream of torch that plain pickle wrote into itself for a tensor."""

    key: str
    dtype: str
    numel: int
    archive: bytes | None = field(default=None, repr=False)


@dataclass(eq=False)
class Stub:
    """An object the pickle wanted made of a class nobody here knows: ``name`` is ``module.class``, the rest is data."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None


@dataclass(frozen=True)
class Tensor:
    """A tensor's place in its file; numbers are read on demand while the file is open.

    ``offset`` and ``stride`` count elements, as torch does. ``dtype`` is empty for a tensor inside a plain pickle,
    where only reading its numbers tells.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    _storage: _Storage = field(repr=False)
    _read: Callable[[_Storage], bytes] = field(repr=False, compare=False)
    _embedded: Callable[[bytes], tuple[str, bytes]] = field(repr=False, compare=False)

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    def flat(self) -> list[Any]:
        """Elements in row-major order, as Python numbers.

        Raises:
            BadTorchFile: the storage is missing, cut, too large, or too small for the shape.

        """
        dtype, stored = self.dtype, b""
        if self._storage.archive is not None:
            dtype, stored = self._embedded(self._storage.archive)
        if dtype not in _CODES:
            raise BadTorchFile(f"a tensor of dtype {dtype} cannot be read")
        code: Any
        code, size = _CODES[dtype]
        if self.numel * size > MAX_TENSOR_BYTES:
            raise BadTorchFile(f"a tensor is larger than {MAX_TENSOR_BYTES >> 20} MiB")
        if not self.numel:
            return []
        data = stored or self._read(self._storage)
        count = len(data) // size
        if self.numel > max(count, _FREE_NUMBERS):
            raise BadTorchFile("a tensor stands for far more numbers than its storage holds")
        last = self.offset + sum((length - 1) * step for length, step in zip(self.shape, self.stride, strict=True))
        if last >= count or self.offset < 0 or min(self.stride, default=0) < 0:
            raise BadTorchFile("a tensor reaches beyond its storage")
        values: Any = memoryview(data)[: count * size].cast(code) if code != "e" else _halves(data, count)
        picked = _pick(values, self.shape, self.stride, self.offset)
        return _bfloats(picked) if dtype == "bfloat16" else picked

    def raw(self) -> bytes:
        """Bytes of the whole storage behind it, for data that only uses a tensor as a container."""
        archive = self._storage.archive
        return self._embedded(archive)[1] if archive is not None else self._read(self._storage)

    def tolist(self) -> Any:
        """Elements nested by shape, like torch's ``tolist``."""
        flat = self.flat()
        if not self.shape:
            return flat[0]
        for length in reversed(self.shape[1:]):
            flat = [flat[at : at + length] for at in range(0, len(flat), length)] if length else []
        return flat


def _halves(data: bytes, count: int) -> tuple[float, ...]:
    return struct.unpack(f"<{count}e", data[: 2 * count])


def _bfloats(bits: list[int]) -> list[float]:
    return [struct.unpack("<f", struct.pack("<I", value << 16))[0] for value in bits]


def _pick(values: Sequence[Any] | memoryview, shape: tuple[int, ...], stride: tuple[int, ...], start: int) -> list[Any]:
    """Elements of a strided view in row-major order."""
    if not shape:
        return [values[start]]
    if len(shape) == 1:
        step = stride[0]
        if step == 0:
            return [values[start]] * shape[0]
        return list(values[start : start + (shape[0] - 1) * step + 1 : step])
    return [
        value for index in range(shape[0]) for value in _pick(values, shape[1:], stride[1:], start + index * stride[0])
    ]


@contextmanager
def open_torch(run: RunFiles, source: str, *, stubs: bool = False) -> Iterator[Any]:
    """Yield the value a file holds; its tensors can be read inside the ``with`` block only.

    ``stubs``: keep objects of unknown classes as ``Stub`` instead of refusing the file.

    Raises:
        BadTorchFile: damage, a hostile pickle, or sizes beyond the limits.
        UnreadableInput: the file cannot be opened.

    """
    with _seekable(run, source) as stream:
        yield load(stream, stubs=stubs)


def load(stream: BinaryIO | IO[bytes], *, stubs: bool = False) -> Any:
    """Read the value of a seekable stream; tensors read from the same stream later (``stubs``: see ``open_torch``)."""
    try:
        start = stream.read(4)
        stream.seek(0)
        if not start:
            raise BadTorchFile("the file is empty")
        return _load_zip(stream, stubs) if start == b"PK\x03\x04" else _load_sequence(stream, stubs)[0]
    except BadPickle as error:
        raise BadTorchFile(str(error)) from error
    except (OSError, EOFError, MemoryError) as error:
        raise BadTorchFile(f"the data cannot be read ({error})") from error


def most_bytes(file: RunFile) -> int:
    """How much may be read of a file of pickled data."""
    return _FREE_BYTES + MAX_EXPANSION * file.bytes


@contextmanager
def _seekable(run: RunFiles, source: str) -> Iterator[IO[bytes]]:
    """Open a file for seeking; a compressed one is unpacked to a temporary file first (small ones to memory)."""
    file = run.file(source)
    with run.open(source) as stream:
        if not file.compressed:
            yield stream
            return
        most = min(MAX_FILE_BYTES, most_bytes(file))
        with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as whole:
            try:
                while chunk := stream.read(1 << 20):
                    whole.write(chunk)
                    if whole.tell() > most:
                        raise BadTorchFile(
                            f"it unpacks to more than {most >> 20} MiB, which is too much for its size; unpack it "
                            "yourself if you trust it"
                        )
            except (OSError, EOFError) as error:
                raise BadTorchFile(f"the compressed data is damaged or cut ({error})") from error
            whole.seek(0)
            yield whole


class _Allowance:
    """Bytes that may still be read of a file, be it by unpacking or again and again."""

    def __init__(self, size: int) -> None:
        self.left = _FREE_BYTES + MAX_EXPANSION * size

    def spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise BadTorchFile("what it unpacks to is far more than its size, as no dump's is")


def _load_zip(stream: IO[bytes], stubs: bool) -> object:
    allowance = _Allowance(stream.seek(0, io.SEEK_END))
    try:
        archive = zipfile.ZipFile(stream)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
        raise BadTorchFile("the archive has no directory at its end, so the file was cut or is not whole") from error
    names = [info.filename for info in archive.infolist() if info.filename.rsplit("/", 1)[-1] == "data.pkl"]
    if len(names) != 1:
        raise BadTorchFile("the archive holds no data.pkl" if not names else "the archive holds data.pkl twice")
    prefix = names[0].removesuffix("data.pkl")
    named = f"{prefix}byteorder"
    order = _member(archive, named, 16, allowance) if named in archive.NameToInfo else b"little"
    if order.strip() != b"little":
        raise BadTorchFile("its numbers are big-endian, which this reader does not support")

    def storage(wanted: _Storage) -> bytes:
        return _member(archive, f"{prefix}data/{wanted.key}", MAX_TENSOR_BYTES, allowance)

    tensors = _Tensors(storage, allowance, stubs)
    return tensors.read_pickle(_member(archive, names[0], MAX_PICKLE_BYTES, allowance)).value


def _member(archive: zipfile.ZipFile, name: str, limit: int, allowance: _Allowance) -> bytes:
    try:
        info = archive.getinfo(name)
    except KeyError as error:
        raise BadTorchFile(f"the archive lacks its member {name}") from error
    if info.file_size > limit:
        raise BadTorchFile(f"its member {name} is larger than {limit >> 20} MiB")
    allowance.spend(info.file_size)
    try:
        with archive.open(info) as member:
            data = member.read(info.file_size)
            member.read(1)  # reaching the end makes zipfile compare the checksum
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError, ValueError) as error:
        raise BadTorchFile(f"its member {name} is damaged ({error})") from error
    if len(data) != info.file_size:
        raise BadTorchFile(f"its member {name} is cut")
    return data


def _load_sequence(stream: IO[bytes], stubs: bool) -> tuple[object, Callable[[_Storage], bytes]]:
    """Read torch's layout of before 2020 (five pickles, then raw storages), or a file that is one pickle.

    Returns the value, and what finds the bytes of a storage.
    """
    data = stream.read(MAX_PICKLE_BYTES + 1)
    if len(data) > MAX_PICKLE_BYTES:
        raise BadTorchFile(f"a pickle is larger than {MAX_PICKLE_BYTES >> 20} MiB")
    places: dict[str, tuple[int, int]] = {}
    allowance = _Allowance(len(data))

    def storage(wanted: _Storage) -> bytes:
        if wanted.key not in places:
            raise BadTorchFile(f"the file lacks the storage {wanted.key}")
        start, end = places[wanted.key]
        allowance.spend(end - start)
        return data[start:end]

    tensors = _Tensors(storage, allowance, stubs)

    def following(at: int) -> Unpickled:
        return tensors.read_pickle(data, at)

    first = following(0)
    if first.value != _LEGACY_MAGIC:
        return first.value, storage
    version = following(first.end)
    info = following(version.end)
    value = following(info.end)
    keys = following(value.end)
    at = keys.end
    for key in keys.value if isinstance(keys.value, list) else []:
        if not isinstance(key, str) or key not in tensors.dtypes or at + 8 > len(data):
            raise BadTorchFile("its storages are cut")
        size = int.from_bytes(data[at : at + 8], "little") * _CODES[tensors.dtypes[key]][1]
        if at + 8 + size > len(data):
            raise BadTorchFile("its storages are cut")
        places[key] = (at + 8, at + 8 + size)
        at += 8 + size
    return value.value, storage


class _Tensors:
    """What a torch pickle may name and call; nothing here does more than build a ``Tensor`` or a ``Stub``."""

    def __init__(self, read: Callable[[_Storage], bytes], allowance: _Allowance, stubs: bool = False) -> None:
        self._read = read
        self._allowance = allowance
        self._stubs = stubs
        self.dtypes: dict[str, str] = {}

    def read_pickle(self, data: bytes, start: int = 0) -> Unpickled:
        """Read one pickle, answering its questions."""
        return read_pickle(data, self.name, self.call, self.persistent, start, on_build=self.build)

    def name(self, module: str, name: str) -> object:
        """Answer an import: a dtype, a constructor's name, or an opaque note; refuse everything else."""
        if module in {"torch", "torch.storage"} and name in _STORAGES:
            return _Dtype(_STORAGES[name])
        if module == "torch" and name in _CODES:
            return _Dtype(name)
        if self._stubs or module.split(".", maxsplit=1)[0] in _OPAQUE_MODULES:
            return Opaque(f"{module}.{name}")
        raise BadTorchFile(f"its pickle asks for {module}.{name}, which no dump needs, and was not obeyed")

    def call(self, target: object, arguments: object) -> object:
        """Answer a call of a name: a tensor, a plain dict for OrderedDict, or an opaque note."""
        if not isinstance(target, Opaque) or not isinstance(arguments, tuple):
            raise BadTorchFile("its pickle calls something that is not a name, and was not obeyed")
        if target.name == "collections.OrderedDict":
            pairs = arguments[0] if arguments else []
            return (
                dict(pairs)
                if isinstance(pairs, list) and all(isinstance(p, (tuple, list)) and len(p) == 2 for p in pairs)
                else {}
            )
        if target.name in {
            "torch._utils._rebuild_tensor_v2",
            "torch._utils._rebuild_tensor",
            "torch._utils._rebuild_tensor_v3",
        }:
            return self._tensor(target.name, arguments)
        if target.name == "torch._utils._rebuild_parameter" and arguments and isinstance(arguments[0], Tensor):
            return arguments[0]
        return self._stub(target.name, arguments) if self._stubs else Opaque(f"{target.name}(...)")

    def _stub(self, name: str, arguments: tuple[Any, ...]) -> object:
        """Answer a call in the mode that keeps unknown objects as data."""
        if name == "torch.storage._load_from_bytes" and len(arguments) == 1 and isinstance(arguments[0], bytes):
            return _Storage("", "", 0, arguments[0])  # read when its numbers are asked for
        if name == "torch._tensor._rebuild_from_type_v2" and len(arguments) > 2:
            return self.call(arguments[0], arguments[2])
        if name == "collections.defaultdict":
            return {}
        return Stub(name, arguments)

    def build(self, target: object, state: object) -> None:
        """Keep the state of a stub; that of anything else is dropped or refused as by default."""
        if isinstance(target, Stub):
            target.state = state
        elif not (self._stubs and isinstance(target, Tensor | dict)):
            drop_state(target, state)

    def _tensor(self, kind: str, arguments: tuple[Any, ...]) -> Tensor:
        storage, offset, shape, stride = (*arguments, None, None, None, None)[:4]
        if not (isinstance(storage, _Storage) and _counts((offset,)) and _counts(shape) and _counts(stride)):
            raise BadTorchFile("it describes a tensor in a way torch does not")
        if len(shape) != len(stride):
            raise BadTorchFile("it describes a tensor in a way torch does not")
        dtype = storage.dtype
        if kind.endswith("_v3") and len(arguments) > 6 and isinstance(arguments[6], _Dtype):
            dtype = arguments[6].name
        return Tensor(dtype, shape, stride, offset, storage, self._read, self._embedded)

    def _embedded(self, archive: bytes) -> tuple[str, bytes]:
        """Return the dtype and the bytes of a storage that ``torch.save`` wrote by itself."""
        self._allowance.spend(len(archive))
        value, find = _load_sequence(io.BytesIO(archive), stubs=False)
        if not isinstance(value, _Storage):
            raise BadTorchFile("it holds a tensor's numbers in a way torch does not")
        return value.dtype, find(value)

    def persistent(self, reference: object) -> object:
        """Answer a persistent id: ``("storage", type, key, location, numel[, view])``."""
        if isinstance(reference, tuple) and len(reference) >= 5 and reference[0] == "storage":
            _, dtype, key, _, numel = reference[:5]
            if isinstance(dtype, _Dtype) and isinstance(key, str) and isinstance(numel, int):
                self.dtypes[key] = dtype.name
                return _Storage(key, dtype.name, numel)
        raise BadTorchFile("it refers to outside data in a way torch does not")


def _counts(value: object) -> TypeGuard[tuple[int, ...]]:
    return (
        isinstance(value, tuple)
        and len(value) <= MAX_DIMENSIONS
        and all(isinstance(item, int) and 0 <= item < 1 << 63 for item in value)
    )
