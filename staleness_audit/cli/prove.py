# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""`prove`: what a staleness control guarantees, in every schedule."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from staleness_audit.cli.console import errors, json_text, progress_bar, stdout
from staleness_audit.cli.options import Format, QuietOption
from staleness_audit.cli.policies import BatchOption, PolicyArgument, SetOption, list_policies, settings
from staleness_audit.errors import AuditError

if TYPE_CHECKING:
    from staleness_audit.simulate.prove import Proof


def prove(
    policy: PolicyArgument,
    bound: Annotated[
        int,
        typer.Option(
            "--bound", min=0, max=10_000, metavar="N", help="Largest allowed v_train - v_gen; sets the policy's knob."
        ),
    ] = 1,
    batch: BatchOption = None,
    set_: SetOption = None,
    rejects: Annotated[
        int,
        typer.Option(
            "--rejects", min=0, max=1000, metavar="N", help="Let a filter discard up to N groups when they end."
        ),
    ] = 0,
    moves: Annotated[
        int | None, typer.Option("--moves", min=1, metavar="K", help="Only schedules of at most K moves.")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, help="Give up after so many seconds of computing.")
    ] = 50.0,
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
            list_policies()
            return
        from staleness_audit.simulate import prove as prover
        from staleness_audit.simulate.policies import build

        rules = build(policy, bound=bound, batch=batch, settings=settings(set_), small=True)
        with progress_bar(quiet, "exploring") as bar:
            proof = prover.prove(
                rules,
                bound,
                rejects=rejects,
                max_depth=moves,
                seconds=seconds,
                progress=(lambda states, depth: bar(states, 0, f"states, schedules of {depth} moves")) if bar else None,
            )
        written = _write_counterexample(policy, proof, out)
        if format_ is Format.json:
            print(json_text({**_document(policy, proof, written), "rejects": rejects}, indent=True))
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

    from rich.text import Text

    from staleness_audit.report.terminal.page import Page
    from staleness_audit.simulate.story import tell

    page, search, stuck = Page(stdout), proof.search, proof.whole.stuck
    name, style, what = (
        ("BROKEN", "bold white on red", f"a schedule of {search.depth} moves breaks the bound {proof.bound}")
        if search.schedule is not None
        else ("KEPT", "bold white on green", f"every schedule keeps the bound {proof.bound}")
        if search.closed
        else ("NONE FOUND", "bold black on yellow", f"no schedule so far breaks the bound {proof.bound}")
    )
    page.print()
    page.print(Text.assemble((f" {name} ", style), (f"  {policy}", "bold"), f": {what}"))
    page.print()
    page.facts(((key, str(value)) for key, value in asdict(proof.policy).items()))
    page.print()
    if search.schedule is not None:
        page.print(f"A shortest counterexample, among {search.states:,} states:")
        page.print()
        for line in tell(proof.policy, search.schedule, proof.bound):
            move, _, happening = line.partition("  ")
            if move.isdigit():
                page.items([(f"{move:>4}", happening)], gap=2)
            else:
                page.print(line, 2)
        page.print()
        page.print(_limit(proof))
    elif search.closed:
        page.print(
            f"No violation in all {search.states:,} reachable states, so in runs of any length with these sizes. The "
            f"largest staleness that any schedule trains is {proof.limit}."
        )
    else:
        page.print(
            f"No violation in {search.states:,} states up to {search.depth} moves with these sizes. There are more "
            "states, so this is no proof: smaller sizes or more --seconds may decide it."
        )
    if stuck is not None:
        page.print(f"It can stall for ever: after {len(stuck)} moves nothing can begin, finish or be trained any more.")
    if written is not None:
        page.print(f"Event log: {page.plain(str(written))}; `staleness-audit audit` condemns it.")


def _limit(proof: Proof) -> str:
    if proof.limit == "none":
        return "True limit: none. A group can stay in flight while versions go on for ever, and is then trained."
    if proof.limit is None:
        return f"True limit: at least {proof.at_least}; there are too many states to know."
    return f"True limit with these sizes: {proof.limit} (all {proof.whole.states:,} states were visited)."
