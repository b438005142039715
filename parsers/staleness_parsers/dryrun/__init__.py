"""DryRun-RL, the discrete-event simulator: its telemetry streams.

Versions. DryRun-RL counts policy versions from 0 as the audit does. Step k (k = 0, 1, ...) starts from version k, which
is also its ``consume_version``: ``v_train = consume_version``, no conversion. Beware of two off-by-ones. ``version`` in
``train.jsonl`` is the version the step *made*, k + 1; it is used here as the step's number, so that the first is 1. And
version k + 1 serves from the *start* of step k, while that step still trains (slime: multiples of its push interval
N, each from the start of the step after the one that armed it).

Tokens (guide 3). ``generated`` of a request at every update instant stands in the instance streams; what it gained
between two instants carries the version served then. Without those streams, what is left is exact in versions
(``v_min``, ``v_max``, and that versions never decrease) and an interval in tokens.

Meanings. A request is a trajectory without a group. All its response tokens are trained. ``complete`` followed by
``drop`` is *dropped*, ``drop`` alone *cancelled*. A step counts if its train row, a later step, or the summary on
stdout says that it completed; consume rows without that are of a step that was cut short, and their requests are
pending. Times are simulated seconds, told as UTC times from the epoch on.

Several simulations in the same streams are attempts. None of them resumes another: each starts from version 0 and
trains a model of its own, so no step supersedes any (``resumed_after`` is None for all), every trained token of each is
audited, and what an earlier one left over is *lost* (``other:simulation_ended``), for it was gone while the audited
folder went on. Ids become ``<attempt>/<rid>``, and times of each simulation begin on the full second after the end of
the one before. The bound is that of the last simulation, whose ``.hydra`` it is; guarantees are the weakest of all.

Modules: ``streams`` reads files, ``simulations`` tells appended runs apart, ``rebuild`` runs the SQL, ``verdicts`` says
what is missing, ``control`` knows the policies, ``parser`` puts them together.
"""

from __future__ import annotations

from typing import Final

from staleness_audit.parser import Parser
from staleness_parsers.dryrun.parser import DryRunParser

PARSER: Final[Parser] = DryRunParser()
"""The parser that the entry point names."""
