"""Pickles read as data: a machine of the opcodes that containers, numbers and text need, and no others.

The standard unpickler imports and calls what a file tells it to, and trusts its sizes. Here imports and calls are
questions to the caller (``on_name``, ``on_call``, ``on_persistent``, ``on_build``), who answers with values or
raises; opcodes that build objects in other ways are refused. Memory and time stay proportional to the bytes of the
file: nothing is allocated because a number in the file says so, and what a few bytes make the reader copy or hash
again and again (the memo lets them) is counted and ends in ``BadPickle``.

Runs of numbers, the bulk of token and mask lists, are decoded a run at a time.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

_RUN: Final = re.compile(rb"(?:K.)+|(?:M..)+|(?:J.{4})+|(?:G.{8})+", re.DOTALL)
_WIDTH: Final = {0x4B: ("<xB", 2), 0x4D: ("<xH", 3), 0x4A: ("<xi", 5), 0x47: (">xd", 9)}
_PLAIN: Final = {
    ("_codecs", "encode"): "bytes",
    **{
        (module, name): name
        for module in ("builtins", "__builtin__")
        for name in ("set", "frozenset", "bytearray", "bytes")
    },
}
"""Calls that stand for plain values in protocols without an opcode for those."""
_FREE_WORK: Final = 1 << 20
"""Bytes and values that any pickle may make its reader copy or hash, beside four times its own length."""


class BadPickle(Exception):
    """The pickle is cut, malformed, or asks for something that is not data."""


@dataclass(frozen=True)
class Opaque:
    """A name the pickle wanted to import, or what it wanted to make of one. It is never looked up, called or built."""

    name: str


@dataclass(frozen=True)
class _Plain:
    kind: str


@dataclass(frozen=True)
class Unpickled:
    """A value and the position after its pickle."""

    value: Any
    end: int


def refuse_name(module: str, name: str) -> object:
    """Refuse every import (the default)."""
    raise BadPickle(f"its pickle asks for {module}.{name}, which no data needs, and was not obeyed")


def refuse_call(target: object, arguments: object) -> object:
    """Refuse every call (the default)."""
    raise BadPickle("its pickle calls something, and was not obeyed")


def refuse_persistent(reference: object) -> object:
    """Refuse every persistent id (the default)."""
    raise BadPickle("its pickle refers to outside data")


def drop_state(target: object, state: object) -> None:
    """Drop the state of an opaque note, refuse to set that of anything else (the default)."""
    if not isinstance(target, Opaque):
        raise BadPickle("its pickle sets the state of an object, and was not obeyed")


def read_pickle(
    data: bytes,
    on_name: Callable[[str, str], object] = refuse_name,
    on_call: Callable[[Any, Any], object] = refuse_call,
    on_persistent: Callable[[Any], object] = refuse_persistent,
    start: int = 0,
    *,
    on_build: Callable[[Any, Any], None] = drop_state,
) -> Unpickled:
    """Read one pickle (protocols 2 to 5) that begins at ``start``.

    Raises:
        BadPickle: cut or malformed data, or an opcode that is not for data; also whatever the callbacks raise.

    """
    machine = _Machine(data, start, (on_name, on_call, on_persistent, on_build))
    try:
        return machine.run()
    except (IndexError, KeyError, struct.error) as error:
        raise BadPickle("its pickle is cut or damaged") from error
    except (TypeError, UnicodeDecodeError, ValueError, AttributeError) as error:
        raise BadPickle(f"its pickle is damaged ({error})") from error


class _Machine:
    """Stack machine. ``marks`` holds the stack heights at which MARK was pushed."""

    def __init__(
        self,
        data: bytes,
        start: int,
        answers: tuple[
            Callable[[str, str], object],
            Callable[[Any, Any], object],
            Callable[[Any], object],
            Callable[[Any, Any], None],
        ],
    ) -> None:
        self.data = data
        self.at = start
        self.work_left = _FREE_WORK + 4 * len(data)
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.on_name, self.on_call, self.on_persistent, self.on_build = answers

    def run(self) -> Unpickled:
        data, stack, memo, operations = self.data, self.stack, self.memo, _OPERATIONS
        while True:
            at = self.at
            code = data[at]
            # The most frequent ones are worth sparing them a call: numbers, BINGET, BINPUT.
            if code in _WIDTH:
                self._numbers(code)
                continue
            if code == 0x68:
                stack.append(memo[data[at + 1]])
                self.at = at + 2
                continue
            if code == 0x71:
                memo[data[at + 1]] = stack[-1]
                self.at = at + 2
                continue
            self.at = at + 1
            if code == 0x2E:  # STOP
                value = stack.pop()
                if stack or self.marks:
                    raise BadPickle("its pickle is damaged (values are left over)")
                return Unpickled(value, self.at)
            operation = operations.get(code)
            if operation is None:
                raise BadPickle(
                    f"its pickle uses opcode {bytes([code])!r}, which data does not need, and was not obeyed"
                )
            operation(self)

    def _numbers(self, code: int) -> None:
        run = _RUN.match(self.data, self.at)
        if run is None:
            raise BadPickle("its pickle is cut")
        layout, width = _WIDTH[code]
        text = run.group()
        if code == 0x4B:
            self.stack.extend(text[1::2])
        else:
            self.stack.extend(value for (value,) in struct.iter_unpack(layout, text))
        self.at += len(text) // width * width

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise BadPickle("its pickle is cut")
        part = self.data[self.at : end]
        self.at = end
        return part

    def sized(self, width: int) -> bytes:
        """Return the bytes whose length is written in the next ``width`` bytes."""
        return self.take(int.from_bytes(self.take(width), "little"))

    def line(self) -> str:
        """Return the text up to the next newline."""
        end = self.data.index(b"\n", self.at)
        text = self.data[self.at : end].decode()
        self.at = end + 1
        return text

    def spend(self, work: int) -> None:
        """Count bytes or values that are copied or hashed; data is written once, so honest pickles have plenty."""
        self.work_left -= work
        if self.work_left < 0:
            raise BadPickle("its pickle stands for far more than it holds, as no data does")

    def key(self, value: object) -> object:
        """Return a value that can be a key, or be in a set, and counts what hashing it costs."""
        if type(value) is not str:
            self._count(value)
        try:
            hash(value)
        except TypeError as error:
            raise BadPickle("its pickle is damaged (a key that cannot be one)") from error
        return value

    def _count(self, value: object) -> None:
        """Count what hashing a value costs: tuples may hold each other, two levels doubling what one level holds."""
        left = [value]
        while left:
            item = left.pop()
            self.spend(1 + (item.bit_length() >> 3) if type(item) is int else 1)
            if isinstance(item, tuple):
                self.spend(len(item))
                left.extend(item)

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        """Pop a value of the current frame; what lies below a MARK is out of reach."""
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise BadPickle("its pickle is damaged (a value is missing)")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        """Pop everything above the last MARK."""
        height = self.marks.pop()
        items = self.stack[height:]
        del self.stack[height:]
        return items

    def top(self, kind: type) -> Any:
        """Return the topmost value, which must be a ``kind``."""
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise BadPickle("its pickle is damaged (a value is missing)")
        value = self.stack[-1]
        if type(value) is not kind:
            raise BadPickle(f"its pickle is damaged (a {kind.__name__} is missing)")
        return value


def _protocol(m: _Machine) -> None:
    if not 2 <= m.take(1)[0] <= 5:
        raise BadPickle("its pickle has a protocol that is not 2 to 5")


def _memoize(m: _Machine, index: int) -> None:
    m.memo[index] = m.stack[-1]


def _set_items(m: _Machine) -> None:
    items = m.since_mark()
    target = m.top(dict)
    for at in range(0, len(items) - 1, 2):
        target[m.key(items[at])] = items[at + 1]


def _set_item(m: _Machine) -> None:
    value, key = m.pop(), m.pop()
    m.top(dict)[m.key(key)] = value


def _append(m: _Machine) -> None:
    value = m.pop()
    m.top(list).append(value)


def _appends(m: _Machine) -> None:
    items = m.since_mark()
    m.top(list).extend(items)


def _add_items(m: _Machine) -> None:
    items = m.since_mark()
    m.top(set).update(m.key(item) for item in items)


def _tuple_of(count: int) -> Callable[[_Machine], None]:
    def make(m: _Machine) -> None:
        items = [m.pop() for _ in range(count)]
        m.push(tuple(reversed(items)))

    return make


def _dict(m: _Machine) -> None:
    items = m.since_mark()
    m.push({m.key(items[at]): items[at + 1] for at in range(0, len(items) - 1, 2)})


def _pop(m: _Machine) -> None:
    if m.marks and len(m.stack) == m.marks[-1]:
        m.marks.pop()
    else:
        m.pop()


def _frame(m: _Machine) -> None:
    """Pass over FRAME, which is only a hint for buffering."""
    m.take(8)


def _pop_mark(m: _Machine) -> None:
    m.since_mark()


def _global(m: _Machine) -> None:
    module, name = m.line(), m.line()
    m.push(_named(m, module, name))


def _named(m: _Machine, module: str, name: str) -> object:
    plain = _PLAIN.get((module, name))
    return _Plain(plain) if plain else m.on_name(module, name)


def _stack_global(m: _Machine) -> None:
    name, module = m.pop(), m.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise BadPickle("its pickle is damaged (a name is missing)")
    m.push(_named(m, module, name))


def _call(m: _Machine) -> None:
    arguments, target = m.pop(), m.pop()
    for item in arguments if isinstance(arguments, tuple) else ():
        m.spend(len(item) if isinstance(item, (str, bytes, bytearray, list, tuple, dict, set, frozenset)) else 1)
    m.push(_make(m, target.kind, arguments) if isinstance(target, _Plain) else m.on_call(target, arguments))


def _make(m: _Machine, kind: str, arguments: object) -> object:
    """Make the value that older protocols write as a call because they have no opcode for it."""
    if not isinstance(arguments, tuple) or not all(isinstance(item, (list, tuple, str, bytes)) for item in arguments):
        raise BadPickle(f"its pickle is damaged (a {kind} that cannot be one)")
    first = arguments[0] if arguments else ""
    if kind == "bytes" and isinstance(first, str):
        return first.encode("latin-1")
    if kind == "bytearray":
        return bytearray(first.encode("latin-1") if isinstance(first, str) else bytes(first))
    items = [m.key(item) for item in (first if isinstance(first, (list, tuple)) else ())]
    return frozenset(items) if kind == "frozenset" else set(items)


def _build(m: _Machine) -> None:
    """BUILD sets an object's state: a question to the caller, who by default drops it."""
    state = m.pop()
    m.on_build(m.stack[-1], state)


