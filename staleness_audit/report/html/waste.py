"""Fifth question: where did every generated token go, and how much of the loss was avoidable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from staleness_audit.report.html.figure import (
    WORDS,
    Figure,
    Missing,
    StepNames,
    Table,
    axis,
    cells,
    columns,
    label,
    thinned,
    version_colour,
)
from staleness_audit.report.html.queries import Rows
from staleness_audit.report.terminal.cost import REASONS
from staleness_audit.report.terminal.words import (
    is_exact,
    is_zero,
    number,
    percent,
    percent_interval,
    reach,
    times_as_long,
)

Data = Mapping[str, Any]

KINDS = {"dropped": "var(--beyond)", "cancelled": "var(--possible)", "lost": "var(--queue)"}
DRAWN = 400
"""Steps, or runs of steps, in a figure at most."""


def flow_figure(data: Data) -> Figure | Missing:
    """From the generated tokens to what became of them: flows of what is certain and one of the rest add up."""
    title, tokens = "Where the generated tokens went", data["tokens"]
    generated, whole = tokens["generated"], tokens["generated"]["lo"] or 0
    if not whole:
        return Missing(
            title,
            "The logs don't show that any token was generated."
            if not is_zero(generated)
            else "No token was generated.",
        )
    parts = _parts(data)
    certain = sum(flow["tokens"]["lo"] or 0 for flow in parts)
    rest = max(whole - certain, 0)
    nodes, links = ["generated"], []
    colours = ["var(--muted)"]

    def node(name: str, colour: str) -> int:
        if name not in nodes:
            nodes.append(name)
            colours.append(colour)
        return nodes.index(name)

    stages: dict[str, int] = {}
    for flow in parts:
        if low := flow["tokens"]["lo"]:
            stages[flow["stage"]] = stages.get(flow["stage"], 0) + low
    for stage, amount in stages.items():
        links.append((0, node(stage, _STAGES[stage]), amount))
    for flow in parts:
        if (low := flow["tokens"]["lo"]) and flow["name"] != flow["stage"]:
            links.append((nodes.index(flow["stage"]), node(flow["name"], flow["colour"]), low))
    if rest:
        links.append((0, node("not known what became of them", "var(--waiting)"), rest))
    at_least = "" if is_exact(generated) else " At least so many were generated; there may be more."
    unclear = f" Of {rest:,} tokens the logs don't tell what became of them." if rest else ""
    if len(links) < 2:
        return Missing(
            title,
            f"All that is certain: {parts[0]['name']} {WORDS.interval(parts[0]['tokens'])} "
            f"of {WORDS.interval(generated)} generated tokens."
            if parts
            else "The logs don't tell what became of them.",
        )
    text = "; ".join(f"{flow['name']}: {WORDS.interval(flow['tokens'])}" for flow in parts)
    return Figure(
        id="waste-flow",
        title=title,
        alt=f"Of {WORDS.interval(generated)} generated tokens: {text}.",
        caption="Every generated token counts once, by the best that became of it, so that the flows add up."
        + (" Flows are as wide as what is certain." if rest else "")
        + unclear
        + at_least,
        traces=[
            {
                "type": "sankey",
                "arrangement": "snap",
                "valueformat": ",d",
                "valuesuffix": " tokens",
                "textfont": {"color": "var(--ink)", "size": 13},
                "node": {
                    "label": [label(name, 48) for name in nodes],
                    "color": colours,
                    "pad": 18,
                    "thickness": 16,
                    "line": {"width": 0},
                    "hovertemplate": "%{label}: %{value}<extra></extra>",
                },
                "link": {
                    "source": [link[0] for link in links],
                    "target": [link[1] for link in links],
                    "value": [link[2] for link in links],
                    "color": "var(--flow)",
                    "hovertemplate": "%{source.label} → %{target.label}: %{value}<extra></extra>",
                },
            }
        ],
        layout={"margin": {"l": 8, "r": 8, "t": 16, "b": 16}},
        table=_flow_table(data, parts, whole),
        height=380,
    )


_STAGES = {
    "trained": "var(--within)",
    "masked out of the loss": "var(--possible)",
    "thrown away": "var(--beyond)",
    "pending when the logs end": "var(--muted)",
    "unaccounted": "var(--fail)",
}


def _parts(data: Data) -> list[dict[str, Any]]:
    """What tokens came to, each with its stage; those known to be none are left out."""
    tokens, violating = data["tokens"], data["violations"]["tokens"]
    parts: list[dict[str, Any]] = []

    def add(stage: str, name: str, value: Mapping[str, Any], colour: str) -> None:
        if not is_zero(value):
            parts.append({"stage": stage, "name": name, "tokens": value, "colour": colour})

    trained = tokens["trained_distinct"]
    if violating is not None and is_exact(violating) and is_exact(trained) and trained == tokens["trained"]:
        # Each token was trained once, so those beyond the bound are among the distinct ones.
        beyond = violating["lo"]
        add(
            "trained", "within the bound", {"lo": trained["lo"] - beyond, "hi": trained["hi"] - beyond}, "var(--within)"
        )
        add("trained", "beyond the bound", violating, "var(--beyond)")
    else:
        add("trained", "trained", trained, "var(--within)")
    add("masked out of the loss", "masked out of the loss", tokens["masked"], "var(--possible)")
    for kind, colour in KINDS.items():
        for reason, value in tokens[kind].items():
            add("thrown away", f"{kind}: {_reason(reason)}", value, colour)
    add("pending when the logs end", "pending when the logs end", tokens["pending"], "var(--muted)")
    add("unaccounted", "unaccounted", tokens["unaccounted"], "var(--fail)")
    return parts


def _reason(reason: str) -> str:
    return REASONS.get(reason) or WORDS.plain(reason.removeprefix("other:"), 60)


def _flow_table(data: Data, parts: list[dict[str, Any]], whole: int) -> Table:
    exact = is_exact(data["tokens"]["generated"])
    trajectories = data["trajectories"]
    rows = []
    for flow in parts:
        share = percent(flow["tokens"]["lo"] / whole) if exact and is_exact(flow["tokens"]) else ""
        rows.append(cells(flow["name"], WORDS.interval(flow["tokens"]), share))
    rows.append(cells("generated in all", WORDS.interval(data["tokens"]["generated"]), "100%" if exact else ""))
    seen = WORDS.count(trajectories["seen"], "trajectory")
    return Table(
        "waste-flow-numbers",
        f"Where the tokens of {seen} went",
        columns("what became of them", "tokens#", "share#"),
        tuple(rows),
    )


def facts(data: Data) -> tuple[tuple[str, str], ...]:
    """Say what was wasted, what of it was avoidable, and what dropping does to lengths."""
    waste = data["waste"]
    ratio = percent_interval(waste["ratio"], WORDS.glyphs)
    found = [
        (
            "Wasted",
            "The logs can't tell how much."
            if ratio == "unknown"
            else f"{ratio} of the generated tokens were never trained on.",
        )
    ]
    for key, name, words, none in (
        (
            "doomed_tokens",
            "Doomed tokens",
            "generated when their trajectory was already beyond the bound: cancelling it then would have saved them",
            "None were generated after their trajectory had passed the bound.",
        ),
        (
            "needless_drop_tokens",
            "Needless drops",
            "dropped as too stale, or with their group, although still within the bound",
            "No token was dropped as stale while still within the bound.",
        ),
    ):
        value = waste[key]
        if value is None:
            found.append((name, "Not judged without a bound."))
        elif is_zero(value):
            found.append((name, none))
        else:
            count = WORDS.count(value, "token")
            found.append((name, f"{count[0].upper()}{count[1:]} {words}."))
    bias = waste["length_bias"]
    if bias["mean_ratio"] is None:
        found.append(
            ("Length bias", "The logs don't show the lengths of all finished trajectories, so it can't be judged.")
        )
    else:
        found.append(
            (
                "Length bias",
                f"Trained trajectories are {times_as_long(bias['mean_ratio'])} as all finished ones "
                f"on average; {percent(bias['longest_decile_trained_share'])} of the longest tenth were trained; "
                f"the distributions differ by at most {percent(bias['ks'])} (Kolmogorov-Smirnov distance).",
            )
        )
    return tuple(found)


def drops_figure(data: Data, drops: Rows) -> Figure | Missing:
    """Tokens thrown away by reason over the steps then being collected; ``drops``: rows of ``drops_by_step``."""
    title = "Thrown away over training steps, by reason"
    placed = [row for row in drops if row["step"] is not None]
    if not placed:
        if not drops:
            unseen = any("unknown" in data["trajectories"][kind] for kind in KINDS)
            return Missing(
                title,
                "The logs name no trajectory that was dropped, cancelled or lost"
                + (", and don't show all that were." if unseen else "."),
            )
        return Missing(title, "The logs say what was thrown away but not when, so it can't be placed at a step.")
    steps = sorted({(row["attempt"] or 0, row["step"]) for row in placed})
    place = {steps[index]: position for position, run in enumerate(thinned(len(steps), DRAWN)) for index in run}
    name, rows_ = StepNames.of(data), [{"attempt": attempt, "step": step} for attempt, step in steps]
    names = [name(rows_[run.start], rows_[run.stop - 1]) for run in thinned(len(steps), DRAWN)]
    fates = sorted({row["fate"] for row in placed})
    known_tokens = any(row["tokens"] for row in placed)
    unit = "tokens" if known_tokens else "trajectories"
    traces = []
    for index, fate in enumerate(fates):
        kind, _, reason = fate.partition(":")
        amounts = [0] * len(names)
        for row in placed:
            if row["fate"] == fate:
                amounts[place[row["attempt"] or 0, row["step"]]] += row[unit]
        words = label(f"{kind}: {_reason(reason)}", 40)
        traces.append(
            {
                "type": "bar",
                "x": names,
                "y": amounts,
                "name": words,
                "marker": {"color": version_colour(index)},
                # A per cent sign would begin a placeholder.
                "hovertemplate": f"%{{x}}<br>{words.replace('%', '')}: %{{y:,}} {unit}<extra></extra>",
            }
        )
    totals = {
        fate: (
            sum(row["trajectories"] for row in drops if row["fate"] == fate),
            sum(row["tokens"] for row in drops if row["fate"] == fate),
        )
        for fate in fates
    }
    rows = [
        cells(f"{fate.partition(':')[0]}: {_reason(fate.partition(':')[2])}", f"{count:,}", f"{tokens:,}")
        for fate, (count, tokens) in totals.items()
    ]
    unplaced = sum(row["trajectories"] for row in drops if row["step"] is None)
    return Figure(
        id="waste-steps",
        title=title,
        alt="; ".join(
            f"{fate.partition(':')[0]}, {_reason(fate.partition(':')[2])}: {count:,} trajectories"
            for fate, (count, _) in totals.items()
        )
        + ".",
        caption=("Tokens of trajectories" if known_tokens else "Trajectories")
        + " whose fate is certain, at the step that was being collected when they were thrown away."
        + (f" {unplaced:,} more can't be placed." if unplaced else ""),
        traces=traces,
        layout={
            "barmode": "stack",
            "xaxis": axis("training step", type="category", nticks=12),
            "yaxis": axis(unit, rangemode="tozero"),
            # Reasons may be many: their legend stands below, where there is room for it.
            "legend": {"y": -0.3, "yanchor": "top"},
            "showlegend": True,
        },
        table=Table(
            "waste-steps-numbers", "Thrown away, by reason", columns("reason", "trajectories#", "tokens#"), tuple(rows)
        ),
        height=280 + 22 * len(fates),
    )


def lengths_figure(data: Data, lengths: Rows) -> Figure | Missing:
    """Lengths of finished against trained trajectories; ``lengths``: rows of the query ``lengths``."""
    title = "Length bias: finished against trained"
    if len(lengths) < 2:
        return Missing(title, "The logs don't show the exact lengths of enough finished trajectories.")
    names = [reach(number(row["first"]), number(row["last"])) for row in lengths]
    middles = [(row["first"] + row["last"]) / 2 for row in lengths]
    width = lengths[0]["last"] - lengths[0]["first"] + 1
    finished, trained = sum(row["finished"] for row in lengths), sum(row["trained"] for row in lengths)
    share = [percent(row["trained"] / row["finished"]) for row in lengths]
    shared: dict[str, Any] = {"type": "bar", "x": middles, "width": width * 0.92}
    hover = [
        f"{name} tokens<br>finished {row['finished']:,}<br>trained {row['trained']:,} ({part})"
        for name, row, part in zip(names, lengths, share, strict=True)
    ]
    rows = [
        cells(name, f"{row['finished']:,}", f"{row['trained']:,}", part)
        for name, row, part in zip(names, lengths, share, strict=True)
    ]
    return Figure(
        id="waste-lengths",
        title=title,
        alt=f"{trained:,} of {finished:,} finished trajectories of exactly known length were trained; "
        f"of the longest class {share[-1]}, of the shortest {share[0]}.",
        caption="Outline: finished trajectories by length; filled: those of them that were trained. Where the filled "
        "part gets smaller to the right, long answers are lost and training sees shorter ones than the model gives.",
        traces=[
            {
                **shared,
                "y": [row["finished"] for row in lengths],
                "name": "finished",
                "marker": {"color": "var(--band)", "line": {"color": "var(--muted)", "width": 1}},
                "text": hover,
                "textposition": "none",
                "hovertemplate": "%{text}<extra></extra>",
            },
            {
                **shared,
                "y": [row["trained"] for row in lengths],
                "name": "trained",
                "marker": {"color": "var(--within)"},
                "hoverinfo": "skip",
            },
        ],
        layout={
            "barmode": "overlay",
            "xaxis": axis("sampled tokens"),
            "yaxis": axis("trajectories", rangemode="tozero"),
        },
        table=Table(
            "waste-lengths-numbers",
            title,
            columns("sampled tokens#", "finished#", "trained#", "share trained#"),
            tuple(rows),
        ),
        height=280,
    )
