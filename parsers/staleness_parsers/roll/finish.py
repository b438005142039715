"""Joining the units: from spans, batches, lines and metrics to the event tables and the run's facts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from staleness_audit.discovery import RunFiles
from staleness_audit.parser import RunFacts, Sink, Staged
from staleness_parsers.roll import agentic, rlvr, timeline
from staleness_parsers.roll.console import PUSH, UPDATE
from staleness_parsers.roll.facts import run_facts
from staleness_parsers.roll.rows import Rows, moment
from staleness_parsers.roll.settings import Pushes, Settings
from staleness_parsers.roll.timeline import Span, Step, Timeline

Row = Mapping[str, Any]


@dataclass
class Known:
    """Everything the units left, in the run's order."""

    spans: list[dict[str, Any]]
    rows: dict[int, list[dict[str, Any]]]  # step -> rows of its batch, pickle before dump
    boards: list[dict[str, Any]]
    lines: list[dict[str, Any]]
    metrics: dict[int, dict[str, dict[str, Any]]]  # step -> name -> row
    settings: Settings
    time: Timeline
    pushes: Pushes
    agentic: bool
    mocked: bool

    @property
    def prompts_traced(self) -> bool:
        """Whether RLVR's scheduler spans are there."""
        return any(row["name"] in ("get_batch", "process_new_prompt") for row in self.spans)


