"""Console of a V1 or fully-async run: attempts, checkpoints, syncs, and the metric records once more (guide section 5).

Lines of several actors interleave, progress bars are glued to messages, and colours are everywhere: a message is looked
for anywhere in its line. ``ts`` is the local time that a line prints, without a zone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any, Final

import polars as pl

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.console import number_of, parse_dict, undecorate
from staleness_audit.readers.lines import DamagedStream, numbered_lines
from staleness_parsers.verl import metrics
from staleness_parsers.verl.settings import write_config

TABLE: Final = "verl_console"
ROWS: Final = {
    "source": pl.String,
    "line": pl.Int64,
    "pid": pl.Int64,
    "ts": pl.String,
    "kind": pl.String,
    "a": pl.Int64,
    "b": pl.Int64,
    "c": pl.Int64,
    "text": pl.String,
}
_SPEAKER: Final = re.compile(r"(?:[^()]{0,20}\([^()]*(?:\([^()]*\)[^()]*)?pid=[^()]*\))+")
_STAMP: Final = re.compile(r"\b[A-Z]+:(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}):")
_WANTED: Final = re.compile(
    "step:|warmup|ending: |heckpoint|etting global|issued|Dumped|Upsampled|Skip|FullyAsync|version|Queue|_run_prompt"
)
_MESSAGES: Final[dict[str, tuple[str, re.Pattern[str]]]] = {
    "warmup": ("warmup batches", re.compile(r"Added (\d+) warmup batches")),
    "waiting": ("pending: ", re.compile(r"\bpending: (\d+), running: (\d+), finished: (\d+)")),
    "saving": ("Saving checkpoint", re.compile(r"Saving checkpoint to \S*global_step_(\d+)")),
    "resuming": ("etting global step", re.compile(r"[Ss]etting global step to (\d+)")),
    "reissued": ("Re-issued", re.compile(r"Re-issued (\d+) in-flight prompts for step (\d+)")),
    "dumped": ("Dumped generations", re.compile(r"Dumped generations to (?P<text>\S*?)/(\d+)\.jsonl")),
    "upsampled": ("Upsampled", re.compile(r"Upsampled batch from (\d+) to (\d+) with (\d+) synthetic padding")),
    "injected": ("Injected", re.compile(r"Injected (\d+) cached trajectories")),
    "failure": ("_run_prompt", re.compile(r"Error in _run_prompt for uid=(?P<text>\S+)")),
    "required": ("required_samples", re.compile(r"required_samples ?: ?(\d+) max_required_samples: ?(\d+)")),
    "micro": (
        "local_trigger_step",
        re.compile(r"\] global_steps: (\d+) local_trigger_step: (\d+) trigger_parameter_sync_step: (\d+)"),
    ),
    "sync": ("current_param_version", re.compile(r"self\.current_param_version: (\d+)")),
    "reset": ("reset staleness", re.compile(r"reset staleness_samples to: (\d+)")),
    "started": ("No dumped data", re.compile(r"RolloutSkip\(\)\].*?No dumped data found at step (\d+) from")),
    "finished": ("Dump generate", re.compile(r"RolloutSkip\(\)\].*?Dump generate result at step (\d+) to")),
    "loaded": ("generate result", re.compile(r"RolloutSkip\(\)\].*?Load(?:ed)? generate result at step (\d+)")),
    "requesting": ("Requesting", re.compile(r"\[FullyAsyncTrainer\] Requesting (\d+) samples")),
    "pause": ("[ShouldPause]", re.compile(r"\[ShouldPause\] due to (?:staleness_samples|full queue: size=)\D*(\d+)")),
    "full": ("Queue full", re.compile(r"Queue full, dropped sample")),
}
"""A word that a message of each kind holds, and its pattern."""
_RECORD: Final = r"\bstep:\d+ - "
BEGINS: Final = re.compile(_RECORD.encode())
"""A metric record, which no configuration goes on beyond: from one on nothing before it matters."""
_RECORDED: Final = re.compile(_RECORD)
_MET: Final = "met"
"""Kind of the first message of a process in a piece."""
_MAIN_ACTORS: Final = ("TaskRunner", "FullyAsyncTaskRunner", "OneStep", "main_task")


def stage_console(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage the messages, metric records and the configuration of a piece of a console log."""
    reader = _Reader(piece.source, sink)
    try:
        for number, text, _ in numbered_lines(run, piece):
            reader.take(number, text)
    except DamagedStream as damage:
        sink.diagnose(
            "warning",
            "console-damaged",
            f"From here on the console is damaged: {damage}; restore it.",
            source=piece.source,
            line=damage.line,
            opens="fates",
        )
    reader.close()


