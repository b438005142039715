"""What the SQL modules make of small lives that can be followed by hand."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from oracle.logs import Line, closed, dump

from staleness_audit import engine
from staleness_audit import rebuild as rebuilding
from staleness_audit.api import AuditResult, audit
from staleness_audit.check.health import health as judge
from staleness_audit.rebuild import partitions
from staleness_audit.rebuild.partitions import count_partitions
from staleness_audit.tables import SCHEMAS


def span(name: str, tokens: int, version: int, **more: Any) -> Line:
    return {"kind": "span", "trajectory_id": name, "tokens": tokens, "version": version, **more}


def listed(name: str, versions: list[int], **more: Any) -> Line:
    return {"kind": "span", "trajectory_id": name, "versions": versions, **more}


def tell(kind: str, name: str, **more: Any) -> Line:
    return {"kind": kind, "trajectory_id": name, **more}


def trained(name: str, step: int, **more: Any) -> Line:
    return {"kind": "trained", "trajectory_id": name, "step": step, **more}


def step(number: int, version: int, **more: Any) -> Line:
    return {"kind": "step", "step": number, "version": version, **more}


def exact(value: float) -> dict[str, float]:
    return {"lo": value, "hi": value}


class Audit:
    """Audits files of lines in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *files: list[Line], bound: int | None = None, **more: Any) -> AuditResult:
        run = self.folder / "run"
        run.mkdir(exist_ok=True)
        for index, lines in enumerate(files):
            (run / f"f{index}.staleness.jsonl").write_bytes(dump(lines))
        return audit(run, bound, tables=self.folder / "tables", **more)


@pytest.fixture
def audited(tmp_path: Path) -> Audit:
    return Audit(tmp_path)


class TestInFlightAndInQueue:
    def test_a_trajectory_that_ends_on_older_weights_has_a_negative_part_in_flight(self, audited: Audit) -> None:
        # v_end = 3: the 2 tokens of version 5 have 3 - 5 = -2 in flight and 6 - 3 = 3 in the queue, together 1 = 6 - 5.
        data = audited(closed(span("a", 2, 5), span("a", 2, 3), trained("a", 1), step(1, 6)), bound=9).data
        assert data["staleness"]["in_flight_mean"] == exact(-1)
        assert data["staleness"]["in_queue_mean"] == exact(3)
        assert data["staleness"]["token_mean"] == exact(2)

    def test_where_only_some_spans_have_a_time_any_of_them_may_be_the_last(self, audited: Audit) -> None:
        """The 2 tokens of version 3 have no time: they may have come before or after the 2 of version 5.

        v_end is 3 or 5, so of the four tokens two have 0 and two have 2 or -2 in flight; 6 - 5 or more are queued.
        """
        timed = span("a", 2, 5) | {"ts": 10.0}
        data = audited(closed(timed, span("a", 2, 3), trained("a", 1), step(1, 6)), bound=9).data
        assert data["staleness"]["in_flight_mean"] == {"lo": -1, "hi": 1}
        assert data["staleness"]["in_queue_mean"] == {"lo": 1, "hi": 3}

    def test_inside_one_span_that_never_decreases_nothing_is_newer_than_the_last_token(self, audited: Audit) -> None:
        known = {"kind": "span", "trajectory_id": "a", "tokens": 4, "version_lo": 2, "version_hi": 4}
        rising = audited(closed(known | {"monotone": True}, trained("a", 1), step(1, 5)), bound=9).data
        assert rising["staleness"]["in_flight_mean"] == {"lo": 0, "hi": 2}
        any_order = audited(closed(known, trained("a", 1), step(1, 5)), bound=9).data
        assert any_order["staleness"]["in_flight_mean"] == {"lo": -2, "hi": 2}


class TestFates:
    def test_taken_by_a_step_that_never_completed_is_pending_when_the_run_ends(self, audited: Audit) -> None:
        first = closed(tell("admitted", "a"), span("a", 3, 0), step(1, 0), attempt=0)
        last = closed(trained("a", 2), step(2, 1, completed=False), attempt=1, resumed_after=1)
        data = audited(first, last, bound=1).data
        assert data["trajectories"]["pending"] == exact(1)
        assert data["trajectories"]["lost"] == {}

    def test_heard_of_in_the_last_attempt_is_not_lost_with_the_attempt_that_admitted_it(self, audited: Audit) -> None:
        first = closed(tell("admitted", "a"), tell("admitted", "b"), step(1, 0), attempt=0)
        last = closed(tell("finished", "a"), step(2, 1), attempt=1, resumed_after=1)
        data = audited(first, last, bound=1).data
        assert data["trajectories"]["pending"] == exact(1)
        assert data["trajectories"]["lost"] == {"unknown": exact(1)}

    def test_an_empty_list_of_versions_is_a_trajectory_without_tokens(self, audited: Audit) -> None:
        data = audited(closed(listed("a", []), trained("a", 1), step(1, 0)), bound=1).data
        assert data["tokens"]["generated"] == exact(0)
        assert data["trajectories"]["trained"] == exact(1)
        assert data["diagnostics"]["items"] == []


