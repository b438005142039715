"""Spans from the responses of inference servers, native SGLang's or OpenAI-compatible, as seen by a client or a proxy.

Which weights sampled a response's tokens is said by its ``weight_version``: SGLang puts it under ``metadata`` of an
OpenAI-compatible response and under ``meta_info`` of a native one. It is stamped when the response is *finished*. So

- if the server ends requests before it takes new weights (abort and retry), all tokens are of that version
  (``exact=True``);
- if requests go on over an update, they are of that version or older ones, but not older than the version that was
  served when the request was sent (``since``). If the two are equal, that is exact;
- recent SGLang servers list the runs of tokens (``weight_versions``), which is exact in any case.

>>> response = client.post(url, json=request).json()  # doctest: +SKIP
>>> record_response(record, "g7/0", response, since=version_when_sent)  # doctest: +SKIP

Streamed responses are not covered: put them together first, or record from what the server logs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from staleness_audit.recorder.adapters.steps import unharmed
from staleness_audit.recorder.recorder import Recorder

_LOGGER = logging.getLogger(__name__)


def record_response(
    record: Recorder,
    trajectories: Any,
    response: Any,
    *,
    since: int | None = None,
    exact: bool = False,
    version_of: Callable[[Any], int | None] | None = None,
    **fields: Any,
) -> None:
    """Record the spans of a response; no error of it reaches the caller.

    Arguments:
        record: where to.
        trajectories: the id of the trajectory that the response belongs to, or a list of one for each of its choices.
        response: the JSON document or list of them (a native batch), or an object of the OpenAI client.
        since: the policy version that the server had when the request was sent, if known.
        exact: whether the server ends every request before it takes new weights.
        version_of: from the server's label to the policy version (v0 = initial weights) or None. By default the label
            itself, if it is a whole number. Where the trainer publishes the initial weights as ``"1"`` (slime):
            ``lambda label: int(label) - 1``.
        fields: further fields of every span, for instance ``worker``.
    """
    with unharmed(record):
        names = list(trajectories) if isinstance(trajectories, (list, tuple)) else [trajectories]
        try:
            spans = _spans(response, names)
        except Exception as error:  # a response may be of any make
            # Something was sampled, and how much and by which version is not known: say so.
            _LOGGER.debug("a response of another make, tokens and version are not known: %r", error)
            spans = [(name, None, None, False) for name in names]
        for name, tokens, label, whole in spans:
            version = _version(label, version_of)
            record.span(name, **_tokens(tokens), **_versions(version, since, exact or whole), **fields)


_Span = tuple[Any, "int | tuple[int, int] | None", Any, bool]
"""Trajectory, tokens (or the least and the most they can be), the server's label, whether all tokens are of it."""


def _spans(response: Any, trajectories: Sequence[Any]) -> list[_Span]:
    if not isinstance(response, (Mapping, list)):
        response = response.model_dump()
    if isinstance(response, Mapping) and "choices" in response:
        return _of_choices(response, trajectories)
    parts = response if isinstance(response, list) else [response]
    spans: list[_Span] = []
    for name, part in zip(trajectories, parts, strict=True):
        meta = part["meta_info"]
        tokens = _whole(meta.get("completion_tokens"))
        runs = [run for run in meta.get("weight_versions") or () if isinstance(run, Mapping)]
        if runs and sum(run["end"] - run["start"] for run in runs) == tokens:
            spans += [(name, run["end"] - run["start"], run["version"], True) for run in runs]
        else:  # the list is missing or does not cover the response
            spans.append((name, tokens, meta.get("weight_version"), False))
    return spans


def _of_choices(response: Mapping[str, Any], trajectories: Sequence[Any]) -> list[_Span]:
    label = (response.get("metadata") or {}).get("weight_version", response.get("weight_version"))
    total = _whole((response.get("usage") or {}).get("completion_tokens"))
    choices = sorted(response["choices"], key=lambda choice: choice.get("index", 0))
    spans: list[_Span] = []
    for name, choice in zip(trajectories, choices, strict=True):
        listed = (choice.get("logprobs") or {}).get("content")
        if len(choices) == 1 and total is not None:
            tokens: int | tuple[int, int] | None = total
        elif listed is not None:
            tokens = len(listed)
        else:  # the usage counts all choices together
            tokens = None if total is None else (0, total)
        spans.append((name, tokens, label, False))
    return spans


def _version(label: Any, version_of: Callable[[Any], int | None] | None) -> int | None:
    try:
        return _whole(label) if version_of is None else version_of(label)
    except Exception as error:  # SGLang's first label is "default", which the caller's function need not know
        _LOGGER.debug("no version is known of the label %r: %r", label, error)
        return None


def _whole(value: Any) -> int | None:
    """A whole number, or one that is written in digits; None for all that would have to be rounded or interpreted."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdecimal() else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or value != value // 1:
        return None
    return int(value)


def _versions(version: int | None, since: int | None, whole: bool) -> dict[str, Any]:
    if version is not None and (whole or version == since):
        return {"version": version}
    return {"version_lo": since, "version_hi": version, "monotone": True}


def _tokens(tokens: int | tuple[int, int] | None) -> dict[str, Any]:
    if isinstance(tokens, int):
        return {"tokens": tokens}
    low, high = (0, None) if tokens is None else tokens
    return {"tokens_lo": low, "tokens_hi": high}
