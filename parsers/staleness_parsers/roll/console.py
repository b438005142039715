"""Console logs, and the metrics that the console, checkpoints and TensorBoard repeat (guide sections 5.6 to 5.8).

A message follows the logger's prefix, wherever on the line that stands: progress bars end without a newline. Times are
local and name no zone, so they order lines and date nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import polars as pl

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.config import UnreadableConfig, parse_printed, read_config
from staleness_audit.readers.console import number_of, undecorate
from staleness_audit.readers.lines import DamagedStream, numbered_lines
from staleness_audit.readers.numbers import is_figure
from staleness_audit.readers.records import DamagedRecords
from staleness_audit.readers.scalars import read_scalars
from staleness_parsers.roll.settings import settings_rows

LINES: Final[dict[str, Any]] = {
    "kind": pl.String,
    "step": pl.Int64,
    "value": pl.Int64,
    "text": pl.String,
    "time": pl.String,
    "source": pl.String,
    "line": pl.Int64,
}
METRICS: Final[dict[str, Any]] = {
    "step": pl.Int64,
    "name": pl.String,
    "value": pl.Float64,
    "source": pl.String,
    "line": pl.Int64,
    "locator": pl.String,
}
UPDATE: Final = "time/step_model_update"
SHRINK: Final = "time/step_shrink"
PUSH: Final = "time/actor_train/model_update/total"
STEPS: Final = ("system/global_step", "system/step")
"""Metrics that hold the step in rows of W&B."""
_PREFIX = re.compile(
    r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] \[[\w.]+\.py \(\d+\)\] \[\w+\] \[[^\]]*\]\[PID \d+\] ?"
)
_WANTED = re.compile(
    r"(?:time/step_model_update|time/step_shrink|time/actor_train/model_update/total|[^/]+/scheduler/off_policy_ratio|scheduler/off_policy_ratio"
    r"|mask/final_mask_sum_eq_0|system/batch_size|[^/]+/actor/samples_(?:used|total)|scheduler/group_filter_count"
    r"|system/batch_(?:add|remove)_count|system/(?:global_)?step)\Z"
)
_MESSAGES: Final = tuple(
    (kind, word, re.compile(pattern))
    for kind, word, pattern in (
        ("start", " start", r"pipeline (?:rollout global )?step (?P<step>\d+) start"),
        ("finished", " finished", r"pipeline step (?P<step>\d+) finished"),
        ("complete", "complete!", r"pipeline complete!"),
        ("waiting", "start sampling", r"start sampling, global_step=(?P<step>\d+) batch_size=(?P<value>\d+)"),
        (
            "taking",
            "get_batch",
            r"ReplayBuffer get_batch: self\.current_step=(?P<step>\d+) min_step=(?P<value>-?\d+) "
            r"expected_samples=(?P<text>\d+.*)",
        ),
        ("taken", "total collect", r"total collect data: (?P<value>\d+), collect queries: (?P<text>\d+)"),
        ("filtered", "filter out prompt", r"filter out prompt (?P<value>\d+)"),
        (
            "ignored",
            "ignore rollout",
            r"ignore rollout, current_step\((?P<step>\d+)\) - create_step\((?P<value>\d+)\) exceed "
            r"async_generation_ratio\(\d+\) (?P<text>group\.group_id=.*)",
        ),
        ("mocked", "[RolloutMock]", r"\[RolloutMock\] Loaded step (?P<step>\d+)"),
        ("skipped", "final_response_mask", r"Warning: final_response_mask\.sum\(\) == 0! Current step will be skipped"),
        ("old", "start async sampling", r"start async sampling, global_step: (?P<step>\d+)"),
        ("deleted", "randomly delete", r"randomly delete (?P<value>\d+) prompt_ids from step: (?P<step>\d+)"),
        ("resumed", "resume_from_checkpoint", r"resume_from_checkpoint: (?P<text>.*checkpoint-(?P<step>\d+).*)"),
    )
)
"""Each kind of message, a word it holds, and its pattern."""
_TELLING = re.compile(
    "|".join(map(re.escape, (*(word for _, word, _ in _MESSAGES), "metrics_tag: {", '"system/', "-- merged")))
)
"""What every line that matters contains once the configuration is read."""
_STEP: Final = re.compile(r"pipeline (?:rollout global )?step \d+ start")
BEGINS: Final = re.compile(_STEP.pattern.encode())
"""A step begins: no printed configuration goes on beyond, so that nothing before it matters."""
PIECE_BYTES: Final = 4 << 20
"""Bytes of a piece of a log, at most: of one that grows the last piece is read again at each look."""
_OWN_SETTING = re.compile(
    r"(?:async_generation_ratio|rollout_batch_size|actor_train|actor_infer|rpc_timeout|exp_name):"
)
_MAX_LINES: Final = 20_000
_SETTING = re.compile(r"[A-Za-z_]\w*:(?: |$)")


def read_console(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage ``lines`` (messages that matter), ``metrics`` and ``settings`` of a piece of a captured log."""
    lines: list[dict[str, Any]] = []
    metrics: list[dict[str, Any]] = []
    block = _Block(piece.source, sink)
    try:
        for number, raw, cut in numbered_lines(run, piece):
            if block.state != "passed" and _STEP.search(raw):
                block.end()
                block.state = "passed"
            if block.state == "passed" and not _TELLING.search(raw):
                continue
            for part in raw.split("\r"):
                text = undecorate(part).text
                prefix = _PREFIX.search(text)
                block.line(text, number, logged=prefix is not None)
                message = text[prefix.end() :] if prefix else text
                if not cut:
                    metrics.extend(_metrics(message, piece.source, number, sink))
                found = _message(message)
                if found and not cut:
                    lines.append({**found, "time": prefix and prefix["time"], "source": piece.source, "line": number})
    except DamagedStream as damage:
        message = f"From here on the log is damaged ({damage}); restore the file."
        sink.diagnose("error", "damaged-file", message, source=piece.source, line=damage.line, opens="training")
    block.end()
    if lines:
        sink.write("lines", pl.DataFrame(lines, schema=LINES))
    if metrics:
        sink.write("metrics", pl.DataFrame(metrics, schema=METRICS))