def finish_run(staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
    """Write what follows from all units together; see the package's docstring for the mapping of versions."""
    known = _gather(staged, run, sink)
    rows = Rows(sink)
    completed = _write_steps(known, rows, sink)
    if known.agentic:
        _Agents(known, rows, completed).write()
    elif known.prompts_traced:
        _Prompts(known, rows, completed).write()
    else:
        _Batches(known, rows).write()
    _write_reported(known, rows)
    rows.close()
    _notes(known, sink)
    return run_facts(known)


def _table(staged: Staged, name: str, *keys: str) -> list[dict[str, Any]]:
    if not staged.has(name):
        return []
    frame = staged.scan(name).collect()
    return frame.sort(keys, nulls_last=False).to_dicts()


def _gather(staged: Staged, run: RunFiles, sink: Sink) -> Known:
    spans = {row["span"]: row for row in reversed(_table(staged, "otel", "start", "end", "span", "source", "line"))}
    ordered = sorted(spans.values(), key=lambda row: (row["start"], row["end"], row["span"]))
    lines = _table(staged, "lines", "source", "line")
    settings = Settings.collect(_table(staged, "settings", "source", "line", "key"), run.assume)
    metrics: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in _table(staged, "metrics", "source", "line", "locator"):
        metrics[row["step"]][row["name"]] = row
    told = {step: PUSH in named for step, named in metrics.items() if UPDATE in named}
    frequencies = settings.values.get("actor_train.model_update_frequency", [])
    if not frequencies and settings.whole:
        frequencies = [1]
    whole = [f for f in frequencies if isinstance(f, int) and not isinstance(f, bool)]
    time = timeline.from_spans(ordered, sink)
    if not time.traced:
        starts: dict[str, str] = {}
        for row in lines:
            starts.setdefault(row["source"], row["time"] or "")
        time = timeline.from_lines(sorted(lines, key=lambda row: (starts[row["source"]], row["source"], row["line"])))
    batches = _batches(_table(staged, "rows", "kind", "source", "step", "place"))
    is_agentic = any(row["agentic"] for rows in batches.values() for row in rows) or any(
        row["name"] in ("rollout", "trajectory") for row in ordered
    )
    is_agentic |= "train_env_manager.num_env_groups" in settings.values
    mocked = any(row["kind"] == "mocked" for row in lines) or (
        settings.get("rollout_mock.enable") is True and settings.get("rollout_mock.mode") == "mock"
    )
    boards = _table(staged, "boards", "source", "step")
    return Known(ordered, batches, boards, lines, metrics, settings, time, Pushes(whole, told), is_agentic, mocked)


def _batches(rows: Sequence[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Rows of each step's batch: the pickle's where there is one, else the dump's; the dump's domains with both."""
    found: dict[tuple[int, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["step"], row["kind"], row["source"]].append(row)
    best: dict[int, list[dict[str, Any]]] = {}
    for (step, kind, _), part in sorted(found.items(), key=lambda item: (item[0][1] != "pickle", item[0])):
        part.sort(key=lambda row: row["place"])
        if step not in best:
            best[step] = part
        elif kind == "dump" and best[step][0]["kind"] == "pickle" and len(part) > len(best[step]):
            # Several domains write one pickle over another; the dump has them all, in their order.
            kept = {row["domain"] for row in best[step]}
            best[step] = best[step] + [row for row in part if row["domain"] not in kept]
    return best


# --- steps ----------------------------------------------------------------------------------------------------------


def _write_steps(known: Known, rows: Rows, sink: Sink) -> dict[tuple[int, int], bool | None]:
    """Write ``steps`` and ``syncs``; returns per (attempt, step) whether it completed."""
    finished = {(row["step"]) for row in known.lines if row["kind"] == "finished"}
    warmup = known.settings.whole_number("critic_warmup") or 0
    done: dict[tuple[int, int], bool | None] = {}
    listed = list(known.time.steps)
    seen = {step.step for step in listed}
    last = max(known.time.attempts)
    for number in sorted((set(known.metrics) | set(known.rows) | {row["step"] for row in known.boards}) - seen):
        listed.append(Step(last, number, _place(known, number)))
    for step in listed:
        state = _completed(step, known, finished)
        named = known.metrics.get(step.step, {})
        final = known.time.last(step.step)
        if final is step or final is None:
            skipped = named.get("mask/final_mask_sum_eq_0", {}).get("value") == 1
            state = False if skipped else state
        if step.step < warmup:
            state = False
        key = (step.attempt, step.step)
        done[key] = state if done.get(key) is None else done[key]
        train = step.parts.get("train")
        wait = step.parts.get("rollout" if known.agentic else "generate")
        rows.add(
            "steps",
            step.place,
            attempt=step.attempt,
            step=step.step,
            v_train_lo=step.step,
            v_train_hi=step.step,
            started=moment(train["start"] if train else step.start),
            ended=moment(train["end"] if train else step.end),
            waited_us=(wait["end"] - wait["start"]) // 1000 if wait else None,
            completed=state,
            evidence="recorded",
        )
        update = step.parts.get("model_update")
        if update is not None and not update["failed"]:
            low, high = known.pushes.version(step.step, known.time.first.get(step.attempt, 0))
            if (low, high) == (step.step, step.step) or low != high:
                rows.add(
                    "syncs",
                    update,
                    attempt=step.attempt,
                    version_lo=low,
                    version_hi=high,
                    started=moment(update["start"]),
                    ended=moment(update["end"]),
                )
    return done


def _place(known: Known, step: int) -> Row:
    if step in known.metrics:
        return next(iter(known.metrics[step].values()))
    if step in known.rows:
        return known.rows[step][0]
    return next(row for row in known.boards if row["step"] == step)


def _completed(step: Step, known: Known, finished: set[int]) -> bool | None:
    if known.time.traced and step.parts:
        train = step.parts.get("train")
        if train is not None:
            return not train["failed"]
        # A step's children are exported as they end: one without `train` was never trained.
        return False
    if step.closed:
        return True
    if known.time.last(step.step) in (step, None) and (step.step in known.metrics or step.step in finished):
        return True
    later = any(other.attempt == step.attempt and other.step > step.step for other in known.time.steps)
    return True if later and not known.time.traced else None


# --- RLVR with spans --------------------------------------------------------------------------------------------------


class _Prompts:
    """RLVR's prompts from the scheduler's spans, tokens from pickles."""

    def __init__(self, known: Known, rows: Rows, completed: Mapping[tuple[int, int], bool | None]) -> None:
        self.known, self.rows, self.completed = known, rows, completed

    def write(self) -> None:
        """Write every trajectory, use and fate."""
        known = self.known
        calls = rlvr.find_batches(known.spans, known.time)
        prompts = rlvr.build_prompts(known.spans, known.time, calls)
        batches = list(calls.values())
        size = rlvr.group_size(prompts, known.settings, self._rows_per_prompt(batches))
        filtered, named = self._filtered()
        windows = [known.settings.window] if known.settings.window is not None else []
        rlvr.mark_committed(prompts, known.time, size, windows, filtered)
        # Without a word on filters in the logs, unfilled or too full batches would show; dropping is still possible.
        guess = bool(known.settings.filters) and not named
        outcome = rlvr.replay(prompts, batches, known.settings, size, self._oldest(batches), guess=guess)
        uses: dict[str, list[tuple[int, int, bool]]] = defaultdict(list)
        for (_, attempt, step), taken in outcome.taken.items():
            for prompt in taken:
                uses[prompt.key].append((attempt, step, True))
        for (_, attempt, step), maybe in outcome.maybe.items():
            for prompt in maybe:
                uses[prompt.key].append((attempt, step, False))
        tokens = self._tokens(outcome, batches)
        every = sorted({window for found in outcome.windows.values() for window in found})
        groups = _group_names(prompts)
        for prompt in prompts:
            mine = uses.get(prompt.key, [])
            own = outcome.windows.get((prompt.domain, prompt.attempt), every or [0])
            options = rlvr.fates(prompt, known.time, own, size, filters=guess)
            if prompt.number is not None and (prompt.attempt, prompt.number) in filtered:
                options = [("dropped", "filtered", None)]
            for response in prompt.responses:
                self._response(prompt, response, groups[prompt.key], tokens.get(response.key), mine, options)
        self._stated(batches, size)

    def _rows_per_prompt(self, batches: Sequence[rlvr.Batch]) -> int | None:
        """n by the dumps: rows of a step over its prompts."""
        sums: dict[int, int] = defaultdict(int)
        for batch in batches:
            if (home := self.known.time.last(batch.step)) and home.attempt == batch.attempt:
                sums[batch.step] += batch.size or 0
        found = set()
        for step, prompts in sums.items():
            rows = self.known.rows.get(step, [])
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
        for source in sorted(sources):
            own = [row for row in known.lines if row["source"] == source]
            attempt, previous = -1, None
            ends = [row["line"] for row in own if row["kind"] == "finished"]
            for row in own:
                if row["kind"] == "start":
                    attempt += previous is None or row["step"] <= previous
                    previous = row["step"]
                elif row["kind"] == "filtered" and ends and row["line"] < ends[-1] and known.settings.filters:
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

    def _tokens(self, outcome: rlvr.Outcome, batches: Sequence[rlvr.Batch]) -> dict[str, Row]:
        """Rows of the responses: the k-th block of a batch is the k-th prompt that was taken."""
        found: dict[str, Row] = {}
        domains = {batch.domain for batch in batches}
        for batch in batches:
            key = (batch.domain, batch.attempt, batch.step)
            home = self.known.time.last(batch.step)
            rows = self.known.rows.get(batch.step, [])
            if len(domains) > 1:
                rows = [row for row in rows if batch.domain.endswith(f"scheduler-{row['domain']}")]
            taken = [r for prompt in outcome.taken.get(key, ()) for r in prompt.responses]
            if home is None or home.attempt != batch.attempt or len(rows) != len(taken) or outcome.maybe.get(key):
                continue
            request = rows[0]["first_request"] if rows else None
            mine = taken[0].segments[-1]["request"] if taken and taken[0].segments else None
            if len(domains) == 1 and None not in (request, mine) and request != mine:
                continue
            for response, row in zip(taken, rows, strict=True):
                found[response.key] = row
        return found

    def _response(
        self,
        prompt: rlvr.Prompt,
        response: rlvr.Response,
        group: str,
        row: Row | None,
        uses: Sequence[tuple[int, int, bool]],
        options: Sequence[tuple[str, str | None, int | None]],
    ) -> None:
        known, rows = self.known, self.rows
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
            masked = _masked(known, attempt, step)
            cells: dict[str, Any] = {"loss_tokens_lo": 0} if masked else {}
            evidence = "derived" if sure else "inferred"
            rows.add("uses", prompt.place, trajectory_id=key, attempt=attempt, step=step, evidence=evidence, **cells)
        taken_by = [(attempt, step) for attempt, step, sure in uses if sure]
        if taken_by:
            options = _unused(known, taken_by, self.completed)
        evidence = "derived" if len(options) == 1 and not (uses and not taken_by) else "inferred"
        ts = moment(prompt.end)
        for kind, reason, step in options:
            cells = {"reason": reason, "step": step}
            rows.add("events", prompt.place, kind=kind, ts=ts, seq=4, evidence=evidence, **cells, **about)

    def _spans(
        self, prompt: rlvr.Prompt, response: rlvr.Response, key: str, tokens: int | None, *, ended: bool
    ) -> None:
        """The last segment of a finished response made its last token; an earlier one may have made none."""
        known = self.known
        first_step = known.time.first.get(prompt.attempt, 0)
        found = []
        for segment in response.segments:
            update = known.time.update_before(segment["end"])
            step = update[1] if update else prompt.start_step
            if step is None:
                found.append((0, max((s.step for s in known.time.steps), default=0)))
            elif update is None and prompt.start_step is not None:
                found.append((known.pushes.version(step, first_step)[0], step + 1))
            else:
                found.append(known.pushes.version(step, first_step))
        if not found:
            low = known.pushes.version(prompt.start_step or 0, first_step)[0]
            self.rows.span(
                response.place, key, 0, (1 if tokens is None and ended else tokens or 0, tokens), (low, None)
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

    def _stated(self, batches: Sequence[rlvr.Batch], size: int | None) -> None:
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
            rows = known.rows.get(step.step, [])
            count = sums.get(key) if domains[key] == every else None
            if key not in sums and len(usual) == 1 and len(every) == 1 and size and None not in usual:
                count = next(iter(usual)) * size  # type: ignore[operator]
            if rows and known.time.last(step.step) is step and (count is None or len(every) == 1):
                count = max(len(rows), count or 0)
            if count is not None and self.completed.get(key) is not False:
                place = places.get(key, step.place)
                _constrain(self.rows, place, step.attempt, step.step, "trajectories", count)
            elif self.completed.get(key) is not False and not every <= domains[key]:
                _constrain(self.rows, step.place, step.attempt, step.step, "trajectories", 1, op="ge")


def _constrain(rows: Rows, place: Row, attempt: int, step: int, quantity: str, value: int, op: str = "eq") -> None:
    rows.add("constraints", place, attempt=attempt, step=step, quantity=quantity, op=op, value=value, unit=quantity)


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


def _unused(
    known: Known, taken: Sequence[tuple[int, int]], completed: Mapping[tuple[int, int], bool | None]
) -> list[tuple[str, str | None, int | None]]:
    """What a batch that trained nothing came to: thrown away where the run went on without training it."""
    warmup = known.settings.whole_number("critic_warmup") or 0
    for attempt, step in taken:
        if completed.get((attempt, step)) is not False:
            return []
        if step < warmup:
            return [("dropped", "other:critic_warmup", step)]
        if any(other.attempt == attempt and other.step > step for other in known.time.steps):
            return [("dropped", "other:skipped", step)]
    return []


def _masked(known: Known, attempt: int, step: int) -> bool:
    """Whether tokens of a step may have been masked out of the loss; its metrics know, else the configuration."""
    named = known.metrics.get(step, {})
    home = known.time.last(step)
    used = [row["value"] for name, row in named.items() if name.endswith("/actor/samples_used")]
    total = [row["value"] for name, row in named.items() if name.endswith("/actor/samples_total")]
    if known.settings.get("train_infer_correction.filters"):
        return True
    if used and len(used) == len(total) and (home is None or home.attempt == attempt):
        return sum(used) < sum(total)
    return known.settings.masks


# --- RLVR without spans -----------------------------------------------------------------------------------------------


class _Batches:
    """RLVR from dumps, pickles, boards, console and metrics: who and how many, and how old at most."""

    def __init__(self, known: Known, rows: Rows) -> None:
        self.known, self.rows = known, rows

    def write(self) -> None:
        """Write the batches' rows, and what the console says of steps without any."""
        known = self.known
        for step, batch in sorted(known.rows.items()):
            self._batch(step, batch)
        by_step = {(row["step"]): row for row in self._taken()}
        boards: dict[int, list[Row]] = defaultdict(list)
        for board in known.boards:
            boards[board["step"]].append(board)
        for home in self._homes():
            step = home.step
            if step in known.rows and known.time.last(step) in (home, None):
                continue
            count = by_step.get(step)
            size = known.metrics.get(step, {}).get("system/batch_size")
            if count is not None:
                _constrain(self.rows, count, home.attempt, step, "trajectories", count["count"])
                if count["oldest"] is not None:
                    oldest = known.pushes.version(count["oldest"], known.time.first.get(home.attempt, 0))[0]
                    _constrain(self.rows, count, home.attempt, step, "staleness_max", max(step - oldest, 0), op="le")
            elif size is not None:
                _constrain(self.rows, size, home.attempt, step, "trajectories", int(size["value"]))
            elif boards.get(step):
                total = sum(board["samples"] for board in boards[step])
                _constrain(self.rows, boards[step][0], home.attempt, step, "trajectories", total)
            else:
                _constrain(self.rows, home.place, home.attempt, step, "trajectories", 1, op="ge")
            if boards.get(step) and not _masked(known, home.attempt, step):
                tokens = sum(board["tokens"] for board in boards[step])
                _constrain(self.rows, boards[step][0], home.attempt, step, "loss_tokens", tokens)

    def _homes(self) -> Iterator[Step]:
        known = self.known
        yield from known.time.steps
        seen = {step.step for step in known.time.steps}
        last = max(known.time.attempts)
        for number in sorted((set(known.metrics) | {row["step"] for row in known.boards}) - seen):
            yield Step(last, number, _place(known, number))

    def _batch(self, step: int, batch: Sequence[Row]) -> None:
        known = self.known
        home = known.time.last(step)
        attempt = home.attempt if home else max(known.time.attempts)
        first = known.time.first.get(attempt, 0)
        # The batch is ordered by start step, so its first row is the oldest of its domain.
        start = batch[0]["first_start"]
        window = known.settings.window
        floor = max(step - window, 0) if window is not None else 0
        size = known.settings.whole_number("num_return_sequences_in_group") or 0
        for index, row in enumerate(batch):
            own = row["domain"] == batch[0]["domain"] and start is not None
            low = known.pushes.version(max(floor, start) if own else floor, first)[0]
            versions = (None, None) if known.mocked else (low, known.pushes.version(step, first)[1])
            key = row["key"] or f"step{step}[{row['place']}]"
            group = f"step{step}/{index // size}" if size else f"step{step}/{row['grp']}"
            tokens = row["tokens"]
            self.rows.add(
                "trajectories",
                row,
                trajectory_id=key,
                group_id=group,
                attempt=attempt,
                role="train",
                anonymous=False,
                multiplicity_lo=1,
                multiplicity_hi=1,
                evidence="recorded",
            )
            self.rows.span(row, key, 0, (1 if tokens is None else tokens, tokens), versions)
            cells: dict[str, Any] = {"loss_tokens_lo": 0} if _masked(known, attempt, step) else {}
            self.rows.add("uses", row, trajectory_id=key, attempt=attempt, step=step, evidence="recorded", **cells)
        _constrain(self.rows, batch[0], attempt, step, "trajectories", len(batch))

    def _taken(self) -> Iterator[dict[str, Any]]:
        """Per step the samples that the scheduler says it collected, and the oldest group that still held some."""
        groups = r"ItemsGroup (\d+): len\(self\.running_prompts\)=(\d+) len\(self\.finished_prompts\)=(\d+)"
        import re  # noqa: PLC0415

        step: int | None = None
        oldest: int | None = None
        for row in self.known.lines:
            if row["kind"] == "taking":
                step = row["step"]
                held = [int(k) for k, run, done in re.findall(groups, row["text"] or "") if int(run) + int(done)]
                oldest = min((k for k in held if k >= row["value"]), default=step)
            elif row["kind"] == "taken" and step is not None:
                yield {**row, "step": step, "count": row["value"], "oldest": oldest}
                step = None


# --- agentic ----------------------------------------------------------------------------------------------------------


class _Agents:
    """The agentic pipeline's trajectories."""

    def __init__(self, known: Known, rows: Rows, completed: Mapping[tuple[int, int], bool | None]) -> None:
        self.known, self.rows, self.completed = known, rows, completed
        counts = [named.get("scheduler/group_filter_count") for named in known.metrics.values()]
        silent = all(row is None or row["value"] == 0 for row in counts)
        self.slots = agentic.Slots(known.settings, known.time, exact=silent)

    def write(self) -> None:
        """Write trained trajectories, then those that spans show and no batch has."""
        known = self.known
        batches = {step: agentic.trajectories_of(rows) for step, rows in known.rows.items()}
        agentic.unique(one for step in sorted(batches) for one in batches[step])
        left = agentic.match_spans(batches, known.spans, known.time)
        pickled = {step for step, rows in known.rows.items() if rows[0]["kind"] == "pickle"}
        trained: set[tuple[int, str]] = set()
        for step in sorted(batches):
            home = known.time.last(step)
            attempt = home.attempt if home else max(known.time.attempts)
            for one in batches[step]:
                self._trained(one, attempt)
                trained.add((attempt, one.group or ""))
            self._stated(step, attempt, batches[step], complete=step in pickled)
        batch = known.settings.whole_number("rollout_batch_size")
        for home in known.time.steps:
            if (home.step in batches and known.time.last(home.step) is home) or self.completed.get(
                (home.attempt, home.step)
            ) is False:
                continue
            if batch and batch > 0:
                _constrain(self.rows, home.place, home.attempt, home.step, "trajectories", batch)
            else:
                _constrain(self.rows, home.place, home.attempt, home.step, "trajectories", 1, op="ge")
        whole = {home.step for home in known.time.steps if self.completed.get((home.attempt, home.step)) is not False}
        for row in left:
            self._untrained(row, trained, known_batches=whole <= pickled)
        if not left and not any(row["name"] == "trajectory" for row in known.spans):
            self._ignored()

    def _stated(self, step: int, attempt: int, batch: Sequence[agentic.Trained], *, complete: bool) -> None:
        """A pickle has the whole batch; a dump lacks placeholders; deleted rows can make it fewer."""
        known = self.known
        if self._deleting(step):
            return
        size = known.settings.whole_number("rollout_batch_size")
        place = batch[0].place
        if complete:
            _constrain(self.rows, place, attempt, step, "trajectories", len(batch))
        elif size and size >= len(batch):
            _constrain(self.rows, place, attempt, step, "trajectories", size)
        else:
            _constrain(self.rows, place, attempt, step, "trajectories", len(batch), op="ge")

    def _deleting(self, step: int) -> bool:
        """Whether rows of a batch may have been deleted before training (``batch_adjust_mode``)."""
        removed = self.known.metrics.get(step, {}).get("system/batch_remove_count")
        if removed is not None:
            return bool(removed["value"] > 0)
        return self.known.settings.get("batch_adjust_mode") not in (None, "copy")

    def _trajectory(self, place: Row, key: str, group: str | None, attempt: int) -> None:
        self.rows.add(
            "trajectories",
            place,
            trajectory_id=key,
            group_id=f"{attempt}/{group}" if group else None,
            attempt=attempt,
            role="train",
            anonymous=False,
            multiplicity_lo=1,
            multiplicity_hi=1,
            evidence="recorded",
        )

    def _trained(self, one: agentic.Trained, attempt: int) -> None:
        known = self.known
        self._trajectory(one.place, one.key, one.group, attempt)
        turns = agentic.turn_versions(one, known.time, known.pushes) if one.span is not None else None
        if known.mocked:
            self.rows.span(one.place, one.key, 0, (one.tokens or 0, one.tokens), (None, None))
        elif turns is not None:
            for index, (tokens, versions) in enumerate(turns):
                self.rows.span(one.place, one.key, index, (tokens, tokens), versions)
        else:
            versions = agentic.versions(one, attempt, self.slots, known.pushes)
            tokens = one.tokens
            self.rows.span(one.place, one.key, 0, (1 if tokens is None else tokens, tokens), versions)
        self._life(one.span, one.key, attempt)
        deleting = self._deleting(one.step)
        cells: dict[str, Any] = {"loss_tokens_lo": 0} if deleting or self._masks(one.step) else {}
        evidence = "inferred" if deleting else "recorded"
        self.rows.add(
            "uses", one.place, trajectory_id=one.key, attempt=attempt, step=one.step, evidence=evidence, **cells
        )
        for kind, reason, step in _unused(known, [(attempt, one.step)], self.completed):
            self.rows.add(
                "events", one.place, kind=kind, reason=reason, step=step, trajectory_id=one.key, attempt=attempt
            )

    def _masks(self, step: int) -> bool:
        """Masks of the agentic pipeline: only probability-ratio filters."""
        return bool(self.known.settings.get("train_infer_correction.filters")) or not self.known.settings.whole

    def _life(self, span: Span | None, key: str, attempt: int) -> None:
        if span is not None:
            about = {"trajectory_id": key, "attempt": attempt, "evidence": "recorded"}
            self.rows.add("events", span, kind="admitted", ts=moment(span["start"]), seq=0, **about)
            self.rows.add("events", span, kind="enqueued", ts=moment(span["end"]), seq=3, **about)

    def _untrained(self, row: Span, trained: set[tuple[int, str]], *, known_batches: bool) -> None:
        known = self.known
        attempt = known.time.attempt_at(row["start"])
        key = f"{row['traj']}#{row['span']}"
        self._trajectory(row, key, row["traj_group"], attempt)
        home = known.time.ids.get(row["parent"] or "")
        low = known.pushes.version(home.step if home else 0, known.time.first.get(attempt, 0))[0]
        self.rows.span(row, key, 0, (0, None), (low, None))
        self._life(row, key, attempt)
        options = agentic.untrained_fate(row, known.time, self.slots, trained)
        if not known_batches:
            # Batches are missing: it may have been in one of those.
            options = [*options, ("pending", None, None)]
            for step in known.time.steps:
                if step.attempt == attempt and step.step not in known.rows and (step.end or 0) >= row["end"]:
                    self.rows.add("uses", row, trajectory_id=key, attempt=attempt, step=step.step, evidence="inferred")
        evidence = "derived" if len(options) == 1 else "inferred"
        for kind, reason, step in dict.fromkeys(options):
            if options == [("pending", None, None)]:
                break
            cells = {"reason": reason, "step": step, "ts": moment(row["end"]), "seq": 4}
            self.rows.add("events", row, kind=kind, trajectory_id=key, attempt=attempt, evidence=evidence, **cells)

    def _ignored(self) -> None:
        """Groups that the console says were too old when their turn came (rule 12); others age out silently."""
        size = self.known.settings.whole_number("train_env_manager.group_size")
        for index, row in enumerate(row for row in self.known.lines if row["kind"] == "ignored"):
            key = f"anonymous:ignored@{row['step']}/{index}"
            cells = {"multiplicity_lo": size or 1, "multiplicity_hi": size}
            about = {"trajectory_id": key, "group_id": key, "attempt": max(self.known.time.attempts)}
            self.rows.add("trajectories", row, role="train", anonymous=True, **cells, **about)
            self.rows.add("groups", row, group_id=key, multiplicity_lo=1, multiplicity_hi=1)
            self.rows.span(row, key, 0, (0, None), (0, None))
            self.rows.add("events", row, kind="dropped", reason="stale", step=row["step"], multiplicity=size, **about)


# --- what the framework says of itself --------------------------------------------------------------------------------


def _write_reported(known: Known, rows: Rows) -> None:
    """Means by start step, and batch sizes, of the launch that finished the step."""
    for step, named in sorted(known.metrics.items()):
        home = known.time.last(step)
        attempt = home.attempt if home else max(known.time.attempts)
        lags = [name for name in named if name.endswith("scheduler/off_policy_ratio")]
        for name in lags:
            canonical = "step.staleness_trajectory_mean" if len(lags) == 1 else name
            _report(rows, named[name], attempt, step, canonical, name, named[name]["value"])
        if not known.agentic and "system/batch_size" in named:
            row = named["system/batch_size"]
            _report(rows, row, attempt, step, "step.trajectories", "system/batch_size", row["value"])
    for step, batch in sorted(known.rows.items()):
        start = batch[0]["first_start"]
        if start is not None:
            home = known.time.last(step)
            attempt = home.attempt if home else max(known.time.attempts)
            domains = {row["domain"] for row in batch}
            name = "step.staleness_max" if len(domains) == 1 else "sampling_params.global_step"
            _report(rows, batch[0], attempt, step, name, "global_step - sampling_params.global_step", step - start)


def _report(rows: Rows, place: Row, attempt: int, step: int, name: str, raw: str, value: float) -> None:
    rows.add("reported", place, attempt=attempt, step=step, name=name, raw_name=raw, value=value, evidence="recorded")


def _notes(known: Known, sink: Sink) -> None:
    if known.pushes.contradicted:
        message = "The metrics show pushes at other steps than the configured frequency; the metrics are believed."
        sink.diagnose("warning", "frequency-contradicted", message)
    if known.mocked:
        message = "The run replays batches of an earlier run (rollout mock): which weights made them is not known."
        sink.diagnose("warning", "replayed-batches", message, opens="training")
    if known.settings.whole_number("critic_warmup"):
        message = "Steps of the critic's warm-up count as versions, as in the framework, although the policy stays."
        sink.diagnose("note", "critic-warmup", message)
    if any(named.get("mask/final_mask_sum_eq_0", {}).get("value") == 1 for named in known.metrics.values()):
        message = "A step whose samples were all masked was skipped; it counts as a version, as in the framework."
        sink.diagnose("note", "skipped-step", message)
    if any(row["kind"] == "old" for row in known.lines):
        message = "The scheduler is that of before v0.2.0, which leaves no traces."
        sink.diagnose("note", "old-scheduler", message)