class TestTimes:
    def test_who_never_finished_never_waits_for_the_trainer(self, audited: Audit) -> None:
        # Between 10 and 20: a is made until 14 and waits until 18; b is made all the time and never waits.
        data = audited(
            closed(
                tell("admitted", "a", ts=8),
                span("a", 1, 0, ts=14),
                tell("finished", "a", ts=14),
                tell("admitted", "b", ts=9),
                step(1, 0, started=10, ended=12),
                trained("a", 2, ts=18),
                step(2, 0, started=18, ended=20),
            ),
            bound=1,
        ).data["throughput"]
        assert data["wall_s"] == 10
        assert data["mean_in_flight"] == pytest.approx((4 + 10) / 10)
        assert data["mean_queued"] == pytest.approx(4 / 10)
        assert data["trainer_busy"] == pytest.approx(4 / 10)

    def test_busy_and_waiting_are_parts_of_one_time(self, audited: Audit) -> None:
        # Whole seconds: the second step is said to last from 11 to 12, but it waited for half of the 2 seconds.
        data = audited(
            closed(
                trained("a", 1), step(1, 0, started=10, ended=11),
                trained("b", 2), step(2, 0, started=11, ended=12, waited_us=500_000),
            ),
            bound=1,
        ).data["throughput"]  # fmt: skip
        assert data["trainer_waiting"] == pytest.approx(0.25)
        assert data["trainer_busy"] is None

    def test_without_a_time_for_the_end_of_generation_nothing_is_said_of_the_queue(self, audited: Audit) -> None:
        data = audited(
            closed(tell("admitted", "a", ts=8), trained("a", 1), step(1, 0, started=10, ended=12)), bound=1
        ).data["throughput"]
        assert data["mean_queued"] is None


class TestVerdict:
    def test_if_every_token_was_masked_nothing_was_trained(self, audited: Audit) -> None:
        data = audited(closed(span("a", 3, 0), trained("a", 1, loss_tokens=0), step(1, 5)), bound=1).data
        assert data["verdict"] == "inconclusive"
        assert data["staleness"]["max"] == {"lo": None, "hi": None}
        assert data["violations"]["tokens"] == exact(0)
        assert data["tokens"]["masked"] == exact(3)


class TestDistinctTokens:
    def test_uses_that_share_the_mask_of_the_span_train_the_same_tokens(self, audited: Audit) -> None:
        data = audited(
            closed(span("a", 3, 0, loss_tokens=1), trained("a", 1), trained("a", 2), step(1, 0), step(2, 1)), bound=1
        ).data
        assert data["tokens"]["trained"] == exact(2)
        assert data["tokens"]["trained_distinct"] == exact(1)
        assert data["tokens"]["masked"] == exact(2)

    def test_uses_with_masks_of_their_own_may_train_different_tokens(self, audited: Audit) -> None:
        data = audited(
            closed(
                span("a", 3, 0), trained("a", 1, loss_tokens=1), trained("a", 2, loss_tokens=1), step(1, 0), step(2, 1)
            ),
            bound=1,
        ).data
        assert data["tokens"]["trained_distinct"] == {"lo": 1, "hi": 2}


