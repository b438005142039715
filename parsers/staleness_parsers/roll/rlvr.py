"""RLVR: lives of prompts from spans, and the replay of the buffer (guide sections 4.1 and 5.1).

The buffer is first in, first out over start steps. So who was taken at a step follows from when prompts committed:
walk start steps from s - W upward and take finished prompts in the order of their commits, until the batch is full.
Where W is not known, every W that fills all batches (and agrees with the dumps' oldest start steps) is replayed; only
what all of them say is certain.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from staleness_parsers.roll import gaps
from staleness_parsers.roll.lives import in_order
from staleness_parsers.roll.settings import Settings
from staleness_parsers.roll.timeline import Span, Step, Timeline

_INNER: Final = ("rollout.generate", "rollout.compute_rewards")
_OF_PROMPTS: Final = ["prompt_span", "span", "parent", "instance", "start", "end", "failed", "prompt", "source", "line"]


@dataclass
class Response:
    """One response: its segments (engine requests) in order, and how many of its reward calls were traced."""

    key: str
    place: Span
    segments: list[Span] = field(default_factory=list)
    rewards: int = 0
    scored: int | None = None  # when the first of them began
    open: bool = False

    @property
    def order(self) -> tuple[int, int]:
        """Position in its group: the number in its first request, else the time."""
        first = self.segments[0] if self.segments else self.place
        number = re.search(r"_(\d{1,18})\Z", first.get("request") or "")
        return (int(number[1]) if number else 1 << 60, first["start"])


@dataclass
class Prompt:
    """One prompt (group). ``start_step`` None: its ``get_batch`` is lost. ``open``: its own span is missing.

    ``answers``: its responses; ``rewards``: those of them that were scored, or how often they were; ``told``: which
    spans tell of it, and from when to when (``first``, ``last``). ``responses`` are there when it is written.
    """

    key: str
    domain: str
    attempt: int
    place: Span
    start: int
    end: int | None
    start_step: int | None
    number: int | None
    answers: int = 0
    rewards: int = 0
    first: int = 0
    last: int = 0
    told: object = None
    responses: list[Response] = field(default_factory=list)
    committed: bool = False
    open: bool = False

    @property
    def until(self) -> int:
        """End of the prompt, or of the last of it that was seen."""
        if self.end is not None:
            return self.end
        return max((segment["end"] for r in self.responses for segment in r.segments), default=self.start)


@dataclass(frozen=True)
class Batch:
    """One sampling call of one domain's buffer."""

    domain: str
    attempt: int
    step: int
    size: int | None
    end: int
    place: Span


@dataclass
class Outcome:
    """The replay. ``taken``: per (domain, attempt, step) whom it certainly took, ``maybe``: whom perhaps.

    ``unsure``: (attempt, step) whose batch is not known. ``windows``: per (domain, attempt) the W that fit.
    ``torn``: (domain, attempt) of which spans were lost. ``lost``: for want of spans, some batch is not known.
    """

    taken: dict[tuple[str, int, int], list[Prompt]] = field(default_factory=dict)
    maybe: dict[tuple[str, int, int], list[Prompt]] = field(default_factory=dict)
    unsure: set[tuple[int, int]] = field(default_factory=set)
    windows: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    torn: set[tuple[str, int]] = field(default_factory=set)
    lost: bool = False


def read_prompts(
    lives: pl.DataFrame, timeline: Timeline, batches: Mapping[str, Batch], memory: dict[str, Any]
) -> tuple[list[Prompt], pl.DataFrame]:
    """Return prompts in order, and the spans of those whose own is there, each with its prompt (``prompt_span``).

    Validation (prompts without parent) is left out. ``memory``: rows of the prompts as they were at the last look.
    """
    owned = _owned(lives)
    own = owned.filter(name="process_new_prompt")
    training = own.filter(pl.col("parent").is_not_null())
    inner = owned.filter(pl.col("name") != "process_new_prompt")
    closed = pl.concat([training, inner.join(training.select("prompt_span"), on="prompt_span", how="semi")])
    beside = inner.join(own.select("prompt_span"), on="prompt_span", how="anti")
    found = []
    for row in _rows_of(_counted(closed, training), memory):
        batch = batches.get(row["parent"])
        attempt = timeline.attempt_at(row["start"])
        step = batch.step if batch else _open_step(row, timeline, batches)
        counts = {name: row[name] for name in ("answers", "rewards", "first", "last")}
        domain = row["instance"] or ""
        prompt = Prompt(row["span"], domain, attempt, row, row["start"], row["end"], step, row["prompt"], **counts)
        prompt.told = row["told"]
        found.append(prompt)
    found += _open_prompts(in_order(beside), timeline)
    return sorted(found, key=lambda prompt: (prompt.start, prompt.key)), closed


