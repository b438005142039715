"""Writes the canonical event log (``docs/events.md``) from inside a run. Standard library only.

Rollout workers, trainers and data loaders say what happens; the audit reads what they said:

>>> from staleness_audit.recorder import Recorder
>>> record = Recorder("runs/7/events", writer="trainer", framework="mine", bound=2)  # doctest: +SKIP
>>> record.trained("g7/0", step=9)  # doctest: +SKIP
>>> record.step(9, version=8, trajectories=1, loss_tokens=128)  # doctest: +SKIP

Imports nothing of the audit (no Polars, no DuckDB, no Arrow), so that it can live in any worker.
"""

from staleness_audit.recorder.recorder import Recorder, Stats

__all__ = ["Recorder", "Stats"]
