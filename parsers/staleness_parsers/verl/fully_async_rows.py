"""The rows of micro-steps: joined to dumped groups by their prompt, else as classes that syncs and records allow.

Dumped groups (``skip.async_rollout``) bring the stamps of their rows; which micro-step trained a group says the
rollout dump whose ``input`` holds its prompt. Rows without stamps are bounded from three sides: a sync at which
nothing was outstanding parts the old from the new; at most as many groups are older than the version they are trained
at as were outstanding at its sync; and the records count rows whose end is stale and rows that span versions.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from staleness_audit.parser import Sink
from staleness_audit.readers.numbers import micros
from staleness_parsers.verl.aggregates import RowClass, order_classes
from staleness_parsers.verl.fully_async import FullyAsync, Micro
from staleness_parsers.verl.launches import Row
from staleness_parsers.verl.metrics import most_rows
from staleness_parsers.verl.rows import STAMPED, Lengths, StepClasses, write_classes, write_rows, write_stamped


def write_trained(model: FullyAsync, sink: Sink) -> None:
    """Write steps, syncs, and every trained row."""
    _check_counts(model, sink)
    places = _join_groups(model, sink)
    _write_stamped(model, places, sink)
    out: dict[str, list[Row]] = {
        "trajectories": [],
        "spans": [],
        "uses": [],
        "constraints": [],
        "steps": [],
        "syncs": [],
    }
    for key in sorted(model.micros):
        _write_micro(model, model.micros[key], out, sink)
    for index, launch in enumerate(model.launches):
        for message in launch.said("sync"):
            version = message["a"]
            out["syncs"].append(
                {
                    "attempt": index,
                    "version_lo": version,
                    "version_hi": version,
                    "evidence": "recorded",
                    "source": message["source"],
                    "line": message["line"],
                }
            )
    write_rows(out, sink)


def _check_counts(model: FullyAsync, sink: Sink) -> None:
    """Compare the rows of dumps with the tokens that the record of their window counts: a line may be lost."""
    for micro in model.micros.values():
        if not micro.window or micro.number != micro.window[0]:
            continue
        others = [
            model.micros[micro.attempt, number] for number in micro.window if (micro.attempt, number) in model.micros
        ]
        counts, most = [other.rows for other in others], most_rows(micro.record)
        if most is None or None in counts or len(counts) < len(micro.window):
            continue
        if abs(sum(count for count in counts if count) - most) >= 0.5:
            sink.diagnose(
                "warning",
                "rows-missing",
                f"The rollout dumps of micro-steps {micro.number} to {micro.window[-1]} hold other rows than "
                "their record "
                f"counts tokens of ({most:.1f}).",
                source=micro.source,
            )
            for other in others:
                other.whole = False


def _join_groups(model: FullyAsync, sink: Sink) -> dict[int, Micro | None]:
    """Find the micro-step that trained each dumped group, by feed index (see ``_settle``).

    A group fits where the dump's ``input`` holds its prompt, as many rows have it, with the same sum of scores, at a
    version not before its newest stamp.
    """
    replayed = {message["a"] for launch in model.launches for message in launch.said("loaded")}
    if model.settings.may_replay("async_rollout") and not any(launch.consoled for launch in model.launches):
        replayed = set(model.groups["feed"])  # only a console tells whether dumps were made or read back
    if replayed:
        sink.diagnose(
            "warning",
            "cached-groups",
            "Groups were read back from an earlier run's dumps, or the console that would deny it is missing: the "
            "versions in them need not be of this run's policies.",
            opens="training",
        )
    spots = [(micro, at, *prompt) for micro in model.micros.values() for at, prompt in enumerate(micro.prompts)]
    by_text: dict[str, list[Any]] = {}
    for spot in spots:
        by_text.setdefault(spot[2], []).append(spot)
    texts = _Texts(list(by_text))
    fits: dict[int, list[Any]] = {}
    for feed, rows in _by_feed(model.groups).items():
        if rows[0]["prompt"] is None or feed in replayed:
            continue
        newest = max((row["v_max"] for row in rows if row["v_max"] is not None), default=0)
        score = None if any(row["score"] is None for row in rows) else sum(row["score"] for row in rows)
        fits[feed] = [
            spot
            for text in texts.containing(rows[0]["prompt"])
            for spot in by_text[text]
            if spot[3] == len(rows) and spot[0].version >= newest and _close(spot[4], score)
        ]
        if not fits[feed]:
            _lose_rows(texts.containing(rows[0]["prompt"]), by_text, len(rows))
    return _settle(fits)


def _lose_rows(found: list[str], by_text: dict[str, list[Any]], size: int) -> None:
    """Where only a smaller group has a dumped group's prompt, rows of it are missing in the rollout dump."""
    for text in found:
        for spot in by_text[text]:
            if spot[3] < size:
                spot[0].whole = False


def _close(one: float | None, other: float | None) -> bool:
    return one is None or other is None or abs(one - other) <= 1e-4 * max(1.0, abs(one))


