"""RLVR with spans: rows of the event tables for every prompt and response (see ``rlvr`` for the replay)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from staleness_audit.parser import Era, Sink
from staleness_parsers.roll import gaps, rlvr
from staleness_parsers.roll.known import Done, Known, Row, constrain, era, everywhere, masked, unused
from staleness_parsers.roll.lives import in_order
from staleness_parsers.roll.rows import Rows, moment
from staleness_parsers.roll.sampled import Sampled

_AT_ONCE: Final = 5_000
"""Prompts whose spans are rows at a time."""


@dataclass(frozen=True)
class _Block:
    """Where in the rows of its batch a prompt's begin.

    ``first``: the first prompt of that batch; ``alone``: there is no other domain, whose rows may come before.
    """

    rows: Sampled
    begin: int
    first: rlvr.Prompt
    alone: bool


@dataclass(frozen=True)
class _Story:
    """A prompt with the name of its group, which batches took it (for certain or not), and what else became of it."""

    prompt: rlvr.Prompt
    group: str
    uses: Sequence[tuple[int, int, bool]]
    options: Sequence[tuple[str, str | None, int | None]]
    block: _Block | None

    def told(self, facts: _Facts) -> str:
        """Return all that the prompt's rows depend on beside its launch's updates and pauses."""
        prompt, block = self.prompt, self.block
        about = f"{prompt.key!r} {prompt.told} {prompt.attempt} {prompt.start_step} {prompt.committed} {prompt.answers}"
        dumped = f"{block.begin} {facts.batch(block)}" if block is not None else None
        uses = [facts.text(use) for use in self.uses]
        return f"{about} {self.group!r} {uses} {self.options} {dumped}"


class _Facts:
    """What several prompts depend on."""

    def __init__(self, known: Known, completed: Done) -> None:
        self.known, self.completed = known, completed
        self._uses: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._texts: dict[tuple[int, int, bool], str] = {}
        self._batches: dict[str, str] = {}
        self._versions: dict[tuple[int, int], tuple[int, int]] = {}

    def use(self, attempt: int, step: int, sure: bool) -> tuple[Any, ...]:
        """Return what the use of a prompt at a step means."""
        key = (attempt, step)
        if key not in self._uses:
            known = self.known
            unneeded = unused(known, [key], self.completed)
            self._uses[key] = (key, self.completed.get(key), masked(known, *key), unneeded)
        return (*self._uses[key], sure)

    def text(self, use: tuple[int, int, bool]) -> str:
        """Return what the use of a prompt at a step means, as text."""
        if use not in self._texts:
            self._texts[use] = repr(self.use(*use))
        return self._texts[use]

    def batch(self, block: _Block) -> str:
        """Return what rows of a batch depend on, as text; ``first`` is the same prompt for all of it."""
        key = block.first.key
        if key not in self._batches:
            self._batches[key] = repr((block.rows.identity, key, block.first.told, block.alone))
        return self._batches[key]

    def masked(self, attempt: int, step: int) -> bool:
        """Whether tokens of a step may have been masked out of the loss."""
        return bool(self.use(attempt, step, sure=True)[2])

    def around(self, stories: Sequence[_Story]) -> tuple[Any, ...]:
        """Return the updates and pauses of the time of these prompts, and which weights they pushed."""
        known = self.known
        first = min(story.prompt.first for story in stories)
        last = max(story.prompt.last for story in stories)
        around = known.time.around(first, last)
        steps = {story.prompt.start_step or 0 for story in stories}
        begins = {story.prompt.attempt: known.time.first.get(story.prompt.attempt, 0) for story in stories}
        for _, _, _, (ends, missing) in around:
            steps |= {step for _, step in ends} | {step for step, _ in missing}
        # Before the first update that is known, the newest step there is bounds the versions.
        unknown = any(not ends or ends[0][0] > first for _, _, _, (ends, _) in around)
        newest = {known.time.newest} if unknown else set()
        versions = [self._version(step, begin) for step in sorted(steps | newest) for begin in begins.values()]
        return around, begins, newest, versions

    def _version(self, step: int, first: int) -> tuple[int, int]:
        key = (step, first)
        if key not in self._versions:
            self._versions[key] = self.known.pushes.version(step, first)
        return self._versions[key]


class Prompts:
    """RLVR's prompts from the scheduler's spans, tokens from pickles."""

    def __init__(self, known: Known, rows: Rows, completed: Done, sink: Sink, memory: dict[str, Any]) -> None:
        self.known, self.rows, self.completed, self.sink, self.memory = known, rows, completed, sink, memory
        self.facts = _Facts(known, completed)

    def write(self) -> None:
        """Write every trajectory, use and fate."""
        known = self.known
        calls = rlvr.find_batches(known.spans, known.time)
        prompts, self.lives = rlvr.read_prompts(known.lives, known.time, calls, self.memory)
        batches = list(calls.values())
        size = rlvr.group_size(prompts, known.settings, self._rows_per_prompt(batches))
        filtered, named = self._filtered()
        windows = [known.settings.window] if known.settings.window is not None else []
        rlvr.mark_committed(prompts, known.time, size, windows, filtered)
        guess = (bool(known.settings.filters) and not named) or known.damaged
        silent = known.settings.filters is None and not named
        sampled = [step for step in known.time.steps if self.completed.get((step.attempt, step.step)) is not False]
        outcome = rlvr.replay(
            prompts,
            batches,
            known.time,
            known.settings,
            size,
            self._oldest(batches),
            sampled=sampled,
            guess=guess,
            silent=silent,
        )
        if outcome.lost or outcome.torn:
            steps = sorted({step for _, step in outcome.unsure})
            whom = f"whom steps {steps[0]} to {steps[-1]} took, and " if steps else ""
            message = (
                f"Spans of the scheduler are missing (its last seconds can be): {whom}what became of the others, is "
                "not known."
            )
            self.sink.diagnose("warning", "lost-spans", message, opens="fates")
        uses: dict[str, list[tuple[int, int, bool]]] = defaultdict(list)
        for (_, attempt, step), taken in outcome.taken.items():
            for prompt in taken:
                uses[prompt.key].append((attempt, step, True))
        for (_, attempt, step), maybe in outcome.maybe.items():
            for prompt in maybe:
                uses[prompt.key].append((attempt, step, False))
        blocks = self._blocks(outcome, batches)
        every = sorted({window for found in outcome.windows.values() for window in found})
        groups = _group_names(prompts)
        stories: dict[int, list[_Story]] = defaultdict(list)
        for prompt in prompts:
            mine = uses.get(prompt.key, [])
            if any(sure for _, _, sure in mine):  # what came of it is told by its batch (``_response``)
                story = _Story(prompt, groups[prompt.key], mine, (), blocks.get(prompt.key))
                stories[self._era(prompt)].append(story)
                continue
            own = outcome.windows.get((prompt.domain, prompt.attempt), every or [0])
            torn = known.damaged or (prompt.domain, prompt.attempt) in outcome.torn
            options = rlvr.fates(prompt, known.time, own, size, filters=guess or silent, torn=torn)
            if torn:
                options = [*options, ("pending", None, None)]
            if prompt.number is not None and (prompt.attempt, prompt.number) in filtered:
                options = [("dropped", "filtered", None)]
            story = _Story(prompt, groups[prompt.key], mine, options, blocks.get(prompt.key))
            stories[self._era(prompt)].append(story)
        self._write_eras(stories)
        self._stated(batches, size, outcome.unsure)

    def _era(self, prompt: rlvr.Prompt) -> int:
        """Number the eras by launch and start step, or the step at which a prompt without one began."""
        step = self.known.time.step_at(prompt.attempt, prompt.start) if prompt.start_step is None else prompt.start_step
        return era(prompt.attempt, step)

    def _write_eras(self, stories: Mapping[int, Sequence[_Story]]) -> None:
        """Write prompts by the step in which they began, of which a watch writes only those that are told otherwise."""
        shared = everywhere(self.known)
        facts = self.facts
        eras = [
            Era(
                number,
                sum(story.prompt.answers for story in told),
                "\n".join((shared, repr(facts.around(told)), *(story.told(facts) for story in told))),
            )
            for number, told in sorted(stories.items())
        ]

        def write(numbers: Sequence[int], sink: Sink) -> None:
            self.rows = Rows(sink)
            chosen = [story for number in numbers for story in stories[number]]
            for begin in range(0, len(chosen), _AT_ONCE):
                part = chosen[begin : begin + _AT_ONCE]
                answered = self._answered(part)
                for story in part:
                    for place, response in enumerate(story.prompt.responses):
                        self._response(story, response, self._row(story, place))
                for prompt in answered:
                    prompt.responses = []
            self.rows.close()

        rows, outside = self.rows, self.sink
        outside.write_eras(eras, write)
        self.rows = rows

    def _answered(self, stories: Sequence[_Story]) -> list[rlvr.Prompt]:
        """Give prompts their responses, and those of which a batch's first one is to be compared with its dump."""
        prompts = [story.prompt for story in stories]
        prompts += [story.block.first for story in stories if story.block is not None]
        wanted = {prompt.key: prompt for prompt in prompts if not prompt.open and not prompt.responses}
        rows = self.lives.filter(pl.col("prompt_span").is_in(list(wanted)))
        for owner, response in rlvr.responses_of(in_order(rows), self.known.time):
            if owner in wanted:
                wanted[owner].responses.append(response)
        for prompt in wanted.values():
            prompt.responses.sort(key=lambda response: response.order)
        return list(wanted.values())

    def _row(self, story: _Story, place: int) -> Row | None:
        """Return the row of a prompt's response in the dump of its batch, if that is of this batch."""
        block = story.block
        if block is None:
            return None
        first = block.first.responses[0]
        mine = first.segments[-1]["request"] if first.segments else None
        request = block.rows[0]["first_request"]
        if block.alone and None not in (request, mine) and request != mine:
            return None
        return block.rows[block.begin + place]

    def _rows_per_prompt(self, batches: Sequence[rlvr.Batch]) -> int | None:
        """Responses of a prompt by the dumps: rows of a step over its prompts."""
        sums: dict[int, int] = defaultdict(int)
        for batch in batches:
            if (home := self.known.time.last(batch.step)) and home.attempt == batch.attempt:
                sums[batch.step] += batch.size or 0
        found = set()
        for step, prompts in sums.items():
            rows = self.known.rows.get(step)
            if rows and prompts and len(rows) % prompts == 0:
                found.add(len(rows) // prompts)
        return max(found) if found else None

    def _filtered(self) -> tuple[set[tuple[int, int]], bool]:
        """Prompts the console names as filtered (before the shutdown), and whether it names them all."""
        known = self.known
        domains = {row["instance"] for row in known.spans if row["name"] == "get_batch"}
        found: set[tuple[int, int]] = set()
        sources = {row["source"] for row in known.lines if row["kind"] in ("taking", "waiting")}
        launches = 0
        maybe = known.settings.filters is not False
        for source in sorted(sources):
            own = [row for row in known.lines if row["source"] == source]
            attempt, previous = -1, None
            ends = [row["line"] for row in own if row["kind"] == "finished"]
            for row in own:
                if row["kind"] == "start":
                    attempt += previous is None or row["step"] <= previous
                    previous = row["step"]
                elif row["kind"] == "filtered" and maybe and ends and row["line"] < ends[-1]:
                    found.add((max(attempt, 0), row["value"]))
            launches = max(launches, attempt + 1)
        named = len(domains) == 1 and launches == len(known.time.attempts)
        return (found if named else set()), named

    def _oldest(self, batches: Sequence[rlvr.Batch]) -> dict[tuple[str, int, int], int]:
        """Start step of the oldest prompt of a batch, as its dump says (of the first domain only)."""
        domains = {batch.domain for batch in batches}
        found = {}
        for batch in batches:
            home = self.known.time.last(batch.step)
            rows = self.known.rows.get(batch.step)
            if len(domains) == 1 and rows and home and home.attempt == batch.attempt:
                start = rows[0]["first_start"]
                if start is not None:
                    found[batch.domain, batch.attempt, batch.step] = start
        return found

    def _blocks(self, outcome: rlvr.Outcome, batches: Sequence[rlvr.Batch]) -> dict[str, _Block]:
        """Return which rows are a prompt's: the k-th block of a batch is the k-th prompt that was taken."""
        found: dict[str, _Block] = {}
        domains = {batch.domain for batch in batches}
        for batch in batches:
            key = (batch.domain, batch.attempt, batch.step)
            home = self.known.time.last(batch.step)
            rows = self.known.rows.get(batch.step)
            if rows is not None and len(domains) > 1:
                rows = rows.restricted({one for one in rows.domains if batch.domain.endswith(f"scheduler-{one}")})
            taken = [prompt for prompt in outcome.taken.get(key, ()) if prompt.answers]
            count = sum(prompt.answers for prompt in taken)
            if rows is None or len(rows) != count or outcome.maybe.get(key):
                continue
            if home is None or home.attempt != batch.attempt:
                continue
            begin = 0
            for prompt in taken:
                found[prompt.key] = _Block(rows, begin, taken[0], alone=len(domains) == 1)
                begin += prompt.answers
        return found

    def _response(self, story: _Story, response: rlvr.Response, row: Row | None) -> None:
        known, rows = self.known, self.rows
        prompt, group, uses, options = story.prompt, story.group, story.uses, story.options
        first = response.segments[0] if response.segments else response.place
        key = (first["request"] if response.segments else None) or f"response {response.key}"
        trained = any(sure for _, _, sure in uses)
        rows.add(
            "trajectories",
            response.place,
            trajectory_id=key,
            group_id=group,
            attempt=prompt.attempt,
            role="train",
            anonymous=False,
            multiplicity_lo=1,
            multiplicity_hi=1,
            evidence="recorded",
        )
        ended = not response.open and (trained or response.rewards > 0 or prompt.committed)
        self._spans(prompt, response, key, row["tokens"] if row else None, ended=ended)
        about = {"trajectory_id": key, "group_id": group, "attempt": prompt.attempt}
        rows.add("events", prompt.place, kind="admitted", ts=moment(prompt.start), seq=0, **about)
        if response.segments:
            rows.add("events", first, kind="started", ts=moment(first["start"]), seq=1, **about)
        if response.segments and ended:
            last = response.segments[-1]
            rows.add("events", last, kind="finished", ts=moment(last["end"]), seq=2, **about)
        if prompt.committed:
            rows.add("events", prompt.place, kind="enqueued", ts=moment(prompt.end), seq=3, **about)
        for attempt, step, sure in uses:
            cells: dict[str, Any] = {"loss_tokens_lo": 0} if self.facts.masked(attempt, step) else {}
            evidence = "derived" if sure else "inferred"
            use = {"trajectory_id": key, "attempt": attempt, "step": step, "member": sure}
            rows.add("uses", prompt.place, **use, evidence=evidence, **cells)
        taken_by = [(attempt, step) for attempt, step, sure in uses if sure]
        if taken_by:
            options = unused(known, taken_by, self.completed)
        evidence = "derived" if len(options) == 1 and not (uses and not taken_by) else "inferred"
        ts = moment(prompt.end)
        for kind, reason, when in options:
            cells = {"reason": reason, "step": when}
            rows.add("events", prompt.place, kind=kind, ts=ts, seq=4, evidence=evidence, **cells, **about)

    def _spans(
        self, prompt: rlvr.Prompt, response: rlvr.Response, key: str, tokens: int | None, *, ended: bool
    ) -> None:
        """The last segment of a finished response made its last token; an earlier one may have made none."""
        known = self.known
        first_step = known.time.first.get(prompt.attempt, 0)
        found = []
        for start, end, seen in gaps.requests(prompt, response):
            low, high = self._update(prompt, end)
            if not seen:
                earliest = self._update(prompt, start)
                if earliest == (low, high) and not known.time.pauses_between(prompt.attempt, start, end):
                    continue
                low = earliest[0]
            found.append((known.pushes.version(low, first_step)[0], known.pushes.version(high, first_step)[1]))
        if not response.segments:
            oldest = known.pushes.version(prompt.start_step or 0, first_step)[0]
            self.rows.span(
                response.place, key, 0, (1 if tokens is None and ended else tokens or 0, tokens), (oldest, None)
            )
            return
        if known.mocked:
            self.rows.span(response.place, key, 0, (tokens or 0, tokens), (None, None))
            return
        place = response.segments[-1]
        started, stopped = moment(response.segments[0]["start"]), moment(place["end"])
        whole = (found[0][0], found[-1][1])
        if not ended or tokens == 0 or len(set(found)) == 1:
            least = tokens if tokens is not None else int(ended)
            times = {"started": started, "ended": stopped}
            self.rows.span(place, key, 0, (least, tokens), whole, **times)
            return
        self.rows.span(
            place, key, 0, (max((tokens or 1) - 1, 0), None if tokens is None else tokens - 1), whole, started=started
        )
        self.rows.span(place, key, 1, (1, 1), found[-1], ended=stopped)

    def _update(self, prompt: rlvr.Prompt, time: int) -> tuple[int, int]:
        """Step of the last update before a time; where updates are missing, from the prompt's start to the last."""
        return self.known.time.update_before(time) or (prompt.start_step or 0, self.known.time.newest)

    def _stated(self, batches: Sequence[rlvr.Batch], size: int | None, unsure: set[tuple[int, int]]) -> None:
        """State how many trajectories each step took: rows of its dump, else prompts times n."""
        known = self.known
        sums: dict[tuple[int, int], int | None] = {}
        places: dict[tuple[int, int], Row] = {}
        domains = defaultdict(set)
        for batch in batches:
            key = (batch.attempt, batch.step)
            places[key] = batch.place
            domains[key].add(batch.domain)
            mine = batch.size * size if batch.size and size else None
            total = sums.get(key, 0)
            sums[key] = None if mine is None or total is None else total + mine
        every = {batch.domain for batch in batches}
        usual = {batch.size for batch in batches}
        for step in known.time.steps:
            key = (step.attempt, step.step)
            window = known.settings.window
            if key in unsure and window is not None and not known.mocked:
                # Whoever was taken, no start step before the window was (rule 13).
                first = known.time.first.get(step.attempt, 0)
                oldest = known.pushes.version(max(step.step - window, 0), first)[0]
                place = places.get(key, step.place)
                constrain(self.rows, place, *key, "staleness_max", step.step - oldest, op="le")
            rows = known.rows.get(step.step)
            count = sums.get(key) if domains[key] == every else None
            if key not in sums and len(usual) == 1 and len(every) == 1 and size and None not in usual:
                count = next(iter(usual)) * size  # type: ignore[operator]
            if rows and known.time.last(step.step) is step and (count is None or len(every) == 1):
                count = max(len(rows), count or 0)
            if count is not None and self.completed.get(key) is not False:
                place = places.get(key, step.place)
                constrain(self.rows, place, step.attempt, step.step, "trajectories", count)
            elif self.completed.get(key) is not False and not every <= domains[key]:
                constrain(self.rows, step.place, step.attempt, step.step, "trajectories", 1, op="ge")


def _group_names(prompts: Sequence[rlvr.Prompt]) -> dict[str, str]:
    """Names of the groups: prompt ids restart with every scheduler and launch."""
    names: dict[str, str] = {}
    used: set[str] = set()
    for prompt in prompts:
        domain = prompt.domain.removeprefix("scheduler-")
        name = f"{prompt.attempt}/{domain}/{prompt.number if prompt.number is not None else prompt.key}"
        names[prompt.key] = name if name not in used else f"{name}~{prompt.key}"
        used.add(name)
    return names
