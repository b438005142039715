"""Reading console text: phases, warnings, tracker blocks, the configuration (guide section 5.1).

A record begins with ``YYYY-MM-DD HH:MM:SS.mmm | LEVEL | module:function:line - `` behind Ray's prefix or a progress
bar, and continues on the lines after it. Only records of the framework's own modules are looked at; line numbers never
are. Times name no zone and are taken for UTC.

The text of an example (pitfall 7) may look like anything, also like a record. What begins inside it is believed only if
it is coloured as the log is, comes within minutes of it, and is something that the trainer says right after an example.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import orjson
import polars as pl

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.config import UnreadableConfig, parse_printed
from staleness_audit.readers.console import Messages, decimal_of, number_of, parse_dict, strip_ansi, undecorate
from staleness_audit.readers.lines import DamagedStream, numbered_lines
from staleness_audit.readers.numbers import is_figure

MARKS: Final[dict[str, Any]] = {
    "source": pl.String,
    "line": pl.Int64,
    "launch": pl.Int32,
    "ts": pl.Datetime("us", "UTC"),
    "kind": pl.String,
    "word": pl.String,
    "number": pl.Int64,
    "value": pl.Float64,
    "text": pl.String,
}
"""Staged ``skyrl_marks``, one row per message that matters, in the order of the file. ``launch`` counts the launches in
the file from 0; ``word`` is a phase, ``number`` a step, count or staleness (see ``_MESSAGES``), ``value`` seconds."""

NUMBERS: Final[dict[str, Any]] = {
    "source": pl.String,
    "line": pl.Int64,
    "launch": pl.Int32,
    "ts": pl.Datetime("us", "UTC"),
    "step": pl.Int64,
    "key": pl.String,
    "value": pl.Float64,
    "form": pl.String,
}
"""Staged ``skyrl_numbers``: what a tracker was given. ``form`` tells its precision: ``whole``, ``printed`` (four
decimals), ``single`` (32 bits) or ``double``; ``line`` is the block's first line, or the number of the record in an
event file."""

CONFIGS: Final[dict[str, Any]] = {
    "source": pl.String,
    "line": pl.Int64,
    "launch": pl.Int32,
    "step": pl.Int64,
    "config": pl.String,
}
"""Staged ``skyrl_configs``: a configuration as JSON, of a launch in a log or (``launch`` null) of a checkpoint's
step."""

HEADER: Final = re.compile(
    r"(?P<ts>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) \| (?P<level>[A-Z]+) *\| "
    r"(?P<module>skyrl[\w.]*|examples[\w.]*|__main__):(?P<function>[\w<>.]*):\d+ - "
)
_COLOURED = re.compile(r"\x1b\[[\d;]*m\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\x1b\[0m")
_BAR = re.compile(r"%\||\d+/\d+ \[|it/s|s/it")
_YAML = re.compile(r"^(\s+\S.*|- .*|[\w./-]+:(\s.*)?)?$")
_PRINTED = re.compile(r"^[{ ]?\s*('|\"|\{|\}|$)|.*\}\s*$")
_MAX_BODY: Final = 20_000
_ENTRY = re.compile(r"[{ ]?\s*'(?P<key>[^']+)': '?(?P<value>[-+\w.]+)'?[,}]?\s*$")
_WANTED = re.compile(
    r"(async|trainer|timing|generate|generate_kept|generate_dropped)/.*|reward/(num_zero_variance_filtered|avg_pass_at_\d+)"
    r"|vllm/num_requests_waiting"
)
_EXAMPLE_SECONDS: Final = 600.0
_AFTER_EXAMPLE: Final = re.compile(
    r"batch_num_seq: \d+|Number of sequences |(Started|Finished): '(log_train_results|convert_to_training_input)'"
)
_N: Final = r"(?P<number>\d{1,18})"
_MESSAGES: Final = Messages(
    (
        ("started", r"Started: '(?P<word>\w+)'"),
        ("finished", r"Finished: '(?P<word>\w+)'(?:, time cost: (?P<value>[\d.]+)s)?"),
        ("over", rf"Staleness control violated .*?cur_staleness={_N}, max_staleness_steps=(?P<value>\d+)"),
        ("block", rf"Step {_N}: *$"),
        ("example", r"Example generated: "),
        ("rows", rf"batch_num_seq: {_N}"),
        ("prompts", rf"Length of train_dataloader: {_N}"),
        ("per_epoch", rf"Number of steps per epoch: {_N}"),
        ("fresh", r"(?:Checkpoint resumption disabled|No checkpoint found), starting training from scratch"),
        ("resuming", rf"Resuming from global_step: {_N}"),
        ("resumed", rf"Resumed training from global_step {_N}"),
        ("saved", rf"Successfully saved checkpoint for global_step_{_N} to"),
        ("exhausted", rf"sample_full_batch: epoch (?P<value>\d+) exhausted with a partial mini-batch of {_N} group"),
        ("stopped", rf"Reached max_training_steps={_N}, stopping early"),
        ("worker_error", r"Generator worker errored out"),
        ("failed", rf"Training failed at step {_N} with (?P<word>[\w.]+)"),
        ("done", r"Training done!"),
    )
)
_COLLECTED: Final = ("config", "block")
"""Records whose continuation lines say something."""
_SETUP: Final = frozenset({"config", "prompts"})
"""Messages that a launch begins with; each comes once per launch (pitfall 3)."""


def wanted(key: str) -> bool:
    """Whether a tracker's key says something about training data or its timing."""
    return bool(_WANTED.fullmatch(key))


