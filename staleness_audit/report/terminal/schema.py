"""What ``sql`` can ask: the event tables and the rebuilt products, with the meaning of every column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from staleness_audit.rebuild import modules
from staleness_audit.report.terminal.page import Page
from staleness_audit.tables import SCHEMAS, duckdb_type

GRAINS: Mapping[str, str] = {
    "trajectories": "one row per trajectory, or anonymous class of them",
    "spans": "one row per run of consecutive sampled tokens of one version",
    "uses": "one row per trajectory and training step, per span where the log says so",
    "events": "one row per event of a trajectory's or group's life",
    "groups": "one row per group, or anonymous class of them",
    "steps": "one row per training step of an attempt",
    "syncs": "one row per publication of weights",
    "constraints": "one row per fact about a sum, number or extreme of a step",
    "reported": "one row per number that the framework logged about itself",
    "sources": "one row per input file",
    "diagnostics": "one row per thing that could not be read or had to be assumed",
}
"""What a row of each event table is."""

COLUMNS: Mapping[str, str] = {
    "trajectory_id": "its name, unique in the run",
    "group_id": "its group, unique in the run",
    "attempt": "launch of the training process (in trajectories: that admitted it)",
    "role": "train or eval; eval counts nowhere",
    "anonymous": "a class without identity",
    "multiplicity": "how many the row stands for",
    "multiplicity_lo": "how many the row stands for",
    "multiplicity_hi": "how many the row stands for",
    "members_lo": "trajectories in the group",
    "members_hi": "trajectories in the group",
    "prompt_tokens": "length of its prompt",
    "span_index": "orders the spans of a trajectory (in uses: null = all spans)",
    "token_start": "position of its first token",
    "tokens_lo": "sampled tokens, over all that the row stands for",
    "tokens_hi": "sampled tokens, over all that the row stands for",
    "loss_tokens_lo": "those that the loss mask lets count (null = as the spans say; there: all)",
    "loss_tokens_hi": "those that the loss mask lets count (null = as the spans say; there: all)",
    "version_lo": "policy version (in spans: v_gen)",
    "version_hi": "policy version (in spans: v_gen)",
    "v_train_lo": "version its weights start from",
    "v_train_hi": "version its weights start from",
    "staleness_lo": "largest staleness, where it is known better than by version arithmetic",
    "staleness_hi": "largest staleness, where it is known better than by version arithmetic",
    "monotone": "versions inside it never decrease",
    "started": "time it began",
    "ended": "time it ended",
    "ts": "time",
    "worker": "process that did it",
    "seq": "orders the events of one source",
    "kind": "what happened (in sources: type of file)",
    "step": "training step, in the framework's numbering",
    "reason": "why it was dropped, cancelled or lost",
    "waited_us": "how long the trainer waited for data before it, in microseconds",
    "updates": "optimizer steps inside it",
    "member": "false = it may have been in the batch, or not: counts only in upper ends",
    "completed": "null = not confirmed",
    "superseded": "a later attempt resumed before it (null = see step_lives)",
    "quantity": "of what",
    "op": "eq, le or ge",
    "unit": "of the value",
    "value": "the number",
    "name": "canonical name, where one fits",
    "raw_name": "the framework's name",
    "evidence": "recorded, derived, inferred or assumed",
    "source": "file that says so, relative to the run",
    "line": "line in it, from 1",
    "locator": "place in it, where lines mean nothing",
    "path": "relative to the run",
    "bytes": "size",
    "digest": "SHA-256 of its bytes; of what a URL names `object:` and that of its listing",
    "parser": "which parser read it",
    "rows": "rows made from it (null = not counted)",
    "severity": "error, warning or note",
    "code": "stable name of the finding",
    "message": "one sentence",
    "opens": "what the unread piece may have held: training, fates, or nothing (null)",
}
"""What each column of the event tables means; ``_lo`` and ``_hi`` are the ends of an interval, null = open."""


def render_schema(console: Console) -> None:
    """List event tables and rebuilt products with their columns and meanings."""
    page = Page(console)
    page.section("Event tables: what the logs say")
    for name, schema in SCHEMAS.items():
        columns = [(column.name, duckdb_type(column.type).lower(), COLUMNS.get(column.name, "")) for column in schema]
        _show(page, name, GRAINS.get(name, ""), columns)
    page.section("Products: what was rebuilt from them")
    for module in modules():
        if module.published:
            _show(page, module.product, module.grain, [(column, "", meaning) for column, meaning in module.columns])
    page.print()
    page.print(Text("name_lo/hi: the ends of an interval, both included; NULL is an open end.", "dim"), 2)


def _show(page: Page, name: str, grain: str, columns: Sequence[tuple[str, str, str]]) -> None:
    page.print()
    page.print(Text.assemble((name, "bold"), f"  {grain.rstrip('.')}"), 2)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(max_width=30, overflow="fold")
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for (kind, meaning), same in groupby(columns, key=lambda column: column[1:]):
        table.add_row(Text(", ".join(_paired([column[0] for column in same]))), kind, Text(meaning))
    page.print(table, 4)


def _paired(names: Sequence[str]) -> list[str]:
    """``tokens_lo/hi`` for a pair of ends."""
    shown: list[str] = []
    for name in names:
        if name.endswith("_hi") and shown and shown[-1] == f"{name[:-3]}_lo":
            shown[-1] = f"{name[:-3]}_lo/hi"
        else:
            shown.append(name)
    return shown