def _owned(lives: pl.DataFrame) -> pl.DataFrame:
    """Add the span of each one's prompt; null where the span between them is missing."""
    lives = lives.filter(pl.col("name").is_in([*_INNER, "process_new_prompt", "generate_and_reward"]))
    answers = lives.filter(name="generate_and_reward")
    inner = lives.filter(pl.col("name").is_in(_INNER))
    own = pl.col("span").alias("prompt_span")
    to_prompt = answers.select(pl.col("span").alias("parent"), pl.col("parent").alias("prompt_span"))
    return pl.concat(
        [
            lives.filter(name="process_new_prompt").with_columns(own),
            answers.with_columns(pl.col("parent").alias("prompt_span")),
            inner.join(to_prompt, on="parent", how="left"),
        ]
    )


def _rows_of(counted: pl.DataFrame, memory: dict[str, Any]) -> list[Span]:
    """Return prompts as rows; that of a prompt which is told by the same spans as at the last look is kept."""
    before: dict[str, Span] = memory.get("prompts", {})
    told = dict(zip(counted["span"].to_list(), counted["told"].to_list(), strict=True))
    found = {span: row for span, row in before.items() if told.get(span) == row["told"]}
    new = counted.filter(~pl.col("span").is_in(list(found))) if found else counted
    found |= {row["span"]: row for row in new.iter_rows(named=True)}
    memory["prompts"] = found
    return list(found.values())


def _counted(closed: pl.DataFrame, training: pl.DataFrame) -> pl.DataFrame:
    """Prompts with what their spans are: the copy of a span that is kept is at the same place as long as files grow."""
    counts = closed.group_by("prompt_span").agg(
        (pl.col("name") == "generate_and_reward").sum().alias("answers"),
        (pl.col("name") == "rollout.compute_rewards").sum().alias("rewards"),
        pl.col("start").min().alias("first"),
        pl.col("end").max().alias("last"),
        pl.struct("span", "source", "line").hash().sum().alias("told"),
    )
    return training.select(_OF_PROMPTS).join(counts, on="prompt_span")


def _open_prompts(spans: Sequence[Span], timeline: Timeline) -> list[Prompt]:
    """Put prompts together whose own span is missing: it runs, or the span is lost."""
    prompts: dict[str, Prompt] = {}
    validations = [
        part for step in timeline.steps for name, part in step.parts.items() if name in ("validation", "val_generate")
    ]
    for prompt_span, response in responses_of(spans, timeline):
        row = response.place
        owner = prompt_span or f"alone:{response.key}"
        if owner not in prompts:
            if any(part["start"] <= row["start"] <= part["end"] for part in validations):
                continue
            attempt = timeline.attempt_at(row["start"])
            prompts[owner] = Prompt(
                owner, row["instance"] or "", attempt, row, row["start"], None, None, row["prompt"], open=True
            )
        prompts[owner].responses.append(response)
    for prompt in prompts.values():
        prompt.responses.sort(key=lambda response: response.order)
        rows = [row for one in prompt.responses for row in (one.place, *one.segments)]
        scored = [one.scored for one in prompt.responses if one.scored is not None]
        prompt.answers = len(prompt.responses)
        prompt.rewards = sum(response.rewards for response in prompt.responses)
        prompt.first, prompt.last = min(row["start"] for row in rows), max(*scored, *(row["end"] for row in rows))
        prompt.told = [*scored, *((row["span"], row["source"], row["line"]) for row in rows)]
    return list(prompts.values())


def responses_of(spans: Sequence[Span], timeline: Timeline) -> list[tuple[str | None, Response]]:
    """Return responses of these spans, which are in order, with the spans of their prompts."""
    by_name: dict[str, list[Span]] = defaultdict(list)
    for row in spans:
        by_name[row["name"]].append(row)
    responses, parents = _responses(by_name, timeline)
    for response in responses.values():
        response.segments.sort(key=lambda row: (row["start"], row["end"]))
    return [(parents[key], response) for key, response in responses.items()]