def read_console(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage ``skyrl_marks``, ``skyrl_numbers`` and ``skyrl_configs`` of one file."""
    reader = _Reader(piece.source, sink)
    try:
        for line, raw, cut in numbered_lines(run, piece):
            reader.line(line, raw, cut)
    except DamagedStream as damage:
        sink.diagnose(
            "error",
            "log-damaged",
            f"From here on the log is damaged ({damage}); restore it from a copy.",
            source=piece.source,
            line=damage.line,
            opens="training",
        )
    reader.close()


class _Reader:
    """Follows one file line by line; ``record`` is the record whose continuation lines are being collected."""

    def __init__(self, source: str, sink: Sink) -> None:
        self.source, self.sink = source, sink
        self.launch, self.begun, self.setup = 0, False, set[str]()
        self.marks: list[dict[str, Any]] = []
        self.numbers: list[dict[str, Any]] = []
        self.configs: list[dict[str, Any]] = []
        self.coloured = False
        self.record: dict[str, Any] | None = None
        self.actor: str | None = None
        self.body: list[str] = []
        self.cut = False

    def line(self, line: int, raw: str, cut: bool) -> None:
        """Take one physical line, which may hold a progress bar, several carriage returns, and a record."""
        if " | " not in raw and (self.record is None or self.record["kind"] not in _COLLECTED):
            return
        for part in raw.split("\r"):
            plain = undecorate(part)
            # A record glued to a progress bar lacks the prefix that the lines after it have.
            text, actor = plain.text, None if plain.pid is None or "%|" in part else f"{plain.actor} {plain.pid}"
            found = HEADER.search(text) if " | " in text else None
            if (
                found
                and (found.start() == 0 or _BAR.search(text[: found.start()]))
                and self._believe(found, part, text)
            ):
                self.finish_record()
                self._begin(line, found, text[found.end() :], actor, cut)
            else:
                self._continue(text, actor, cut)

    def _believe(self, found: re.Match[str], raw: str, text: str) -> bool:
        """Whether a header is one, and not the text of an example."""
        coloured = bool(_COLOURED.search(raw))
        if self.record is not None and self.record["kind"] == "example":
            ts = _moment(found["ts"])
            late = None if ts is None else (ts - self.record["ts"]).total_seconds()
            if late is None or not 0 <= late <= _EXAMPLE_SECONDS or (self.coloured and not coloured):
                return False
            return coloured or bool(_AFTER_EXAMPLE.match(text[found.end() :]))
        self.coloured = self.coloured or coloured
        return _moment(found["ts"]) is not None

    def _begin(self, line: int, found: re.Match[str], text: str, actor: str | None, cut: bool) -> None:
        row: dict[str, Any] = {"source": self.source, "line": line, "ts": _moment(found["ts"])}
        if told := _MESSAGES.match(text):
            kind, values = told
            number, value = values.get("number"), values.get("value")
            row |= {"kind": kind, "word": values.get("word"), "text": text[:200]}
            row |= {"number": number_of(number) if number else None, "value": decimal_of(value) if value else None}
        elif found["function"] == "_setup_trainer" and _YAML.match(text) and text.strip():
            row |= {"kind": "config"}
            self.body = [text]
        else:
            return
        if cut:
            return  # the last record of a file that was cut did not happen
        self._count_launch(row)
        row["launch"] = self.launch
        self.actor = actor or self.actor
        self.record = row
        if row["kind"] not in _COLLECTED:
            self.marks.append(row)

    def _count_launch(self, row: dict[str, Any]) -> None:
        """Several launches append to one log: a new one begins where what begins a launch comes again."""
        kind = row["kind"]
        if kind in _SETUP and (kind in self.setup or self.begun):
            self.launch, self.begun, self.setup = self.launch + 1, False, set()
        if kind in _SETUP:
            self.setup.add(kind)
        self.begun = self.begun or (kind == "started" and row["word"] == "step") or kind in ("failed", "done")

    def _continue(self, text: str, actor: str | None, cut: bool) -> None:
        if self.record is None or self.record["kind"] not in _COLLECTED:
            return
        if actor != self.actor and actor is not None and self.actor is not None:
            return  # another process speaks in between
        if not (_YAML if self.record["kind"] == "config" else _PRINTED).match(text):
            return  # so does one without a name
        if len(self.body) >= _MAX_BODY or (not _ENTRY.match(text) and _BAR.search(text)):
            return
        self.body.append(text)
        self.cut = cut
        if self.record["kind"] == "block" and text.rstrip().endswith("}"):
            self.finish_record()

    def finish_record(self) -> None:
        """Turn collected lines into a configuration or the numbers of a block."""
        record, body, cut = self.record, self.body, self.cut
        if record is not None and record["kind"] == "example":
            self.record = None
        if record is None or record["kind"] not in _COLLECTED:
            return
        self.record, self.body, self.cut = None, [], False
        if record["kind"] == "config":
            self._config(record, body[:-1] if cut else body)
        else:
            self._block(record, body)

    def _config(self, record: dict[str, Any], lines: list[str]) -> None:
        try:
            config = parse_printed(lines)
        except UnreadableConfig as why:
            self.sink.diagnose(
                "warning",
                "config-unreadable",
                f"The configuration printed here cannot be read ({why}); keep the start of the log whole.",
                source=self.source,
                line=record["line"],
            )
            config = {}
        self.marks.append(record)
        if config:
            row = {"source": self.source, "line": record["line"], "launch": record["launch"]}
            self.configs.append(row | {"config": orjson.dumps(config).decode()})

    def _block(self, record: dict[str, Any], body: list[str]) -> None:
        """Stage a tracker record; of one that is cut or damaged, the lines that are whole."""
        values = parse_dict("\n".join(body).strip())
        whole = values is not None
        if values is None:
            values = {found["key"]: found["value"] for text in body if (found := _ENTRY.match(text))}
        kept = {key: number for key, value in values.items() if wanted(key) and (number := _number(value))}
        if not whole:
            self.sink.diagnose(
                "warning",
                "block-damaged",
                f"The numbers of step {record['number']} are cut or damaged; only whole lines of them were read.",
                source=self.source,
                line=record["line"],
            )
        self.marks.append(record | {"word": _block_word(values, whole)})
        place = {name: record[name] for name in ("source", "line", "launch", "ts")}
        for key, (value, form) in kept.items():
            self.numbers.append({**place, "step": record["number"], "key": key, "value": value, "form": form})

    def close(self) -> None:
        """Write what the file said."""
        self.finish_record()
        self.sink.write("skyrl_marks", pl.DataFrame(self.marks, schema=MARKS, orient="row"))
        self.sink.write("skyrl_numbers", pl.DataFrame(self.numbers, schema=NUMBERS, orient="row"))
        if self.configs:
            self.sink.write("skyrl_configs", pl.DataFrame(self.configs, schema=CONFIGS))


def _block_word(values: dict[str, Any], whole: bool) -> str:
    """Tell what a block is: a step's metrics, its timings, both as a crash flushes them (pitfall 2), or evaluation."""
    if "trainer/global_step" in values:
        return "metrics"
    if not whole:
        return "cut"
    if any(key.startswith(("async/", "generate/", "generate_kept/")) for key in values):
        return "flushed"
    return "timings" if any(key.startswith("timing/") for key in values) else "other"


def _number(value: object) -> tuple[float, str] | None:
    """Return a value and its form: integers are printed bare, floats as text with four decimals (pitfall 8)."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return (float(value), "whole") if is_figure(value) else None
    try:
        number = float(str(value))
    except ValueError:
        return None
    if not is_figure(number):  # NaN (pitfall 16), or damaged digits
        return None
    return number, "whole" if re.fullmatch(r"-?\d+", str(value)) else "printed"


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None


def looks_like_console(head: bytes) -> bool:
    """Whether the first bytes of a file hold a record of the framework."""
    if b"skyrl" not in head:
        return False
    return any(True for _ in _headers(strip_ansi(head.decode("utf-8", "replace"))))


def dialect_of(head: bytes) -> str | None:
    """Tell which release wrote it: by the modules that speak in a log, else by a tracker's keys (pitfall 15)."""
    found = next(_headers(strip_ansi(head.decode("utf-8", "replace"))), None)
    if found is None:
        if b"async/staleness_" not in head:
            return None
        late = b"async/gen_buffer_qsize_at_wait_start" in head
        return f"metrics as {'since' if late else 'before'} 2026-07-19"
    old = found["module"].startswith("skyrl_train.")
    return "skyrl_train (up to February 2026)" if old else "skyrl.train (since February 2026)"


def _headers(text: str) -> Iterator[re.Match[str]]:
    return (found for found in HEADER.finditer(text) if found["module"].startswith("skyrl"))
