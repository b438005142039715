"""What simulating costs: every policy at one setting, and a million trajectories in a process of their own.

The setting is 256 groups a step, 50 versions, lognormal lengths, 4 engines; DryRun-RL's model, rebuilt, is measured
beside ours. CPU seconds, because other processes share the machine; the fastest repetition
counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

from staleness_audit.simulate.dryrun import simulate
from staleness_audit.simulate.dryrun.inputs import read_run
from staleness_audit.simulate.policies import POLICIES, build
from staleness_audit.simulate.setup import Setup, read_costs
from staleness_audit.simulate.sweep import fair
from staleness_audit.simulate.workload import read_workload

BATCH, VERSIONS, BOUND = 256, 50, 2
AIM_S, MOST_S, MOST_MIB = 2.0, 60.0, 1024.0
MODELS = ("areal", "roll", "slime", "verl", "psrl")
MILLION = ("areal", "deadline", "verl:drop")


def command(policy: str) -> list[str]:
    """Command line that simulates a million trajectories: 490 steps of 256 groups of 8."""
    return [
        *(sys.executable, "-m", "staleness_audit", "simulate", policy, "--bound", str(BOUND), "--batch", str(BATCH)),
        *("--steps", "490", "--workload", "lognormal:group=8", "--quiet", "--format", "json"),
    ]


def measure_policies(repeat: int) -> Iterator[str]:
    """Return the lines of the table of policies."""
    yield "| policy | trajectories | CPU seconds | aim | met |"
    yield "|---|---|---|---|---|"
    resources, cost = read_costs({"engines": "4"})
    work = read_workload("lognormal")
    for name in POLICIES:
        rules = build(name, bound=BOUND, batch=BATCH, settings=fair(name, BOUND, BATCH))
        setup = Setup(name, rules, work, cost, resources, 0, BOUND)
        seconds, summary = _fastest(lambda setup=setup: setup.run(VERSIONS), repeat)
        yield f"| `{name}` | {summary.trajectories:,} | {seconds:.2f} | < {AIM_S:.0f} | {_met(seconds < AIM_S)} |"
    for name in MODELS:
        run = read_run(f"dryrun:{name}", bound=BOUND, batch=BATCH, workload="lognormal", costs={"n_instances": "4"})
        seconds, outcome = _fastest(lambda run=run: simulate(run, VERSIONS), repeat)
        yield f"| `dryrun:{name}` | {outcome.admitted:,} | {seconds:.2f} | < {AIM_S:.0f} | {_met(seconds < AIM_S)} |"


def _fastest(call: Callable[[], object], repeat: int) -> tuple[float, object]:
    times = []
    for _ in range(repeat):
        began = time.process_time()
        result = call()
        times.append(time.process_time() - began)
    return min(times), result


def million_row(policy: str, wall: float, cpu: float, memory: float) -> str:
    """Return the line of a run of a million trajectories."""
    met = _met(cpu < MOST_S and memory < MOST_MIB)
    return f"| `{policy}` | {wall:.1f} | {cpu:.1f} | {memory:.0f} | < {MOST_S:.0f} s, < {MOST_MIB:.0f} MiB | {met} |"


def _met(met: bool) -> str:
    return "yes" if met else "no"
