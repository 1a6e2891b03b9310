"""The record of what programs really did on the simulated machines.

Its rules are checked when a program starts and when a node's report is committed. Rules about whole machines are in
`task_invariants`.
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
"""An interval that is longer than a seed runs: all restarts of an allocation count against its policy."""


class TaskRun(msgspec.Struct):
    """One start of one task, and how it ended."""

    run: str
    allocation_id: str
    task: str
    group: TaskGroup
    config: Mapping[str, Any]
    started_s: float | None = None
    ended_s: float | None = None
    outcome: Outcome | None = None
    """The outcome that the supervisor has; unknown if the shim or the power failed."""
    lost_outcome: Outcome | None = None
    """The true outcome, if a power failure deleted it from the folder. The agent may have stored it before."""
    is_ignoring_signals: bool = False
    is_signalled: bool = False
    is_kill_requested: bool = False
    is_shim_killed: bool = False
    step_texts: Mapping[str, Mapping[str, str]] = {}
    """The texts of earlier steps that the program received, by step and name."""

    @property
    def possible_outcomes(self) -> list[Outcome]:
        """The outcomes that a node may report."""
        return [outcome for outcome in (self.outcome, self.lost_outcome) if outcome is not None]

    @property
    def is_successful(self) -> bool:
        return any(outcome.is_success for outcome in self.possible_outcomes)

    @property
    def is_unfinished(self) -> bool:
        return self.ended_s is None

    @property
    def is_alive(self) -> bool:
        return self.started_s is not None and self.ended_s is None


class TaskRunLog:
    """All task runs of a seed, and the checks of their starts and of the reports about them."""

    def __init__(self, history: RecordHistory, timeline: Timeline, fail: Callable[[Exception], None]) -> None:
        self._history = history
        self._timeline = timeline
        self._fail = fail
        self._runs: dict[str, dict[str, list[TaskRun]]] = {}
        """The runs that started, by allocation and task, in order."""
        self._deleted_allocations: dict[str, None] = {}
        """Allocations that were deleted from the log. A restore may return them, and then they start again."""
        self._power_losses: dict[str, int] = {}
        """The number of power failures, by machine."""
        self.start_checks: list[Callable[[TaskRun, Mapping[str, Mapping[str, list[TaskRun]]]], None]] = []
        """Called before a start, with all runs that started until then, by allocation and task."""
        history.batch_checks.append(self.check_node_reports)
        history.on_new_epoch.append(self._on_restored)

    def _on_restored(self) -> None:
        rows = self._history.replica.get_table_records(ALLOCATIONS).records
        self._deleted_allocations |= {id: None for id in self._history.list_keys(ALLOCATIONS) if id not in rows}

    def record_power_loss(self, machine: str) -> None:
        self._power_losses[machine] = self._power_losses.get(machine, 0) + 1

    def record_start(self, task_run: TaskRun) -> None:
        """Record and check the start of a task. A violation ends the simulation at its next step."""
        self._timeline.add_note(f"{task_run.run} of {task_run.task} starts", task_run.allocation_id)
        try:
            self._require_valid_start(task_run)
            for check in self.start_checks:
                check(task_run, self._runs)
        except InvariantViolation as violation:
            self._fail(violation)
        self._runs.setdefault(task_run.allocation_id, {}).setdefault(task_run.task, []).append(task_run)

    def list_task_runs(self, allocation_id: str, task: str) -> list[TaskRun]:
        return self._runs.get(allocation_id, {}).get(task, [])

    def _require_valid_start(self, task_run: TaskRun) -> None:
        """Require a new run, no other live run of the task, and a restart that its policy allows."""
        earlier = self.list_task_runs(task_run.allocation_id, task_run.task)
        allocation_id = task_run.allocation_id
        if allocation_id in self._deleted_allocations:
            return
        if any(run.run == task_run.run for run in earlier):
            raise InvariantViolation(f"{task_run.run} of {task_run.task} is started a second time", allocation_id)
        if any(run.is_alive for run in earlier):
            raise InvariantViolation(
                f"{task_run.run} of {task_run.task} starts while an earlier start still runs", allocation_id
            )
        current: Allocation | None = self._history.replica.get(ALLOCATIONS, allocation_id)
        if current is not None and current.client_status in TERMINAL_STATUSES:
            raise InvariantViolation(
                f"{task_run.run} of {task_run.task} starts after its end was reported as {current.client_status}",
                allocation_id,
            )
        task = next(task for task in task_run.group.tasks or () if task.name == task_run.task)
        policy = task.restart_policy or task_run.group.restart_policy or RestartPolicy()
        is_counted = policy.mode == RestartMode.FAIL and policy.interval >= LONG_INTERVAL_NS
        if is_counted and len(earlier) + 1 > policy.attempts + 1:
            raise InvariantViolation(
                f"{task_run.task} of {allocation_id} is started {len(earlier) + 1} times; its policy allows {policy.attempts} restarts",
                allocation_id,
            )
        self._require_lifecycle_order(task_run, task)

    def _require_lifecycle_order(self, task_run: TaskRun, task: Task) -> None:
        """Require that the other tasks of the allocation are in a state in which this one may start."""
        hook, allocation_id = get_hook(task), task_run.allocation_id
        for other_task in task_run.group.tasks or ():
            runs, other_hook = self.list_task_runs(allocation_id, other_task.name), get_hook(other_task)
            if other_task.name == task.name:
                continue
            if other_hook == LifecycleHook.POSTSTOP and runs and hook != LifecycleHook.POSTSTOP:
                raise InvariantViolation(
                    f"{task_run.task} of {allocation_id} starts after the poststop task {other_task.name}",
                    allocation_id,
                )
            if not hook and other_hook == LifecycleHook.PRESTART:
                is_done = bool(runs) and (is_sidecar(other_task) or runs[-1].is_successful)
                if not is_done:
                    raise InvariantViolation(
                        f"{task_run.task} of {allocation_id} starts before the prestart task {other_task.name} is done",
                        allocation_id,
                    )
            if hook == LifecycleHook.POSTSTART and not other_hook and not runs:
                raise InvariantViolation(
                    f"{task_run.task} of {allocation_id} starts before {other_task.name}", allocation_id
                )
            if hook == LifecycleHook.POSTSTOP and other_hook != LifecycleHook.POSTSTOP and runs and runs[-1].is_alive:
                raise InvariantViolation(
                    f"{task_run.task} of {allocation_id} starts while {other_task.name} runs", allocation_id
                )

    # -- reports of nodes

    def check_node_reports(self, batch: ObservedBatch) -> None:
        """Require that the reports in a batch agree with what the programs really did."""
        for changed in batch.changes:
            if changed.table != ALLOCATIONS.name:
                continue
            if changed.new is None:
                self._deleted_allocations[changed.key] = None
                continue
            new: Allocation = changed.new
            if (
                new.id not in self._runs
                or new.id in self._deleted_allocations
                or (changed.old is not None and changed.old.task_states is new.task_states)
            ):
                continue
            has_new_status = changed.old is None or changed.old.client_status is not new.client_status
            if has_new_status and new.client_status in TERMINAL_STATUSES:
                self._require_true_end(new, batch.batch.index)
            for name, state in (new.task_states or {}).items():
                self._require_true_exits(new, name, state, batch.batch.index)

    def _require_true_end(self, allocation: Allocation, index: int) -> None:
        """Require that no program of an ended allocation runs, and that a complete one succeeded."""
        runs = [task_run for runs in self._runs[allocation.id].values() for task_run in runs]
        for task_run in runs:
            if task_run.is_alive:
                raise InvariantViolation(
                    f"{allocation.id} is reported as {allocation.client_status} at {index}, but {task_run.run} runs",
                    allocation.id,
                )
        if allocation.client_status is ClientStatus.COMPLETE and allocation.desired_status is DesiredStatus.RUN:
            last_runs = [runs[-1] for runs in self._runs[allocation.id].values()]
            failed = [run.run for run in last_runs if run.outcome and not run.is_successful]
            was_stopped = self._was_stop_requested(allocation.id) or any(
                run.is_signalled or run.is_kill_requested for run in runs
            )
            if failed and not was_stopped:
                raise InvariantViolation(
                    f"{allocation.id} is reported as complete at {index}, but these runs failed: {' '.join(failed)}",
                    allocation.id,
                )

    def _was_stop_requested(self, allocation_id: str) -> bool:
        """Return whether any version of the allocation required a stop.

        A node may have stopped the allocation before a restore undid the request, also between two attempts of a task.
        """
        versions = self._history.list_versions(ALLOCATIONS, allocation_id)
        return any(record is not None and record.desired_status is not DesiredStatus.RUN for _, record in versions)

    def _require_true_exits(self, allocation: Allocation, task: str, state: TaskState, index: int) -> None:
        """Require that each ended run is reported once, in order. Nodes drop the oldest events of a long list."""
        events = state.events or ()
        reported = [
            ((event.details or {}).get("exit_code"), (event.details or {}).get("signal"))
            for event in events
            if event.type == TaskEventType.TERMINATED
        ]
        ended = [task_run for task_run in self.list_task_runs(allocation.id, task) if task_run.outcome is not None]
        actual = [[(str(end.exit_code), str(end.signal)) for end in task_run.possible_outcomes] for task_run in ended]
        max_unknown = self._power_losses.get(allocation.node_name, 0)
        max_dropped = len(actual) if len(events) >= MAX_TASK_EVENTS else 0
        if not any(_matches(reported, actual[first:], max_unknown) for first in range(max_dropped + 1)):
            raise InvariantViolation(
                f"{task} of {allocation.id} is reported to have ended as {reported} at {index}; it really ended as "
                f"{[ends[0] for ends in actual]}",
                allocation.id,
            )  # fmt: skip


def _matches(reported: Sequence[ExitDetails], actual: Sequence[Sequence[ExitDetails]], max_unknown: int) -> bool:
    """Return whether the reported exits are the first actual ones, in order.

    `actual` has, for each run, all exits that may be reported. A power failure may delete every trace of a start. So a
    node may report up to `max_unknown` further runs with an unknown exit, one for each power failure.
    """
    position = 0
    for exit_details in reported:
        if position < len(actual) and exit_details in actual[position]:
            position += 1
        elif exit_details == UNKNOWN_EXIT and max_unknown:
            max_unknown -= 1
        else:
            return False
    return True


def get_hook(task: Task) -> str:
    return task.lifecycle.hook if task.lifecycle is not None else ""


def is_sidecar(task: Task) -> bool:
    return task.lifecycle is not None and task.lifecycle.sidecar
