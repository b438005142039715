"""OpenRLHF: asynchronous PPO and GRPO from console logs and TensorBoard scalars.

Versions. The framework's only counter is the training actor's ``global_step``. A step trains at version g, broadcasts,
and is *logged as g + 1*: the batch of ``Global step N`` was trained on version N - 1, and when that line appears the
engines hold version N. So ``v_train = N - 1`` exactly; engines start with version 0, or with G after a resume at
``global_step`` G (whose first logged step is G + 1).

The data carry no version. ``v_gen`` follows from two clocks: the trainer's, which the timings of every step add up to,
and the generator's, which needs a permit that comes back when the batch Q places earlier is taken (``replay``). Times
within a step are known to milliseconds, so most calls get one version; what the clocks leave open is an interval.

Bound and guarantee. No staleness can be configured, so there is no bound to convert. ``async_queue_size`` Q is the true
limit, strictly, as long as each call makes one batch: the permit for batch n comes back after version n - Q was
broadcast. Over-sampling adds the batches that wait in the generator's buffer; releases up to 0.9.0 that filter reach
2 Q + 1. ``card`` says it mode by mode.

Batches are the unit of everything: their members stay anonymous, with the number of samples and of groups as counted.
"""

from __future__ import annotations

from staleness_parsers.openrlhf.parser import OpenRLHF

PARSER = OpenRLHF()

__all__ = ["PARSER", "OpenRLHF"]