class TestDrops:
    def test_the_step_being_collected_is_that_of_the_attempt_that_dropped(self, audited: Audit) -> None:
        # Step 1 of the first attempt had version 9: to it the trajectory would have been too old.
        first = closed(tell("admitted", "a"), span("a", 3, 0), step(1, 9), attempt=0)
        last = closed(tell("dropped", "a", reason="stale", step=1), step(1, 1), attempt=1, resumed_after=0)
        data = audited(first, last, bound=1).data
        assert data["trajectories"]["dropped"] == {"stale": exact(1)}
        assert data["waste"]["needless_drop_tokens"] == exact(3)

    def test_evaluation_rollouts_are_dropped_from_no_step(self, audited: Audit) -> None:
        data = audited(
            closed(
                tell("admitted", "e", role="eval"),
                tell("dropped", "e", reason="stale", step=1),
                tell("admitted", "a"),
                tell("dropped", "a", reason="stale", step=1),
                step(1, 5),
            ),
            bound=1,
        ).data
        assert data["per_step"][0]["dropped"] == exact(1)
        assert data["trajectories"]["dropped"] == {"stale": exact(1)}

    def test_a_drop_that_is_taken_back_is_none(self, audited: Audit) -> None:
        data = audited(
            closed(tell("admitted", "a"), tell("dropped", "a", step=1), tell("requeued", "a"), step(1, 5)), bound=1
        ).data
        assert data["per_step"][0]["dropped"] == exact(0)
        assert data["trajectories"]["pending"] == exact(1)

    def test_a_class_of_trajectories_is_counted_by_its_multiplicity(self, audited: Audit) -> None:
        data = audited(
            closed(tell("dropped", "16 of them", multiplicity=16, reason="stale", step=1), step(1, 5)), bound=1
        ).data
        assert data["trajectories"]["dropped"] == {"stale": exact(16)}
        assert data["per_step"][0]["dropped"] == exact(16)

    def test_a_drop_of_no_stated_step_may_belong_to_any(self, audited: Audit) -> None:
        data = audited(closed(tell("admitted", "a"), tell("dropped", "a"), step(1, 0), step(2, 1)), bound=1).data
        assert [row["dropped"] for row in data["per_step"]] == [{"lo": 0, "hi": 1}] * 2

    def test_but_only_to_one_of_the_attempt_that_dropped(self, audited: Audit) -> None:
        first = closed(tell("admitted", "a"), step(1, 0), attempt=0)
        last = closed(tell("dropped", "a"), step(2, 1), attempt=1, resumed_after=1)
        rows = audited(first, last, bound=1).data["per_step"]
        assert [row["dropped"] for row in rows] == [exact(0), {"lo": 0, "hi": 1}]

    def test_a_drop_for_no_stated_reason_may_have_been_needless(self, audited: Audit) -> None:
        lines = [tell("admitted", "a"), span("a", 3, 0), tell("dropped", "a", step=1), step(1, 0)]
        data = audited(closed(*lines), bound=1).data
        assert data["waste"]["needless_drop_tokens"] == {"lo": 0, "hi": 3}


class TestSteps:
    def test_steps_of_unknown_versions_may_share_one(self, audited: Audit) -> None:
        # Version 4 lies in all three intervals; but each may also have a version of its own.
        lines = [step(1, 4), {"kind": "step", "step": 2, "version_hi": 4}, {"kind": "step", "step": 3}]
        assert audited(closed(*lines), bound=1).data["run"]["steps"] == {"lo": 1, "hi": 3}


class TestMissingUses:
    def test_a_missing_trajectory_may_have_any_number_of_tokens(self, audited: Audit) -> None:
        # The step trained 2 trajectories, 1 is identified: the other's tokens are not told.
        data = audited(closed(span("a", 3, 0), trained("a", 1), step(1, 1, trajectories=2)), bound=1).data
        assert data["tokens"]["trained"] == {"lo": 3, "hi": None}


class TestLengthBias:
    LIVES = (
        *(line for n in range(1, 10) for line in (span(f"short{n}", 10, 0), tell("finished", f"short{n}"))),
        *(trained(f"short{n}", 1) for n in range(1, 10)),
        tell("finished", "long"),
        tell("dropped", "long", reason="stale", step=1),
        step(1, 0),
    )

    def test_dropping_the_longest_shows(self, audited: Audit) -> None:
        # Nine of 10 tokens are trained, the one of 110 is not: 10 against a mean of 20, and none of the longest tenth.
        data = audited(closed(span("long", 110, 0), *self.LIVES), bound=1).data
        assert data["waste"]["length_bias"] == {
            "mean_ratio": pytest.approx(0.5),
            "ks": pytest.approx(0.1),
            "longest_decile_trained_share": 0.0,
        }

    def test_a_length_that_is_not_known_leaves_all_of_it_open(self, audited: Audit) -> None:
        vague = {"kind": "span", "trajectory_id": "long", "tokens_lo": 10, "version": 0}
        data = audited(closed(vague, *self.LIVES), bound=1).data
        assert set(data["waste"]["length_bias"].values()) == {None}


