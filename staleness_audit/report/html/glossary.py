"""The vocabulary of the page, for readers who don't share ours."""

from __future__ import annotations

from typing import Final

GLOSSARY: Final[dict[str, str]] = {
    "token": "A piece of text that the model generates. Only tokens that take part in training are judged: sampled by the model, not masked out of the loss, in a training step that completed.",
    "policy version": "The model's weights at one moment. v0 are the weights at the start; each update makes the next version.",
    "trajectory": "One answer of the model to one prompt, from its first token to its last. Also called rollout, sample or episode.",
    "group": "The trajectories that answer the same prompt.",
    "training step": "One round of training: a batch of trajectories is taken and a new policy version comes out of it.",
    "staleness": "Of a token: how many versions older the weights that generated it are than the weights that train on it. Of a trajectory: that of its most stale trained token.",
    "bound": "The largest staleness that is allowed, from the run's configuration or given with --bound.",
    "proven and possible": "Proven: the logs leave no other reading. Possible: the logs allow it, and allow the opposite. Numbers like 3–5 mean: at least 3, at most 5. ≥ 3 means: at least 3, and no upper end is known.",
    "guaranteed": "What the framework's mechanism ensures in every possible schedule. A run can keep its bound by luck.",
    "in flight": "While a trajectory is still being generated. Versions that pass meanwhile make its early tokens stale.",
    "in the queue": "After its last token, until a training step takes it.",
    "dropped": "Generated to the end, then thrown away by a rule.",
    "cancelled": "Stopped by a rule before it was finished.",
    "lost": "Failed, or gone while the run went on; also what a restart rolled back.",
    "pending": "Unfinished or unused when the logs end.",
    "masked": "In a training batch, but excluded from the loss, so it taught the model nothing.",
    "L1, L2, L3": "The three places where staleness can be controlled. L1: before generation, by admitting less. L2: during generation, by cancelling. L3: at the input of training, by dropping or waiting.",
    "doomed tokens": "Generated when their trajectory was already beyond the bound. Cancelling it then would have saved them.",
    "needless drop": "Dropped as too stale, or with its group, although it was still within the bound.",
    "length bias": "Long trajectories grow old while they are generated, so a rule that drops by age removes the long ones first and training sees shorter answers than the model gives.",
}
