"""A small engine that follows the guide's rules at random and remembers the version of every token it makes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from dryrun_logs import Logs, tables


class Engine:
    """Admits, generates and trains at random on ``instances`` instances; ``made`` holds a version per token."""

    def __init__(self, run: Path, seed: int, instances: int) -> None:
        self.random = random.Random(seed)
        self.logs = Logs(run)
        self.instances = instances
        self.t, self.k, self.version = 0.0, 0, 0
        self.targets: dict[int, int] = {}
        self.made: dict[int, list[int]] = {}
        self.live: list[int] = []
        self.ready: list[int] = []

    def admit(self, count: int) -> None:
        for _ in range(count):
            rid = len(self.targets)
            self.targets[rid], self.made[rid] = self.random.randint(1, 30), []
            self.logs.admit(self.t, rid, self.targets[rid], self.version, rid % self.instances)
            self.live.append(rid)

    def occupancy(self) -> None:
        for instance in range(self.instances):
            mine = {rid: len(self.made[rid]) for rid in self.live if rid % self.instances == instance}
            self.logs.occupancy(self.t, mine, instance=instance)

    def versions(self, rid: int) -> tuple[int, int]:
        made = self.made[rid]
        return (made[0], made[-1]) if made else (int(str(self.logs.admitted[rid]["v_traj"])),) * 2

    def generate(self) -> None:
        self.t += self.random.random() + 0.01
        for rid in [*self.live]:
            if self.random.random() < 0.7:  # the others wait, or are prefilled again
                room = self.targets[rid] - len(self.made[rid])
                self.made[rid] += [self.version] * min(self.random.randint(1, 5), room)
            if len(self.made[rid]) == self.targets[rid]:
                self.live.remove(rid)
                self.ready.append(rid)
                self.logs.complete(self.t, rid, self.targets[rid], self.versions(rid))
        self.occupancy()

    def train(self, batch: int) -> None:
        taken, self.ready = self.ready[:batch], self.ready[batch:]
        start = self.t
        for rid in taken:
            self.logs.consume(start, rid, self.k, self.targets[rid], self.versions(rid))
        self.k = self.version = self.k + 1
        if self.random.random() < 0.5:
            self.occupancy()
        self.admit(self.random.randint(0, 2 * batch))
        self.occupancy()
        tokens = sum(10 + self.targets[rid] for rid in taken)
        self.logs.train(self.k - 1, start, start + 0.001, tokens, batch)

    def run(self, steps: int, batch: int = 2) -> dict[str, list[int]]:
        self.admit(3 * batch)
        self.occupancy()
        while self.k < steps:
            self.generate()
            if len(self.ready) >= batch and self.random.random() < 0.5:
                self.train(batch)
            elif not self.live:
                self.admit(batch)
        self.generate()
        return {str(rid): made for rid, made in self.made.items()}


def check(data, truth: dict[str, list[int]]) -> int:
    """Assert that the spans of every request can be its tokens; return the number of spans that are intervals."""
    found: dict[str, list[dict]] = {}
    for row in data.scan("spans").sort("trajectory_id", "span_index").collect().to_dicts():
        found.setdefault(row["trajectory_id"], []).append(row)
    wide = 0
    for rid, made in truth.items():
        start = 0
        for span in found.get(rid, []):
            exact = span["tokens_lo"] == span["tokens_hi"]
            assert exact or span is found[rid][-1]
            stop = start + span["tokens_lo"] if exact else len(made)
            assert span["tokens_lo"] <= stop - start <= span["tokens_hi"]
            assert all(span["version_lo"] <= version <= span["version_hi"] for version in made[start:stop]), (rid, span)
            wide += not exact or span["version_lo"] != span["version_hi"]
            start = stop
        assert start == len(made), rid
    return wide


@pytest.mark.parametrize("seed", range(6))
def test_every_token_of_a_random_run_gets_its_version(tmp_path, seed):
    truth = Engine(tmp_path, seed, instances=1 + seed % 3).run(12)
    assert check(tables(tmp_path), truth) == 0


@pytest.mark.parametrize("seed", range(6))
def test_with_rows_missing_at_random_the_truth_stays_inside(tmp_path, seed):
    engine = Engine(tmp_path, seed, instances=1 + seed % 3)
    truth = engine.run(12)
    lost = random.Random(seed)
    for stream in (engine.logs.logs / "instance").iterdir():
        stream.write_text("".join(line if lost.random() < 0.6 else "lost\n" for line in stream.open()))
    assert check(tables(tmp_path), truth) > 0


def test_two_random_runs_in_one_folder_do_not_mix(tmp_path):
    truth = {}
    for attempt in range(2):
        made = Engine(tmp_path, 10 + attempt, instances=2).run(6)
        truth |= {f"{attempt}/{rid}": versions for rid, versions in made.items()}
    assert check(tables(tmp_path), truth) == 0
