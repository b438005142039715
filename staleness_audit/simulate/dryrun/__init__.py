"""DryRun-RL's model, rebuilt from its description, so that its runs can be made again and compared.

It differs from ``timed`` in ways that matter for the figures: a request is a trajectory is a group; weights are new
from the *start* of the step that makes them; a partial engine step is thrown away whenever anything happens elsewhere;
an update aborts everything in flight, which is then prefilled again in chunks. Left out: the limit of the KV cache with
its preemptions, the gates of engine admission, and cost models other than the roofline.
"""

from staleness_audit.simulate.dryrun.driver import DryRun, Outcome, simulate
from staleness_audit.simulate.dryrun.lengths import lengths

__all__ = ["DryRun", "Outcome", "lengths", "simulate"]
