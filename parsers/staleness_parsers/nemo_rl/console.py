"""Console logs into the staged table ``nemo_lines``: a row per line that says something (guide 5.1.1, 5.2.1).

Of AG's state lines only the newest group is kept, and the whole buffer where the lines before do not lead up to it, so
that what is staged grows with groups and not with buffers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import orjson
import polars as pl

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.config import as_json
from staleness_audit.readers.console import ConsoleLine, Messages, parse_dict, undecorate
from staleness_audit.readers.lines import DamagedStream, telling_lines
from staleness_audit.readers.numbers import is_figure
from staleness_parsers.nemo_rl.files import worker
from staleness_parsers.nemo_rl.settings import from_repr

Row = dict[str, Any]
LINES: Final = {
    "source": pl.String,
    "line": pl.Int64,
    "pid": pl.Int64,
    "kind": pl.String,
    "a": pl.Int64,
    "b": pl.Int64,
    "c": pl.Int64,
    "d": pl.Int64,
    "x": pl.Float64,
    "text": pl.String,
}
_LARGEST: Final = 2**31 - 1
_WHOLE: Final = re.compile(r"\s*-?\d{1,18}\s*")

_MESSAGES: Final = Messages(
    (
        (
            "state",
            r"ReplayBuffer state: (?P<a>\d+) groups, versions=\[(?P<versions>[-\d, ]*)\], "
            r"targets=\[(?P<targets>[-\d, ]*)\]",
        ),
        # SC, standard output of the controller
        ("sc_start", r"SingleControllerActor: sampler=(?P<text>\w+) buffer=(?P<a>\d+) inflight=(?P<b>\d+)"),
        ("sync", r"\s*_sync_weights: sync done in (?P<x>[\d.]+)s"),
        ("evicted", r"\s*evicted (?P<a>\d+) stale prompt group"),
        ("aborted", r"\s*aborted (?P<a>\d+) stale in-flight rollout"),
        ("metrics", r"step_metrics=(?P<text>\{.*)$"),
        ("step", r"train step (?P<a>\d+)/(?P<b>\d+)\s+trainer_v=(?P<c>\d+)\s+lag=(?P<d>-?\d+)(?P<text>\s*)$"),
        (
            "given_up",
            r"(?:skipping|dropping) prompt idx=(?P<a>\d+) after (?P<b>\d+) (?:deterministic|infrastructure) fail",
        ),
        ("promoted", r"\s*target_step=(?P<a>\d+): filled the dropped group by promoting"),
        ("waited", r"\s*• exposed_generation: (?P<x>[\d.]+)s \("),
        ("time", r"\s*• Total step time: (?P<x>[\d.]+)s"),
        ("restoring", r".*Restoring replay buffer from checkpoint: (?P<text>.*)$"),
        (
            "restored",
            r".*Restored (?P<a>\d+) replay group\(s\) from checkpoint|ReplayBuffer restored: \d+ trajectories",
        ),
        ("stall", r"WARNING: (?P<text>rollout stall .*step (?P<a>\d+)/\d+.*)$"),
        ("stalled", r"(?>.*?RolloutStall: )(?P<text>no rollout committed.*step (?P<a>\d+)/\d+.*)$"),
        ("drained", r"train_pump: rollout exhausted and buffer drained"),
        ("timeout", r"Timeout has been reached, stopping training early"),
        ("sc_end", r"SC run complete: \{.*'trainer_version': (?P<a>\d+)"),
        ("traceback", r"(?:ray::SingleControllerActor|Traceback \(most recent call last\))"),
        # SC, standard error
        ("chunk", r".*train_pump: step (?P<a>\d+) chunk (?P<b>\d+): (?P<c>\d+) group\(s\), \d+/(?P<d>\d+) dispatched"),
        ("closing", r".*train_pump: step (?P<a>\d+) closing on (?P<b>\d+) chunk\(s\), (?P<c>\d+) group\(s\)"),
        # AG, the buffer (its most frequent line stands first)
        ("sampling", r"\s*current_weight_version=(?P<a>\d+), max_age_steps=(?P<b>\d+)"),
        ("listed", r"\s*self\.trajectory_versions=\[(?P<text>[-\d, ]*)\]"),
        ("evicting", r"\s*Evicting (?P<a>\d+) stale trajectories \(version < (?P<b>-?\d+)\)"),
        ("selected", r"✅ Selected counts by generation weight-version: Counter\(\{(?P<text>[-\d:, ]*)\}\)"),
        (
            "consumed",
            r".*Consumed and removed (?P<a>\d+) groups from buffer, old buffer size: (?P<b>\d+), "
            r"new buffer size: (?P<c>\d+)",
        ),
        ("waiting", r"\s*(?:⏸️ )?(?P<text>STALLING: Need (?P<a>\d+) trajectories for step (?P<b>\d+).*)$"),
        ("too_old", r".*(?P<text>Found \d+ trajectories older than min_valid_version.*)$"),
        ("unfit", r"\s*Remov(?:ed|ing) (?P<a>\d+) (?:trajectories for past steps|stale restored trajectories)"),
        # AG, the collector
        ("updated", r".*Updated weight version to (?P<a>\d+)"),
        ("in_flight", r".*in-flight weight update - skipping wait for pending generations"),
        ("drain", r".*(?:waiting for all pending generations to complete|Waiting for \d+ pending generation threads)"),
        (
            "batch",
            r".*Started one (?:native|NeMo-Gym) batch worker for (?P<a>\d+) prompt groups at target_weight=(?P<b>\d+)",
        ),
        ("incomplete", r".*Error generating response for sample (?P<a>\d+)"),
        ("failed", r"(?>.*?batch worker FAILED ).*generation_weight=(?P<b>\d+) target_weight=(?P<a>\d+)"),
        # AG, the driver
        ("ag_start", r".*Starting async \w+ training with buffer_size=(?P<a>\d+), max_age=(?P<b>\d+) steps"),
        ("header", r"=+ Step (?P<a>\d+)/(?P<b>\d+) =+$"),
        ("results", r"📊 Training Results:"),
        ("age", r"\s*• Avg Trajectory Age: (?P<x>[\d.]+) steps"),
        ("logged", r"Logged data to .*train_data_step(?P<a>\d+)\.jsonl$"),
        ("wait", r"\s*(?P<text>Wait iteration \d+: buffer_size=\d+, step (?P<a>\d+) ready=False)"),
        ("ag_end", r"Async \w+ training complete!"),
        # both
        ("logdir", r"📊 Using log directory: (?P<text>\S.*)$"),
        ("config", r"(?P<text>.*(?:AsyncRLConfig\(|AsyncGRPOConfig\(|async_grpo=|'async_grpo': |'async_rl': ).*)$"),
    )
)
_TELLING: Final = (
    r"Error generating|SingleControllerActor: s|_sync_w|evicted |aborted |step_metrics|train step|prompt idx=|"
    r"promoting|exposed_g|"
    r"Total step|replay|r restored: |ollout ?[sS]tall|train_pump|Timeout has|SC run|Traceback|ray::S|"
    r"ReplayBuffer state|current_weight_v|self\.traj|Evicting|Selected counts|Consumed and|STALLING|older than min|"
    r"Remov(?:ed|ing) \d|Updated weight|pending generation|batch worker|Starting async|=== Step |Training Results|"
    r"Trajectory Age|Logged data|ready=False|training complete|log directory|async_grpo|async_rl|Async(?:RL|GRPO)Config"
)
"""What every line that matters contains somewhere."""
_METRICS: Final = re.compile(
    r"global_valid_(?:toks|seqs)$|(?:evicted|aborted)_stale_\w+_groups$|(?:dropped|promoted|replaced)_prompt_groups$"
    r"|num_masked_seqs_by_logprob_error$|(?:avg|max)_trajectory_age$|loss$"
)
BEGINS: Final = re.compile(
    rb"^(?:\x1b\[[\d;]*m)*=+ Step \d+/\d+ =+\r?$|\btrain step \d+/\d+[ \t]+trainer_v=", re.MULTILINE
)
"""Where a console may be cut: results mean the step in the last line of this kind. What else a line means beside
earlier ones, ``carried`` restores."""
_TRAINING: Final = {"step", "metrics", "closing", "selected", "consumed"}
_FATES: Final = {"evicted", "aborted", "evicting"}
_HARMLESS: Final = {"updated", "wait", "waiting", "time", "waited", "in_flight", "drain", "age"}


def worth_keeping(name: str) -> bool:
    """Whether a metric of a step (without ``train/``) says something the audit uses or compares."""
    return _METRICS.match(name) is not None


def read_console(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage the telling lines of a piece of a console log; report what is folded, damaged or cut."""
    reader = _Reader(piece.source, run.file(piece.source).name, sink)
    rows: list[Row] = []
    try:
        for line, raw, cut in telling_lines(run, piece, _TELLING):
            rows.extend(reader.read(line, raw, cut))
            if len(rows) >= 1 << 16:
                sink.write("nemo_lines", pl.DataFrame(rows, schema=LINES))
                rows = []
    except DamagedStream as damage:
        sink.diagnose(
            "error",
            "damaged-log",
            f"From line {damage.line} on the log is damaged ({damage}); restore the file.",
            source=piece.source,
            line=damage.line,
            opens="training",
        )
    rows.extend(reader.left())
    if rows:
        sink.write("nemo_lines", pl.DataFrame(rows, schema=LINES))


