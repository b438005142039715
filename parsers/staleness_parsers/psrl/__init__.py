"""PSRL: rollouts with group-wise staleness buffers (StaleFlow), standing on verl (guide ``psrl``).

Versions: PSRL's parameter-server version p counts pushes from 0, which is DESIGN's policy version as it stands. Step g
(from 1, as in the generations' file names) trains buffer b = g - 1, and **v_train = g - 1**; with a critic warm-up of w
steps the actor is updated later, so the true v_train is less by up to w (section 3). A launch that resumed counts
again from one less: its versions are one more than their numbers. Where pushes are logged, they tell both.

A trajectory is a request; its id is PSRL's request id, the ``uid`` of the generations. The gateway pins every call to
the version its instance advertised when it was placed (``version_tag``). Tokens of the first segment are of that one,
unless the instance's pull overtook the advertisement, later segments are of it or newer. Every turn of a native
multi-turn loop is a call with a pin of its own, which may be *older* than the first.

Bound and guarantee. ``psrl.staleness`` is the bound as it is, buffer minus pinned version. Strict for single-turn and
session loops, whose slot is never later than their version plus the bound. Native multi-turn loops reach twice the
bound, as every turn is pinned anew; where a resumed request is re-tagged there is no limit. ``card`` has all modes.
"""

from __future__ import annotations

from staleness_parsers.psrl.parser import PARSER

__all__ = ["PARSER"]
