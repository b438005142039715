"""TRL's own trainer class on CPU: its logs leave the question open, the recorder answers it with the truth.

Needs ``trl`` and ``torch``, which ``make test-adapters`` installs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from datasets import Dataset
from helpers.trl_trainer import FIRST_NAME, Transfer, Worker, serving, tiny_model
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing

from staleness_audit import audit
from staleness_audit.recorder import Recorder
from staleness_audit.recorder.adapters.trl import recorded

BOUND = 1


class Observed(AsyncGRPOTrainer):
    """Notes by itself which requests each step trains, from the tokens that reach the loss."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seen: list[tuple[int, int]] = []

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        for token in inputs["input_ids"].flatten().tolist():
            if token >= FIRST_NAME:
                self.seen.append((token, self.model_version - 1))
        return super().compute_loss(model, inputs, *arguments, **options)


def spans(row: Any) -> list[dict[str, Any]]:
    runs = row.response["meta_info"]["weight_versions"]
    return [{"tokens": run["end"] - run["start"], "version": run["version"]} for run in runs]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "accumulation"), [(0, 1), (0, 2), (96, 1)], ids=["fixed", "fixed-2-micro-batches", "token-budget"]
)
def test_the_recorder_turns_an_open_audit_into_an_exact_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int, accumulation: int
) -> None:
    # Two things that only a GPU has: its name, and a kernel. Any attention will do for what is asked here.
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)
    monkeypatch.setattr(packing, "tree_attention", lambda _, q, k, v, *__, **___: ((q + k + v).transpose(1, 2), None))
    with serving() as server:
        args = AsyncGRPOConfig(
            str(tmp_path / "run" / "output"),
            max_steps=12,
            max_staleness=BOUND,
            num_generations=2,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=accumulation,
            token_budget=budget,
            logging_steps=1,
            save_steps=12,
            report_to="none",
            use_cpu=True,
            bf16=False,
            vllm_server_base_url=server.url,
        )
        record = Recorder(tmp_path / "events", "trainer", framework="trl", bound=BOUND, unit="weight syncs")
        trainer = recorded(Observed, record, spans=spans)(
            model=tiny_model(tmp_path / "model"),
            args=args,
            reward_funcs=lambda completions, **_: [1.0] * len(completions),
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "w5"}]}] * 8),
            rollout_worker=Worker(server.url),
            weight_transfer=Transfer(server.url),
        )
        trainer.train()
    ages = [v_train - version for name, v_train in trainer.seen for version in server.versions[name]]
    too_old = sum(age > BOUND for age in ages)

    own = audit(tmp_path / "run", BOUND, tables=tmp_path / "own")
    assert own.data["run"]["framework"] == "trl"
    assert own.verdict == "inconclusive"  # what TRL itself logs does not tell
    open_to = own.data["violations"]["tokens"]
    assert open_to["lo"] <= too_old <= open_to["hi"]

    data = audit(tmp_path / "events", tables=tmp_path / "recorded").data
    assert record.stats.failed == record.stats.dropped == 0
    assert data["diagnostics"]["items"] == []
    assert data["tokens"]["trained"] == {"lo": len(ages), "hi": len(ages)}
    assert data["violations"]["tokens"] == {"lo": too_old, "hi": too_old}
    assert data["staleness"]["max"] == {"lo": max(ages), "hi": max(ages)}
    assert data["verdict"] == ("fail" if too_old else "pass")
    assert data["coverage"]["tokens_exact"] == 1
