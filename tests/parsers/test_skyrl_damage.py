"""SkyRL: damaged, cut, hostile and contradicting input."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

from skyrl_run import Console, audited, batch_pickle, codes, config, event_file, exact, metrics, torch_file


def log_of(*, last: bool = True) -> Console:
    log = Console().launch(config(1))
    for step in (1, 2, 3):
        log.step(step, [0] * 4)
    return log.step(4, [3, 1, 1, 0]).done(4) if last else log


def test_a_cut_last_line_did_not_happen(tmp_path: Path) -> None:
    text = log_of(last=False).text
    end = text.index("'trainer/global_step': 3")
    data = audited(tmp_path, {"console.log": text[: end + 10]})
    assert data["run"]["steps"] == {"lo": 2, "hi": 3}
    assert data["trajectories"]["trained"] == {"lo": 16, "hi": 24}


def test_garbage_inside_a_block_leaves_the_other_numbers(tmp_path: Path) -> None:
    lines = log_of().lines
    at = next(index for index, line in enumerate(lines) if "'async/staleness_mean': '1.2500'" in line)
    for number, (garbage, most) in enumerate((("1.2{{500", 1), ("\x00\ufffd{{", None))):
        text = "\n".join([*lines[:at], lines[at].replace("'1.2500'", garbage), *lines[at + 1 :]]) + "\n"
        data = audited(tmp_path / str(number), {"console.log": text})
        assert "block-damaged" in codes(data)
        # Without the mean: one of 3 by its warning, one at 0 by the share, the other two within the bound. Bytes that
        # are no text may have been other lines, too.
        assert data["violations"]["groups"] == {"lo": 1, "hi": most}
        assert data["run"]["steps"]["lo"] == 4


def test_a_lost_warning_is_made_up_for_by_the_count(tmp_path: Path) -> None:
    log = log_of()
    log.lines = [line for line in log.lines if "cur_staleness" not in line]
    assert audited(tmp_path, log)["violations"]["groups"] == exact(1)


def test_too_many_warnings_are_not_believed(tmp_path: Path) -> None:
    log = Console().launch(config(1)).step(1, [0] * 4).step(2, [0] * 4).step(3, [1] * 4, warn=[5, 5]).done(3)
    data = audited(tmp_path, log)
    assert "too-many-warnings" in codes(data)
    assert data["violations"]["groups"] == exact(0)


def test_contradicting_numbers_prove_nothing(tmp_path: Path) -> None:
    log = Console().launch(config(1)).step(1, [0] * 4).step(2, [0] * 4)
    log.step(3, [1, 1, 0, 0], more={"async/staleness_mean": 0.3}).done(3)
    data = audited(tmp_path, log)
    assert "aggregates-contradict" in codes(data)
    assert data["verdict"] == "inconclusive"
    assert data["violations"]["groups"]["hi"] >= 1


def test_lost_steps_are_filled_in(tmp_path: Path) -> None:
    log = Console().launch(config(1)).step(1, [0] * 4)
    begin = len(log.lines)
    log.step(2, [1] * 4)
    end = len(log.lines)
    log.step(3, [2, 1, 1, 1]).done(3)
    del log.lines[begin:end]
    data = audited(tmp_path, log)
    assert "steps-lost" in codes(data)
    assert data["run"]["steps"]["lo"] == 3
    assert data["trajectories"]["trained"]["lo"] == 24
    assert data["verdict"] != "pass"


def test_a_broken_archive(tmp_path: Path) -> None:
    packed = gzip.compress(log_of().text.encode())
    data = audited(tmp_path, {"console.log.gz": packed[:-200]})
    assert "log-damaged" in codes(data)
    assert data["verdict"] != "pass"


def test_a_configuration_that_is_cut_off_by_other_text(tmp_path: Path) -> None:
    log = log_of()
    at = next(index for index, line in enumerate(log.lines) if "n_samples_per_prompt" in line)
    log.lines[at] = log.prefix + "  oops: [unclosed"
    data = audited(tmp_path, log)
    assert "config-unreadable" in codes(data)
    assert data["bound"]["value"] == 1  # the warning states it
    assert data["violations"]["groups"] == {"lo": 0, "hi": 1}


def test_batches_that_are_cut_hostile_or_empty(tmp_path: Path) -> None:
    whole = batch_pickle([[10, 10]] * 4)

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return print, ("obeyed",)

    for index, content in enumerate((whole[:-40], pickle.dumps(Evil()), b"", b"\x80\x04N.", pickle.dumps({"a": 1}))):
        folder = tmp_path / str(index)
        data = audited(folder, {"console.log": log_of().text, "global_step_4_training_input.pkl": content})
        assert "batch-unreadable" in codes(data)
        assert data["violations"]["groups"] == exact(1)
        assert data["tokens"]["trained"] == exact(320)


def test_a_batch_that_is_not_of_the_step_is_not_used(tmp_path: Path) -> None:
    data = audited(
        tmp_path, {"console.log": log_of().text, "global_step_4_training_input.pkl": batch_pickle([[12, 12]] * 4)}
    )
    assert "batch-differs" in codes(data)
    assert data["tokens"]["trained"] == exact(320)


def test_checkpoints_that_are_cut_or_of_other_types(tmp_path: Path) -> None:
    odd = torch_file({"consumed_uids": 7, "epoch": "x"})
    files = {
        "console.log": log_of().text,
        "global_step_2/fully_async_state.pt": odd,
        "global_step_3/fully_async_state.pt": odd[:50],
    }
    data = audited(tmp_path, files)
    assert "checkpoint-unreadable" in codes(data)
    assert data["verdict"] == "fail"


def test_a_cut_and_a_damaged_event_file(tmp_path: Path) -> None:
    steps = [(step, metrics(step, [0] * 4, 1, **{"policy/final_loss": None})) for step in (1, 2, 3)]
    whole = event_file(steps)
    cut = audited(tmp_path / "a", {"events.out.tfevents.1.a": whole[:-5]}, bound=1)
    assert "cut-record" in codes(cut)
    assert cut["run"]["steps"]["lo"] == 2
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 255
    data = audited(tmp_path / "b", {"events.out.tfevents.1.a": bytes(broken)}, bound=1)
    assert "events-damaged" in codes(data)
    assert data["verdict"] == "inconclusive"
