# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""`simulate`: what a staleness control does, against a clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from staleness_audit.cli.console import errors, json_text, progress_bar, stdout
from staleness_audit.cli.options import Format, QuietOption
from staleness_audit.cli.policies import BatchOption, PolicyArgument, SetOption, list_policies, settings
from staleness_audit.errors import AuditError


def simulate(
    policy: PolicyArgument,
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Training steps to simulate.")] = 20,
    bound: Annotated[
        int | None,
        typer.Option(
            "--bound", min=0, max=10_000, metavar="N", help="Set the policy's own knob for this bound, and check it."
        ),
    ] = None,
    batch: BatchOption = None,
    set_: SetOption = None,
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            metavar="W",
            help="What is generated: fixed, uniform, lognormal, pareto, bimodal or empirical, then :key=value,... "
            "(low, high, mu, sigma, alpha, long, longest, prompt, group, turns, environment_s, failures, filtered, "
            "shared).",
        ),
    ] = "lognormal",
    cost: Annotated[
        list[str] | None,
        typer.Option(
            "--cost",
            metavar="KEY=VALUE",
            help="Set what the run has and what things cost: engines, train_s, train_token_s, sync_s; floor_s, step_s, "
            "token_s, context_s, concurrency, kv_tokens, sync (continue, resume or wait); and what breaks: rolling_s, "
            "engine_failures_s, repair_s, crash_steps, checkpoint_steps, restart_s. May be given several times.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Same inputs and seed: same run.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write the run there as a canonical event log.")
    ] = None,
    artifacts: Annotated[
        Path | None,
        typer.Option(
            "--artifacts",
            metavar="DIR",
            help="Write there what the framework itself would have logged (verl:drop, verl:wait, verl:null, skyrl, "
            "prime-rl, trl).",
        ),
    ] = None,
    compress: Annotated[bool, typer.Option("--compress", help="Compress the event log (.zst).")] = False,
    audit: Annotated[bool, typer.Option("--audit", help="Audit the event log; the exit code is its gate.")] = False,
    format_: Annotated[Format, typer.Option("--format", help="How to print the summary.")] = Format.terminal,
    quiet: QuietOption = False,
) -> None:
    """Run a staleness control against a clock, with engines and a trainer, and write the run as an event log.

    dryrun:areal (roll, slime, verl, psrl) runs DryRun-RL's model and writes its telemetry: docs/simulator.md.
    """
    with errors():
        if policy == "list":
            list_policies()
            return
        from staleness_audit.simulate.dryrun.inputs import PREFIX
        from staleness_audit.simulate.policies import build
        from staleness_audit.simulate.setup import Setup, read_costs
        from staleness_audit.simulate.workload import read_workload

        if audit and out is None:
            raise AuditError("--audit reads what --out has written; give both.")
        if artifacts is not None and (out is None or compress or policy.startswith(PREFIX)):
            raise AuditError("--artifacts are written from the log of --out, which must not be compressed.")
        if policy.startswith(PREFIX):
            _dryrun(policy, steps, bound, batch, settings(set_), workload, settings(cost, "--cost"), out, format_)
            raise typer.Exit(_audit(out) if audit and out is not None else 0)
        resources, engine = read_costs(settings(cost, "--cost"))
        rules = build(policy, bound=bound, batch=32 if batch is None else batch, settings=settings(set_))
        setup = Setup(policy, rules, read_workload(workload), engine, resources, seed, bound)
        folder = None if out is None else _empty(out)
        with progress_bar(quiet, "simulating") as bar:
            summary = setup.run(
                steps,
                folder and folder / f"run.staleness.jsonl{'.zst' if compress else ''}",
                (lambda done, total: bar(done, total, "training steps")) if bar else None,
            )
        if artifacts is not None and folder is not None:
            from staleness_audit.simulate.artifacts import write

            write(policy, folder / "run.staleness.jsonl", artifacts)
        if format_ is Format.json:
            print(json_text({**setup.described(), **summary.figures()}, indent=True))
        else:
            _print_summary(policy, summary.figures(), folder)
        code = _audit(folder) if audit and folder is not None else 0
    raise typer.Exit(code)