def _responses(
    by_name: Mapping[str, Sequence[Span]], timeline: Timeline
) -> tuple[dict[str, Response], dict[str, str | None]]:
    """Responses by their span with their segments, and the span of each one's prompt; a span may be missing."""
    responses: dict[str, Response] = {}
    parents: dict[str, str | None] = {}
    for row in by_name.get("generate_and_reward", ()):
        responses[row["span"]] = Response(row["span"], row)
        parents[row["span"]] = row["parent"]
    for row in [*by_name.get("rollout.generate", ()), *by_name.get("rollout.compute_rewards", ())]:
        parent = row["parent"] or row["span"]
        if parent not in responses:
            responses[parent] = Response(parent, row, open=True)
            parents[parent] = f"open:{row['instance']}:{timeline.attempt_at(row['start'])}:{row['prompt']}"
        if row["name"] == "rollout.generate":
            responses[parent].segments.append(row)
        else:
            responses[parent].rewards += 1
            responses[parent].scored = min(responses[parent].scored or row["start"], row["start"])
    return responses, parents


def _open_step(row: Span, timeline: Timeline, batches: Mapping[str, Batch]) -> int | None:
    """Start step of a prompt whose ``get_batch`` span is missing: the step in which the run ended never ends it."""
    own = [
        batch
        for batch in batches.values()
        if batch.domain == (row["instance"] or "") and batch.attempt == timeline.attempt_at(row["start"])
    ]
    if not own:
        first = timeline.first.get(timeline.attempt_at(row["start"]), 0)
        return first
    if all(batch.end <= row["start"] for batch in own) or max(own, key=lambda b: b.step).end <= row["start"]:
        return max(batch.step for batch in own) + 1
    return None


def find_batches(spans: Sequence[Span], timeline: Timeline) -> dict[str, Batch]:
    """Sampling calls by their span."""
    return {
        row["span"]: Batch(
            row["instance"] or "", timeline.attempt_at(row["start"]), row["step"], row["batch"], row["end"], row
        )
        for row in spans
        if row["name"] == "get_batch" and row["step"] is not None and not row["failed"]
    }


def group_size(prompts: Sequence[Prompt], settings: Settings, rows_per_prompt: int | None) -> int | None:
    """Responses of a prompt, n: from the configuration, else the dumps, else the most that any prompt has."""
    found = settings.whole_number("num_return_sequences_in_group")
    return found or rows_per_prompt or max((prompt.answers for prompt in prompts), default=None)


def mark_committed(
    prompts: Sequence[Prompt],
    timeline: Timeline,
    size: int | None,
    windows: Sequence[int],
    filtered: set[tuple[int, int]],
) -> None:
    """Tell who committed: n rewards, not filtered, and not ended in the very pause that collects its start step."""
    for prompt in prompts:
        if prompt.open or prompt.end is None or prompt.rewards < (size or 1):
            continue
        prompt.committed = prompt.number is None or (prompt.attempt, prompt.number) not in filtered
        for window in windows:
            pause = timeline.launch(prompt.attempt)[0].get((prompt.start_step or 0) + window + 1)
            if pause is not None and pause["start"] <= prompt.end <= pause["end"]:
                prompt.committed = False


