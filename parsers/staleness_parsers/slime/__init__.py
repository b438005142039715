"""slime (THUDM/slime): rollout and train dumps, console logs, TensorBoard scalars.

Versions. The policy version p counts rollouts trained by the actor since the run's first policy (p0 = initial
weights); the batch of rollout r is trained from p = r, less critic-only rollouts. slime's own label,
``weight_versions``, counts weight syncs of one *process*: it is bumped before each transfer and begins anew with
every launch, so that

* label 1 is the policy a process started with, p = s0 (``start_rollout_id``): label and version differ by one even in a
  fresh run; with a sync after every rollout, label L is p = s0 + L - 1;
* with ``--update-weights-interval`` k, label 1 + j is p = (floor(s0 / k) + j) * k;
* in delta mode the first sync does not count: ``"default"`` is p = s0, label j is p = (floor(s0 / k) + j) * k.

A label stands for one engine call. The trace of a sample says how many tokens each call made; calls that were aborted
before their first token leave a label and no tokens. Without a trace only the range of labels is known.

slime has no staleness knob at all, so there is no bound to convert: the audit's comes from the command line. The fully
asynchronous rollout has no limit, nor has any with partial rollouts; else collecting ahead (``train_async.py``) is at
most ``--update-weights-interval`` old, and in turns (``train.py``) 0. ``card`` says it mode by mode.
"""

from __future__ import annotations

from staleness_parsers.slime.parser import SlimeParser

PARSER = SlimeParser()

__all__ = ["PARSER", "SlimeParser"]
