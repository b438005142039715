"""Configuration files as plain dictionaries: JSON, YAML (safe) and TOML, within limits of size and depth.

The result holds only dicts with text keys, lists, text, numbers, truth values and None, whatever the format could
express beyond that: dates become ISO text, integers beyond 64 bits floats, numbers that are not finite text. Unknown
YAML tags are dropped and the plain value under them is kept (nothing is ever constructed from a tag). Where a key
occurs twice, the last one holds.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

import orjson
import yaml

from staleness_audit.discovery import RunFiles
from staleness_audit.errors import UnreadableInput

MAX_BYTES: Final = 16 << 20
MAX_DEPTH: Final = 64
MAX_VALUES: Final = 500_000
"""Limits on what is taken for a configuration. The number of values counts a YAML alias as often as it is used, so
that a few bytes cannot stand for a billion values."""


_ENTRY: Final = re.compile(
    r"\s*+(?:- *)*+(?!(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL)\b)"
    r"(?:[\w.$@/-]+|'[^']*'|\"[^\"]*\"):(?:\s|$)|\s*- *\S+ *$"
)
"""A line of printed YAML that has a key, or is an item of a list."""
_DEEP_KEY: Final = re.compile(
    rf"(?<![\w-])(?:(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MAX_DEPTH + 1}}}", re.ASCII
)
"""A TOML key of more levels than are read; the standard reader's time grows with their square."""
MAX_NUMBER_CHARS: Final = 400
"""Longest number in YAML, where ``1:59:59`` counts in sixties; beyond it is text."""


class UnreadableConfig(Exception):
    """The file is no configuration this reader can read; the message is one clause saying why."""


def read_config(run: RunFiles, source: str) -> dict[str, Any]:
    """Read a configuration file of a run; the format follows from its name (``.json``, ``.yaml``/``.yml``, ``.toml``).

    Raises ``UnreadableConfig`` for an unknown name, damage, excess of a limit, or anything but a mapping at the top,
    and ``UnreadableInput`` if the file cannot be opened.
    """
    kind = PurePosixPath(run.file(source).name).suffix.lower().removeprefix(".")
    try:
        with run.open(source) as stream:
            data = stream.read(MAX_BYTES + 1)
    except UnreadableInput:
        raise
    except (OSError, EOFError) as error:
        raise UnreadableConfig(f"its compressed data is damaged ({error})") from error
    return parse_config(data, kind)


