# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""`prove`: what a control guarantees, in every schedule; `simulate`: what it does; `sweep`: what many of them do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from staleness_audit.cli.console import errors, json_text, plain, progress_bar, stdout
from staleness_audit.cli.options import Format, QuietOption
from staleness_audit.errors import AuditError

if TYPE_CHECKING:
    from staleness_audit.simulate.prove import Proof

PolicyArgument = Annotated[
    str, typer.Argument(metavar="POLICY", help="Name of a staleness control; 'list' shows all with their knobs.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a knob of the policy; may be given several times."),
]
BatchOption = Annotated[
    int | None, typer.Option("--batch", min=1, metavar="B", help="Groups that one published version trains.")
]


def settings(pairs: list[str] | None, option: str = "--set") -> dict[str, str]:
    """Read ``KEY=VALUE`` pairs of an option; ``AuditError`` if one is not a pair."""
    found: dict[str, str] = {}
    for pair in pairs or ():
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise AuditError(f"{option} {pair}: write KEY=VALUE.")
        found[key.strip()] = value.strip()
    return found


def prove(
    policy: PolicyArgument,
    bound: Annotated[
        int,
        typer.Option("--bound", min=0, metavar="N", help="Largest allowed v_train - v_gen; sets the policy's knob."),
    ] = 1,
    batch: BatchOption = None,
    set_: SetOption = None,
    moves: Annotated[
        int | None, typer.Option("--moves", min=1, metavar="K", help="Only schedules of at most K moves.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Give up after about this long.")] = 50.0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Write the counterexample there as an event log that can be audited."
        ),
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="How to print the result.")] = Format.terminal,
    quiet: QuietOption = False,
) -> None:
    """Look at every schedule of a staleness control: either all keep the bound, or here is how it is broken.

    Exit code 0 if no schedule breaks the bound, 1 if one does.
    """
    with errors():
        if policy == "list":
            _list_policies()
            return
        from staleness_audit.simulate import prove as prover
        from staleness_audit.simulate.policies import build

        rules = build(policy, bound=bound, batch=batch, settings=settings(set_), small=True)
        with progress_bar(quiet) as bar:
            proof = prover.prove(
                rules,
                bound,
                max_depth=moves,
                seconds=seconds,
                progress=(lambda states, depth: bar(states, states, f"states, schedules of {depth} moves"))
                if bar
                else None,
            )
        written = _write_counterexample(policy, proof, out)
        if format_ is Format.json:
            print(json_text(_document(policy, proof, written), indent=2))
        else:
            _print_proof(policy, proof, written)
        raise typer.Exit(0 if proof.search.schedule is None else 1)


def _write_counterexample(policy: str, proof: Proof, out: Path | None) -> Path | None:
    from staleness_audit.simulate.story import write_log

    if out is None or proof.search.schedule is None:
        return None
    path = out / f"{policy.replace(':', '-')}-bound{proof.bound}.staleness.jsonl"
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_log(proof.policy, policy, proof.search.schedule, proof.bound, path)
    except OSError as error:
        raise AuditError(f"{path}: cannot be written ({error.strerror}); choose another --out.") from error
    return path


def _document(policy: str, proof: Proof, written: Path | None) -> dict[str, Any]:
    from dataclasses import asdict

    from staleness_audit.simulate.story import tell

    search, whole = proof.search, proof.whole
    return {
        "policy": policy,
        "knobs": asdict(proof.policy),
        "bound": proof.bound,
        "strict": proof.strict,
        "limit": proof.limit,
        "at_least": proof.at_least,
        "states": search.states,
        "moves": search.depth,
        "complete": search.closed,
        "states_for_limit": whole.states,
        "stalls_after": None if whole.stuck is None else len(whole.stuck),
        "counterexample": None if search.schedule is None else tell(proof.policy, search.schedule, proof.bound),
        "log": None if written is None else str(written),
    }


def _print_proof(policy: str, proof: Proof, written: Path | None) -> None:
    from dataclasses import asdict

    from staleness_audit.simulate.story import tell

    search, stuck = proof.search, proof.whole.stuck
    knobs = ", ".join(f"{name} = {value}" for name, value in asdict(proof.policy).items())
    stdout.print()
    if search.schedule is not None:
        stdout.print(
            f" [bold red]BROKEN[/]   {plain(policy)}: a schedule of {search.depth} moves breaks the bound {proof.bound}"
        )
    elif search.closed:
        stdout.print(f" [bold green]KEPT[/]   {plain(policy)}: every schedule keeps the bound {proof.bound}")
    else:
        stdout.print(
            f" [bold yellow]NONE FOUND[/]   {plain(policy)}: no schedule so far breaks the bound {proof.bound}"
        )
    stdout.print(f"  {plain(knobs)}")
    stdout.print()
    if search.schedule is None:
        if search.closed:
            stdout.print(
                f"No violation in all {search.states:,} reachable states, so in runs of any length with these sizes."
            )
            stdout.print(f"The largest staleness that any schedule trains is {proof.limit}.")
        else:
            stdout.print(f"No violation in {search.states:,} states up to {search.depth} moves with these sizes.")
            stdout.print("There are more states, so this is no proof: smaller sizes or more --seconds may decide it.")
    else:
        stdout.print(f"A shortest counterexample, among {search.states:,} states:")
        stdout.print()
        for line in tell(proof.policy, search.schedule, proof.bound):
            stdout.print(f"  {plain(line)}")
        stdout.print()
        stdout.print(_limit(proof))
    if stuck is not None:
        stdout.print(
            f"It can stall for ever: after {len(stuck)} moves nothing can begin, finish or be trained any more."
        )
    if written is not None:
        stdout.print(f"Event log: {plain(str(written))}; `staleness-audit audit` condemns it.")


