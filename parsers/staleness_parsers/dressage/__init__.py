"""Dressage (Accio-Lab/Dressage): agents on slime; slime's dumps and logs, plus sessions with a label per token.

Versions. Labels are slime's: "1" is the policy a trainer process started with, one more per weight sync, anew with
every launch; the policy version p counts trained rollouts, so in a fresh run synced after every rollout label L is
p = L - 1, and the batch of rollout r is trained from p = r (``staleness_parsers.slime`` says the rest). Unlike slime,
Dressage stamps every output token with the label of the reply that carried it, so versions are exact per token; only in
its ``snapshot`` token-build mode is a label no more than an upper end.

A trajectory is a proxy session: retries of a sample bear its ``index`` and are other trajectories. Several samples
("segments") can belong to one.

``dressage_staleness_keep_versions`` is a window over end labels in order of appearance and no bound on staleness: the
audit's comes from the command line.
"""

from __future__ import annotations

from staleness_parsers.dressage.parser import DressageParser

PARSER = DressageParser()

__all__ = ["PARSER", "DressageParser"]
