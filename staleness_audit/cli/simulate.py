# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""`simulate`: what a staleness control does, against a clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from staleness_audit.cli.console import errors, json_text, plain, progress_bar, stdout
from staleness_audit.cli.options import Format, QuietOption
from staleness_audit.cli.policies import BatchOption, PolicyArgument, SetOption, settings
from staleness_audit.errors import AuditError


def simulate(
    policy: PolicyArgument,
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Training steps to simulate.")] = 20,
    bound: Annotated[
        int | None,
        typer.Option("--bound", min=0, metavar="N", help="Set the policy's own knob for this bound, and check it."),
    ] = None,
    batch: BatchOption = None,
    set_: SetOption = None,
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            metavar="W",
            help="What is generated: fixed, uniform, lognormal, pareto, bimodal or empirical, then :key=value,... "
            "(low, high, mu, sigma, alpha, long, longest, prompt, group, turns, environment_s, failures, shared).",
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
    compress: Annotated[bool, typer.Option("--compress", help="Compress the event log (.zst).")] = False,
    audit: Annotated[bool, typer.Option("--audit", help="Audit the event log; the exit code is its gate.")] = False,
    format_: Annotated[Format, typer.Option("--format", help="How to print the summary.")] = Format.terminal,
    quiet: QuietOption = False,
) -> None:
    """Run a staleness control against a clock, with engines and a trainer, and write the run as an event log."""
    code = 0
    with errors():
        from staleness_audit.simulate.policies import build
        from staleness_audit.simulate.setup import Setup, read_costs
        from staleness_audit.simulate.workload import read_workload

        if audit and out is None:
            raise AuditError("--audit reads what --out has written; give both.")
        resources, engine = read_costs(settings(cost, "--cost"))
        rules = build(policy, bound=bound, batch=32 if batch is None else batch, settings=settings(set_))
        setup = Setup(policy, rules, read_workload(workload), engine, resources, seed, bound)
        folder = None if out is None else _empty(out)
        with progress_bar(quiet) as bar:
            summary = setup.run(
                steps,
                folder and folder / f"run.staleness.jsonl{'.zst' if compress else ''}",
                (lambda done, total: bar(done, total, "training steps")) if bar else None,
            )
        if format_ is Format.json:
            print(json_text({**setup.described(), **summary.figures()}, indent=2))
        else:
            _print_summary(policy, summary.figures(), folder)
        if audit and folder is not None:
            from staleness_audit.api import audit as run_audit
            from staleness_audit.report.terminal import render_audit

            result = run_audit(folder)
            render_audit(result.data, stdout)
            code = result.exit_code
    raise typer.Exit(code)


def _empty(folder: Path) -> Path:
    """Return a folder that exists and holds no event log yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob("*.staleness.jsonl*")):
            raise AuditError(f"{folder}: holds an event log already; choose another --out.")
    except OSError as error:
        raise AuditError(f"{folder}: cannot be written ({error.strerror}); choose another --out.") from error
    return folder


def _print_summary(policy: str, figures: dict[str, Any], folder: Path | None) -> None:
    stdout.print()
    what = f"{figures['steps']:,} steps in {figures['seconds']:,.1f} simulated seconds"
    stdout.print(f" [bold]{plain(policy)}[/]: {what}")
    if figures["stalled"]:
        stdout.print("  [bold red]stalled[/]: nothing can begin, finish or be trained any more")
    if figures["staleness_max"] is None:
        stdout.print("  nothing was trained")
    else:
        stdout.print(
            f"  staleness    {figures['staleness_mean']:.2f} on average, {figures['staleness_max']} at most, over "
            f"{figures['tokens_trained']:,} trained tokens of {figures['trajectories_trained']:,} trajectories"
        )
    stdout.print(
        f"  wasted       {figures['wasted_share']:.1%} of {figures['tokens_generated']:,} generated tokens: "
        + ", ".join(f"{figures[f'tokens_{fate}']:,} {fate}" for fate in ("dropped", "cancelled", "lost"))
    )
    stdout.print(
        f"  throughput   {figures['trained_tokens_per_s']:,.0f} trained tokens per second; "
        f"the trainer waits {figures['trainer_waiting_share']:.0%} of the time"
    )
    if folder is not None:
        stdout.print(f"  written to   {plain(str(folder))}")