def parse_config(data: bytes, kind: str) -> dict[str, Any]:
    """Turn the bytes of a configuration into a plain dictionary. ``kind``: ``json``, ``yaml``, ``yml`` or ``toml``.

    Raises ``UnreadableConfig`` for damage, excess of a limit, or anything but a mapping at the top.
    """
    parse = _FORMATS.get(kind)
    if parse is None:
        raise UnreadableConfig(f"a configuration is JSON, YAML or TOML, not {kind or 'without a suffix'}")
    if len(data) > MAX_BYTES:
        raise UnreadableConfig(f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableConfig(f"it is not UTF-8 text (byte {error.start})") from error
    try:
        value = parse(text)
        plain = plain_value(value)
    except RecursionError as error:
        raise UnreadableConfig(f"it is nested deeper than {MAX_DEPTH} levels") from error
    if not isinstance(plain, dict):
        raise UnreadableConfig("it is empty" if plain is None else "its top is not a mapping")
    return plain


def parse_printed(lines: Sequence[str]) -> dict[str, Any]:
    """Read a YAML mapping that a console shows, where lines of other processes may stand in between.

    First every line is taken, then those that could be YAML at all, last those with a key or an item of a list (of
    text wrapped over several lines the rest is then lost). Raises ``UnreadableConfig`` if nothing of it can be read.
    """
    plain = [line for line in lines if "%|" not in line]  # no progress bars
    entries = [line for line in plain if _ENTRY.match(line)]
    possible = [line for line in plain if line.startswith((" ", "\t")) or _ENTRY.match(line)]
    error = UnreadableConfig("it is empty")
    for kept in (lines, possible, entries):
        try:
            return parse_config("\n".join(kept).encode(), "yaml")
        except UnreadableConfig as why:
            error = why
    raise error


def as_json(document: Mapping[str, Any]) -> str:
    """Return a mapping from any source as JSON text that is read back without fail; what JSON lacks becomes text.

    Raises ``UnreadableConfig`` for excess of a limit of a document that is not plain.
    """
    try:
        return orjson.dumps(document, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # a number beyond 64 bits, or half of a surrogate pair
        return orjson.dumps(plain_value(document)).decode()


def lookup(config: Mapping[str, Any], dotted: str) -> Any:
    """Return the value under a dotted key (``job.max_staleness``), or None where a level is missing."""
    value: Any = config
    for part in dotted.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _json(text: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass  # NaN, Infinity and integers beyond 64 bits are for the standard reader to accept or refuse
    try:
        return json.loads(text)
    except ValueError as error:
        raise UnreadableConfig(f"it is not JSON ({error})") from error


def _toml(text: str) -> object:
    if _DEEP_KEY.search(text):
        raise UnreadableConfig(f"it is nested deeper than {MAX_DEPTH} levels")
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise UnreadableConfig(f"it is not TOML ({error})") from error


_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The same safe loader in C, ten times as fast, where PyYAML was built with it."""


class _SafeLoader(_Loader):  # type: ignore[misc, valid-type]
    """The safe loader, except that an unknown tag yields the plain value below it instead of an error."""


def _untagged(loader: _SafeLoader, _suffix: str, node: yaml.Node) -> object:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node) if isinstance(node, yaml.ScalarNode) else None


def _number(loader: _SafeLoader, node: yaml.ScalarNode) -> object:
    if len(node.value) > MAX_NUMBER_CHARS:
        return node.value
    return yaml.SafeLoader.yaml_constructors[node.tag](loader, node)


_SafeLoader.add_multi_constructor("", _untagged)
for _kind in ("int", "float"):
    _SafeLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _number)


def _yaml(text: str) -> object:
    try:
        return yaml.load(text, Loader=_SafeLoader)  # noqa: S506 - derives from SafeLoader and constructs nothing
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise UnreadableConfig(f"it is not YAML ({where}{error.problem})") from error
    except (yaml.YAMLError, ValueError, TypeError, ArithmeticError) as error:
        raise UnreadableConfig(f"it is not YAML ({error})") from error


_FORMATS: Final[dict[str, Callable[[str], object]]] = {"json": _json, "toml": _toml, "yaml": _yaml, "yml": _yaml}


def within_64_bits(value: int) -> int | float:
    """Return an integer as tables and JSON can hold it: beyond 64 bits it is a float, or infinite."""
    if -(1 << 63) <= value < 1 << 63:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def plain_value(value: object) -> object:
    """Copy a parsed value into what this module's results hold; ``UnreadableConfig`` beyond a limit."""
    return _Plain().value(value, 0)


class _Plain:
    """Copies a parsed value into plain types, counting as it goes."""

    def __init__(self) -> None:
        self._values = 0

    def value(self, value: object, depth: int) -> object:
        self._values += 1
        if depth > MAX_DEPTH:
            raise UnreadableConfig(f"it is nested deeper than {MAX_DEPTH} levels")
        if self._values > MAX_VALUES:
            raise UnreadableConfig(f"it holds more than {MAX_VALUES} values")
        if isinstance(value, Mapping):
            return {_key(key): self.value(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.value(item, depth + 1) for item in value]
        return _scalar(value)


def _key(key: object) -> str:
    return str(_scalar(key))


def _scalar(value: object) -> object:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    value = within_64_bits(value) if isinstance(value, int) else value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    # JSON may hold half of a surrogate pair, which nothing can be written with.
    return str(value).encode("utf-8", "replace").decode()
