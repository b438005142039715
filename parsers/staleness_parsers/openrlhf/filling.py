"""Which generation calls a batch's samples come from: the generator's buffer (guide section 4.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from staleness_parsers.openrlhf.launches import Batch, Launch
from staleness_parsers.openrlhf.settings import Settings

FROM_BUFFER: Final = 0.05
"""A call that took fewer seconds than this, and than a tenth of the longest, was none: rule 7 of section 5.5."""
PASS_RATE: Final = "dynamic_filtering_pass_rate"  # noqa: S105 - a metric


@dataclass(frozen=True)
class Share:
    """Some ``samples`` of a batch (None = not known), all made by one of ``calls``.

    A call is named by the number of the batch that it was made for; no call = made before the logs begin.
    """

    samples: int | None
    calls: tuple[int, ...]


@dataclass(frozen=True)
class Filling:
    """How the batches of a launch were filled.

    ``shares``: per batch, from old to new. ``whole``: per batch, whether it is all that its call accepted.
    ``groups_of``: smallest and largest possible number of samples of a prompt (None = open). ``depth``: the mechanism's
    largest number of batches between a call and the service of its samples (D of section 4.5), None if not known.
    """

    shares: list[list[Share]]
    whole: list[bool]
    groups_of: tuple[int, int | None]
    depth: int | None

    @property
    def group(self) -> int | None:
        """Samples per prompt, if known."""
        return self.groups_of[0] if self.groups_of[0] == self.groups_of[1] else None


def fill(launch: Launch, settings: Settings, *, oversampling: bool) -> Filling:
    """Find out how batches were filled. ``oversampling``: the release and mode have it."""
    batches = launch.batches
    called = _called(batches)
    sizes = _group_sizes(launch, settings)
    exact = {size: result for size in sizes if (result := _simulate(launch, called, size, settings)) is not None}
    if len(exact) == 1:
        sizes = list(exact)
    groups_of = (min(sizes), max(sizes)) if sizes else (1, None)
    if not oversampling or _plain(launch, called, settings, sizes):
        shares = [[Share(batch.samples, (number,))] for number, batch in enumerate(batches)]
        return Filling(shares, [True] * len(batches), groups_of, 0)
    if len(exact) == 1:
        shares, whole = next(iter(exact.values()))
        return Filling(shares, whole, groups_of, _depth(launch, settings, sizes[0]))
    depth = _depth(launch, settings, sizes[0] if len(sizes) == 1 else None)
    return Filling(_coarse(batches, called, launch.began), [False] * len(batches), groups_of, depth)


def filters(launch: Launch) -> bool:
    """Whether some group may have been discarded by dynamic filtering."""
    rated = any(PASS_RATE in batch.metrics for batch in launch.batches)
    silent = not launch.timed and not launch.console  # older releases have no pass rate
    return rated or silent or bool(launch.filtered) or launch.old_filter


def _called(batches: Sequence[Batch]) -> list[bool | None]:
    """Per batch, whether a generation call was made for it (None = can't be told)."""
    longest = max((batch.generation or 0.0 for batch in batches), default=0.0)
    full = max((batch.samples or 0 for batch in batches), default=0)
    made = [_made(batch, longest) for batch in batches]
    # The data ended: a call for the few prompts that were left may be as fast as the buffer.
    return [
        None if one is False and (batch.samples or 0) < full else one for one, batch in zip(made, batches, strict=True)
    ]


def _made(batch: Batch, longest: float) -> bool | None:
    if PASS_RATE in batch.metrics:
        return True
    if batch.generation is None:
        return None
    if batch.generation >= FROM_BUFFER:
        # Far below its neighbours it may still be a busy machine's time to serve from the buffer.
        return True if batch.generation >= longest / 100 else None
    return False if batch.generation < longest / 10 else None


def _group_sizes(launch: Launch, settings: Settings) -> list[int]:
    """Possible numbers of samples per prompt: they divide every batch. Empty if nothing limits them."""
    stated = settings.number("rollout.n_samples_per_prompt")
    if stated is not None:
        return [stated]
    scored = {row["count"] for row in launch.filtered if row["count"]}
    if len(scored) == 1:
        return [scored.pop()]
    samples = [batch.samples for batch in launch.batches if batch.samples]
    if not samples:
        return []
    # 100 * accepted samples / prompts is at most 100 per sample of a prompt.
    least = max((math.ceil(batch.metrics.get(PASS_RATE, 0.0) / 100 - 1e-6) for batch in launch.batches), default=1)
    common = math.gcd(*samples)
    return [size for size in range(1, common + 1) if common % size == 0 and size >= least]


def _plain(launch: Launch, called: Sequence[bool | None], settings: Settings, sizes: Sequence[int]) -> bool:
    """Whether a call makes exactly a batch, so that nothing waits in the buffer (rule 11 where no flag tells)."""
    prompts, wanted = settings.number("rollout.batch_size"), settings.number("rollout.vllm_generate_batch_size")
    if prompts and wanted:
        return wanted <= prompts
    largest = max((batch.samples or 0 for batch in launch.batches), default=0)
    if launch.calls and len(sizes) == 1 and sizes[0] * max(launch.calls) == largest and all(called):
        return True
    if largest and max(launch.calls, default=0) * min(sizes, default=1) > largest:
        return False  # the bars show it, whatever filters and the ends of the data took from the buffer
    streak = longest = 0
    for made in called:
        streak = streak + 1 if made else 0
        longest = max(longest, streak)
    passes = _passes(launch, settings)
    return passes is not None and largest > 0 and longest > passes * (largest // min(sizes, default=1) + 1)


def _passes(launch: Launch, settings: Settings) -> int | None:
    """How often the data may begin anew, None if not known: their end empties the buffer, and no log says where.

    A call for the few prompts that are left makes less than others, and up to 0.11.0 what waits is thrown away.
    """
    return launch.passes or settings.number("train.num_episodes")


Simulated = tuple[list[list[Share]], list[bool]]


def _simulate(launch: Launch, called: Sequence[bool | None], group: int, settings: Settings) -> Simulated | None:
    """Follow the buffer sample by sample; None if what calls made or where data end is not known or does not fit."""
    batches, stated = launch.batches, settings.number("rollout.vllm_generate_batch_size")
    calls = launch.calls if len(launch.calls) >= sum(map(bool, called)) else []
    if not batches or not launch.began or not (calls or stated) or any(not batch.samples for batch in batches):
        return None
    if _passes(launch, settings) != 1:
        return None
    full = max(batch.samples or 0 for batch in batches)
    level = made = last = 0
    shares: list[list[Share]] = []
    whole: list[bool] = []
    for number, batch in enumerate(batches):
        size = batch.samples or 0
        old = level
        if called[number] is not None and called[number] != (old < size):
            return None
        if old < size:
            if calls and made == len(calls):
                return None
            level += (calls[made] if calls else stated or 0) * group
            made += 1
            parts = [Share(old, (last,)), Share(size - old, (number,))]
            last = number
        else:
            parts = [Share(size, (last,))]
        level -= size
        # A short batch is served only when the data end, and takes all that is left.
        if level < 0 or (size < full and level):
            return None
        shares.append([share for share in parts if share.samples])
        whole.append(not old and not level)
    return shares, whole


def _coarse(batches: Sequence[Batch], called: Sequence[bool | None], began: bool) -> list[list[Share]]:
    """Without knowledge of the buffer's level, a batch may hold samples of the last call before its own."""
    last: tuple[int, ...] = ()
    shares = []
    for number, batch in enumerate(batches):
        if called[number] is False:
            calls = last
        else:
            calls = (*last, number) if last or began else ()
            last = (number,) if called[number] else (*last, number)
        shares.append([Share(batch.samples, calls)])
    return shares


def _depth(launch: Launch, settings: Settings, group: int | None) -> int | None:
    prompts, wanted = settings.number("rollout.batch_size"), settings.number("rollout.vllm_generate_batch_size")
    if prompts is None and group:
        prompts = max((batch.samples or 0 for batch in launch.batches), default=0) // group
    wanted = wanted or max(launch.calls, default=None)
    if not prompts or not wanted:
        return None
    return wanted // prompts - 1 if wanted % prompts == 0 else math.ceil((wanted + prompts - 1) / prompts) - 1