def carried(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of all pieces, in their order, as one reader of the whole logs would have staged them."""
    headers: dict[str, int] = {}
    listed: dict[tuple[str, int | None], str] = {}
    sizes: dict[tuple[str, int | None], int] = {}
    for row in rows:
        kind, buffer = row["kind"], (row["source"], row["pid"])
        if kind == "header":
            if headers.get(row["source"]) == row["a"]:
                continue
            headers[row["source"]] = row["a"]
        elif kind == "listed":
            listed[buffer] = row["text"]
            continue
        elif kind == "selected":
            left = listed.pop(buffer, "")
            row["text"] += left if row["d"] is None else ""
        elif kind == "consumed":
            sizes[buffer] = row["c"]
        elif kind == "state":
            size = None if row["text"] is None else len(numbers(row["text"].split("|")[0]))
            before = sizes.get(buffer)
            if size is None:
                size = (before or 0) + 1
            elif before is not None and size == before + 1:
                row["text"] = None
            sizes[buffer] = size
        yield row


class _Reader:
    """Keeps what a line means only beside earlier ones: the step the driver is at, the buffer's size and listing."""

    def __init__(self, source: str, name: str, sink: Sink) -> None:
        self._source = source
        self._sink = sink
        found = worker(name)
        self._pid = found[1] if found else None
        self._header: int | None = None
        self._size: dict[int | None, int] = {}
        self._listed: dict[int | None, tuple[int, str]] = {}
        self._known: set[int | None] = set()  # whose listing this piece has told

    def read(self, number: int, raw: str, cut: bool) -> Iterator[Row]:
        """Yield the row of a line, if it says something."""
        line = undecorate(raw)
        told = _MESSAGES.match(line.text)
        if told is None:
            return
        kind, groups = told
        if cut and not _whole(kind, line.text):
            self._sink.diagnose(
                "note", "cut-line", "The log ends inside a line, which was left out.", source=self._source, line=number
            )
            if kind != "step":
                return
        pid = line.pid if line.pid is not None else self._pid
        row: Row = {"source": self._source, "line": number, "pid": pid, "kind": kind}
        for name, value in groups.items():
            if name in LINES and value is not None:
                row[name] = _number(name, value)
                if row[name] is None and name != "x":
                    self._sink.diagnose(
                        "error",
                        "number-damaged",
                        "A number of this line is beyond any step, version or count; the line was left out.",
                        source=self._source,
                        line=number,
                        opens="training",
                    )
                    return
        if cut and kind == "step":
            row["d"] = None  # the lag may go on
        if line.repeated > 1:
            self._folded(kind, number, line)
        if self._complete(row, groups, number):
            yield row

    def left(self) -> Iterator[Row]:
        """Yield listings that nothing in the piece came back to."""
        for pid, (line, text) in self._listed.items():
            yield {"source": self._source, "line": line, "pid": pid, "kind": "listed", "text": text}

    def _complete(self, row: Row, groups: Mapping[str, str | None], number: int) -> bool:
        """Fill in what needs memory; return whether the row is kept."""
        kind, pid = row["kind"], row["pid"]
        if kind == "listed":
            self._listed[pid] = (number, row["text"])
            self._known.add(pid)
            return False
        if kind == "traceback":
            return pid is None  # an actor may go on after one
        if kind == "header":
            if row["a"] == self._header:
                return False
            self._header = row["a"]
        elif kind in {"results", "age"}:
            row["a"] = self._header
        elif kind == "selected":
            row["text"] = f"{row['text']}|{self._listed.pop(pid, (0, ''))[1]}"
            row["d"] = 1 if pid in self._known else None
        elif kind == "consumed":
            self._size[pid] = row["c"]
        elif kind == "state":
            return self._state(row, str(groups["versions"]), str(groups["targets"]))
        elif kind == "metrics":
            return self._metrics(row, number)
        elif kind == "config":
            settings = from_repr(row["text"])
            row["text"] = as_json(settings)
            return bool(settings)
        return True

    def _state(self, row: Row, listed: str, targeted: str) -> bool:
        versions, targets = numbers(listed), numbers(targeted)
        if not versions or len(versions) != len(targets):
            return False
        expected = self._size.get(row["pid"])
        self._size[row["pid"]] = len(versions)
        row |= {"b": versions[-1], "c": targets[-1]}
        if expected is None or len(versions) != expected + 1:
            row["text"] = f"{listed}|{targeted}"
        return True

    def _metrics(self, row: Row, number: int) -> bool:
        values = parse_dict(row["text"])
        if values is None:
            self._sink.diagnose(
                "warning",
                "damaged-metrics",
                "A step's metrics are not readable; its tokens are taken from TensorBoard, if that is there.",
                source=self._source,
                line=number,
            )
        kept = {
            name: value
            for name, value in (values or {}).items()
            if worth_keeping(name) and isinstance(value, int | float) and is_figure(value)
        }
        row["text"] = orjson.dumps(kept).decode()
        return True

    def _folded(self, kind: str, number: int, line: ConsoleLine) -> None:
        if kind in _HARMLESS:
            return
        opens = "training" if kind in _TRAINING else "fates" if kind in _FATES else None
        self._sink.diagnose(
            "warning",
            "folded-lines",
            f"Ray has folded {line.repeated} lines into one, so that they can't be counted; set RAY_DEDUP_LOGS=0.",
            source=self._source,
            line=number,
            opens=opens,  # type: ignore[arg-type]
        )


def _whole(kind: str, text: str) -> bool:
    """Whether the unterminated last line of a file can't go on."""
    if kind in {"results", "ag_end", "drained", "timeout"}:
        return True
    return text.endswith("  ") if kind == "step" else text.rstrip().endswith((")", "]", "}", "="))


def _number(name: str, value: str) -> int | float | str | None:
    if name == "text":
        return value
    try:
        number = float(value) if name == "x" else int(value)
    except ValueError:
        return None
    return number if abs(number) <= _LARGEST else None


def numbers(text: str) -> list[int]:
    """Read ``1, 2, 3``."""
    return [int(part) for part in text.split(",") if _WHOLE.fullmatch(part)]
