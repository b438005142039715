"""The launch's flags, under their names of release 0.10, from wherever a log folder keeps them (guide section 2).

They stand in the launch command (a script or a shell's trace, ``wandb-metadata.json``) and in W&B's ``config.yaml``;
the console itself states only the queue size.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from staleness_audit.readers.console import number_of
from staleness_audit.readers.numbers import is_whole

NAMES: Final[Mapping[str, str]] = {
    "async_train": "train.async_enable",
    "async_queue_size": "train.async_queue_size",
    "OPENRLHF_ASYNC_QUEUE_SIZE": "train.async_queue_size",
    "partial_rollout": "train.partial_rollout_enable",
    "rollout_batch_size": "rollout.batch_size",
    "n_samples_per_prompt": "rollout.n_samples_per_prompt",
    "vllm_generate_batch_size": "rollout.vllm_generate_batch_size",
    "train_batch_size": "train.batch_size",
    "max_epochs": "train.max_epochs",
    "dynamic_filtering": "algo.dynamic_filtering_enable",
    "num_episodes": "train.num_episodes",
    "eval_steps": "eval.steps",
    "logging_steps": "logger.logging_steps",
    "freezing_actor_steps": "critic.freezing_steps",
}
"""Older names (0.8 to 0.9.9), and the environment variable that held the queue size up to 0.9.0."""
_KNOWN: Final = {*NAMES.values(), "critic.freezing_steps"}
_SWITCHES: Final = {"train.async_enable", "train.partial_rollout_enable", "algo.dynamic_filtering_enable"}
_PROGRAM: Final = re.compile(r"\bopenrlhf\.cli\.train_ppo_ray\b|\btrain_ppo_ray\.py\b")
_VARIABLE: Final = re.compile(r"\b(OPENRLHF_ASYNC_QUEUE_SIZE)\s*=\s*[\"']?(\d+)")
COMMAND: Final = "command"
"""Marks settings that come from a launch command: there a switch that is not given is off."""


@dataclass(frozen=True)
class Settings:
    """What the files say of the launch; None where they don't."""

    shown: Mapping[str, Any] = field(default_factory=dict)
    contradicted: tuple[str, ...] = ()

    def number(self, name: str) -> int | None:
        """Return a positive whole number."""
        value = self.shown.get(name)
        return value if is_whole(value) and value > 0 else None

    @property
    def partial(self) -> bool | None:
        """Whether generation may overlap a weight sync."""
        value = self.shown.get("train.partial_rollout_enable")
        return value if isinstance(value, bool) else None


def command_line(text: str) -> dict[str, Any] | None:
    """Return the flags of a launch command, or the queue size as an environment variable; None if it is neither."""
    found: dict[str, Any] = {}
    if program := _PROGRAM.search(text):
        found = from_arguments(_words(text[program.end() :]))
    for name, value in _VARIABLE.findall(text):
        found[NAMES[name]] = number_of(value)
    return found or None


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text.replace("\\\n", " "), comments=False)
    except ValueError:  # an open quote: the command goes on elsewhere
        return text.split()


def from_arguments(words: list[str]) -> dict[str, Any]:
    """Read ``--name value``, ``--name=value`` and bare switches; switches not given are off."""
    found: dict[str, Any] = {COMMAND: True}
    for index, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, _, value = word[2:].partition("=")
        key = _key(name)
        if key is None:
            continue
        following = words[index + 1] if index + 1 < len(words) else "--"
        found[key] = _value(value or ("true" if following.startswith("--") or key in _SWITCHES else following))
    for switch in _SWITCHES:
        found.setdefault(switch, False)
    if "--train.async_enable" in words:
        # The dotted names came after the environment variable was gone, so the flag's default holds.
        found.setdefault("train.async_queue_size", 1)
        if _whole(words):
            found.setdefault("train.num_episodes", 1)
    return found


def _whole(words: list[str]) -> bool:
    """Whether no flag of the command can stand elsewhere: on a next line, or in a variable that is no flag's value."""
    loose = any(word.startswith("$") and not before.startswith("--") for before, word in itertools.pairwise(words))
    return not loose and not words[0].startswith("$") and words[-1] != "\\"


def from_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """Read W&B's ``config.yaml`` (every key holds ``value``), flat or nested, or the ``args`` of its metadata."""
    arguments = document.get("args")
    if isinstance(arguments, list):
        return from_arguments([str(word) for word in arguments])
    return {key: value for name, value in _flat(document, "") if (key := _key(name)) is not None}


def _flat(document: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        inner = (
            value["value"]
            if isinstance(value, Mapping) and set(value) <= {"value", "desc"} and "value" in value
            else value
        )
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", inner


def _key(name: str) -> str | None:
    plain = name.replace("-", "_")
    if plain in _KNOWN:
        return plain
    return NAMES.get(plain)


def _value(text: str) -> int | bool | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return number_of(text) if re.fullmatch(r"-?\d+", text) else text


def combine(sources: list[dict[str, Any]]) -> Settings:
    """Join what several places say; what they contradict each other about is not known."""
    shown: dict[str, Any] = {}
    contradicted = set()
    for found in sources:
        for key, value in found.items():
            if key != COMMAND and shown.setdefault(key, value) != value:
                contradicted.add(key)
    for key in contradicted:
        del shown[key]
    return Settings(shown, tuple(sorted(contradicted)))