class _Texts:
    """Finds the texts that contain a prompt: by a rare word from its inside, which stands in the text as it is."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self._places: dict[str, list[str]] = {}
        for text in texts:
            for word in set(text.split()):
                self._places.setdefault(word, []).append(text)

    def containing(self, prompt: str) -> list[str]:
        """Return the texts with this prompt inside. Its first and last word may be glued to others there."""
        words = [self._places.get(word, []) for word in prompt.split()[1:-1]]
        return [text for text in min(words, key=len, default=self._texts) if prompt in text]


def _by_feed(groups: pl.DataFrame) -> dict[int, list[Row]]:
    result: dict[int, list[Row]] = {}
    for row in groups.sort("feed", "row").iter_rows(named=True):
        result.setdefault(row["feed"], []).append(row)
    return result


def _settle(fits: dict[int, list[Any]]) -> dict[int, Micro | None]:
    """Return where groups were trained, as far as that is certain: in a micro-step, or nowhere (None).

    Each place was some group's, but a group that fits need not have got one. So where one group alone fits a place it
    was trained there, which leaves the other places to others, until nothing more follows. Groups that fit only places
    of one micro-step, and are no more than these, were all trained in it.
    """
    places = {feed: {_spot(spot): spot[0] for spot in spots} for feed, spots in fits.items()}
    wanted: dict[tuple[int, int, int], set[int]] = {}
    for feed, found in places.items():
        for place in found:
            wanted.setdefault(place, set()).add(feed)
    settled: dict[int, Micro | None] = {}
    doubtful: set[int] = set()
    changed = set(wanted)
    while changed:
        alone: dict[int, list[tuple[int, int, int]]] = {}
        for place in changed:
            if len(wanted[place]) == 1:
                alone.setdefault(next(iter(wanted[place])), []).append(place)
        changed = set()
        for feed, won in alone.items():
            if len(won) == 1:
                settled[feed] = places[feed][won[0]]
            else:
                doubtful.add(feed)  # a group that was not dumped has one of them
            for place in won:
                del wanted[place]
            for place in places[feed].keys() & wanted.keys():
                wanted[place].discard(feed)
                changed.add(place)
        changed &= wanted.keys()
    for feed, found in places.items():
        left = {place: micro for place, micro in found.items() if place in wanted}
        rivals = {rival for place in left for rival in wanted[place]}
        micros = {(micro.attempt, micro.number): micro for micro in left.values()}
        if feed in settled or feed in doubtful or len(micros) > 1 or len(rivals) > len(left):
            continue
        settled[feed] = next(iter(micros.values()), None)
    return settled


def _spot(spot: Any) -> tuple[int, int, int]:
    return spot[0].attempt, spot[0].number, spot[1]


def _write_stamped(model: FullyAsync, places: dict[int, Micro | None], sink: Sink) -> None:
    """Write the rows of dumped groups whose place is certain; the others stay undated where they were trained."""
    rows = []
    trained_all = all(micro.rows is not None for micro in model.micros.values()) and bool(model.micros)
    for feed, group in _by_feed(model.groups).items():
        micro = places.get(feed)
        if feed not in places or (micro is None and not trained_all):
            continue
        for row in group:
            if row["v_min"] is None or row["v_max"] is None:
                continue
            low = min(row["v_min"], row["v_max"])
            if micro is not None:
                micro.known.append((micro.version - row["v_max"], micro.version - low))
            rows.append(
                {
                    "trajectory_id": f"{row['uid']}/{row['row']}",
                    "group_id": row["uid"],
                    "attempt": micro.attempt if micro else len(model.launches) - 1,
                    "step": micro.number if micro else None,
                    "v_lo": low,
                    "v_hi": row["v_max"],
                    "tokens_lo": row["loss"] if row["loss"] is not None else 0,
                    "tokens_hi": row["loss"]
                    if row["loss"] is not None
                    else model.settings.count("data.max_response_length"),
                    "source": row["source"],
                    "locator": f"row {row['row']}",
                }
            )
    write_stamped(pl.DataFrame(rows, schema=STAMPED), sink)


def _write_micro(model: FullyAsync, micro: Micro, out: dict[str, list[Row]], sink: Sink) -> None:
    proof = {"evidence": "derived", "source": micro.source, "line": micro.line}
    waited = micro.record["fa_wait"] if micro.record and len(micro.window) == 1 else None
    out["steps"].append(
        {
            "attempt": micro.attempt,
            "step": micro.number,
            "v_train_lo": micro.version if model.numbered else model.bases[micro.attempt],
            "v_train_hi": micro.version,
            # Without the trigger nobody knows how many versions the micro-steps were: only that one was.
            "completed": True if micro.told and (model.numbered or micro.number == 1) else None,
            "waited_us": micros(waited),
            **proof,
        }
    )
    total = micro.rows
    count = total if total is not None else max(len(micro.known), _groups_of(model) or 0)
    if total is None and micro.told:
        sink.diagnose(
            "warning",
            "rows-uncounted",
            f"How many rows micro-step {micro.number} trained is not known in full: its rollout dump is missing "
            "or damaged (trainer.rollout_data_dir).",
            source=micro.source,
            locator=f"step {micro.number}",
        )
    rest = count - len(micro.known)
    if rest <= 0 and total is not None:
        return
    classes = _classes(model, micro, count, rest)
    write_classes(
        StepClasses(
            micro.attempt,
            micro.number,
            micro.version,
            classes,
            _lengths(model, micro),
            more=0 if total is not None else None,
            newest=micro.version,
            spanless=micro.record is not None and micro.record["fa_partial"] == 0,
            source=micro.source,
            line=micro.line,
            evidence="derived" if all(item.lo == item.hi for item in classes) else "inferred",
        ),
        out,
        sink,
    )


def _groups_of(model: FullyAsync) -> int | None:
    batch = model.settings.count("actor_rollout_ref.actor.ppo_mini_batch_size")
    return None if batch is None else batch * (model.settings.count("async_training.require_batches") or 1)


def _lengths(model: FullyAsync, micro: Micro) -> Lengths:
    record, masked = micro.record, model.settings.masks
    longest = model.settings.count("data.max_response_length")
    if record is None or record["response_max"] is None:
        return Lengths(int(micro.spoke), longest, exact=False, masked=masked)
    turns = record["turns_fa"] if record["turns_fa"] is not None else record["turns"]
    exact = turns is not None and turns <= 2 and not masked
    return Lengths(int(record["response_min"] or 0), round(record["response_max"]), exact, masked)


def _classes(model: FullyAsync, micro: Micro, count: int, rest: int) -> list[RowClass]:
    """Intervals of the rows of a micro-step that no stamp dates."""
    caps, oldest = _caps(model, micro, count)
    proven = _proven_stale(model, micro, count)
    # In between nothing changes, and a long run has many versions.
    ages = {0, min(1, oldest), oldest, *caps, *(age for ends in micro.known for age in ends if 0 <= age <= oldest)}
    surely: dict[int, int] = {}
    perhaps: dict[int, int] = {}
    older = 0
    for age in sorted(ages):
        older = caps.get(age, older) if age < oldest else 0
        surely[age] = count - older
        perhaps[age] = count - (proven if age == 0 else 0)
        if micro.known:
            surely[age] = max(0, surely[age] - sum(1 for last, _ in micro.known if last <= age))
            perhaps[age] = min(rest, perhaps[age] - sum(1 for _, worst in micro.known if worst <= age))
    return order_classes(rest, surely, perhaps)


def _caps(model: FullyAsync, micro: Micro, count: int) -> tuple[dict[int, int], int]:
    """Largest possible number of rows that are more than so many versions old, by the versions from which it holds.

    Also from how many versions on it is none.
    """
    outstanding, base = model.outstanding[micro.attempt], model.bases[micro.attempt]
    sizes = sorted(micro.sizes or [], reverse=True)
    most, oldest = count, micro.version - base
    record = micro.record
    if (
        record is not None
        and micro.before is not None
        and None not in (record["fa_stale"], record["fa_partial"], micro.before["fa_stale"])
    ):
        ended = round(record["fa_stale"] - micro.before["fa_stale"])
        if ended >= 0:
            most = min(most, ended + round(record["fa_partial"]))
            if not ended and record["fa_span"] is not None:
                oldest = min(oldest, round(record["fa_span"]))
    caps = {0: most}
    fewest: int | None = None
    for version in sorted((one for one in outstanding if base < one <= micro.version), reverse=True):
        fewest = outstanding[version] if fewest is None else min(fewest, outstanding[version])
        if fewest == 0 or micro.rows is not None:
            caps[micro.version - version] = min(most, sum(sizes[:fewest]))
        if fewest == 0:
            break
    none = min((age for age, cap in caps.items() if cap <= 0), default=oldest)
    oldest = max(min(oldest, none), 0)
    return {age: cap for age, cap in caps.items() if age < oldest}, oldest


def _proven_stale(model: FullyAsync, micro: Micro, count: int) -> int:
    """Rows of this micro-step whose end is stale for certain: those of the window that the others can't all hold."""
    record = micro.record
    if record is None or micro.before is None or record["fa_stale"] is None or micro.before["fa_stale"] is None:
        return 0
    ended = round(record["fa_stale"] - micro.before["fa_stale"])
    others = 0
    for number in micro.window:
        other = model.micros.get((micro.attempt, number))
        if other is None or other is micro:
            continue
        if other.rows is None:
            return 0
        bound = _version_caps(model, other)
        others += min(other.rows, bound)
    return int(max(0, min(count, ended - others)))


def _version_caps(model: FullyAsync, micro: Micro) -> int:
    """Rows of a micro-step that can be stale at all, by what was outstanding at the sync of its version."""
    if micro.version == model.bases[micro.attempt]:
        return 0
    groups = model.outstanding[micro.attempt].get(micro.version)
    sizes: list[int] = sorted(micro.sizes or [], reverse=True)
    return sum(sizes[:groups])
