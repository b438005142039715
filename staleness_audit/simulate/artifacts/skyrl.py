"""SkyRL's fully async trainer: its console, with the configuration, the phases of each step and what it tracks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from pprint import pformat
from typing import Any

import yaml

from staleness_audit.simulate.artifacts.story import Run, Step

BEGAN = datetime(2026, 1, 1)
PREFIX = "(skyrl_entrypoint pid=77) "
CONVERT = "fully_async_trainer:convert_generation_group_mini_batch_to_training_input"
EPOCH = 100_000
"""Steps of an epoch, more than any run has."""
TIMED = "utils.metrics:timed_phase"


def write(run: Run, folder: Path) -> None:
    """Write ``console.log`` (the SkyRL guide, 5).

    Steps count from 1. A simulated run ends in the middle of an epoch, with groups in flight, so the log just stops.
    What the framework calls the staleness of a group is the age of its admission.

    Raises:
        OSError: it can't be written.
    """
    lines = [line for at, where, text in _told(run) for line in _record(at, where, text)]
    (folder / "console.log").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _record(at: float, where: str, text: str) -> Iterator[str]:
    stamp = (BEGAN + timedelta(seconds=at)).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    level = "WARNING" if text.startswith("Staleness control violated") else "INFO"
    first, *rest = text.split("\n")
    yield f"{PREFIX}{stamp} | {level:<8} | skyrl.train.{where}:42 - {first}"
    for line in rest:
        yield PREFIX + line


def _told(run: Run) -> Iterator[tuple[float, str, str]]:
    """What is said: when, by which module, what."""
    setup = "fully_async_trainer:__init__"
    yield 0.0, "entrypoints.main_base:_setup_trainer", yaml.safe_dump(_config(run)).rstrip()
    yield 0.0, setup, f"Length of train_dataloader: {EPOCH * run.groups_per_step}"
    yield 0.0, setup, f"Number of steps per epoch: {EPOCH}"
    yield 0.0, "trainer:load_checkpoints", "No checkpoint found, starting training from scratch"
    for step in run.steps:
        yield from _step(run, step)


def _step(run: Run, step: Step) -> Iterator[tuple[float, str, str]]:
    began, ended = step.started, step.ended
    ages = _ages(step)
    for phase, start, end in (
        ("step", began - step.waited, None),
        ("wait_for_generation_buffer", began - step.waited, began),
        ("convert_to_training_input", began, None),
    ):
        yield start, TIMED, f"Started: '{phase}'"
        if end is not None:
            yield end, TIMED, f"Finished: '{phase}', time cost: {end - start:.2f}s"
    for age in ages:
        if age > run.knobs["max_staleness_steps"]:
            warning = f"Staleness control violated despite using AsyncStalenessManager: cur_staleness={age}, "
            yield began, CONVERT, f"{warning}max_staleness_steps={run.knobs['max_staleness_steps']}."
    yield began, CONVERT, "Example generated: words"
    yield (
        began,
        "trainer:convert_to_training_input",
        f"batch_num_seq: {len(step.batch)}, batch_padded_seq_len: {max(map(len, (t.tokens for t in step.batch)))}",
    )
    yield began, TIMED, "Finished: 'convert_to_training_input', time cost: 0.00s"
    yield began, TIMED, "Started: 'run_training'"
    yield ended, TIMED, f"Finished: 'run_training', time cost: {ended - began:.2f}s"
    yield ended, TIMED, "Started: 'sync_weights'"
    yield ended, TIMED, "Finished: 'sync_weights', time cost: 0.00s"
    yield ended, TIMED, f"Finished: 'step', time cost: {ended - began + step.waited:.2f}s"
    shown = {key: f"{value:.4f}" if isinstance(value, float) else value for key, value in _metrics(run, step).items()}
    yield ended, "utils.tracking:log", f"Step {step.number + 1}: \n{pformat(shown)}"


def _ages(step: Step) -> list[int]:
    """The age of each group's admission, in the order of the batch."""
    return [step.number - admitted for admitted in {t.group: t.admitted for t in step.batch}.values()]


def _metrics(run: Run, step: Step) -> dict[str, Any]:
    ages, lengths = _ages(step), [trajectory.made() for trajectory in step.batch]
    bound = run.knobs["max_staleness_steps"]
    return {
        "async/gen_buffer_qsize_at_wait_start": 0,
        "async/staleness_mean": sum(ages) / len(ages),
        "async/staleness_max": max(ages),
        "async/staleness_min": min(ages),
        "async/staleness_ratio": sum(age > 0 for age in ages) / len(ages),
        "async/staleness_violation_count": sum(age > bound for age in ages),
        "generate/avg_assistant_tokens": sum(lengths) / len(lengths),
        "generate/min_assistant_tokens": min(lengths),
        "generate/max_assistant_tokens": max(lengths),
        "generate/batch_num_seq": len(lengths),
        f"reward/avg_pass_at_{run.group_size}": 0.5,
        "trainer/epoch": 0,
        "trainer/global_step": step.number + 1,
    }


def _config(run: Run) -> dict[str, Any]:
    bound, groups = run.knobs["max_staleness_steps"], run.groups_per_step
    workers = run.knobs["num_parallel_generation_workers"] or groups * (bound + 1)
    fully_async = {
        "enabled": True,
        "max_staleness_steps": bound,
        "num_parallel_generation_workers": workers,
        "sample_full_batch": False,
    }
    return {
        "generator": {
            "apply_overlong_filtering": False,
            "inference_engine": {"max_num_seqs": 1024, "num_engines": 1},
            "n_samples_per_prompt": run.group_size,
            "step_wise_trajectories": False,
        },
        "trainer": {
            "algorithm": {"zero_variance_filter": False},
            "epochs": 1,
            "fully_async": fully_async,
            "logger": "console",
            "policy_mini_batch_size": groups,
            "train_batch_size": groups,
        },
    }
