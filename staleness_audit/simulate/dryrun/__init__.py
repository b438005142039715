"""DryRun-RL's model, rebuilt from its description, so that its runs can be made again and compared.

It differs from ``timed`` in ways that matter for the figures: a request is a trajectory is a group; weights are new
from the *start* of the step that makes them; a partial engine step is thrown away whenever anything happens elsewhere;
an update aborts everything in flight, which is then prefilled again in chunks. Left out: caches that overflow, which
only happens if the gate of admission that keeps them from it is switched off (``reject_if_kv_full``); psrl's proactive
filter; and cost models other than the roofline for engines, fixed and linear for training.
"""

from staleness_audit.simulate.dryrun.driver import DryRun, Outcome, simulate
from staleness_audit.simulate.dryrun.instance import Limits
from staleness_audit.simulate.dryrun.lengths import lengths

__all__ = ["DryRun", "Limits", "Outcome", "lengths", "simulate"]
