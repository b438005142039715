"""Write a canonical event log of any size: an asynchronous run whose admission is bounded and whose tail is long.

    python benchmarks/generate.py OUT.staleness.jsonl --trajectories 1000000 --spans 3
    python benchmarks/generate.py OUT.staleness.jsonl --tokens-listed 20000000

Trajectories come in groups of 8; a step trains 32 groups. Each trajectory is made by ``--spans`` consecutive versions
and waits 0 to 2 steps in the queue, so that its staleness is between 2 and 4 with three spans. With ``--tokens-listed``
the versions are written one per token instead, in lists of about 500. Memory use does not depend on the size.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

GROUP = 8
GROUPS_PER_STEP = 32
BATCH = GROUP * GROUPS_PER_STEP
STEP_SECONDS = 10.0


def lines(trajectories: int, spans: int, listed: int | None, seed: int) -> Iterator[str]:
    """Yield the lines of the log, numbered without gaps."""
    rng = random.Random(seed)
    number = 0

    def event(**fields: object) -> str:
        nonlocal number
        number += 1
        return json.dumps({"kind": fields.pop("kind"), "n": number, **fields}, separators=(",", ":")) + "\n"

    header = {
        "format": "staleness-events/1",
        "framework": "benchmark",
        "bound": 3,
        "config": {"groups_per_step": GROUPS_PER_STEP},
    }
    yield json.dumps({**header, "writer": "w0", "clock": "epoch"}) + "\n"
    steps = -(-trajectories // BATCH)
    for step in range(steps):
        started = 1.7e9 + step * STEP_SECONDS
        members = min(BATCH, trajectories - step * BATCH)
        loss = 0
        for index in range(members):
            group = step * GROUPS_PER_STEP + index // GROUP
            name = f"g{group}/{index % GROUP}"
            newest = max(step - rng.choice((0, 0, 0, 1, 1, 2)), spans - 1)
            oldest = max(newest - spans + 1, 0)
            newest = min(newest, max(step, 0))
            at = started - (step - oldest + 1) * STEP_SECONDS + rng.random()
            yield event(
                kind="admitted", trajectory_id=name, group_id=f"g{group}", version=min(oldest, step), ts=round(at, 3)
            )
            for nth in range(spans):
                version = min(oldest + nth, newest)
                at += rng.random() * 8
                if listed is None:
                    tokens = int(rng.lognormvariate(5.0, 1.0)) + 1
                    yield event(kind="span", trajectory_id=name, tokens=tokens, version=version, ts=round(at, 3))
                else:
                    tokens = listed // spans
                    versions = [version] * tokens
                    yield event(kind="span", trajectory_id=name, versions=versions, ts=round(at, 3))
                loss += tokens
            yield event(kind="finished", trajectory_id=name, ts=round(at, 3))
            yield event(kind="trained", trajectory_id=name, step=step)
        yield event(
            kind="step", step=step, version=step, started=round(started, 3), ended=round(started + 8.0, 3),
            trajectories=members, loss_tokens=loss,
        )  # fmt: skip
        yield event(kind="sync", version=step + 1, ts=round(started + 9.0, 3))
    yield event(kind="end")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--trajectories", type=int, default=1000)
    parser.add_argument("--spans", type=int, default=3)
    parser.add_argument(
        "--tokens-listed", type=int, metavar="TOKENS", help="one version per token, this many tokens in all"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    trajectories, listed = options.trajectories, None
    if options.tokens_listed:
        listed = 510
        trajectories = max(options.tokens_listed // listed, 1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", encoding="utf-8") as out:
        out.writelines(lines(trajectories, options.spans, listed, options.seed))


if __name__ == "__main__":
    main()