def _limit(proof: Proof) -> str:
    if proof.limit == "none":
        return "True limit: none. A group can stay in flight while versions go on for ever, and is then trained."
    if proof.limit is None:
        return f"True limit: at least {proof.at_least}; there are too many states to know."
    return f"True limit with these sizes: {proof.limit} (all {proof.whole.states:,} states were visited)."


def _list_policies() -> None:
    from dataclasses import fields

    from rich.table import Table

    from staleness_audit.simulate.policies import POLICIES, build

    table = Table(box=None, show_edge=False, pad_edge=False)
    table.add_column("policy")
    table.add_column("knobs and their defaults")
    for name in POLICIES:
        rules = build(name)
        table.add_row(name, ", ".join(f"{knob.name} = {getattr(rules, knob.name)}" for knob in fields(rules)))
    stdout.print(table)


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
            "token_s, context_s, concurrency, kv_tokens, sync (continue or resume). May be given several times.",
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


def sweep(
    policies: Annotated[list[str], typer.Argument(metavar="POLICY...", help="Names of staleness controls, or 'all'.")],
    bounds: Annotated[str, typer.Option("--bounds", metavar="N,N", help="Bounds to set.")] = "1,2,4",
    workloads: Annotated[
        list[str] | None,
        typer.Option("--workload", metavar="W", help="As for simulate; may be given several times."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=V,V", help="Values of a knob to try; may be given several times."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, metavar="N", help="Runs of each with different seeds.")] = 1,
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Training steps of each run.")] = 40,
    batch: BatchOption = None,
    cost: Annotated[list[str] | None, typer.Option("--cost", metavar="KEY=VALUE", help="As for simulate.")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes; default: one per processor.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where results go; a sweep goes on where it was.")
    ] = Path("sweep"),
    quiet: QuietOption = False,
) -> None:
    """Simulate a grid of policies, bounds, workloads and knobs; write results.parquet and a page that compares them.

    All policies get equal resources and equal room: admission may lead by the bound.
    """
    with errors():
        from staleness_audit.simulate import sweep as grids
        from staleness_audit.simulate.page import write_page

        try:
            wanted = [int(bound) for bound in bounds.split(",")]
        except ValueError as error:
            raise AuditError(f"--bounds {bounds}: write numbers, as in 1,2,4.") from error
        points = list(
            grids.grid(
                grids.all_policies() if policies == ["all"] else policies,
                wanted,
                workloads or ["lognormal:sigma=1.2,group=4,longest=8192"],
                steps=steps,
                batch=32 if batch is None else batch,
                seeds=range(seeds),
                settings={knob: values.split(",") for knob, values in settings(set_).items()},
                costs=settings(cost, "--cost"),
            )
        )
        with progress_bar(quiet) as bar:
            table = grids.sweep(points, out, workers=workers, progress=bar)
        write_page(table, out / "sweep.html")
        _print_sweep(table, out)


def _print_sweep(table: Any, out: Path) -> None:
    from rich.table import Table

    from staleness_audit.simulate.page import means

    shown = Table(box=None, show_edge=False, pad_edge=False)
    for heading in ("policy", "bound", "tokens/s", "waits", "wasted", "mean", "max", "beyond"):
        shown.add_column(heading, justify="left" if heading == "policy" else "right")
    for row in (
        means(table)
        .sort("workload", "bound", "trained_tokens_per_s", descending=[False, False, True])
        .iter_rows(named=True)
    ):
        shown.add_row(
            row["policy"] + (" (stalled)" if row["stalled"] else ""),
            str(row["bound"]),
            f"{row['trained_tokens_per_s']:,.0f}",
            f"{row['trainer_waiting_share']:.0%}",
            f"{row['wasted_share']:.0%}",
            f"{row['staleness_mean']:.2f}",
            str(row["staleness_max"]),
            f"{row['beyond_share']:.0%}",
        )
    stdout.print(shown)
    stdout.print()
    stdout.print(f"{table.height} runs: {plain(str(out / 'results.parquet'))} and {plain(str(out / 'sweep.html'))}")
