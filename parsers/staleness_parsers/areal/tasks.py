"""Tasks of a launch (one prompt, one group of samples): when each was started, when ready, and how it ended.

Creation order and ready times come from the console's task lines, else from session records (guide section 6). Lines of
evaluation tasks, which in SPMD runs have ids and counters of their own, are left out before anything else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from staleness_parsers.areal.launches import FOREVER, Launch, Row

AFTER_RESUME = 200_000
"""Microseconds, a guess within the half second that the runner may sleep."""

_ENDS = frozenset({"completed", "old_finish", "old_accept", "old_reject"})

OUTCOMES = {"accept": "accepted", "reject": "rejected", "failed": "failed", "timeout": "timeout"}


@dataclass
class Task:
    """One task. Times in microseconds since 1970. ``status``: accepted, rejected, failed, timeout, or None (not known).

    ``sure``: the status is recorded, not guessed from the order of lines. ``order``: place among the starts of its
    rank. ``retried``: a request failed in transport meanwhile, so its tokens may be newer than stamped. ``failed``: if
    no sample of a rejected task was dumped, it may have failed. ``doubt``: tasks of one such number may have had each
    other's outcomes.
    """

    launch: int
    rank: int
    number: int
    order: int
    started: int | None
    ready: int | None = None
    status: str | None = None
    sure: bool = False
    reason: str | None = None
    finished: int | None = None
    retried: bool = False
    failed: bool = False
    doubt: int | None = None
    sessions: list[Row] = field(default_factory=list)
    place: tuple[str, int] = ("", 0)
    end_place: tuple[str, int] | None = None
    key: tuple[int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        """Know it by launch, rank and id."""
        self.key = (self.launch, self.rank, self.number)


def tasks_of(launch: Launch, timeout: float | None, by_task_id: bool, retries: Sequence[int] | None = ()) -> list[Task]:
    """All training tasks that a launch is known to have started, in the order of their creation per rank.

    ``retries``: when the rollout workers of a controller sent a request again, None if no file of theirs says it.
    """
    log = [row for row in launch.log if row["us"] is not None]
    controlled = any(row["controller"] and row["kind"] in ("submitted", "old_submit") for row in log)
    log = [row for row in log if not controlled or row["controller"] or row["kind"] in ("retry", "shrunk", "undumped")]
    sessions = launch.sessions
    if launch.evaluations:
        sessions = [row for row in sessions if not launch.evaluating(row["submit"])]
    traced = any(row["kind"] in ("submitted", "old_submit") for row in log)
    found: list[Task] = []
    for rank in sorted({row["rank"] for row in log if row["kind"] in ("submitted", "old_submit")}):
        found.extend(_from_console(launch, rank, [row for row in log if row["rank"] == rank]))
    known = {task.key: task for task in found}
    for row in sessions:
        rank = 0 if controlled or row["role"] not in (None, "master") else row["rank"]
        task = known.get((launch.number, rank, row["task"]))
        if task is None and not traced:
            task = Task(launch.number, rank, row["task"], 0, row["submit"], place=(row["source"], row["line"]))
            known[task.key] = task
            found.append(task)
        if task is not None:
            task.sessions.append(row)
    for task in found:
        _read_sessions(task, traced)
    if not traced:
        for task in found:
            task.ready = _handed_over(task.ready, launch)
        found.extend(_unrecorded(found, launch.number))
    for rank in {task.rank for task in found}:
        mine = [task for task in found if task.rank == rank]
        if traced:
            _pair_outcomes(
                [row for row in log if row["rank"] == rank and not launch.evaluating(row["us"])], mine, timeout
            )
        mine.sort(
            key=lambda task: task.number if by_task_id else (task.order if traced else (task.started or 0, task.number))
        )
        for place, task in enumerate(mine):
            task.order = place
    again = sorted([row["us"] for row in log if row["kind"] == "retry"] + list(retries or ()))
    for task in found:
        last = task.ready if task.ready is not None else FOREVER
        first = bisect_left(again, task.started or 0)
        task.retried = (first < len(again) and again[first] <= last) or (controlled and retries is None)
        # What a worker's task died of is told in the worker's log, without an id: the controller calls it rejected.
        task.failed = controlled and task.status == "rejected" and not task.sessions
    return sorted(found, key=lambda task: (task.rank, task.order))


def nameless_ranks(launch: Launch) -> bool:
    """Tell whether several ranks print the old lines under one name: the same task begins twice."""
    begun = Counter(
        (row["rank"], row["number"])
        for row in launch.log
        if row["kind"] == "old_submit" and not launch.evaluating(row["us"])
    )
    return any(count > 1 for count in begun.values())


def _from_console(launch: Launch, rank: int, log: list[Row]) -> list[Task]:
    found: dict[int, Task] = {}
    finished: list[tuple[Task, int]] = []
    outcomes: list[str] = []
    evaluated: Counter[int] = Counter()
    for row in log:
        if launch.evaluating(row["us"]) and not _ends_inside(row, evaluated):
            continue
        place = (row["source"], row["line"])
        if row["kind"] in ("submitted", "old_submit"):
            found.setdefault(
                row["number"], Task(launch.number, rank, row["number"], len(found), row["us"], place=place)
            )
        elif row["kind"] in _ENDS and (task := found.get(row["number"])) and task.ready is None:
            task.ready, task.end_place = row["us"], place
            if row["kind"] == "old_finish":
                finished.append((task, int(row["text"])))
            elif row["kind"] != "completed":
                task.status, task.sure = ("accepted" if row["kind"] == "old_accept" else "rejected"), True
        elif row["kind"] in ("old_kept", "old_refused"):
            outcomes.append("accepted" if row["kind"] == "old_kept" else "rejected")
    _old_outcomes(finished, outcomes)
    return list(found.values())


def _ends_inside(row: Row, evaluated: Counter[int]) -> bool:
    """Tell whether an old line printed during an evaluation is the end of a training task: none of its tasks is left.

    ``evaluated``: how many tasks of each number the evaluation has begun and not ended.
    """
    if row["kind"] == "old_submit":
        evaluated[row["number"]] += 1
    if row["kind"] not in _ENDS - {"completed"}:
        return False
    evaluated[row["number"]] -= 1
    return evaluated[row["number"]] < 0


def _old_outcomes(finished: Sequence[tuple[Task, int]], outcomes: Sequence[str]) -> None:
    """Give the outcomes of v0.3, told when a result was looked at, to the tasks in the order in which they finished.

    The counter of accepted ones counts every finished task, and is taken back when a result is refused: where nothing
    tells that, it speaks of no task in particular, unless it shows that none was refused.
    """
    if outcomes:
        for (task, _), outcome in zip(finished, outcomes, strict=False):
            task.status, task.sure = outcome, True
    elif [counter for _, counter in finished] == list(range(1, len(finished) + 1)):
        for task, _ in finished:
            task.status = "accepted"


def _handed_over(ended: int | None, launch: Launch) -> int | None:
    """When a result of a pause reached the collector: soon after the resume, as the runner looks every half second."""
    if ended is None:
        return None
    for begin, resumed in launch.pauses:
        if begin <= ended <= resumed:
            return None if resumed == FOREVER else resumed + AFTER_RESUME
    return ended


def _unrecorded(found: Sequence[Task], launch: int) -> list[Task]:
    """Fill gaps in the ids of session records: a task that raised before its first sample leaves none.

    It was a result all the same, ready almost at once.
    """
    missing = []
    for rank in {task.rank for task in found}:
        starts = {task.number: task.started for task in found if task.rank == rank and task.started is not None}
        latest = None
        for number in range(max(starts, default=-1) + 1):
            latest = starts.get(number, latest)
            if number not in starts and latest is not None:
                missing.append(Task(launch, rank, number, 0, latest, latest, "failed", doubt=None))
    return missing


def _read_sessions(task: Task, traced: bool) -> None:
    """Take start, end and outcome from the records of the task's samples.

    An accepted record with an unfinished phase was closed by an evaluation task of the same id: its outcome and its end
    are not known. (guide section 8)
    """
    if not task.sessions:
        return
    task.sessions.sort(key=lambda row: (row["session"] is None, row["session"] or 0))
    closed = [row for row in task.sessions if row["status"] in ("accepted", "rejected", "failed") and not row["cut"]]
    if not traced:
        task.started = min((row["submit"] for row in task.sessions), default=None)
        task.ready = max((row["final"] for row in closed if row["final"] is not None), default=None)
    ends = [row["gen_end"] for row in task.sessions]
    task.finished = max(ends) if ends and None not in ends and not any(row["cut"] for row in task.sessions) else None
    if closed:
        task.status, task.sure = closed[0]["status"], True
        task.reason = closed[0]["reason"]
        task.end_place = task.end_place or (closed[0]["source"], closed[0]["line"])


def _pair_outcomes(log: list[Row], tasks: list[Task], timeout: float | None) -> None:
    """Give the outcomes told by lines without ids to the tasks that completed.

    Between two moments at which as many outcomes as completions were told, the outcomes belong to those tasks: those of
    recorded outcome take theirs, and if the rest are all alike they are certain, else first goes with first. An outcome
    is told before its task completes: where there are fewer of them, one was told during an evaluation, and left out.
    """
    by_number = {task.number: task for task in tasks}
    outcomes: list[str] = []
    waiting: list[Task] = []
    for row in log:
        if row["kind"] in OUTCOMES:
            outcomes.append(OUTCOMES[row["kind"]])
        elif row["kind"] == "completed" and (task := by_number.get(row["number"])):
            waiting.append(task)
        if waiting and len(outcomes) <= len(waiting):
            _settle(outcomes, waiting, timeout)
            outcomes, waiting = [], []
    if waiting:
        _settle(outcomes, waiting, timeout)


def _settle(outcomes: list[str], waiting: list[Task], timeout: float | None) -> None:
    left = Counter(outcomes)
    open_tasks = []
    for task in waiting:
        age = (task.ready or 0) - (task.started or 0)
        if left["timeout"] and timeout and age >= 0.9 * timeout * 1e6:
            # The worker's own record may say accepted: the controller has dropped it all the same.
            task.status, task.sure = "timeout", True
            left["timeout"] -= 1
        elif task.status is not None and task.sure:
            left[task.status] -= left[task.status] > 0
        else:
            open_tasks.append(task)
    rest = +left
    certain = len(rest) == 1 and rest.total() == len(open_tasks)
    queue = [outcome for outcome in outcomes if rest[outcome]]
    for task in open_tasks:
        if certain:
            task.status, task.sure = next(iter(rest)), True
            continue
        while queue and rest[queue[0]] <= 0:
            queue.pop(0)
        if queue:
            task.status, task.sure, task.doubt = queue.pop(0), False, open_tasks[0].order * 4096 + task.rank
            rest[task.status] -= 1
        elif len(outcomes) < len(waiting):
            task.status, task.sure = "accepted", False  # as most are; the step's statistics are asked