class TestPartitions:
    """A long run is rebuilt in parts, none of which sees the others' trajectories."""

    LOG = (
        tell("admitted", "a", group_id="g"),
        tell("admitted", "b", group_id="g"),
        tell("admitted", "c", group_id="h"),
        span("a", 10, 0),
        span("b", 20, 0),
        span("c", 30, 0),
        span("stray", 40, 1),
        {"kind": "dropped", "group_id": "g", "reason": "stale", "step": 1},
        trained("c", 1),
        trained("stray", 1),
        step(1, 2),
    )

    def test_there_are_more_of_them_the_less_memory_there_is(
        self, audited: Audit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # 3 described trajectories, 4 spans, 2 uses and 4 events are 13 rows.
        connection = audited(closed(*self.LOG), bound=1).rebuilt.dataset.connect()
        assert count_partitions(connection) == 1
        monkeypatch.setattr(partitions, "BYTES_PER_ROW", 10**8)
        monkeypatch.setenv("STALENESS_AUDIT_MEMORY", "400MB")
        assert count_partitions(connection) == 4  # 1300 = 3 * 400 + 100

    def test_so_many_are_made(self, audited: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(partitions, "BYTES_PER_ROW", 10**8)
        monkeypatch.setenv("STALENESS_AUDIT_MEMORY", "400MB")
        result = audited(closed(*self.LOG), bound=1)
        assert len(result.rebuilt.parts("trajectory_lives")) == 4
        assert result.data["tokens"]["generated"] == exact(100)

    @pytest.mark.parametrize("count", [1, 2, 7])
    def test_they_add_up(self, audited: Audit, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        monkeypatch.setattr(rebuilding, "count_partitions", lambda *_: count)
        result = audited(closed(*self.LOG), bound=1)
        assert len(result.rebuilt.parts("trajectory_lives")) == count
        # Both members of g were dropped, 30 tokens; c has staleness 2, the stray 1.
        assert result.data["trajectories"]["dropped"] == {"stale": exact(2)}
        assert result.data["tokens"]["generated"] == exact(100)
        assert result.data["tokens"]["trained"] == exact(70)
        assert result.data["violations"]["trajectories"] == exact(1)
        assert result.table("trajectory_lives").collect().height == 4
        assert result.explain("b").fates == ("dropped:stale",)

    def test_no_file_of_theirs_is_left(self, audited: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rebuilding, "count_partitions", lambda *_: 2)
        folder = audited(closed(*self.LOG), bound=1).rebuilt.folder
        assert {part.name.split(".")[0] for part in folder.iterdir()} == {
            module.product for module in rebuilding.modules() if module.published and not module.lens
        }


class TestHeads:
    """Each SQL file says what it yields; this is what it yields."""

    def test_every_column_is_documented_and_every_documented_column_exists(
        self, audited: Audit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rebuilding, "_last_used_by", lambda index: [])
        made: dict[str, list[str]] = {}
        genuine = rebuilding.Module.create

        result = audited(closed(span("a", 1, 0), trained("a", 1), step(1, 0)), bound=1)
        with result.rebuilt.dataset.connect() as connection:
            rebuilding.prepare(connection, result.rebuilt.dataset, *rebuilding.STEP_RANGE)
            for module in rebuilding.modules():
                connection.execute(genuine(module))
                made[module.product] = [row[0] for row in connection.execute(f"DESCRIBE {module.product}").fetchall()]
        for module in rebuilding.modules():
            documented = [name for name, _ in module.columns]
            assert sorted(documented) == sorted(made[module.product]), module.product
            assert len(set(documented)) == len(documented), module.product

    def test_every_source_is_a_table_or_an_earlier_product(self) -> None:
        known = {*SCHEMAS, "attempts", "facts"}
        for module in rebuilding.modules():
            assert set(module.sources) <= known, module.product
            for other in rebuilding.modules():
                reads = re.search(rf"\b(FROM|JOIN) {other.product}\b", module.sql) is not None
                assert reads <= (other.product in module.sources), (module.product, other.product)
            known.add(module.product)


class TestHealth:
    START = datetime(2026, 1, 1, tzinfo=UTC)

    def sign(self, kind: str, seconds: float, what: str = "") -> dict[str, Any]:
        return {"kind": kind, "ts": (self.START + timedelta(seconds=seconds)).isoformat(), "what": what}

    def health(self, *signs: dict[str, Any], last: float = 0) -> dict[str, Any]:
        return judge(signs, [timedelta(seconds=10)] * 3, self.START + timedelta(seconds=last))

    def test_markers_decide(self) -> None:
        assert self.health(self.sign("progress", 1), self.sign("crashed", 2))["state"] == "crashed"
        assert self.health(self.sign("crashed", 1), self.sign("finished", 2))["state"] == "finished"

    def test_waiting_for_ten_median_steps_is_stuck(self) -> None:
        signs = (
            self.sign("progress", 0),
            self.sign("waiting", 5, "waiting for a batch"),
            self.sign("waiting", 100, "for r7"),
        )
        assert self.health(*signs) == {
            "state": "stuck",
            "since": self.START.isoformat(),
            "waiting_for": "for r7",
        }

    def test_waiting_for_less_is_nothing(self) -> None:
        assert self.health(self.sign("progress", 0), self.sign("waiting", 99))["state"] == "unknown"

    def test_progress_after_the_wait_ends_it(self) -> None:
        assert self.health(self.sign("waiting", 5), self.sign("progress", 200), last=500)["state"] == "unknown"

    def test_nothing_is_said_of_logs_without_signs(self) -> None:
        assert self.health(last=30)["state"] == "unknown"


class TestStepsThatStateOnlySome:
    def test_a_number_of_trajectories_says_nothing_of_their_tokens(self, audited: Audit) -> None:
        # Two were trained and none is named: they may hold any number of tokens, of any version up to 1.
        data = audited(closed(step(1, 1, trajectories=2)), bound=0).data
        assert data["trajectories"]["trained"]["hi"] == 2
        assert data["tokens"]["trained"]["hi"] is None
        assert data["violations"]["trajectories"] == {"lo": 0, "hi": 2}
        assert data["violations"]["tokens"]["hi"] is None
        assert data["verdict"] == "inconclusive"


def test_no_progress_bar_is_drawn_over_our_output(audited: Audit) -> None:
    # Without a __main__ that is a file, DuckDB takes the process for an interactive session and would draw one.
    result = audited(closed(span("a", 1, 0), trained("a", 1), step(1, 0)), bound=1)
    for connection in (result.rebuilt.connect(), engine.session()):
        assert connection.execute("SELECT current_setting('enable_progress_bar')").fetchone() == (False,)


def test_a_damaged_negative_version_travels_like_any_other() -> None:
    """Both ends of the last span's version travel as one number: -4 to -2, and -4 to nobody knows."""
    query = (Path(rebuilding.__file__).parent / "sql" / "04_span_sums.sql").read_text()
    rows = [("a", -4, -2), ("b", -4, None), ("c", 3, 3)]
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE TABLE token_spans AS SELECT key, 0 AS twin, 2 AS tokens_lo, 2 AS tokens_hi, version_lo::INTEGER AS"
            " version_lo, version_hi::INTEGER AS version_hi, 2 AS loss_lo, 2 AS loss_hi, 0 AS exact_order,"
            " false AS timed, true AS steady FROM (VALUES (?, ?, ?), (?, ?, ?), (?, ?, ?))"
            " AS t(key, version_lo, version_hi)",
            [cell for row in rows for cell in row],
        )
        found = connection.execute(f"SELECT key, v_end_lo, v_end_hi FROM ({query}) ORDER BY key").fetchall()
    assert found == rows


@pytest.mark.parametrize(
    "name",
    [
        "group_{0:010d}_seed_{1:010d}_episode_0",
        "s_{0:013d}_{1:06d}_{0:07d}",
        "step-{0:06x}/prompt-{1:08x}/0",
        "{0:08d}{1:08d}",
    ],
)
def test_names_made_of_two_counters_stay_apart(audited: Audit, name: str) -> None:
    """Of such names DuckDB's own hash takes one for another, when both numbers end where eight bytes do."""
    names = [name.format(number, 1000 + number) for number in range(40)]
    rows = [row for each in names for row in (span(each, 5, 0), trained(each, 1))]
    data = audited(closed(*rows, step(1, 0)), bound=0).data
    assert data["trajectories"]["trained"] == {"lo": 40, "hi": 40}
    assert data["tokens"]["trained"] == {"lo": 200, "hi": 200}
    assert (data["verdict"], data["diagnostics"]["items"]) == ("pass", [])


def test_keys_of_many_structured_names_are_many() -> None:
    names = "SELECT printf('group_%010d_seed_%010d', i, 1000 + i) AS id FROM range(50000) AS t(i)"
    with engine.connect() as connection:
        assert connection.execute(f"SELECT count(DISTINCT key_of(id)) FROM ({names})").fetchone() == (50_000,)


def test_of_equally_stale_violations_the_largest_is_listed_first(audited: Audit) -> None:
    lines = [
        span(name, tokens, version) for name, tokens, version in (("a", 3, 0), ("b", 9, 0), ("c", 5, 0), ("d", 2, 1))
    ]
    data = audited(closed(*lines, *(trained(name, 4) for name in "abcd"), step(4, 4)), bound=1).data
    assert [row["trajectory_id"] for row in data["violations"]["worst"]] == ["b", "c", "a", "d"]