class _Reader:
    """Collects rows of one console. The configuration is a dictionary printed by one process over many lines."""

    def __init__(self, source: str, sink: Sink) -> None:
        self._source, self._sink = source, sink
        self._messages: list[dict[str, Any]] = []
        self._records: list[dict[str, Any]] = []
        self._config: list[str] | None = None
        self._config_at: tuple[int, int | None] = (0, None)
        self._pids: dict[int, str] = {}
        self._speakers: set[str] = set()

    def take(self, number: int, raw: str) -> None:
        found = _SPEAKER.match(raw)
        speaker = found[0] if found else ""
        if self._config is None and speaker in self._speakers and "{'" not in raw and not _WANTED.search(raw):
            return  # nothing new: most lines of a real log
        self._speakers.add(speaker)
        line = undecorate(raw)
        text, pid = line.text, line.pid
        if self._config is not None and _RECORDED.search(raw):
            self._config = None
        if pid is not None:
            self._meet(number, pid, line.actor or "")
        if text.startswith("{'"):
            self._config, self._config_at = [text], (number, pid)
            self._try_config(text)
        elif self._config is not None and pid == self._config_at[1]:
            self._extend_config(text)
        if _WANTED.search(text):
            self._read(number, pid, text)

    def _meet(self, number: int, pid: int | None, actor: str) -> None:
        if pid is not None and actor and pid not in self._pids:
            self._pids[pid] = actor
            self._message(number, pid, _MET, {"text": actor})

    def _extend_config(self, text: str) -> None:
        """Another process' warning may stand between the lines: what does not continue a dictionary is left out."""
        if self._config is None or not text.startswith((" ", "\t")):
            return
        self._config.append(text)
        if len(self._config) > 20_000:
            self._config = None
        else:
            self._try_config(text)

    def _try_config(self, text: str) -> None:
        if not text.rstrip().endswith("}") or self._config is None:
            return
        whole = "\n".join(self._config)
        if whole.count("{") > whole.count("}"):
            return
        value = parse_dict(whole) or _literal(whole)
        if value is not None and "actor_rollout_ref" in value:
            write_config(value, self._source, self._config_at[0], self._sink)
        self._config = None

    def _read(self, number: int, pid: int | None, text: str) -> None:
        record = metrics.parse_record(text)
        if record is not None:
            self._records.append({"source": self._source, "line": number, "origin": "console", "pid": pid, **record})
        for kind, (word, pattern) in _MESSAGES.items():
            if word in text and (found := pattern.search(text)):
                numbers = [number_of(value) for name, value in _groups(found) if name is None and value is not None]
                words = dict(zip("abc", numbers, strict=False))
                self._message(number, pid, kind, {**words, "text": found.groupdict().get("text")}, text)

    def _message(self, number: int, pid: int | None, kind: str, values: dict[str, Any], text: str = "") -> None:
        stamp = _STAMP.search(text)
        ts = None if stamp is None else stamp[1].replace(",", ".")
        self._messages.append({"source": self._source, "line": number, "pid": pid, "ts": ts, "kind": kind, **values})

    def close(self) -> None:
        """Write what was collected."""
        if self._messages:
            frame = pl.DataFrame(self._messages, schema=ROWS)
            self._sink.write(
                TABLE,
                frame.with_columns(pl.col("ts").str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)),
            )
        if self._records:
            self._sink.write(metrics.TABLE, pl.DataFrame(self._records, schema=metrics.ROWS))


def told(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of all pieces; of those processes that were met in each, the trainers' first lines."""
    met = set()
    found = []
    for message in messages:
        if message["kind"] != _MET:
            found.append(message)
        elif (who := (message["source"], message["pid"])) not in met:
            met.add(who)
            if message["text"].startswith(_MAIN_ACTORS):
                found.append({**message, "kind": "launch"})
    return found


def _groups(found: re.Match[str]) -> list[tuple[str | None, str | None]]:
    names = {index: name for name, index in found.re.groupindex.items()}
    return [(names.get(index), value) for index, value in enumerate(found.groups(), 1)]


def _literal(text: str) -> dict[str, Any] | None:
    try:
        value = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