def _long(width: int) -> Callable[[_Machine], None]:
    return lambda m: m.push(int.from_bytes(m.sized(width), "little", signed=True))


def _text(width: int) -> Callable[[_Machine], None]:
    return lambda m: m.push(_sound(m.sized(width)))


def _sound(data: bytes) -> str:
    """Text as Python writes it; half of a surrogate pair, which no table can hold, becomes U+FFFD."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _old_text(width: int) -> Callable[[_Machine], None]:
    """Read a string as Python 2 wrote them."""
    return lambda m: m.push(m.sized(width).decode("latin-1"))


def _bytes(width: int) -> Callable[[_Machine], None]:
    return lambda m: m.push(m.sized(width))


_OPERATIONS: Final[dict[int, Callable[[_Machine], None]]] = {
    0x80: _protocol,
    0x95: _frame,
    ord("("): lambda m: m.marks.append(len(m.stack)),
    ord("0"): _pop,
    ord("1"): _pop_mark,
    ord("2"): lambda m: m.push(m.stack[-1]),
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    0x8A: _long(1),
    0x8B: _long(4),
    ord("X"): _text(4),
    0x8C: _text(1),
    0x8D: _text(8),
    ord("T"): _old_text(4),
    ord("U"): _old_text(1),
    ord("B"): _bytes(4),
    ord("C"): _bytes(1),
    0x8E: _bytes(8),
    0x96: lambda m: m.push(bytearray(m.sized(8))),
    ord("]"): lambda m: m.push([]),
    ord("}"): lambda m: m.push({}),
    ord(")"): lambda m: m.push(()),
    0x8F: lambda m: m.push(set()),
    ord("l"): lambda m: m.push(m.since_mark()),
    ord("d"): _dict,
    ord("t"): lambda m: m.push(tuple(m.since_mark())),
    0x91: lambda m: m.push(frozenset(m.key(item) for item in m.since_mark())),
    0x85: _tuple_of(1),
    0x86: _tuple_of(2),
    0x87: _tuple_of(3),
    ord("a"): _append,
    ord("e"): _appends,
    ord("s"): _set_item,
    ord("u"): _set_items,
    0x90: _add_items,
    ord("r"): lambda m: _memoize(m, int.from_bytes(m.take(4), "little")),
    0x94: lambda m: _memoize(m, len(m.memo)),
    ord("j"): lambda m: m.push(m.memo[int.from_bytes(m.take(4), "little")]),
    ord("c"): _global,
    0x93: _stack_global,
    ord("R"): _call,
    0x81: _call,  # NEWOBJ: asked like a call
    ord("b"): _build,
    ord("Q"): lambda m: m.push(m.on_persistent(m.pop())),
}
