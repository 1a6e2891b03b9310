"""What programs really did on the simulated machines, and what must hold of it: checked when one begins, when a node's
report is in the log, now and then, and when all has come to rest.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from simulation.record_history import ObservedBatch, RecordHistory
from simulation.timeline import InvariantViolation, Timeline
from wharf.cluster.state.tables import ALLOCATIONS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.task_states import MAX_TASK_EVENTS, TaskEventType, TaskState
from wharf.contract.model.jobs.group_policies import RestartMode, RestartPolicy
from wharf.contract.model.jobs.groups import LifecycleHook, Task, TaskGroup
from wharf.node.core.outcome import UNKNOWN, Outcome

TERMINAL_STATUSES: Final = (ClientStatus.COMPLETE, ClientStatus.FAILED)
ExitDetails = tuple[str | None, str | None]
UNKNOWN_EXIT: Final = (str(UNKNOWN.exit_code), str(UNKNOWN.signal))
LONG_INTERVAL_NS: Final = 1_800_000_000_000
"""Within an interval of this length all the starts of one allocation of a seed lie."""


class TaskRun(msgspec.Struct):
    """One start of one task: what became of it."""

    run: str
    allocation_id: str
    task: str
    group: TaskGroup
    config: Mapping[str, Any]
    began_s: float | None = None
    ended_s: float | None = None
    outcome: Outcome | None = None
    """How it ended, as far as anybody can know."""
    lost_outcome: Outcome | None = None
    """How it ended, where the power took that from its folder: its agent may have heard and written it down before."""
    is_ignoring_signals: bool = False
    is_signalled: bool = False
    is_kill_requested: bool = False
    is_shim_gone: bool = False

    @property
    def possible_outcomes(self) -> list[Outcome]:
        """What may be told of its end."""
        return [outcome for outcome in (self.outcome, self.lost_outcome) if outcome is not None]

    @property
    def is_successful(self) -> bool:
        return any(outcome.is_success for outcome in self.possible_outcomes)

    @property
    def is_unfinished(self) -> bool:
        return self.ended_s is None

    @property
    def is_alive(self) -> bool:
        return self.began_s is not None and self.ended_s is None


class TaskRunLog:
    def __init__(self, history: RecordHistory, timeline: Timeline, fail: Callable[[Exception], None]) -> None:
        self._witness = history
        self._story = timeline
        self._fail = fail
        self._plays: dict[str, dict[str, list[TaskRun]]] = {}
        """Those that began, by allocation and task, in order."""
        self._doubtful: dict[str, None] = {}
        """Allocations that are gone from the log: a restore may bring them back, and they begin anew then."""
        self._power_losses: dict[str, int] = {}
        """By machine."""
        history.batch_checks.append(self.check_node_reports)
        history.on_new_epoch.append(self._on_restored)

    def _on_restored(self) -> None:
        rows = self._witness.replica.get_table_records(ALLOCATIONS).records
        self._doubtful |= {id: None for id in self._witness.list_keys(ALLOCATIONS) if id not in rows}

    def record_power_loss(self, machine: str) -> None:
        self._power_losses[machine] = self._power_losses.get(machine, 0) + 1

    def record_start(self, task_run: TaskRun) -> None:
        """Called from the middle of the machine: what is wrong ends the run at the next step."""
        self._story.add_note(f"{task_run.run} of {task_run.task} begins", task_run.allocation_id)
        try:
            self._require_begin(task_run)
        except InvariantViolation as broken:
            self._fail(broken)
        self._plays.setdefault(task_run.allocation_id, {}).setdefault(task_run.task, []).append(task_run)

    def list_task_runs(self, allocation_id: str, task: str) -> list[TaskRun]:
        return self._plays.get(allocation_id, {}).get(task, [])

    def _require_begin(self, play: TaskRun) -> None:
        before = self.list_task_runs(play.allocation_id, play.task)
        about = play.allocation_id
        if about in self._doubtful:
            return
        if any(each.run == play.run for each in before):
            raise InvariantViolation(f"{play.run} of {play.task} is started a second time", about)
        if any(each.is_alive for each in before):
            raise InvariantViolation(f"{play.run} of {play.task} begins, and an earlier start still runs", about)
        known: Allocation | None = self._witness.replica.get(ALLOCATIONS, about)
        if known is not None and known.client_status in TERMINAL_STATUSES:
            raise InvariantViolation(
                f"{play.run} of {play.task} begins after it was told as {known.client_status}", about
            )
        task = next(each for each in play.group.tasks or () if each.name == play.task)
        policy = task.restart_policy or play.group.restart_policy or RestartPolicy()
        is_counted = policy.mode == RestartMode.FAIL and policy.interval >= LONG_INTERVAL_NS
        if is_counted and len(before) + 1 > policy.attempts + 1:
            raise InvariantViolation(
                f"{play.task} of {about} is started {len(before) + 1} times; {policy.attempts} restarts may be", about
            )
        self._require_turn(play, task)

    def _require_turn(self, play: TaskRun, task: Task) -> None:
        hook, about = get_hook(task), play.allocation_id
        for other in play.group.tasks or ():
            plays, theirs = self.list_task_runs(about, other.name), get_hook(other)
            if other.name == task.name:
                continue
            if theirs == LifecycleHook.POSTSTOP and plays and hook != LifecycleHook.POSTSTOP:
                raise InvariantViolation(
                    f"{play.task} of {about} begins after {other.name}, which is for the end", about
                )
            if not hook and theirs == LifecycleHook.PRESTART:
                is_done = bool(plays) and (is_sidecar(other) or plays[-1].is_successful)
                if not is_done:
                    raise InvariantViolation(f"{play.task} of {about} begins before {other.name} is done", about)
            if hook == LifecycleHook.POSTSTART and not theirs and not plays:
                raise InvariantViolation(f"{play.task} of {about} begins before {other.name}", about)
            if hook == LifecycleHook.POSTSTOP and theirs != LifecycleHook.POSTSTOP and plays and plays[-1].is_alive:
                raise InvariantViolation(f"{play.task} of {about} begins while {other.name} runs", about)

    # -- what is reported

    def check_node_reports(self, taken: ObservedBatch) -> None:
        for changed in taken.changes:
            if changed.table != ALLOCATIONS.name:
                continue
            if changed.new is None:
                self._doubtful[changed.key] = None
                continue
            new: Allocation = changed.new
            if (
                new.id not in self._plays
                or new.id in self._doubtful
                or (changed.old is not None and changed.old.task_states is new.task_states)
            ):
                continue
            is_news = changed.old is None or changed.old.client_status is not new.client_status
            if is_news and new.client_status in TERMINAL_STATUSES:
                self._require_over(new, taken.batch.index)
            for name, state in (new.task_states or {}).items():
                self._require_true(new, name, state, taken.batch.index)

    def _require_over(self, told: Allocation, index: int) -> None:
        plays = [play for plays in self._plays[told.id].values() for play in plays]
        for play in plays:
            if play.is_alive:
                raise InvariantViolation(
                    f"{told.id} is told as {told.client_status} at {index}, and {play.run} runs", told.id
                )
        if told.client_status is ClientStatus.COMPLETE and told.desired_status is DesiredStatus.RUN:
            ill = [
                each[-1].run
                for each in self._plays[told.id].values()
                if each[-1].outcome and not each[-1].is_successful
            ]
            is_excused = self._was_to_stop(told.id) or any(p.is_signalled or p.is_kill_requested for p in plays)
            if ill and not is_excused:
                raise InvariantViolation(
                    f"{told.id} is told as complete at {index}; {' '.join(ill)} did not end well", told.id
                )

    def _was_to_stop(self, allocation_id: str) -> bool:
        """A restore may have taken back that it was, and its node has done so: also between two tries of its task."""
        versions = self._witness.list_versions(ALLOCATIONS, allocation_id)
        return any(record is not None and record.desired_status is not DesiredStatus.RUN for _, record in versions)

    def _require_true(self, told: Allocation, task: str, state: TaskState, index: int) -> None:
        """Of each start that ended is told how, once and in order; of many the first are dropped."""
        events = state.events or ()
        reported = [
            ((event.details or {}).get("exit_code"), (event.details or {}).get("signal"))
            for event in events
            if event.type == TaskEventType.TERMINATED
        ]
        ended = [play for play in self.list_task_runs(told.id, task) if play.outcome is not None]
        happened = [[(str(end.exit_code), str(end.signal)) for end in play.possible_outcomes] for play in ended]
        traceless = self._power_losses.get(told.node_name, 0)
        dropped = len(happened) if len(events) >= MAX_TASK_EVENTS else 0
        if not any(_agree(reported, happened[at:], traceless) for at in range(dropped + 1)):
            raise InvariantViolation(
                f"{task} of {told.id} is told to have ended as {reported} at {index}; it was "
                f"{[ends[0] for ends in happened]}",
                told.id,
            )  # fmt: skip


def _agree(reported: Sequence[ExitDetails], happened: Sequence[Sequence[ExitDetails]], traceless: int) -> bool:
    """Whether what is told begins what happened: of each start one of the ends that may be told. A start of which the
    power took every trace may have begun or not: so often nodes tell of an unknown end that nobody saw."""
    at = 0
    for each in reported:
        if at < len(happened) and each in happened[at]:
            at += 1
        elif each == UNKNOWN_EXIT and traceless:
            traceless -= 1
        else:
            return False
    return True


def get_hook(task: Task) -> str:
    return task.lifecycle.hook if task.lifecycle is not None else ""


def is_sidecar(task: Task) -> bool:
    return task.lifecycle is not None and task.lifecycle.sidecar
