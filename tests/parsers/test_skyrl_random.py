"""SkyRL: random batches with known ages, written as the framework would; the truth is always inside of what is said."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from skyrl_run import Console, audited, batch_pickle, config, event_file, metrics


def batch(random_: random.Random, bound: int, groups: int, top: int) -> list[tuple[int, int]]:
    """Reported and true age of each group: one less where it began after a sync."""
    ages = [min(random_.choice([0, 1, 1, bound, bound + 1, bound + 2, top]), top) for _ in range(groups)]
    return [(age, age - (age > 0 and random_.random() < 0.3)) for age in ages]


def inside(value: float, interval: dict[str, Any]) -> bool:
    return (interval["lo"] or 0) <= value <= (float("inf") if interval["hi"] is None else interval["hi"])


@pytest.mark.parametrize("seed", range(8))
def test_the_truth_is_always_inside(seed: int, tmp_path: Path) -> None:
    random_ = random.Random(seed)
    bound, groups, samples = random_.choice([0, 1, 2, 4]), random_.choice([1, 3, 4, 6]), random_.choice([1, 2, 3])
    source = ("metrics", "dumps", "events", "alone")[seed % 4]
    masks = source in ("metrics", "dumps") and seed % 8 >= 4
    settings = config(
        bound,
        groups,
        samples,
        zero_variance_filter=masks,
        logger="console" if source in ("metrics", "dumps") else "tensorboard",
    )
    log = Console(bound=bound, samples=samples).launch(settings, per_epoch=6)
    files: dict[str, str | bytes] = {}
    events, trained, worst_groups = [], [], []
    masked_count = 0
    for step in range(1, 7):
        ages = batch(random_, bound, groups, step - 1)
        tokens = [[random_.randint(1, 12) for _ in range(samples)] for _ in ages]
        flat = [item for row in tokens for item in row]
        masked = {index for index in range(groups) if masks and random_.random() < 0.3}
        numbers = {
            "generate/avg_assistant_tokens": sum(flat) / len(flat),
            "generate/min_assistant_tokens": min(flat),
            "generate/max_assistant_tokens": max(flat),
        }
        if masks:
            numbers["reward/num_zero_variance_filtered"] = len(masked)
        reported = [age for age, _ in ages]
        log.step(step, reported, more=numbers, logged=source in ("metrics", "dumps"))
        values = metrics(step, reported, bound, samples, **numbers)
        values.pop("policy/final_loss")
        events.append((step, values))
        left = [[0] * samples if index in masked else row for index, row in enumerate(tokens)]
        if source == "dumps":
            files[f"dumped_data/global_step_{step}_training_input.pkl"] = batch_pickle(left, width=13)
        for index, (_, true) in enumerate(ages):
            if index not in masked:
                trained += [(true, count) for count in left[index]]
                worst_groups.append(true)
        masked_count += len(masked) * samples
    if source != "alone":
        files["console.log"] = log.done(6).text
    if source in ("events", "alone"):
        files["tb/events.out.tfevents.1.a"] = event_file(events)
    data = audited(tmp_path, files, bound)
    assert inside(len(trained) + masked_count, data["trajectories"]["trained"])
    if source != "alone":
        assert data["trajectories"]["trained"]["lo"] == data["trajectories"]["trained"]["hi"]
    if source != "metrics" or not masks:
        assert data["tokens"]["trained"] == {"lo": sum(n for _, n in trained), "hi": sum(n for _, n in trained)}
    assert inside(sum(n for _, n in trained), data["tokens"]["trained"])
    over = [age for age, _ in trained if age > bound]
    assert inside(len(over), data["violations"]["trajectories"])
    assert inside(sum(age > bound for age in worst_groups), data["violations"]["groups"])
    assert inside(max((age for age, _ in trained), default=0), data["staleness"]["max"])
    counts = Counter(age for age, _ in trained)
    rows = {row["staleness"]: row["trajectories"] for row in data["staleness"]["trajectory_histogram"]}
    assert all(inside(count, rows.get(age, {"lo": 0, "hi": 0})) for age, count in counts.items())
    assert data["verdict"] != ("pass" if over else "fail")
    assert not [item for item in data["diagnostics"]["items"] if item["severity"] != "note"]
