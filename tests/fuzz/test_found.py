"""What fuzzing has found: one damaged value each, in a recorded run cut short, after which no parser kept its promises.

Each row names a format, a recorded case, a file of it, and what stands in it instead of what was recorded there.
"""

from __future__ import annotations

import fnmatch
import io
import json
import re
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from staleness_parsers.verl import fully_async

from fuzz.framing import event_record, event_records
from fuzz.targets import bench, read_changed

Change = Callable[[bytes], bytes]


def text(old: str, new: str, times: int = 1) -> Change:
    """Another text, where it comes first."""

    def changed(body: bytes) -> bytes:
        assert old.encode() in body
        return body.replace(old.encode(), new.encode(), times)

    return changed


def every(key: str, new: object) -> Change:
    """Another number for a key of JSON wherever it is."""

    def changed(body: bytes) -> bytes:
        put, times = re.subn(rb'("%s[^"]*": )[-\d.e]+' % key.encode(), rb"\g<1>%s" % str(new).encode(), body)
        assert times
        return put

    return changed


def event(tag: str, *, value: float | None = None, step: int | None = None, wall: float | None = None) -> Change:
    """Another number in the first record of a metric, with its checksum right."""

    def changed(body: bytes) -> bytes:
        from tensorboard.compat.proto import event_pb2

        records = list(event_records(body))
        at = next(index for index, record in enumerate(records) if tag.encode() in record)
        one = event_pb2.Event.FromString(records[at][12:-4])
        one.summary.value[0].simple_value = one.summary.value[0].simple_value if value is None else value
        one.step = one.step if step is None else step
        one.wall_time = one.wall_time if wall is None else wall
        records[at] = event_record(one.SerializeToString())
        return b"".join(records)

    return changed


def line(number: int, change: Callable[[Any], None]) -> Change:
    """Another value in a line of JSON."""

    def changed(body: bytes) -> bytes:
        lines = body.splitlines(keepends=True)
        value = json.loads(lines[number])
        change(value)
        lines[number] = json.dumps(value).encode() + b"\n"
        return b"".join(lines)

    return changed


def archived(old: bytes, new: bytes) -> Change:
    """Other operations in the pickle of a torch file."""

    def changed(body: bytes) -> bytes:
        target = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(body)) as packed, zipfile.ZipFile(target, "w") as again:
            for name in packed.namelist():
                data = packed.read(name)
                if name.endswith(".pkl"):
                    assert old in data
                    data = data.replace(old, new, 1)
                again.writestr(zipfile.ZipInfo(name), data)
        return target.getvalue()

    return changed


def steps(number: int) -> Change:
    """Another number of the step in every line of JSON."""
    return lambda body: re.sub(rb'^\{"step":\d+', b'{"step":%d' % number, body, flags=re.MULTILINE)


EVENTS, HUGE = "*tfevents*", "1" * 400
FILTERED = b"X\x0d\x00\x00\x00filtered_uids"
FOUND: list[tuple[str, str, str, Change]] = [
    # Numbers of a metric that are none, or more than there can be, and records of no step or time.
    ("skyrl", "straggler_s1_tb", EVENTS, event("async/staleness_mean", value=float("nan"))),
    ("skyrl", "straggler_s1_tb", EVENTS, event("trainer/global_step", step=2**31)),
    ("skyrl", "straggler_s1_tb", EVENTS, event("trainer/global_step", step=2**62)),
    ("skyrl", "straggler_s1_tb", EVENTS, event("async/staleness_mean", wall=1e300)),
    ("skyrl", "straggler_s1_tb", EVENTS, event("generate/avg_num_tokens", value=2.0)),
    ("slime", "fully_async_killed_in_training", EVENTS, event("perf/train_wait_time", wall=1e300)),
    ("openrlhf", "q1-oversample", EVENTS, event("train/timing/make_experience", value=float("inf"))),
    ("openrlhf", "q1-oversample", EVENTS, event("train/rollout/response_length_mean", value=1e30)),
    # A number in a console: lines up to it would be missing.
    ("slime", "fully_async_longtail_console_only", "console.log", text("rollout 3:", f"rollout {HUGE}:")),
    # Digits of a count beyond 64 bits, and more than Python reads.
    ("psrl", "default-level", "*/v0/0.txt", text("assistant: ", f"assistant: {HUGE}")),
    ("psrl", "default-level", "*/v0/0.txt", text("assistant: ", "assistant: " + "1" * 5000)),
    # Other things in a dump than a parser looks for.
    (
        "skyrl",
        "straggler_s1",
        "*/fully_async_state.pt",
        archived(b"X\x0d\x00\x00\x00filtered_uids", b"]X\x00\x00\x00\x00"),
    ),
    # A line of JSON without a key, or with the number of another.
    ("verl", "v1_sep_drop_t4", "demo/*.jsonl.gz", line(1, lambda value: value.pop("step"))),
    # Thousands of digits in text that is read as a number, which Python refuses to do.
    ("nemo-rl", "sc-ready_first-violation", "*ray-driver.log", text("exp_0", "exp_" + "1" * 5000, 100)),
    ("nemo-rl", "async_grpo-age1-drain", "*ray-driver.log", text("versions=[", "versions=[" + "1" * 5000 + ", ", 100)),
    # JSON's true where a whole number belongs: Python takes it for 1, the tables do not.
    (
        "areal",
        "spmd_reject_fail_eval_resume",
        "*perf_tracer/*/traces-r0.jsonl",
        text('"rank": 0', '"rank": true', 1000),
    ),
    ("areal", "spmd_reject_fail_eval_resume", "*/rollout/0/0.jsonl", line(1, lambda value: value.update(task_id=2))),
    # A line that says it is the minus infinite one, twice.
    ("events", "kept_bound1", "*.jsonl", text('"n": ', '"n": -1e400, "": ', times=2)),
    # A threshold that is none.
    (
        "verl",
        "v1_sep_drop_t4",
        "*/.hydra/config.yaml*",
        text("max_off_policy_threshold: ", "max_off_policy_threshold: -"),
    ),
    # Steps that trained nothing.
    ("trl", "budget-ga1-s2", "*/trainer_state.json", every("batch/samples_per_step", 0)),
    # Numbers of steps that no table holds.
    ("roll", "agentic_native", "*worker_state*", every("system/step", 2**31)),
    ("roll", "rlvr_extra", "*worker_state*", every("system/step", 10**400)),
]


@pytest.mark.parametrize("index", range(len(FOUND)), ids=lambda index: f"{FOUND[index][0]}-{index}")
def test_what_was_found_is_read_as_promised(index: int) -> None:
    name, case, pattern, change = FOUND[index]
    around = bench(name, case)
    file = next(file for file in around.small.files if fnmatch.fnmatch(file, pattern))
    read_changed(around, name, file, change(around.small.content(file)))


def test_micro_steps_of_which_nothing_is_left_are_not_all_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All records say version 1,000,000, before which there were 2,000,000 micro-steps: minutes, and gigabytes."""
    monkeypatch.setattr(fully_async, "_FARTHEST", 100)
    around = bench("verl", "fa_theta0.5_trig2_partial")
    file = next(file for file in around.small.files if fnmatch.fnmatch(file, "demo/*.jsonl.gz"))
    read_changed(around, "verl", file, steps(10**6)(around.small.content(file)))
