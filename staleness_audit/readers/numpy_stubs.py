"""Numpy values that a pickle holds, without numpy: of the stubs that ``torch_files`` leaves of them."""

from __future__ import annotations

from typing import Any, Final

from staleness_audit.readers.torch_files import BadTorchFile, Stub

_CODES: Final = {
    **{"b1": "?", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I"},
    **{"i8": "q", "u8": "Q", "f4": "f", "f8": "d"},
}


def array_values(value: object) -> list[Any]:
    """Elements of a pickled array in the order of its memory (row-major unless it was written otherwise), or of a list.

    Raises:
        BadTorchFile: it is neither, or of a type that holds no plain values.

    """
    if isinstance(value, list):
        return value
    if not (isinstance(value, Stub) and value.name.endswith("._reconstruct") and isinstance(value.state, tuple)):
        raise BadTorchFile("it holds something else where an array belongs")
    if len(value.state) != 5:
        raise BadTorchFile("it describes an array in a way numpy does not")
    data = value.state[4]
    return data if isinstance(data, list) else _decode(value.state[2], data)


def scalar_value(value: object) -> Any:
    """Return the number of a pickled numpy scalar; anything else comes back as it is."""
    if isinstance(value, Stub) and value.name.endswith("multiarray.scalar") and len(value.arguments) == 2:
        decoded = _decode(*value.arguments)
        return decoded[0] if len(decoded) == 1 else None
    return value


def _decode(dtype: object, data: object) -> list[Any]:
    """Decode little-endian numbers."""
    code = _CODES.get(str(dtype.arguments[0])) if isinstance(dtype, Stub) and dtype.arguments else None
    order = (
        dtype.state[1] if isinstance(dtype, Stub) and isinstance(dtype.state, tuple) and len(dtype.state) > 1 else ""
    )
    if code is None or order == ">" or not isinstance(data, bytes | bytearray):
        raise BadTorchFile("it holds an array of a type that is no plain number")
    try:
        return memoryview(data).cast("B").cast(code).tolist()  # type: ignore[call-overload, no-any-return]
    except TypeError as error:
        raise BadTorchFile("an array does not fill its bytes") from error
