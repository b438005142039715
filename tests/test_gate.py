"""The gate: conditions on figures in three values, baselines that only forgive, and the exit code they make."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from helpers.command import run, sentence

from staleness_audit.api import audit
from staleness_audit.check.baseline import Baseline, read_documents, worsened
from staleness_audit.check.figures import BY_REASON, FIGURES, figure_at, value_at
from staleness_audit.check.gate import Gate
from staleness_audit.check.intervals import Interval
from staleness_audit.check.threshold import Threshold
from staleness_audit.errors import AuditError
from staleness_audit.report.terminal.verdict import headline, why
from staleness_audit.report.terminal.words import Words


def exact(value: float) -> dict[str, float]:
    return {"lo": value, "hi": value}


def between(low: float | None, high: float | None) -> dict[str, float | None]:
    return {"lo": low, "hi": high}


def document(verdict: str = "fail", violating: dict[str, Any] | None = None, **blocks: Any) -> dict[str, Any]:
    """As much of an audit as the gate reads."""
    counts = dict.fromkeys(("trajectories", "tokens", "groups"), violating)
    return {
        "schema": "staleness-audit/1",
        "verdict": verdict,
        "run": {"path": "/runs/a", "health": {"state": "unknown"}},
        "bound": {"value": None if verdict == "no-bound" else 3},
        "guarantee": {"strict": False},
        "violations": counts,
        "staleness": {"unit": "training steps", "max": exact(5), **blocks.pop("staleness", {})},
        "diagnostics": {"errors": 0, "items": []},
        **blocks,
    }


@pytest.mark.parametrize(
    ("gate", "verdict", "violations", "code"),
    [
        (Gate(), "pass", Interval(0, 0), 0),
        (Gate(), "fail", Interval(1, 1), 1),
        (Gate(), "inconclusive", Interval(0, 3), 3),
        (Gate(), "inconclusive", Interval(0, 0), 3),
        (Gate(), "inconclusive", Interval(0, None), 3),
        (Gate(strict=True), "inconclusive", Interval(0, None), 1),
        (Gate(allow_inconclusive=True), "inconclusive", Interval(0, None), 0),
        (Gate(allow_inconclusive=True), "fail", Interval(1, None), 1),
        (Gate(max_violations=5), "fail", Interval(3, 5), 0),
        (Gate(max_violations=5), "fail", Interval(6, 9), 1),
        (Gate(max_violations=5), "fail", Interval(3, 6), 3),
        (Gate(max_violations=5), "fail", Interval(3, None), 3),
        (Gate(max_violations=5, strict=True), "fail", Interval(3, 6), 1),
        (Gate(exit_zero=True), "fail", Interval(6, 9), 0),
        (Gate(exit_zero=True), "inconclusive", Interval(0, None), 0),
        (Gate(), "no-bound", None, 0),
        (Gate(given=True), "no-bound", None, 3),
        (Gate(given=True, exit_zero=True), "no-bound", None, 0),
    ],
)
def test_gate(gate: Gate, verdict: str, violations: Interval | None, code: int) -> None:
    interval = None if violations is None else violations.json()
    assert gate.judge(document(verdict, interval))["exit"] == code


# ------------------------------------------------------------------------------------------------- conditions


@pytest.mark.parametrize(
    ("condition", "value", "holds"),
    [
        ("staleness.max > 3", exact(4), "yes"),
        ("staleness.max > 3", exact(3), "no"),
        ("staleness.max >= 3", exact(3), "yes"),
        ("staleness.max > 3", between(3, 4), "unknown"),
        ("staleness.max > 3", between(4, None), "yes"),
        ("staleness.max > 3", between(0, None), "unknown"),
        ("staleness.max > 3", between(None, None), "unknown"),
        ("staleness.max < 3", between(1, 2), "yes"),
        ("staleness.max < 3", between(1, 3), "unknown"),
        ("staleness.max < 3", between(3, None), "no"),
        ("staleness.max <= 3", between(3, 3), "yes"),
        ("staleness.max <= 3", between(4, None), "no"),
        ("staleness.max == 3", exact(3), "yes"),
        ("staleness.max == 3", between(2, 3), "unknown"),
        ("staleness.max == 3", between(4, None), "no"),
        ("staleness.max != 3", exact(3), "no"),
        ("staleness.max != 3", between(2, 3), "unknown"),
        ("staleness.max != 3", between(4, None), "yes"),
        ("  staleness.max>3  ", exact(4), "yes"),
    ],
)
def test_a_condition_holds_only_if_the_logs_prove_it(condition, value, holds):
    assert Threshold.parse(condition).holds(document(staleness={"max": value})) == holds


def test_words_truth_values_and_percentages():
    data = document(waste={"ratio": exact(0.25)})
    assert Threshold.parse("verdict == fail").holds(data) == "yes"
    assert Threshold.parse("verdict != 'fail'").holds(data) == "no"
    assert Threshold.parse("guarantee.strict == false").holds(data) == "yes"
    assert Threshold.parse("waste.ratio > 20%").holds(data) == "yes"
    assert str(Threshold.parse("waste.ratio>20%")) == "waste.ratio > 0.2"
    # How the run ended is not known, so it may have crashed.
    assert Threshold.parse("run.health.state == crashed").holds(data) == "unknown"


def test_what_has_no_value_is_not_known():
    data = document("no-bound", None, throughput={"trainer_waiting": None}, staleness={"optimizer_steps": None})
    for path in ("violations.tokens", "throughput.trainer_waiting", "staleness.optimizer_steps.max"):
        assert Threshold.parse(f"{path} > 0").holds(data) == "unknown"


def test_tokens_of_unknown_reason_may_be_of_any():
    """Five tokens are known to be dropped as stale; of two more nobody knows why, so they may be stale ones too."""
    data = document(tokens={"dropped": {"stale": exact(5), "unknown": exact(2)}, "lost": {}})
    assert value_at(data, "tokens.dropped.stale") == Interval(5, 7)
    assert value_at(data, "tokens.dropped.filtered") == Interval(0, 2)
    assert value_at(data, "tokens.dropped.unknown") == Interval(2, 2)
    assert value_at(data, "tokens.dropped") == Interval(7, 7)
    assert value_at(data, "tokens.lost") == Interval(0, 0)
    assert value_at(data, "tokens.lost.error") == Interval(0, 0)
    assert value_at(data, "tokens.cancelled.stale") == Interval(None, None)


def test_rates_are_not_known_where_steps_may_have_gone_unread():
    data = document(throughput={"trainer_busy": 0.5})
    assert value_at(data, "throughput.trainer_busy") == Interval(0.5, 0.5)
    data["diagnostics"]["items"].append({"opens": "training"})
    assert value_at(data, "throughput.trainer_busy") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("waste.ration > 1", "There is no figure 'waste.ration' in the audit; did you mean waste.ratio"),
        ("max > 1", "did you mean staleness.max"),
        ("tokens.dropped.stael > 1", "did you mean tokens.dropped.stale"),
        ("waste > 1", "did you mean waste.ratio"),
        ("zzz.qqq > 1", "docs/ci.md lists them"),
        ("waste.ratio", "is no condition; write it as 'FIGURE OPERATOR VALUE'"),
        ("waste.ratio => 1", "is no condition"),
        ("waste.ratio > __import__('os')", "is a number, and"),
        ("waste.ratio > nan", "is no number to compare with"),
        ("waste.ratio > inf", "is no number to compare with"),
        ("verdict > fail", "only == and != apply"),
        ("verdict == fial", "verdict is never 'fial'; it is one of pass, fail, inconclusive, no-bound."),
        ("verdict == true", "verdict is never 'true'; it is one of pass"),
        ("guarantee.strict != yes", "guarantee.strict is never 'yes'; it is one of true, false."),
        ("run.health.state == 1", "run.health.state is never '1'; it is one of finished, crashed, stuck, running."),
    ],
)
def test_unusable_conditions_are_errors_before_anything_is_read(text, message):
    assert message in sentence(run("audit", "nowhere", "--fail-if", text))


def test_every_figure_stands_in_a_real_document(two_step_run):
    data = json.loads(run("audit", two_step_run("run", bound=1), "--format", "json").stdout)
    flat = set(paths(data))
    for figure in FIGURES:
        known = figure.path.startswith("staleness.optimizer_steps.") or figure.path in BY_REASON or figure.path in flat
        assert known, figure.path
        value = value_at(data, figure.path)
        assert value is None or isinstance(value, Interval) != (figure.kind == "word"), figure.path
    # And all that is a figure can be named, but for what describes the run, the bound and the gate.
    nameless = {path for path in flat if path.partition(".")[0] in ("staleness", "violations", "waste", "throughput")}
    nameless -= {figure.path for figure in FIGURES}
    assert nameless == {"staleness.unit", "staleness.optimizer_steps"}
    assert figure_at("tokens.dropped.other:dedup").kind == "tokens"


def paths(value: Any, prefix: str = "") -> Any:
    if isinstance(value, dict) and set(value) != {"lo", "hi"} and value:
        for key, item in value.items():
            yield from paths(item, f"{prefix}.{key}" if prefix else key)
    elif not isinstance(value, list):
        yield prefix


def test_conditions_make_the_exit_code(two_step_run):
    """Bound 2 is kept. Twenty tokens are generated and trained: nothing is wasted."""
    path = two_step_run("run", bound=2)
    assert run("audit", path, "--fail-if", "waste.ratio > 0.2").exit_code == 0
    assert run("audit", path, "--fail-if", "waste.ratio > 0.2", "--fail-if", "staleness.max >= 2").exit_code == 1
    assert run("audit", path, "--fail-if", "staleness.max >= 2", "--exit-zero").exit_code == 0
    # Without its end line more may be missing, so the share of waste is not known.
    cut = two_step_run("cut", end=False)
    assert run("audit", cut, "--fail-if", "waste.ratio > 0.2").exit_code == 3
    assert run("audit", cut, "--fail-if", "waste.ratio > 0.2", "--strict", "--bound", "2").exit_code == 1
    assert run("audit", cut, "--fail-if", "waste.ratio > 0.2", "--allow-inconclusive").exit_code == 0
    # A condition says nothing about a bound, so none is missed.
    assert run("audit", two_step_run("free"), "--fail-if", "staleness.max > 2").exit_code == 0


def test_conditions_are_told(two_step_run):
    path = two_step_run("run", bound=2)
    shown = " ".join(run("audit", path, "--fail-if", "staleness.max >= 2").stdout.split())
    assert "gate exit code 1: refused" in shown
    assert "fails if staleness.max >= 2: true (staleness.max is 2)" in shown
    data = json.loads(run("audit", path, "--fail-if", "staleness.max >= 2", "--format", "json").stdout)
    assert data["gate"]["conditions"][1] == {
        "kind": "fail-if",
        "condition": "staleness.max >= 2",
        "figure": "staleness.max",
        "value": exact(2),
        "holds": "yes",
        "since_baseline": None,
        "fails": "yes",
    }


def test_defaults_from_a_file(tmp_path, two_step_run):
    """Options that may be repeated are lists there; one alone needs none."""
    path, file = two_step_run("run", bound=2), tmp_path / "staleness-audit.toml"
    file.write_text('fail-if = ["waste.ratio > 0.2", "staleness.max >= 2"]\noutput = "json:old.json"\n')
    assert run("audit", path).exit_code == 1
    assert json.loads((tmp_path / "old.json").read_text())["gate"]["exit"] == 1
    file.write_text('fail-if = "staleness.max >= 2"\nbaseline = "old.json"\n')
    assert run("audit", path).exit_code == 0
    # Commands that have no such options are not disturbed.
    assert run("sql", path, "SELECT 1").exit_code == 0


# ------------------------------------------------------------------------------------------------- baselines


@pytest.mark.parametrize(
    ("before", "now", "worse"),
    [
        (Interval(5, 5), Interval(5, 5), "no"),
        (Interval(5, 5), Interval(4, 4), "no"),
        (Interval(5, 5), Interval(6, 6), "yes"),
        # Between five and seven there were; seven now may be more, or not.
        (Interval(5, 7), Interval(7, 7), "unknown"),
        (Interval(5, 7), Interval(8, 9), "yes"),
        (Interval(5, 7), Interval(2, 5), "no"),
        (Interval(5, None), Interval(9, 9), "unknown"),
        (Interval(5, 5), Interval(6, None), "yes"),
        (Interval(5, 5), Interval(0, None), "unknown"),
        (None, Interval(0, 0), "unknown"),
    ],
)
def test_worse_is_proven_excluded_or_not_known(before, now, worse):
    assert worsened(before, now) == worse


def test_an_allowance_is_what_may_be_added(two_step_run):
    assert worsened(Interval(5, 5), Interval(7, 7), allowed=2) == "no"
    assert worsened(Interval(5, 5), Interval(8, 8), allowed=2) == "yes"


def judged(before: dict[str, Any], now: dict[str, Any], *conditions: str, **options: Any) -> dict[str, Any]:
    fail_if = tuple(Threshold.parse(text) for text in conditions)
    return Gate(baseline=Baseline("audit.json", [before]), fail_if=fail_if, **options).judge(now)


def test_old_violations_are_forgiven_and_new_ones_are_not():
    five, six = document("fail", exact(5)), document("fail", exact(6))
    assert judged(five, five)["exit"] == 0
    assert judged(six, five)["exit"] == 0
    assert judged(five, six)["exit"] == 1
    assert judged(five, six, max_violations=1)["exit"] == 0


def test_as_many_violations_but_a_staler_one_are_worse():
    before, now = document("fail", exact(5)), document("fail", exact(5), staleness={"max": exact(9)})
    rows = judged(before, now)["conditions"][0]["since_baseline"]
    assert [(row["figure"], row["worse"]) for row in rows] == [
        ("violations.trajectories", "no"),
        ("staleness.max", "yes"),
    ]
    assert judged(before, now)["exit"] == 1


def test_a_baseline_never_makes_the_gate_stricter():
    """More staleness than before, but within the bound: nothing fails."""
    before = document("pass", exact(0), staleness={"max": exact(1)})
    assert judged(before, document("pass", exact(0), staleness={"max": exact(3)}))["exit"] == 0


def test_what_may_have_got_worse_is_not_known():
    before, now = document("fail", between(5, 7)), document("fail", exact(6))
    assert judged(before, now)["exit"] == 3
    assert judged(before, now, strict=True)["exit"] == 1
    assert judged(before, now, allow_inconclusive=True)["exit"] == 0


def test_conditions_are_forgiven_by_the_side_they_forbid():
    before, now = (document("pass", exact(0), throughput={"trainer_busy": busy}) for busy in (0.4, 0.3))
    assert judged(before, now, "throughput.trainer_busy < 0.5")["exit"] == 1
    assert judged(now, before, "throughput.trainer_busy < 0.5")["exit"] == 0
    assert judged(before, now, "throughput.trainer_busy > 0.2")["exit"] == 0
    assert judged(before, now, "guarantee.strict == false")["exit"] == 0


def test_other_bounds_and_units_cannot_be_compared():
    now = document("fail", exact(1))
    other_bound, other_unit = document("fail", exact(1)), document("fail", exact(1), staleness={"unit": "weight syncs"})
    other_bound["bound"] = {"value": 1}
    with pytest.raises(AuditError, match=r"audit.json: the bound is 1 there and 3 now"):
        judged(other_bound, now)
    with pytest.raises(AuditError, match="the unit of versions is 'weight syncs' there and 'training steps' now"):
        judged(other_unit, now)


def test_a_baseline_of_several_runs_is_matched_by_path():
    old = {**document("fail", exact(9)), "run": {"path": "/runs/b"}}
    now = document("fail", exact(5))
    both = Baseline("audit.json", [old, document("fail", exact(5))])
    assert both.of(now, alone=True) == both.documents[1]
    assert Baseline("audit.json", [old]).of(now, alone=True) == old
    assert Baseline("audit.json", [old]).of(now, alone=False) is None
    gate = Gate(baseline=Baseline("audit.json", [old]), alone=False).judge(now)
    assert (gate["exit"], gate["baseline"]) == (1, {"file": "audit.json", "found": False})


@pytest.mark.parametrize(
    ("before", "now", "options", "head", "end"),
    [
        (exact(2), exact(2), {}, "FAIL, NOTHING NEW", " Nothing of that is worse than in the baseline."),
        (exact(2), exact(3), {}, "FAIL", " That is worse than in the baseline."),
        (exact(2), between(2, 3), {}, "FAIL", " Whether that is worse than in the baseline, the logs can't tell."),
        (
            exact(2),
            exact(3),
            {"max_violations": 1},
            "FAIL, TOLERATED",
            " Nothing of that is worse than in the baseline by more than is allowed.",
        ),
    ],
)
def test_the_headline_says_what_is_true_and_whether_it_is_new(before, now, options, head, end):
    old, new = document(violating=before), document(violating=now, trajectories={"trained": exact(9)})
    new["gate"] = judged(old, new, **options)
    assert headline(new) == head
    assert why(new, Words()).endswith(f"staler than the bound of 3 allows; the worst is 5.{end}")


def test_what_is_within_the_bound_needs_no_forgiveness():
    old, new = document(violating=exact(2)), document("pass", exact(0), trajectories={"trained": exact(9)})
    new["gate"] = judged(old, new)
    assert headline(new) == "PASS" and why(new, Words()).endswith("the largest staleness is 5.")
    allowed = document(violating=exact(2))
    allowed["gate"] = Gate(max_violations=2).judge(allowed)
    assert headline(allowed) == "FAIL, TOLERATED"


def test_baseline_from_the_command_line(two_step_run):
    path = two_step_run("run", bound=1)
    assert run("audit", path, "--output", "json:old.json").exit_code == 1
    again = run("audit", path, "--baseline", "old.json")
    assert again.exit_code == 0
    shown = " ".join(again.stdout.split())
    assert "accepted (nothing worse than in the baseline allowed)" in shown
    assert "violations.trajectories > 0: true, but no worse than in the baseline" in shown
    assert "(violations.trajectories 1 as before, staleness.max 2 as before)" in shown
    assert "the bound is 1 there and 0 now" in sentence(run("audit", path, "--baseline", "old.json", "--bound", "0"))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"schema": "staleness-audit/2"}', '{"schema": "staleness-audit/1"}', "[" * 100_000,
     json.dumps({**document("fail", {"lo": "many", "hi": None})}),
     json.dumps({**document("fail", {"lo": 1}), "run": {"path": "x"}})],
)  # fmt: skip
def test_what_is_no_audit_is_no_baseline(tmp_path, text):
    (tmp_path / "old.json").write_text(text)
    with pytest.raises(AuditError, match=r"old\.json: not an audit"):
        read_documents(tmp_path / "old.json")


def test_a_missing_baseline_is_said_before_anything_is_read():
    assert "old.json: cannot be read (No such file or directory)" in sentence(
        run("audit", "nowhere", "--baseline", "old.json")
    )


@pytest.mark.parametrize("bound", ["3", 1.5, -1, float("nan"), [3]])
def test_a_bound_that_is_no_number_of_versions_is_refused_before_anything_is_read(bound):
    with pytest.raises(AuditError, match=r"^The bound is .*; it is a whole number of versions, 0 or more\.$"):
        audit("nowhere", bound=bound)


def test_whole_numbers_of_any_library_are_bounds(two_step_run):
    result = audit(two_step_run("run"), bound=np.int64(1))
    assert result.bound == 1 and type(result.bound) is int
