"""OpenRLHF, recorded in the agent executor (``--agent_func_path``) and in the trainer.

>>> # my_agent.py; OpenRLHF makes an AgentExecutor() without arguments, so MyExecutor's constructor needs none
>>> AgentExecutor = recorded(MyExecutor, record, version=my_version)  # doctest: +SKIP
>>> took(batches, experiences, step, version=step - 1)  # in a trainer of one's own  # doctest: +SKIP

The executor asks the engine; between two looks at the engine's version each answer is exact, or an interval (provided
that engines that go on over an update take weights and version while they are paused). OpenRLHF's
samples have no name, so one is put into ``extra_logs``, two numbers that arrive in ``Experience.info`` (and in the
metrics, where their means say nothing). A batch that is logged as step ``N`` trains from version ``N - 1``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from staleness_audit.recorder.adapters.steps import Batches, new_tag, tag_name, unharmed
from staleness_audit.recorder.recorder import Recorder

COLUMNS = ("staleness_audit_process", "staleness_audit_number")


def recorded(executor_class: type, record: Recorder, *, version: Callable[[Any], int | None] | None = None) -> type:
    """Return a subclass of an agent executor that records what its engine generates.

    Arguments:
        executor_class: an ``AgentExecutorBase``: ``SingleTurnAgentExecutor`` or your own.
        record: where to; ``bound`` is what you ask for (OpenRLHF has no key), the unit training steps.
        version: from the engine to the policy version that it serves now, or None. By default
            ``engine.get_weight_version()`` where there is one (OpenRLHF 0.11 has none); without it versions are not
            known.
    """
    look = version or _weight_version
    record.unseen("dropped", "lost")  # what becomes of a finished sample, only the trainer knows

    class Recorded(executor_class):  # type: ignore[misc]
        """The executor, recorded."""

        async def execute(
            self, prompt: Any, label: Any, sampling_params: Any, max_length: int, hf_tokenizer: Any, llm_engine: Any,
            *arguments: Any, **options: Any,
        ) -> Any:  # fmt: skip
            tag = new_tag()
            engine = _Engine(llm_engine, record, tag_name(tag), look)
            result = await super().execute(
                prompt, label, sampling_params, max_length, hf_tokenizer, engine, *arguments, **options
            )
            with unharmed(record):
                record.finished(tag_name(tag))
                for each in result if isinstance(result, list) else [result]:
                    logs = each.get("extra_logs")
                    each["extra_logs"] = {
                        **(logs or {}),
                        **dict(zip(COLUMNS, map(float, tag), strict=True)),
                    }
            return result

    return Recorded


class _Engine:
    """The engine, seen by one trajectory."""

    def __init__(self, engine: Any, record: Recorder, name: str, look: Callable[[Any], int | None]) -> None:
        self._engine = engine
        self._record = record
        self._name = name
        self._look = look
        record.admitted(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, *arguments: Any, **options: Any) -> Any:
        before = self._seen()
        output = await self._engine.generate(*arguments, **options)
        with unharmed(self._record):
            after = self._seen()
            versions = {"version": before} if before == after else {"version_lo": before, "version_hi": after}
            tokens = sum(len(each.token_ids) for each in output.outputs[:1])
            self._record.span(self._name, tokens=tokens, monotone=True, **versions)
        return output

    def _seen(self) -> int | None:
        with unharmed(self._record):
            return self._look(self._engine)
        return None


def _weight_version(engine: Any) -> int | None:
    look = getattr(engine, "get_weight_version", None)
    return None if look is None else look()


def took(batches: Batches, experiences: Iterable[Any], step: int, version: int) -> None:
    """Training step ``step``, which starts from ``version``, trains these experiences."""
    with unharmed(batches.record):
        batches.took(step, version, [row for experience in experiences for row in _rows(experience)])


def _rows(experience: Any) -> Iterator[tuple[str, int]]:
    # A tensor, or, where batches were put together anew, a list of them.
    columns = [[float(value) for value in experience.info[column]] for column in COLUMNS]
    for tag, mask in zip(zip(*columns, strict=True), experience.action_mask, strict=True):
        yield tag_name(tag), int(sum(mask.tolist()))
