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
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

GROUP = 8
GROUPS_PER_STEP = 32
BATCH = GROUP * GROUPS_PER_STEP
STEP_SECONDS = 10.0
STEPS_AT_ONCE = 200


def texts(trajectories: int, spans: int, listed: int | None, seed: int) -> Iterator[str]:
    """Yield the text of the log, some steps at a time; its lines are numbered without gaps."""
    rng = np.random.default_rng(seed)
    header = {
        "format": "staleness-events/1",
        "framework": "benchmark",
        "bound": 3,
        "config": {"groups_per_step": GROUPS_PER_STEP},
    }
    yield json.dumps({**header, "writer": "w0", "clock": "epoch"}) + "\n"
    steps = -(-trajectories // BATCH)
    for start in range(0, steps, STEPS_AT_ONCE):
        end = min(start + STEPS_AT_ONCE, steps)
        members = np.arange(start * BATCH, min(end * BATCH, trajectories))
        yield "\n".join(_steps(_lives(members, spans, listed, rng), spans, listed)) + "\n"
    yield json.dumps({"kind": "end", "n": trajectories * (spans + 3) + 2 * steps + 1}) + "\n"


def _lives(members: np.ndarray, spans: int, listed: int | None, rng: np.random.Generator) -> pl.DataFrame:
    """Draw trajectories: step, oldest and newest version, when admitted (``at0``), and end and tokens of each span."""
    step = members // BATCH
    newest = np.maximum(step - rng.choice((0, 0, 0, 1, 1, 2), len(members)), spans - 1)
    oldest = np.maximum(newest - spans + 1, 0)
    at = 1.7e9 + step * STEP_SECONDS - (step - oldest + 1) * STEP_SECONDS + rng.random(len(members))
    columns = {"member": members, "step": step, "oldest": oldest, "newest": np.minimum(newest, step), "at0": at}
    for nth in range(1, spans + 1):
        at = at + rng.random(len(members)) * 8
        drawn = rng.lognormal(5.0, 1.0, len(members)).astype(np.int64) + 1
        columns |= {f"at{nth}": at, f"tokens{nth}": np.full(len(members), listed // spans) if listed else drawn}
    return pl.DataFrame(columns).with_columns(pl.col("^at.*$").round(3))


def _steps(lives: pl.DataFrame, spans: int, listed: int | None) -> pl.Series:
    """Return the lines of each step: those of its trajectories, its own, and that of the weights it made."""
    group = pl.col("member") // GROUP
    name = pl.format("g{}/{}", group, pl.col("member") % GROUP)
    before = pl.col("member") * (spans + 3) + 2 * pl.col("step")  # lines that were numbered before

    def line(number: int, kind: str, rest: str, *values: pl.Expr) -> pl.Expr:
        head = '{"kind":"' + kind + '","n":%,"trajectory_id":"%",' + rest + "}"
        return _filled(head, before + number, name, *values)

    told = [
        line(
            1,
            "admitted",
            '"group_id":"g%","version":%,"ts":%',
            group,
            pl.min_horizontal("oldest", "step"),
            pl.col("at0"),
        )
    ]
    for nth in range(1, spans + 1):
        version = pl.min_horizontal(pl.col("oldest") + nth - 1, "newest")
        many = listed // spans if listed else 1
        made = pl.concat_str([version.cast(pl.String)] * many, separator=",")
        rest = '"versions":[%],"ts":%' if listed else '"version":%,"tokens":%,"ts":%'
        tokens = () if listed else (pl.col(f"tokens{nth}"),)
        told.append(line(nth + 1, "span", rest, made, *tokens, pl.col(f"at{nth}")))
    told.append(line(spans + 2, "finished", '"ts":%', pl.col(f"at{spans}")))
    told.append(line(spans + 3, "trained", '"step":%', pl.col("step")))
    loss = pl.sum_horizontal(f"tokens{nth}" for nth in range(1, spans + 1))
    steps = (
        lives.select("step", loss=loss, last=before + spans + 3, text=pl.concat_str(told, separator="\n"))
        .group_by("step", maintain_order=True)
        .agg(pl.col("text").str.join("\n"), pl.col("loss").sum(), pl.col("last").max(), members=pl.len())
    )
    step, started = pl.col("step"), 1.7e9 + pl.col("step") * STEP_SECONDS
    closing = '{"kind":"step","n":%,"step":%,"version":%,"started":%,"ended":%,"trajectories":%,"loss_tokens":%}'
    syncing = '{"kind":"sync","n":%,"version":%,"ts":%}'
    closed = _filled(closing, pl.col("last") + 1, step, step, started, started + 8, pl.col("members"), pl.col("loss"))
    synced = _filled(syncing, pl.col("last") + 2, step + 1, started + 9)
    return steps.select(text=pl.concat_str("text", closed, synced, separator="\n"))["text"]


def _filled(template: str, *values: pl.Expr) -> pl.Expr:
    """Put values where the template has a percent sign."""
    first, *rest = template.split("%")
    parts = [pl.lit(first)]
    for value, text in zip(values, rest, strict=True):
        parts += [value.cast(pl.String), pl.lit(text)]
    return pl.concat_str(parts)


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
        out.writelines(texts(trajectories, options.spans, listed, options.seed))


if __name__ == "__main__":
    main()