def replay(
    prompts: Sequence[Prompt],
    batches: Sequence[Batch],
    timeline: Timeline,
    settings: Settings,
    size: int | None,
    oldest: Mapping[tuple[str, int, int], int],
    *,
    sampled: Sequence[Step],
    guess: bool,
    silent: bool = False,
) -> Outcome:
    """Replay every domain's buffer in every launch; ``sampled``: steps that may have taken a batch.

    ``guess``: who committed is not known (filters). ``silent``: nothing tells whether there are filters.
    """
    outcome = Outcome()
    batches = [*batches, *_lost_calls(prompts, batches, sampled)]
    groups: dict[tuple[str, int], list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        groups[prompt.domain, prompt.attempt].append(prompt)
    calls: dict[tuple[str, int], list[Batch]] = defaultdict(list)
    for batch in sorted(batches, key=lambda batch: batch.end):
        calls[batch.domain, batch.attempt].append(batch)
    for where, own in calls.items():
        members = groups.get(where, [])
        runs = _runs(members, own, settings, size, oldest)
        outcome.windows[where] = sorted({window for window, _, _ in runs})
        # From the first batch that could not be filled on, somebody is missing and anybody may have been taken.
        known = min(filled for _, _, filled in runs)
        adrift = min((p.start for p in members if p.start_step is None and p.committed), default=None)
        if adrift is not None:
            known = min(known, next((at for at, call in enumerate(own) if call.end >= adrift), known))
        guessed = guess or (silent and not _unfiltered(members, own, outcome.windows[where]))
        missing = gaps.unseen(members, timeline, size, max(outcome.windows[where]))
        if any(one.lost for one in missing):
            outcome.torn.add(where)
        known = min(known, *(_undisturbed(own, taken, missing) for _, taken, _ in runs))
        for index, batch in enumerate(own):
            key = (*where, batch.step)
            lists = [taken[index] for _, taken, _ in runs]
            others = [{p.key for p in other} for other in lists[1:]]
            everywhere = [p for p in lists[0] if all(p.key in other for other in others)]
            if guessed or index >= known:
                outcome.lost = outcome.lost or not guessed
                # With filters nobody knows of, a window that seems to fit may not.
                low = 0 if guessed and settings.ratio is None else batch.step - max(outcome.windows[where])
                outcome.unsure.add((batch.attempt, batch.step))
                outcome.taken[key] = []
                outcome.maybe[key] = [
                    p
                    for p in members
                    if (p.open or (p.committed and p.end is not None))
                    and p.until <= batch.end
                    and (p.start_step is None or low <= p.start_step <= batch.step)
                ]
                continue
            outcome.taken[key] = everywhere
            sure = {p.key for p in everywhere}
            extra = {p.key: p for other in lists for p in other if p.key not in sure}
            outcome.maybe[key] = list(extra.values())
    _settle(outcome)
    return outcome


def _unfiltered(members: Sequence[Prompt], calls: Sequence[Batch], windows: Sequence[int]) -> bool:
    """Whether no more prompts began than the quota lets (rule 1): each filtered one gives its place to another."""
    begun = Counter(prompt.start_step for prompt in members)
    sizes = {call.size for call in calls}
    size = sizes.pop()
    if sizes or not size or None in begun:
        return False
    first = min(call.step for call in calls)
    later = all(count <= size for step, count in begun.items() if step != first)
    return later and begun[first] == size * (max(min(windows), 1) + 1)


def _undisturbed(calls: Sequence[Batch], taken: Sequence[Sequence[Prompt]], missing: Sequence[gaps.Unseen]) -> int:
    """Return how many calls took nobody in whose place there may have been one that was finished unseen.

    The oldest start steps go first, so whoever began in a later one than all that a call took was not waited for.
    """
    for index, (call, prompts) in enumerate(zip(calls, taken, strict=True)):
        newest = max((prompt.start_step or 0 for prompt in prompts), default=call.step)
        if any(one.since <= call.end and one.step <= newest for one in missing):
            return index
    return len(calls)


def _lost_calls(prompts: Sequence[Prompt], batches: Sequence[Batch], sampled: Sequence[Step]) -> Iterator[Batch]:
    """Sampling calls whose span is missing although the step went on: nobody knows whom they took."""
    seen = {(batch.domain, batch.attempt, batch.step) for batch in batches}
    domains = {(p.domain, p.attempt) for p in prompts} | {(batch.domain, batch.attempt) for batch in batches}
    for domain, attempt in sorted(domains):
        for step in sampled:
            if step.attempt == attempt and (domain, attempt, step.step) not in seen:
                yield Batch(domain, attempt, step.step, None, step.seen_until or 1 << 62, step.place)


def _settle(outcome: Outcome) -> None:
    """Nobody is taken twice: who certainly was in one batch was in no other."""
    certain = {prompt.key for taken in outcome.taken.values() for prompt in taken}
    for key, prompts in outcome.maybe.items():
        outcome.maybe[key] = [prompt for prompt in prompts if prompt.key not in certain]


def _runs(
    members: Sequence[Prompt],
    calls: Sequence[Batch],
    settings: Settings,
    size: int | None,
    oldest: Mapping[tuple[str, int, int], int],
) -> list[tuple[int, list[list[Prompt]], int]]:
    """Replay with each window that may hold: (W, prompts of each call, number of calls before the first unfilled)."""
    ratio = settings.ratio
    if ratio is not None:
        window = settings.window or 0
        return [(window, *_walk(members, calls, window, cap)) for cap in _caps(ratio, calls, size)]
    last = min(max(call.step for call in calls), 256)
    tried = [(window, *_walk(members, calls, window, None)) for window in range(last + 1)]
    good = [run for run in tried if run[2] == len(calls) and _agrees(run[1], calls, oldest)]
    good = [(window, taken, _same_with_any_cap(members, calls, window, taken)) for window, taken, _ in good]
    return good or [max(tried, key=lambda run: (run[2], run[0]))]


def _same_with_any_cap(
    members: Sequence[Prompt], calls: Sequence[Batch], window: int, taken: Sequence[Sequence[Prompt]]
) -> int:
    """How many calls took the same prompts whatever fraction R may have (rule 15), if all were filled.

    The more the oldest group may give, the easier a batch is filled; where the least that does and no cap at all take
    the same, so does all that is in between.
    """
    low, high = 0, max(call.size or 0 for call in calls)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _walk(members, calls, window, middle)[1] == len(calls) else (middle + 1, high)
    least, _ = _walk(members, calls, window, low)
    same = (sorted(p.key for p in one) == sorted(p.key for p in other) for one, other in zip(taken, least, strict=True))
    return next((index for index, equal in enumerate(same) if not equal), len(calls))


def _agrees(
    taken: Sequence[Sequence[Prompt]], calls: Sequence[Batch], oldest: Mapping[tuple[str, int, int], int]
) -> bool:
    for prompts, call in zip(taken, calls, strict=True):
        told = oldest.get((call.domain, call.attempt, call.step))
        if told is not None and prompts and prompts[0].start_step != told:
            return False
    return True


def _caps(ratio: float, calls: Sequence[Batch], size: int | None) -> list[int | None]:
    """How many prompts the oldest group may give where R has a fraction (rule 15): both readings of a broken group."""
    batch = next((call.size for call in calls if call.size), None)
    if ratio == int(ratio) or not batch or not size:
        return [None]
    samples = int(batch * size * (ratio % 1))
    return sorted({samples // size, -(-samples // size)})  # type: ignore[return-value]


def _walk(
    members: Sequence[Prompt], calls: Sequence[Batch], window: int, cap: int | None
) -> tuple[list[list[Prompt]], int]:
    queues: dict[int, list[Prompt]] = defaultdict(list)
    for prompt in members:
        if prompt.committed and prompt.start_step is not None:
            queues[prompt.start_step].append(prompt)
    for queue in queues.values():
        queue.sort(key=lambda prompt: (prompt.end, prompt.key))
    ends = {step: [prompt.end for prompt in queue] for step, queue in queues.items()}
    heads: dict[int, int] = defaultdict(int)
    taken: list[list[Prompt]] = []
    filled = len(calls)
    for index, call in enumerate(calls):
        wanted = call.size or 0
        batch: list[Prompt] = []
        for step in range(max(call.step - window, 0), call.step + 1):
            if step not in queues:
                continue
            ready = bisect_right(ends[step], call.end)  # type: ignore[type-var]
            room = wanted - len(batch)
            if cap is not None and step == call.step - window:
                room = min(room, cap)
            stop = min(ready, heads[step] + max(room, 0))
            batch.extend(queues[step][heads[step] : stop])
            heads[step] = max(stop, heads[step])
        taken.append(batch)
        if len(batch) < wanted or not wanted:
            filled = min(filled, index)
    return taken, filled


_Fate = tuple[str, str | None, int | None]


def fates(
    prompt: Prompt, timeline: Timeline, windows: Sequence[int], size: int | None, *, filters: bool, torn: bool
) -> list[_Fate]:
    """What may have become of a prompt that nothing took: (kind, reason, step then being collected) alternatives.

    Nothing to say (pending, or left by a launch that ended) is an empty list. ``torn``: spans of its scheduler were
    lost, so a reward that is not there says nothing.
    """
    pauses, last = timeline.launch(prompt.attempt)
    if prompt.open or prompt.end is None:
        return []
    scored = prompt.rewards >= (size or 1)
    home = timeline.pause_at(prompt.attempt, prompt.end)
    inside = home.step if home else None
    found: dict[_Fate, None] = {}
    for window in windows:
        expiry = None if prompt.start_step is None else prompt.start_step + window + 1
        if not scored:
            found |= dict.fromkeys(_unscored(prompt, expiry, inside, over=prompt.end > last))
        if scored or torn:
            found |= dict.fromkeys(_unneeded(expiry, inside, pauses))
            if filters:
                found["dropped", "filtered", None] = None
    options = list(found)
    return [] if [kind for kind, _, _ in options] == ["pending"] else options


def _unscored(prompt: Prompt, expiry: int | None, inside: int | None, *, over: bool) -> list[_Fate]:
    """What became of a prompt that ended without all rewards; ``inside``: in the pause of this step."""
    if over:
        return [("pending", None, None)]
    if inside is not None and (expiry is None or inside >= expiry):
        return [("cancelled", "stale", inside)]
    failed: list[_Fate] = [("lost", "error", inside)]
    return failed if prompt.place["failed"] else [*failed, ("cancelled", "unknown", inside)]


def _unneeded(expiry: int | None, inside: int | None, pauses: Mapping[int, Span]) -> list[_Fate]:
    """What became of a scored prompt; one that ended in the pause that collects its start step may be cancelled."""
    if expiry is None or expiry not in pauses:
        return [("pending", None, None)]
    if inside != expiry:
        return [("dropped", "stale", expiry)]
    return [("dropped", "stale", inside), ("cancelled", "stale", inside)]
