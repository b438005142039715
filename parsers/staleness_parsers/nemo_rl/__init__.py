"""NeMo-RL: the single controller with its samplers, and async_grpo (guide sections 1 and 3).

Versions. v{k} is the policy after k training steps; a launch that resumes from step R goes on with v{R}. Off by one:
the line and the metrics of a step are written after the count went up, so ``train step k``, ``trainer_v=k``, a metric
at k, ``Step k/...`` and ``train_data_step{k}.jsonl`` have ``v_train = k - 1``, while ``train_pump: step s`` and
``current_weight_version=s`` have ``v_train = s``. Steps are numbered k here. While a critic warms up (async PPO), steps
count although the policy stays the same; the parser says so.

A group carries one version, taken when its generation starts; its later tokens can be newer. async_grpo prints it for
each group. The single controller prints only ``lag``, ``v_train`` minus the oldest of a step, and takes the version one
too old where it does so while a sync is under way: a lag L is a largest staleness of L or L - 1.

The bound of windowed and weight_fifo (``max_staleness_versions``), in_order (``max_lookahead_versions``) and async_grpo
(``max_trajectory_age_steps``) is ``v_train - v_gen`` itself, and all of them are strict, in_order as long as no resume
makes the lookahead smaller: restored groups are not checked again. ready_first has no limit, except that 0 is strict:
its number only says how far admission may lead. ``card`` says it mode by mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from staleness_audit.discovery import RunFiles
from staleness_audit.parser import Detection, RunFacts, Sink, Staged, Unit
from staleness_audit.readers.scalars import scalar_pieces
from staleness_parsers.nemo_rl import files, inputs
from staleness_parsers.nemo_rl.card import CARD
from staleness_parsers.nemo_rl.console import BEGINS, read_console
from staleness_parsers.nemo_rl.finish import finish_run
from staleness_parsers.nemo_rl.folders import are_launches


class NemoRL:
    """The plug-in; see the module's docstring and ``staleness_audit.parser.Parser``."""

    name = "nemo-rl"
    version = "1"
    card = CARD
    writes_blocks = True

    def detect(self, run: RunFiles) -> Detection | None:
        """Recognise the console's words, the metrics, or a configuration; dumped rows alone could be synchronous."""
        found = files.survey(run)
        keys = (b"max_trajectory_age_steps:", b"min_groups_for_streaming_train:")
        clues = (
            (found.consoles, files.MARKS, "a console log of NeMo-RL's asynchronous training"),
            (found.scalars, files.TAGS, "metrics of NeMo-RL's asynchronous training"),
            (found.configs, keys, "a configuration with its keys of asynchronous training"),
        )
        evidence = []
        for listed, marks, what in clues:
            first = next((file.source for file in listed if files.has_mark(run, file.source, marks)), None)
            if first is not None:
                evidence.append(f"{first}: {what}")
        return Detection(tuple(evidence)) if evidence else None

    def belong_together(self, run: RunFiles, folders: Sequence[str]) -> bool:
        """Tell launches of one run, which have folders of their own, from runs that share nothing but a parent."""
        return are_launches(run, folders)

    def plan(self, run: RunFiles) -> Iterator[Unit]:
        """One unit per piece of a console or event file and per other file."""
        found = files.survey(run)
        for file in found.consoles:
            yield from (Unit("console", (piece,)) for piece in run.split(file.source, begins=BEGINS))
        for file in found.scalars:
            yield from (Unit("events", (piece,)) for piece in scalar_pieces(run, file.source))
        kinds = {
            "rows": found.rows,
            "settings": found.configs,
            "buffer": found.buffers,
        }
        yield from (Unit(kind, (run.whole(file.source),)) for kind, listed in kinds.items() for file in listed)

    def read(self, unit: Unit, run: RunFiles, sink: Sink) -> None:
        """Stage what one file says; nothing here is understood without the others."""
        reader = {
            "console": read_console,
            "events": inputs.read_events,
            "rows": inputs.read_rows,
            "settings": inputs.read_settings,
            "buffer": inputs.read_buffer,
        }[unit.kind]
        reader(run, unit.pieces[0], sink)

    def finish(self, staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
        """Join the units (see ``finish``)."""
        return finish_run(staged, run, sink)


PARSER = NemoRL()