def _audit(folder: Path) -> int:
    """Audit a folder, print the verdict, return the exit code of its gate."""
    from staleness_audit.api import audit as run_audit
    from staleness_audit.report.terminal import render_audit

    result = run_audit(folder)
    render_audit(result.data, stdout)
    return result.exit_code


def _dryrun(
    name: str,
    steps: int,
    bound: int | None,
    batch: int | None,
    knobs: dict[str, str],
    workload: str,
    costs: dict[str, str],
    out: Path | None,
    format_: Format,
) -> None:
    """Run DryRun-RL's model, and write its telemetry."""
    from staleness_audit.simulate.artifacts.dryrun import write
    from staleness_audit.simulate.dryrun import simulate as dryrun
    from staleness_audit.simulate.dryrun.inputs import read_run

    run = read_run(name, bound=bound, batch=batch, settings=knobs, workload=workload, costs=costs)
    folder = None if out is None else _empty(out)
    try:
        outcome = dryrun(run, steps)
        if folder is not None:
            write(run, outcome, folder)
    except ValueError as error:
        raise AuditError(f"{name}: {error}.") from error
    except OSError as error:
        raise AuditError(f"{out}: cannot be written ({error.strerror}); choose another --out.") from error
    figures = outcome.figures()
    if format_ is Format.json:
        print(json_text(figures, indent=True))
        return
    spread = (
        f"{figures['staleness_mean']:.2f} on average, {figures['staleness_max']} at most "
        f"({figures['staleness_reported_max']} by the newest token), over {figures['tokens_consumed']:,} tokens"
        if figures["consumed"]
        else ""
    )
    _show(
        name,
        f"{steps:,} steps in {figures['seconds']:,.1f} simulated seconds",
        f"after {figures['steps']} steps: nothing can happen any more" if outcome.stalled else "",
        [
            ("staleness", spread),
            ("requests", f"{figures['consumed']:,} consumed, {figures['dropped']:,} dropped"),
            ("throughput", f"{figures['tokens_per_s']:,.0f} consumed tokens per second"),
        ],
        folder,
    )


def _empty(folder: Path) -> Path:
    """Return a folder that exists and holds no run yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob("*.staleness.jsonl*")) or (folder / "logs").exists():
            raise AuditError(f"{folder}: holds a run already; choose another --out.")
    except OSError as error:
        raise AuditError(f"{folder}: cannot be written ({error.strerror}); choose another --out.") from error
    return folder


def _print_summary(policy: str, figures: dict[str, Any], folder: Path | None) -> None:
    trained = (
        "nothing was trained"
        if figures["staleness_max"] is None
        else f"{figures['staleness_mean']:.2f} on average, {figures['staleness_max']} at most, over "
        f"{figures['tokens_trained']:,} trained tokens of {figures['trajectories_trained']:,} trajectories"
    )
    fates = ", ".join(f"{figures[f'tokens_{fate}']:,} {fate}" for fate in ("dropped", "cancelled", "lost"))
    rate, waits = figures["trained_tokens_per_s"], figures["trainer_waiting_share"]
    _show(
        policy,
        f"{figures['steps']:,} steps in {figures['seconds']:,.1f} simulated seconds",
        "nothing can begin, finish or be trained any more" if figures["stalled"] else "",
        [
            ("staleness", trained),
            ("wasted", f"{figures['wasted_share']:.1%} of {figures['tokens_generated']:,} generated tokens: {fates}"),
            ("throughput", f"{rate:,.0f} trained tokens per second; the trainer waits {waits:.0%} of the time"),
        ],
        folder,
    )


def _show(policy: str, what: str, stalled: str, facts: list[tuple[str, str]], folder: Path | None) -> None:
    """Write a summary: what ran, whether it stalled, what came of it, where it was written to."""
    from rich.text import Text

    from staleness_audit.report.terminal.page import Page

    page = Page(stdout)
    page.print()
    page.print(Text.assemble((f" {page.plain(policy)}", "bold"), f": {what}"))
    end = "" if folder is None else page.plain(folder)
    page.facts([("stalled", Text(stalled, "bold red") if stalled else ""), *facts, ("written to", end)])
