"""Which files of a run are ROLL's (guide section 5): by name, and where names are common by their first bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from staleness_audit.discovery import RunFile, RunFiles
from staleness_audit.readers.scalars import scalar_files

DUMP = re.compile(r"(?:.*/)?rollout_dump_data\.step_(?P<step>\d{1,9})\.jsonl\Z")
APPENDED = re.compile(r"(?:.*/)?rollout_data\.jsonl\Z")
"""Dumps of v0.1.0: a line per step in one file."""
PICKLE = re.compile(r"(?:.*/)?train/step_(?P<step>\d{6,})\.pkl\Z")
BOARD = re.compile(r"(?:.*/)?[^/]*data_\d{8}_\d{6}_\d+\.jsonl\Z")
_TRACES = re.compile(r"(?:.*/)?traces(?:\.\d+)?\.jsonl\Z")
_STATE = re.compile(r"(?:.*/)?worker_state_pipeline\.json\Z")
_SETTINGS = re.compile(r".*\.ya?ml\Z")
_TEXT = re.compile(r".*\.(?:log|txt|out|err)\Z|(?:.*/)?[^./]+\Z")
_SPAN_MARKS = (b'"pipeline_step"', b'"process_new_prompt"', b'"rollout.generate"', b'"get_batch"', b'"trajectory"')
_CONSOLE_MARKS = (
    b"[rlvr_pipeline.py",
    b"[agentic_pipeline.py",
    b"[generate_scheduler.py",
    b"[rollout_scheduler.py",
    b"[async_generate_scheduler.py",
    b"[agentic_config.py",
    b"[rlvr_config.py",
    b"metrics_tag: {",
    b"\nasync_generation_ratio:",
    b"[RolloutMock]",
    b"ReplayBuffer: self.current_step",
    b"pipeline rollout global step ",
)
_TAGS = (b"scheduler/off_policy_ratio", b"time/step_model_update", b"actor_train/model_update")


@dataclass(frozen=True)
class Survey:
    """Files by what they hold, each list in natural order."""

    traces: list[RunFile]
    dumps: list[RunFile]
    appended: list[RunFile]
    pickles: list[RunFile]
    boards: list[RunFile]
    states: list[RunFile]
    consoles: list[RunFile]
    events: list[RunFile]
    settings: list[RunFile]


def survey(run: RunFiles) -> Survey:
    """Sort the files of a run; foreign ones are left out."""

    def having(pattern: re.Pattern[str], marks: tuple[bytes, ...] = (), size: int = 1 << 20) -> list[RunFile]:
        named = (file for file in run.files if pattern.match(file.name))
        return [file for file in named if not marks or any(mark in run.head(file.source, size) for mark in marks)]

    return Survey(
        traces=having(_TRACES, (b'"resourceSpans"',), 4096),
        dumps=having(DUMP),
        appended=having(APPENDED, (b'"sampling_params"', b'"responses"'), 1 << 16),
        pickles=having(PICKLE),
        boards=having(BOARD, (b'"new_response_mask"',)),
        states=having(_STATE),
        consoles=having(_TEXT, _CONSOLE_MARKS),
        events=[file for file in scalar_files(run) if any(tag in run.head(file.source, 1 << 18) for tag in _TAGS)],
        settings=having(_SETTINGS, (b"async_generation_ratio", b"model_update_frequency", b"rollout_batch_size")),
    )


def clues(run: RunFiles, found: Survey) -> list[str]:
    """Say which files show that the run is ROLL's."""
    said = []
    for file in found.traces:
        if any(mark in run.head(file.source, 1 << 20) for mark in _SPAN_MARKS):
            said.append(f"{file.source}: OpenTelemetry spans with ROLL's names")
            break
    for listed, what in (
        (found.dumps, "a rollout dump of a step"),
        (found.appended, "rollout dumps of all steps, as v0.1.0 appends them"),
        (found.consoles, "a console log of ROLL's pipelines"),
        (found.states, "the metric history of a ROLL checkpoint"),
        (found.boards, "a board file with masks of responses"),
        (found.events, "metrics with ROLL's names"),
    ):
        if listed:
            said.append(f"{listed[0].source}: {what}")
    if found.pickles and b"roll.distributed.scheduler.protocol" in run.head(found.pickles[0].source):
        said.append(f"{found.pickles[0].source}: a pickled batch of ROLL's rollout mock")
    return said
