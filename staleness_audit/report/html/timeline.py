"""Third question: how trajectories lived, as bars over time, or over versions where no times are logged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import duckdb

from staleness_audit.report.html.bars import Bars, Clock
from staleness_audit.report.html.figure import WORDS, Figure, Missing, axis, label, version_colour, version_key
from staleness_audit.report.html.queries import Rows, fetch
from staleness_audit.report.html.violations import anchor_of
from staleness_audit.report.terminal.story import fate_name

Data = Mapping[str, Any]

NEAR, SPREAD = 120, 170
"""How many neighbours of the worst violation are shown, and how many others."""
LANES = 1000
"""Training steps and weight syncs that are shown at most."""
IN_VIEW = 45
"""Trajectories in the first view."""

MOMENTS = ("admitted", "started", "finished", "enqueued", "sampled", "ended")
THICK, HALF, THIN = 0.8, 0.4, 0.2
"""Heights of bars, in rows."""

TITLE = "Lives of trajectories"


def timeline_figure(data: Data, connection: duckdb.DuckDBPyConnection) -> Figure | Missing:
    """Draw a sample of lives: the listed violations, those that began closest to the worst, others evenly spread."""
    worst = data["violations"]["worst"] or []
    timed = _timed(connection)
    if timed is None:
        return Missing(
            TITLE,
            "The logs name no trajectory: they hold only sums over whole steps or batches, so no life can be drawn. "
            "The last section says what would have to be recorded.",
        )
    lives = fetch(
        connection,
        "timeline_sample",
        worst=[row["trajectory_id"] for row in worst],
        near=NEAR,
        spread=SPREAD,
        timed=timed,
    )
    if not lives:
        return Missing(TITLE, "The logs say of no trajectory when or by which version it was made.")
    keys = [life["key"] for life in lives]
    spans, uses = (
        _by_key(fetch(connection, "timeline_spans", keys=keys)),
        _by_key(fetch(connection, "timeline_uses", keys=keys)),
    )
    stories = {(row["trajectory_id"], row["attempt"], row["step"]): row for row in worst}
    drawing = _Timed(lives, spans, uses, stories) if timed else _Versions(lives, spans, uses, stories)
    return drawing.figure(data, connection)


def _timed(connection: duckdb.DuckDBPyConnection) -> bool | None:
    """Whether at least half of the named trajectories have times; None if there is no named one."""
    named, with_times = connection.execute(
        "SELECT count(*), count(coalesce(started, admitted, finished, enqueued)) "
        "FROM trajectory_lives WHERE NOT anonymous"
    ).fetchall()[0]
    return None if not named else bool(2 * with_times >= named)


def _by_key(rows: Rows) -> dict[int, Rows]:
    grouped: dict[int, Rows] = {}
    for row in rows:
        grouped.setdefault(row["key"], []).append(row)
    return grouped


class _Drawing:
    """What both drawings share: marks of violations and of bad ends, views, words."""

    axis_title = ""

    def __init__(
        self, lives: Rows, spans: dict[int, Rows], uses: dict[int, Rows], stories: Mapping[Any, Mapping[str, Any]]
    ) -> None:
        self.lives, self.spans, self.uses, self.stories = lives, spans, uses, stories
        self.generation = Bars.none("generation, coloured by version")
        self.marks: dict[str, list[tuple[float, int, str, str]]] = {"proven": [], "possible": [], "end": []}

    def head(self, life: Mapping[str, Any]) -> str:
        """First lines of what hovering over a life shows."""
        fates = " or ".join(fate_name(fate, WORDS) for fate in life["fates"].split("\x1f"))
        return f"<b>{label(life['trajectory_id'], 60)}</b><br>{label(fates)}"

    def mark_use(self, life: Mapping[str, Any], use: Mapping[str, Any], at: float | None, row: int) -> None:
        """Mark a use that is listed as a violation; a click leads to its story."""
        told = self.stories.get((life["trajectory_id"], use["attempt"], use["step"]))
        if told is None or at is None:
            return
        stale = WORDS.interval(told["staleness"])
        kind = "proven" if told["proven"] else "possible"
        self.marks[kind].append(
            (
                at,
                row,
                f"{self.head(life)}<br>{kind} violation: staleness {stale} in step {use['step']}",
                anchor_of(told),
            )
        )

    def mark_traces(self) -> list[dict[str, Any]]:
        """Markers on top of the bars."""
        looks = {
            "end": ("dropped, cancelled or lost", "x-thin", "var(--ink)", 7),
            "possible": ("possible violation", "diamond-open", "var(--possible)", 11),
            "proven": ("proven violation", "diamond", "var(--beyond)", 11),
        }
        return [
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [place[0] for place in self.marks[kind]],
                "y": [place[1] for place in self.marks[kind]],
                "text": [place[2] for place in self.marks[kind]],
                "customdata": [place[3] for place in self.marks[kind]],
                "marker": {"symbol": symbol, "size": size, "color": colour, "line": {"width": 2, "color": colour}},
                "hovertemplate": "%{text}<extra></extra>",
                "cliponaxis": True,
            }
            for kind, (name, symbol, colour, size) in looks.items()
            if self.marks[kind]
        ]

    def drawn(
        self,
        caption: str,
        layers: Iterable[tuple[Bars, float]],
        layout: Mapping[str, Any],
        views: tuple[tuple[str, dict[str, Any]], ...],
        *,
        heights: tuple[int, int],
        lanes: Iterable[dict[str, Any]] = (),
    ) -> Figure:
        """Put the figure together; ``layers``: bars with their thickness, ``heights``: for few and for many rows."""
        proven, possible = len(self.marks["proven"]), len(self.marks["possible"])
        bars = [bars.trace(width) for bars, width in layers if bars.base]
        return Figure(
            id="timeline-figure",
            title=TITLE,
            alt=f"{self.sampling()} {proven} proven and {possible} possible violations are marked.",
            caption=caption,
            traces=[*bars, *self.mark_traces(), *lanes],
            layout={"barmode": "overlay", "dragmode": "pan", **layout},
            height=heights[len(self.lives) > 20],
            views=views,
            key=self.key(),
        )

    def views(self, reach: list[tuple[float, float]]) -> tuple[tuple[str, dict[str, Any]], ...]:
        """Excerpts; ``reach``: by row, where its bars begin and end."""
        first, last = min(low for low, _ in reach), max(high for _, high in reach)
        pad = (last - first) * 0.02 or 1
        whole = {"xaxis.range": [first - pad, last + pad], "yaxis.range": [len(reach) - 0.4, -0.6]}
        if len(reach) <= IN_VIEW:
            return (("All", whole),)
        told = next(iter(self.stories.values()), None)
        focus = next(
            (index for index, life in enumerate(self.lives) if told and life["trajectory_id"] == told["trajectory_id"]),
            next((index for index, life in enumerate(self.lives) if life["chosen"] == "near"), 0),
        )
        start = max(0, min(focus - IN_VIEW // 2, len(reach) - IN_VIEW))
        shown = reach[start : start + IN_VIEW]
        low, high = min(low for low, _ in shown), max(high for _, high in shown)
        pad = (high - low) * 0.02 or 1
        excerpt = {"xaxis.range": [low - pad, high + pad], "yaxis.range": [start + IN_VIEW - 0.4, start - 0.6]}
        name = "Around the worst violation" if told else "Around the most stale trajectory"
        return ((name, excerpt), ("Everything shown", whole))

    def key(self) -> tuple[tuple[str, str], ...]:
        """Return what the colours of the bars stand for."""
        spans = [span for spans in self.spans.values() for span in spans]
        exact = {
            span["version_lo"]
            for span in spans
            if span["version_lo"] is not None and span["version_lo"] == span["version_hi"]
        }
        vague = any(span["version_lo"] != span["version_hi"] or span["version_lo"] is None for span in spans)
        return version_key(exact) + ((version_colour(None), "version not exactly known"),) * vague

    def sampling(self) -> str:
        """Say which trajectories are shown."""
        everyone, count = self.lives[0]["everyone"], len(self.lives)
        if count == everyone:
            return f"All {everyone:,} trajectories that can be placed are shown, in the order in which they began."
        worst, near = (sum(life["chosen"] == kind for life in self.lives) for kind in ("worst", "near"))
        rest = count - worst - near
        parts = [f"the {worst} listed violations"] * bool(worst)
        parts += [f"the {near} that began closest to the {'worst of them' if worst else 'most stale one'}"] * bool(near)
        parts += [f"{rest} of the others, evenly spread"] * bool(rest)
        return f"Showing {count:,} of {everyone:,} trajectories, in the order in which they began: {', '.join(parts)}."


class _Timed(_Drawing):
    """Over time: admission, generation, queue, training; the trainer and the weight syncs above."""

    def figure(self, data: Data, connection: duckdb.DuckDBPyConnection) -> Figure | Missing:
        moments = self._moments(self.lives)
        near = [life for life in self.lives if life["chosen"] != "spread"] or self.lives
        window = self._moments(near)
        lanes = fetch(connection, "timeline_lanes", most=LANES, **{"from": min(window), "until": max(window)})
        moments += [row[name] for row in lanes for name in ("started", "ended") if row[name] is not None]
        clock = Clock.over(moments, window)
        waiting, queue, training = (
            Bars.none("admitted, not started"),
            Bars.none("in the queue"),
            Bars.none("training"),
        )
        reach = [self._life(life, index, clock, waiting, queue, training) for index, life in enumerate(self.lives)]
        lane_traces, lane_names, more = _lanes(lanes, clock)
        views = self.views(reach)
        layout = {
            "xaxis": axis(
                f"{clock.unit} since the first entry shown", fixedrange=False, range=views[0][1]["xaxis.range"]
            ),
            "yaxis": axis(
                "",
                fixedrange=False,
                showticklabels=False,
                showgrid=False,
                range=views[0][1]["yaxis.range"],
                domain=[0, 0.84] if lane_names else [0, 1],
            ),
            "yaxis2": axis(
                "",
                domain=[0.87, 1],
                tickvals=list(range(len(lane_names))),
                ticktext=lane_names,
                range=[len(lane_names) - 0.4, -0.6],
                showgrid=False,
            )
            if lane_names
            else {"visible": False},
        }
        return self.drawn(
            "Each row is a trajectory. Coloured: generation, each colour a policy version; thin: waiting; "
            "half as high, at the end: the step that trains it. New colour: new weights arrived during generation. "
            + self.sampling()
            + more,
            ((waiting, THIN), (self.generation, THICK), (queue, THIN), (training, HALF)),
            layout,
            views,
            lanes=lane_traces,
            heights=(420, 620),
        )

    def _moments(self, lives: Rows) -> list[int]:
        """Return all moments of some lives and of the steps that trained them, microseconds since 1970."""
        moments = [life[name] for life in lives for name in MOMENTS]
        moments += [
            use[name] for life in lives for use in self.uses.get(life["key"], []) for name in ("started", "ended")
        ]
        return [moment for moment in moments if moment is not None]

    def _life(
        self, life: Mapping[str, Any], row: int, clock: Clock, waiting: Bars, queue: Bars, training: Bars
    ) -> tuple[float, float]:
        """Add the bars of a life; return where they begin and end."""
        head, uses = self.head(life), self.uses.get(life["key"], [])
        begin = life["started"] if life["started"] is not None else life["admitted"]
        waiting.add(
            clock.at(life["admitted"]),
            clock.at(life["started"]),
            row,
            "var(--waiting)",
            f"{head}<br>admitted, not started",
        )
        self._generation(life, row, clock, begin, head)
        done = life["enqueued"] if life["enqueued"] is not None else life["finished"]
        taken = (
            life["sampled"]
            if life["sampled"] is not None
            else min((use["started"] for use in uses if use["started"] is not None), default=life["ended"])
        )
        if taken is None and life["fates"] == "pending:":
            taken = clock.last
        queue.add(clock.at(done), clock.at(taken), row, "var(--waiting)", f"{head}<br>waits in the queue")
        for use in uses:
            stale = WORDS.interval({"lo": use["staleness_lo"], "hi": use["staleness_hi"]})
            training.add(
                clock.at(use["started"]),
                clock.at(use["ended"]),
                row,
                "var(--training)",
                f"{head}<br>trained by step {use['step']}, staleness {stale}",
            )
            at = use["started"] if use["started"] is not None else taken
            self.mark_use(life, use, clock.at(at), row)
        if not uses and life["ended"] is not None:
            self.marks["end"].append((clock.at(life["ended"]) or 0, row, head, ""))
        known = [clock.at(taken)] if done is not None else []
        known += [clock.at(life[name]) for name in MOMENTS]
        known += [clock.at(use[name]) for use in uses for name in ("started", "ended")]
        places = [place for place in known if place is not None]
        return min(places), max(places)

    def _generation(self, life: Mapping[str, Any], row: int, clock: Clock, begin: int | None, head: str) -> None:
        spans = self.spans.get(life["key"], [])
        end = life["finished"] if life["finished"] is not None else life["enqueued"]
        if not any(span["ended"] is not None or span["started"] is not None for span in spans):
            # No times inside: one bar, of the version's colour only if there was just one.
            versions = {(span["version_lo"], span["version_hi"]) for span in spans}
            single = next(iter(versions)) if len(versions) == 1 else (None, None)
            names = ", ".join(sorted(_version(span) for span in spans)) or "not logged"
            colour = version_colour(single[0] if single[0] == single[1] else None)
            self.generation.add(clock.at(begin), clock.at(end), row, colour, f"{head}<br>generated; versions: {names}")
            return
        last = begin
        for span in spans:
            start = span["started"] if span["started"] is not None else last
            stop = span["ended"] if span["ended"] is not None else end
            colour = version_colour(span["version_lo"] if span["version_lo"] == span["version_hi"] else None)
            self.generation.add(
                clock.at(start),
                clock.at(stop),
                row,
                colour,
                f"{head}<br>generated by {_version(span)}: {_tokens(span)}",
            )
            last = stop


class _Versions(_Drawing):
    """Over policy versions, where the logs hold no times."""

    def figure(self, data: Data, connection: duckdb.DuckDBPyConnection) -> Figure | Missing:
        queue, training = Bars.none("in the queue"), Bars.none("training")
        reach = [self._life(life, index, queue, training) for index, life in enumerate(self.lives)]
        views = self.views(reach)
        return self.drawn(
            "The logs hold no times of these trajectories, so their lives are drawn over policy versions. "
            "Each row is a trajectory. Coloured: versions that generated its tokens; thin: versions that passed while "
            "it waited; half as high: the version that trained on it. " + self.sampling(),
            ((self.generation, THICK), (queue, THIN), (training, HALF)),
            {
                "xaxis": axis(
                    "policy version", fixedrange=False, range=views[0][1]["xaxis.range"], **_whole_ticks(views)
                ),
                "yaxis": axis(
                    "", fixedrange=False, showticklabels=False, showgrid=False, range=views[0][1]["yaxis.range"]
                ),
                "yaxis2": {"visible": False},
            },
            views,
            heights=(380, 560),
        )

    def _life(self, life: Mapping[str, Any], row: int, queue: Bars, training: Bars) -> tuple[float, float]:
        head = self.head(life)
        places: list[float] = []
        for span in self.spans.get(life["key"], []):
            low, high = span["version_lo"], span["version_hi"]
            if low is None or high is None:
                continue
            self.generation.add(
                low,
                high + 1,
                row,
                version_colour(low if low == high else None),
                f"{head}<br>generated by {_version(span)}: {_tokens(span)}",
            )
            places += [low, high + 1]
        for use in self.uses.get(life["key"], []):
            if (train := use["v_train_lo"]) is None or train != use["v_train_hi"]:
                continue
            if life["v_end_lo"] is not None and life["v_end_lo"] == life["v_end_hi"] and life["v_end_lo"] + 1 < train:
                queue.add(life["v_end_lo"] + 1, train, row, "var(--waiting)", f"{head}<br>waits in the queue")
            stale = WORDS.interval({"lo": use["staleness_lo"], "hi": use["staleness_hi"]})
            training.add(
                train + 0.35,
                train + 0.65,
                row,
                "var(--training)",
                f"{head}<br>trained by step {use['step']} from v{train}, staleness {stale}",
            )
            self.mark_use(life, use, train + 0.5, row)
            places += [train, train + 1]
        return (min(places), max(places)) if places else (0.0, 1.0)


def _whole_ticks(views: tuple[tuple[str, dict[str, Any]], ...]) -> dict[str, Any]:
    """Ticks at whole versions only."""
    low, high = views[0][1]["xaxis.range"]
    return {"tickformat": "d", **({"dtick": 1} if high - low < 16 else {})}


def _version(span: Mapping[str, Any]) -> str:
    shown = WORDS.interval({"lo": span["version_lo"], "hi": span["version_hi"]})
    return "a version not logged" if span["version_hi"] is None and not span["version_lo"] else f"v{shown}"


def _tokens(span: Mapping[str, Any]) -> str:
    return WORDS.count({"lo": span["tokens_lo"], "hi": span["tokens_hi"]}, "token")


def _lanes(rows: Rows, clock: Clock) -> tuple[list[dict[str, Any]], list[str], str]:
    """Traces of the trainer and of the weight syncs, names of the lanes that there are, and what was left out."""
    names = [
        name
        for lane, name in (("step", "trainer"), ("sync", "weight syncs"))
        if any(row["lane"] == lane for row in rows)
    ]
    bars, waits = Bars.none("training step"), Bars.none("trainer waits")
    syncs: list[Mapping[str, Any]] = []
    for row in rows:
        version = WORDS.interval({"lo": row["version_lo"], "hi": row["version_hi"]})
        if row["lane"] == "step":
            colour = version_colour(row["version_lo"] if row["version_lo"] == row["version_hi"] else None)
            bars.add(
                clock.at(row["started"]), clock.at(row["ended"]), 0, colour, f"step {row['step']} trains v{version}"
            )
            if row["waited_us"] and row["started"] is not None:
                waits.add(
                    max(clock.at(row["started"] - row["waited_us"]) or 0, 0),
                    clock.at(row["started"]),
                    0,
                    "var(--waiting)",
                    f"the trainer waits before step {row['step']}",
                )
        else:
            syncs.append(row)
    traces = [item.trace(width, "y2", legend=False) for item, width in ((waits, 0.3), (bars, 0.7)) if item.base]
    if syncs:
        at = [clock.at(row["started"] if row["started"] is not None else row["ended"]) for row in syncs]
        shown = [WORDS.interval({"lo": row["version_lo"], "hi": row["version_hi"]}) for row in syncs]
        colours = [
            version_colour(row["version_lo"] if row["version_lo"] == row["version_hi"] else None) for row in syncs
        ]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": at,
                "y": [len(names) - 1] * len(at),
                "yaxis": "y2",
                "showlegend": False,
                "name": "weight sync",
                "text": [f"weights v{version} published" for version in shown],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {"symbol": "line-ns", "size": 12, "color": colours, "line": {"width": 2, "color": colours}},
            }
        )
    left = {row["lane"]: row["everyone"] for row in rows}
    shown_of = {lane: sum(row["lane"] == lane for row in rows) for lane in left}
    more = "".join(
        f" Of {left[lane]:,} {noun}, {shown_of[lane]:,} are shown."
        for lane, noun in (("step", "training steps"), ("sync", "weight syncs"))
        if lane in left and shown_of[lane] < left[lane]
    )
    return traces, names, more
