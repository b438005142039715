"""prime-rl: traces per step, metrics and console logs of an orchestrator and a trainer.

Versions. v{k} is the policy after k optimizer steps (v0 = initial weights). Trainer step N trains the batch in
``rollouts/step_N/train/effective`` on v{N-1} and publishes v{N}: ``v_train = N - 1``, exactly. Up to v0.6.0 steps count
from 0, and ``v_train = N``. ``run.work.policy.start`` is taken when the *group* opens, ``end`` when the episode is
collected: the tokens lie in [start, end], except that a group opened between the counter's move and the engines' pause
records a start whose weights the engines don't have yet (guide section 4.5). So a trace whose requests can't be shown
to begin after that update had ended gets [version before, end], and the version before is start - 1, or start - 2 where
broadcasts on disk may be skipped and no log names it; updates dated by the log also narrow each turn from both sides.

Off by one: the directory of ``all`` names the step being *collected*, at most v{step - 1} is out by then; the
configured ``max_off_policy_steps`` is the bound itself.

Guarantee. Since PR #3313 the bound holds on recorded versions, and for true ones bound + 1 (broadcasts on disk: + 2),
for the version is counted before the engines have it (up to PR #3385, which no file shows). Up to v0.8.0 there is no
limit: only version changes in flight are bounded, and nothing in the queue. ``card`` says it mode by mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from staleness_audit.discovery import RunFiles, bundles
from staleness_audit.parser import Detection, RunFacts, Sink, Staged, Unit
from staleness_audit.readers.records import record_pieces
from staleness_audit.readers.wandb_files import read_wandb
from staleness_parsers.prime_rl.card import CARD
from staleness_parsers.prime_rl.console import read_log
from staleness_parsers.prime_rl.files import ATTEMPT_FOLDER, survey
from staleness_parsers.prime_rl.finish import ASSUMPTIONS, finish_run
from staleness_parsers.prime_rl.metrics import read_metrics, read_offline
from staleness_parsers.prime_rl.settings import read_config
from staleness_parsers.prime_rl.traces import read_traces

_LOG_MARKS = (b"Starting orchestrator", b"Policy inference pool", b"Max Off-Policy", b"Max. Off-Policy Level")


class PrimeRL:
    """The plug-in; see the module's docstring and ``staleness_audit.parser.Parser``."""

    name = "prime-rl"
    version = "1"
    card = CARD
    assumptions = ASSUMPTIONS
    writes_blocks = True

    def detect(self, run: RunFiles) -> Detection | None:
        """Recognise the rollout folders, the resolved configuration, or the orchestrator's own log."""
        files = survey(run)
        evidence = []
        if files.traces:
            shape = "train_rollouts.jsonl" if files.traces[0].form == "rollouts" else "traces.jsonl"
            evidence.append(
                f"{files.traces[0].file.source}: {shape} in a folder of a step, as the file monitor writes it"
            )
        # TOML, the copy that older releases keep, has the key without quotes.
        key = b"max_off_policy_steps" if files.config and files.config[1] == "toml" else b'"max_off_policy_steps"'
        if files.config and key in run.head(files.config[0].source, 1 << 20):
            evidence.append(
                f"{files.config[0].source}: a resolved orchestrator configuration with max_off_policy_steps"
            )
        for log in files.logs:
            if log.process == "orchestrator" and any(mark in run.head(log.file.source, 1 << 16) for mark in _LOG_MARKS):
                evidence.append(f"{log.file.source}: a log of the orchestrator")
                break
        return Detection(tuple(evidence)) if evidence else None

    def belong_together(self, _run: RunFiles, folders: Sequence[str]) -> bool:
        """Whether folders side by side are those of one run's launches, as where nothing but its logs is left."""
        return all(ATTEMPT_FOLDER.fullmatch(folder) for folder in folders)

    def plan(self, run: RunFiles) -> Iterator[Unit]:
        """One unit per configuration, log and piece of a JSON-lines file or of one of W&B."""
        files = survey(run)
        if files.config:
            yield Unit("config", (run.whole(files.config[0].source),), {"syntax": files.config[1]})
        for log in files.logs:
            # A log is read whole: its days are counted from its first line.
            about = {"process": log.process, "attempt": log.attempt}
            yield Unit("log", (run.whole(log.file.source),), about)
        for file in files.metrics:
            yield from (Unit("metrics", (piece,)) for piece in run.split(file.source))
        for file in files.offline:
            yield from (Unit("offline", (piece,)) for piece in record_pieces(run, file.source, read_wandb))
        traces = (piece for entry in files.traces for piece in run.split(entry.file.source))
        yield from (Unit("traces", pieces) for pieces in bundles(traces))

    def read(self, unit: Unit, run: RunFiles, sink: Sink) -> None:
        """Stage what one file says; nothing here is understood without the others."""
        piece, options = unit.pieces[0], unit.options
        if unit.kind == "config":
            read_config(run, piece, options["syntax"], sink)
        elif unit.kind == "log":
            read_log(run, piece, options["process"], options["attempt"], sink)
        elif unit.kind == "metrics":
            read_metrics(run, piece, sink)
        elif unit.kind == "offline":
            read_offline(run, piece, sink)
        else:
            read_traces(run, unit.pieces, sink)

    def finish(self, staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
        """Join the units (see ``finish``); point out files that belong to another run."""
        for root in survey(run).other_roots:
            sink.diagnose(
                "warning",
                "several-runs",
                f"{root or '.'} holds another run of this framework, which is not read; audit it by itself.",
                source=root or None,
            )
        return finish_run(staged, sink, run.assume)


PARSER = PrimeRL()