def _message(text: str) -> dict[str, Any] | None:
    for kind, word, pattern in _MESSAGES:
        if word in text and (found := pattern.search(text)):
            groups = found.groupdict()
            numbers = {name: number_of(groups[name]) if groups.get(name) else None for name in ("step", "value")}
            return {"kind": kind, **numbers, "text": groups.get("text")}
    return None


class _Block:
    """The printed configuration: RLVR's YAML at the head up to an empty line, or agentic's between two headlines.

    A warning may look like a setting, so that what comes before an empty line is only believed if it has this
    framework's keys; lines of other processes in between are left out.
    """

    def __init__(self, source: str, sink: Sink) -> None:
        self.source, self.sink = source, sink
        self.kept: list[str] = []
        self.first = 0
        self.state = "head"

    def line(self, text: str, number: int, *, logged: bool) -> None:
        if "------ merged & post-init ------" in text:
            self.state, self.kept, self.first = "agentic", [], number
        elif "====== End Config ======" in text and self.state == "agentic":
            self.end(whole=True)
        elif self.state == "agentic":
            self.kept.append(text)
        elif self.state == "head" and not self.kept:
            if logged:
                self.state = "passed"
            elif _SETTING.match(text):
                self.kept, self.first = [text], number
        elif self.state == "head" and not text.strip():
            self.end(whole=True)
        elif self.state == "head" and not logged and len(self.kept) < _MAX_LINES:
            self.kept.append(text)

    def end(self, *, whole: bool = False) -> None:
        """Stage what was printed; ``whole``: its end was seen, so that a key it lacks has its default."""
        kept, self.kept = self.kept, []
        if not kept or (self.state == "head" and not any(_OWN_SETTING.match(text) for text in kept)):
            return
        self.state = "passed"
        try:
            config = parse_printed(kept)
        except UnreadableConfig as error:
            message = f"The printed configuration cannot be read ({error}); give its keys with --assume."
            self.sink.diagnose("warning", "bad-config", message, source=self.source, line=self.first)
            return
        settings_rows(config, self.source, self.first, self.sink, whole=whole)


def _metrics(text: str, source: str, line: int, sink: Sink) -> Iterator[dict[str, Any]]:
    at = text.find("metrics_tag: {")
    body = text[at + len("metrics_tag: ") :] if at >= 0 else text
    if at < 0 and not (text.startswith('{"') and '"system/' in text):
        return
    try:
        value = json.loads(body)
    except ValueError:
        message = "The line of metrics is no JSON; it was passed over."
        sink.diagnose("warning", "bad-metrics", message, source=source, line=line)
        return
    metrics = value.get("metrics") if at >= 0 else value
    if isinstance(metrics, dict):
        yield from metric_rows(metrics, value.get("step") if at >= 0 else None, source, line)


def metric_rows(
    metrics: Mapping[str, Any], step: Any, source: str, line: int | None, locator: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the wanted metrics of one step; ``step`` None: as the metrics say themselves."""
    plain = {key.split("@", 1)[0]: value for key, value in metrics.items()}
    for key in ("system/global_step", "system/step"):
        step = plain.get(key) if step is None else step
    if not isinstance(step, int | float) or isinstance(step, bool) or not is_figure(step) or step != int(step):
        return
    for name, value in plain.items():
        if _WANTED.match(name) and isinstance(value, int | float) and is_figure(value):
            yield {
                "step": int(step),
                "name": name,
                "value": float(value),
                "source": source,
                "line": line,
                "locator": locator,
            }


def read_state(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage ``metrics`` of a checkpoint's history, one entry per step since the first."""
    try:
        history = read_config(run, piece.source).get("log_history")
    except UnreadableConfig as error:
        message = f"The metric history cannot be read: {error}."
        sink.diagnose("warning", "bad-metrics", message, source=piece.source)
        return
    rows: list[dict[str, Any]] = []
    for index, entry in enumerate(history if isinstance(history, list) else []):
        if isinstance(entry, dict):
            rows.extend(metric_rows(entry, None, piece.source, None, f"log_history[{index}]"))
    if rows:
        sink.write("metrics", pl.DataFrame(rows, schema=METRICS))


def read_events(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage ``metrics`` of a piece of a TensorBoard event file or an offline file of W&B."""
    rows: list[dict[str, Any]] = []
    try:
        for scalar in read_scalars(run, piece, STEPS):
            where = f"record {scalar.record}"
            rows.extend(metric_rows({scalar.tag: scalar.value}, scalar.step, piece.source, None, where))
    except DamagedRecords as damage:
        message = f"{damage}; what follows was not read."
        sink.diagnose("note" if damage.cut else "warning", "damaged-events", message, source=piece.source)
    if rows:
        sink.write("metrics", pl.DataFrame(rows, schema=METRICS))


def read_settings(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage ``settings`` of the user's YAML; with Hydra's ``defaults`` what is absent is not known."""
    try:
        config = read_config(run, piece.source)
    except UnreadableConfig as error:
        message = f"The configuration cannot be read: {error}."
        sink.diagnose("warning", "bad-config", message, source=piece.source)
        return
    settings_rows(config, piece.source, None, sink, whole="defaults" not in config)
