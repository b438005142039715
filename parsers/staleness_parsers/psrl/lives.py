"""The tokens of a trajectory and their versions, from whichever files know them best (guide section 5.3).

In order: the gateway's trace (tokens exact, versions from pins), the inventory's first reservation (V_traj: the oldest
version of a single-turn trajectory), the folder of the trajectory's text (the version when it ended), and what holds by
the mechanism: nothing that step g trained is newer than its v_train.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import polars as pl

from staleness_audit.parser import Sink
from staleness_parsers.psrl.book import Book
from staleness_parsers.psrl.calls import Call, Pins, Request, Span

Row = Mapping[str, Any]
Texts = Mapping[tuple[int, int | None], Sequence[Row]]


@dataclass(frozen=True)
class Life:
    """What a use needs to know: ``loss`` tokens, and a version that some token is not newer than (None = not known)."""

    loss: tuple[int | None, int | None]
    newest: int | None


@dataclass(frozen=True)
class Text:
    """The summaries of a trajectory's text; ``version`` is an upper end for its last token (None = not known)."""

    tokens: tuple[int, int] | None
    version: int | None
    turns: int | None


class Teller:
    """Collects the rows of trajectories; ``flush`` writes them."""

    def __init__(
        self,
        book: Book,
        requests: Mapping[int, Request],
        pins: Pins,
        texts: Texts,
        siblings: int | None,
        *,
        validates: bool,
        shift: tuple[int, int] = (0, 0),
    ) -> None:
        self._book, self._requests, self._pins, self._texts = book, requests, pins, texts
        self._siblings = siblings
        self._validates = validates
        self._shift = shift
        self._trajectories: list[dict[str, Any]] = []
        self._spans: list[dict[str, Any]] = []
        self._events: list[dict[str, Any]] = []

    def reservation(self, request: int) -> Row | None:
        """Return the first reservation of a request."""
        if not self._siblings:
            return None
        return self._book.reserved.get((request // self._siblings, request % self._siblings))

    def run_facts(self) -> tuple[Any, ...]:
        """What holds for the run as a whole and every life depends on."""
        return (self._siblings, self._validates, self._shift, self._pins.several, self._pins.native, self._book.offset)

    def made_from(self, lives: Iterable[tuple[int, int | None]]) -> int:
        """Digest the lines that lives are made from, each of a request and part.

        Whole lines stay as they are, so that their places are enough.
        """
        told = []
        for request, part in lives:
            traced, reserved = self._requests.get(request), self.reservation(request)
            texts, counts = self._texts.get((request, part)), self._book.snapshots.get(request)
            told.append(
                (
                    None if traced is None else traced.lines,
                    None if reserved is None else (reserved["source"], reserved["line"]),
                    None if texts is None else tuple(tuple(row.values()) for row in texts),
                    None if counts is None else tuple(counts.items()),
                )
            )
        return hash(tuple(told))

    def latest(self, requests: Iterable[int]) -> int:
        """Return the place of the last line of the trace that names any of these requests."""
        traced = filter(None, map(self._requests.get, requests))
        return max((request.latest for request in traced), default=-1)

    def life(
        self,
        name: str,
        request: int,
        part: int | None,
        group: str | None,
        attempt: int,
        v_train: int | None,
        row: Row,
        *,
        known: bool = True,
        noted: bool = True,
    ) -> Life:
        """Note a trajectory. ``v_train``: of its step, if trained; ``known``: the logs are of its launch.

        Without ``noted`` only what its uses need to know is found: it has been noted elsewhere.
        """
        shift = self._shift if known else (0, 0)
        latest = None if v_train is None else v_train - shift[0]
        traced = self._requests.get(request) if known else None
        reserved = self.reservation(request) if known else None
        text = self._text(request, part) if known else Text(None, None, None)
        calls = self._calls(traced, latest) if traced else None
        if traced and calls and part is None:
            spans = self._pins.spans(calls)
            text = self._fitting(text, calls)
        elif traced and calls:
            low = min(call.tag for call in calls)
            tokens = text.tokens or (0, None)
            spans = [Span(tokens[0], tokens[1], low, None, traced.first)]
        else:
            spans = self._untraced(request, text, reserved, row, latest)
        if calls is None and traced:
            # Several launches of the id, of which not all need be of this trajectory.
            text = Text(text.tokens, None, text.turns)
        spans = [_renumbered(span, shift, v_train) for span in _limited(spans, text.version, latest)]
        ended = traced is not None and traced.calls[-1].completed
        # Between two turns a request is not finished, although its last call is complete.
        ended = ended and (v_train is not None or not self._pins.several)
        if noted:
            self._write(name, group, attempt, traced, reserved, row, spans, ended=ended)
        newest = [version for version in (text.version, *self._book.snapshots.get(request, {})) if version is not None]
        known_newest = min(newest) + shift[1] if newest and known else None
        return Life(self._loss(calls, text, part), known_newest)

    def _calls(self, traced: Request, v_train: int | None) -> list[Call] | None:
        """Choose the attempt that was trained: the last one, unless ids may also be of validation requests."""
        fitting = [calls for calls in traced.attempts if v_train is None or all(call.tag <= v_train for call in calls)]
        if len(fitting) == 1 or (fitting and not self._validates):
            return fitting[-1]
        return None

    def _text(self, request: int, part: int | None) -> Text:
        rows = self._texts.get((request, part), [])
        counts = [row["tokens"] for row in rows if row["tokens"] is not None]
        turns = {row["turns"] for row in rows}
        whole = bool(rows) and len(counts) == len(rows)
        # Folder 0 may be a fallback, and a damaged text may be of any trajectory.
        version = max((row["version"] for row in rows), default=0) if all(row["version"] for row in rows) else 0
        return Text(
            (min(counts), max(counts)) if whole else None, version or None, turns.pop() if len(turns) == 1 else None
        )

    def _fitting(self, text: Text, calls: Sequence[Call]) -> Text:
        """Leave out a text that can't be of the traced trajectory (validation writes texts of the same names)."""
        made = sum(call.total for call in calls)
        if (
            text.tokens
            and calls[-1].completed
            and (text.tokens[1] > made or (len(calls) == 1 and text.tokens[0] != made))
        ):
            return Text(None, None, None)
        return text

    def _untraced(self, request: int, text: Text, reserved: Row | None, row: Row, v_train: int | None) -> list[Span]:
        traced = self._requests.get(request)
        tags = [call.tag for calls in traced.attempts for call in calls] if traced else []
        lows = [tag for tag in tags if v_train is None or tag <= v_train]
        if traced is None and reserved is not None and text.turns == 1:
            lows = [reserved["numbers"][1]]
        low = max(min(lows, default=0), 0)
        tokens: tuple[int, int | None] = text.tokens or ((0, None) if v_train is None else (1, None))
        counts = self._book.snapshots.get(request, {})
        best = min(counts, default=None)
        if best is None or best < low or text.tokens is None or counts[best] >= text.tokens[0]:
            return [Span(tokens[0], tokens[1], low, None, reserved or row)]
        # So many tokens were there while the engine served this version.
        early = counts[best]
        return [
            Span(early, early, low, best, reserved or row),
            Span(tokens[0] - early, (tokens[1] or 0) - early, low, None, row),
        ]

    def _loss(self, calls: Sequence[Call] | None, text: Text, part: int | None) -> tuple[int | None, int | None]:
        if text.tokens:
            return text.tokens
        if calls is None or part is not None or not calls[-1].completed:
            return None, None
        made = sum(call.total for call in calls)
        pairs = pairwise(calls)
        return (made if all(after.prompt == call.prompt + call.total for call, after in pairs) else 0), made

    def _write(
        self,
        name: str,
        group: str | None,
        attempt: int,
        traced: Request | None,
        reserved: Row | None,
        row: Row,
        spans: Sequence[Span],
        *,
        ended: bool,
    ) -> None:
        place = traced.first if traced else reserved or row
        where = {"source": place["source"], "line": place["line"]}
        prompt = traced.first["prompt_tokens"] if traced else None
        self._trajectories.append(
            {
                "trajectory_id": name,
                "group_id": group,
                "attempt": attempt,
                "role": "train",
                "prompt_tokens": prompt,
                "evidence": "recorded",
                **where,
            }
        )
        # Milliseconds of the inventory where the zone is known, else the gateway's seconds.
        ts = self._book.utc(reserved) or (traced.first["ts"] if traced else None)
        event = {"trajectory_id": name, "attempt": attempt, "evidence": "recorded"}
        if traced or reserved:
            self._events.append({**event, "seq": where["line"], "ts": ts, "kind": "admitted", **where})
        if traced and ended:
            end = traced.calls[-1].segments[-1].pop or {}
            self._events.append(
                {
                    **event,
                    "seq": end["line"],
                    "ts": end["ts"],
                    "kind": "finished",
                    "source": end["source"],
                    "line": end["line"],
                }
            )
        for index, span in enumerate(spans):
            exact = span.hi == span.lo
            self._spans.append(
                {
                    "trajectory_id": name,
                    "span_index": index,
                    "tokens_lo": span.tokens_lo,
                    "tokens_hi": span.tokens_hi,
                    "version_lo": span.lo,
                    "version_hi": span.hi,
                    "ended": span.ended,
                    "worker": span.row.get("instance"),
                    "evidence": "derived" if exact else "inferred",
                    "source": span.row["source"],
                    "line": span.row["line"],
                }
            )

    def flush(self, sink: Sink) -> None:
        """Write what was collected."""
        for table, rows in (("trajectories", self._trajectories), ("spans", self._spans), ("events", self._events)):
            if rows:
                sink.write(table, pl.DataFrame(rows, infer_schema_length=None))
        self._trajectories, self._spans, self._events = [], [], []


def _renumbered(span: Span, shift: tuple[int, int], v_train: int | None) -> Span:
    """Turn numbers of a launch into versions of the run."""
    hi = None if span.hi is None else span.hi + shift[1]
    hi = v_train if hi is not None and v_train is not None and span.lo + shift[0] <= v_train < hi else hi
    return replace(span, lo=span.lo + shift[0], hi=hi)


def _limited(spans: Sequence[Span], last: int | None, v_train: int | None) -> list[Span]:
    """Cut upper ends by the version at the trajectory's end (for its last span) and by that of its step."""
    limited = []
    for index, span in enumerate(spans):
        limits = [span.hi, v_train, last if index == len(spans) - 1 else None]
        hi = min((limit for limit in limits if limit is not None and limit >= span.lo), default=None)
        limited.append(Span(span.tokens_lo, span.tokens_hi, span.lo, hi, span.row, span.ended))
    return limited
