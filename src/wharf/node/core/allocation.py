"""One allocation on its node: what happened to it becomes its next record, and what is to be done now.

The only writer of records. Every step of a task goes through the table of `steps`; what the table lacks is a fault of
this module and stops it. It never waits, and performs nothing itself.

When an allocation must be looked at again although nothing happens to it.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.groups import LifecycleHook
from wharf.contract.model.state_machines.machine import advance_state
from wharf.contract.model.times import format_duration
from wharf.node.core import events as on
from wharf.node.core.allocation_spec import AllocationSpec, TaskSpec
from wharf.node.core.clock import SECOND_NS, ClockReading, find_earliest
from wharf.node.core.health import find_health_deadline_s, update_health
from wharf.node.core.outcome import Outcome
from wharf.node.core.record import AllocationRecord, TaskRecord, add_task_event
from wharf.node.core.restart_policy import UNRECOVERABLE_MESSAGE, NoRestart, RestartAfterDelay, decide_restart
from wharf.node.core.steps import TASK_STEPS, TaskStep

KILL_RETRY_DELAYS_S: Final = (5.0, 20.0, 80.0, 120.0)
"""How long is waited for a killed task before it is killed again; the last one repeats."""


class Transition(msgspec.Struct, frozen=True):
    record: AllocationRecord
    actions: tuple[on.TaskAction, ...] = ()


def receive_allocation(
    allocation_id: str, plan: AllocationSpec, now: ClockReading, *, is_waiting_for_predecessor: bool = False
) -> Transition:
    """A new allocation, and what its first tasks need."""
    tasks = tuple(add_task_event(TaskRecord(task.name), TaskEventType.RECEIVED, now) for task in plan.tasks)
    turn = _Turn(AllocationRecord(allocation_id, tasks, waits_for_former=is_waiting_for_predecessor), plan, now)
    turn.take(on.HealthWatchStarted())
    turn.settle()
    return turn.done()


def apply_event(
    record: AllocationRecord, plan: AllocationSpec, event: on.AllocationEvent, now: ClockReading
) -> Transition:
    turn = _Turn(record, plan, now)
    turn.take(event)
    turn.settle()
    return turn.done()


def list_interrupted_actions(record: AllocationRecord, plan: AllocationSpec) -> tuple[on.TaskAction, ...]:
    """What must be done again after the node's agent ended in the middle: nobody knows whether it was done."""
    return tuple(
        _resumed(task, plan) for task in record.tasks if task.step in _UNDER_WAY and not task.is_of_former_boot
    )


_UNDER_WAY: Final = frozenset({TaskStep.PREPARING, TaskStep.STARTING, TaskStep.STOPPING, TaskStep.KILLING})


def _resumed(task: TaskRecord, plan: AllocationSpec) -> on.TaskAction:
    match task.step:
        case TaskStep.PREPARING:
            return on.PrepareTask(task.name)
        case TaskStep.STARTING:
            return on.StartTask(task.name, task.run)
        case TaskStep.STOPPING:
            return on.SignalTask(task.name, task.run, plan.task(task.name).kill_signal)
        case _:
            return on.KillTask(task.name, task.run)


def reset_after_boot(record: AllocationRecord) -> AllocationRecord:
    """The record of an earlier life of the machine: its monotonic clock has begun anew, so what was due is due now."""
    tasks = tuple(
        replace(
            task,
            due_s=0.0 if task.due_s is not None else None,
            started_s=0.0,
            window=replace(task.window, began_s=0.0),
            is_of_former_boot=task.step is TaskStep.STARTING,
        )
        for task in record.tasks
    )
    return replace(
        record,
        tasks=tasks,
        stop_due_s=0.0 if record.stop_due_s is not None else None,
        began_s=0.0 if record.began_s is not None else None,
        lost_contact_s=None,
        judged_since_s=0.0 if record.judged_since_s is not None else None,
        checks_pass_since_s=None,
        finished_s=0.0 if record.finished_s is not None else None,
    )


class _Turn:
    """The work on one event. Its parts replace records; nobody outside sees a half-done one."""

    def __init__(self, record: AllocationRecord, plan: AllocationSpec, now: ClockReading) -> None:
        self._record = record
        self._plan = plan
        self._now = now
        self._actions: list[on.TaskAction] = []

    def done(self) -> Transition:
        record = self._record
        if record.is_over and record.finished_s is None:
            record = replace(record, finished_s=self._now.monotonic_s)
        return Transition(record, tuple(self._actions))

    # -- what happened

    def take(self, event: on.AllocationEvent) -> None:
        match event:
            case on.StopRequested(skips_delays):
                self._stop(skips_delays)
            case on.TaskEventOccurred(name, kind, message, details):
                task = next((task for task in self._record.tasks if task.name == name and not task.is_dead), None)
                if task is not None:
                    self._put(add_task_event(task, kind, self._now, message=message, **details))
            case on.HealthWatchStarted():
                since_s = self._now.monotonic_s if self._plan.health is not None else None
                self._record = replace(self._record, judged_since_s=since_s, is_healthy=None)
            case on.PredecessorEnded():
                self._record = replace(self._record, waits_for_former=False)
            case on.TaskPrepared(name):
                self._of(name, TaskStep.PREPARING, self._start)
            case on.TaskPreparationFailed(name):
                self._of(name, TaskStep.PREPARING, lambda task: self._not_prepared(task, event))
            case on.TaskStarted(name, run):
                self._of(name, TaskStep.STARTING, self._started, run)
            case on.TaskStartFailed(name, run):
                self._of(name, TaskStep.STARTING, lambda task: self._not_started(task, event), run)
            case on.TaskEnded(name, run, outcome):
                self._ended(name, run, outcome)
            case on.RestartRequested():
                self._restart(event)
            case on.SignalRequested():
                self._signal(event)
            case on.ChecksChanged(passes):
                since_s = self._record.checks_pass_since_s if passes else None
                since_s = self._now.monotonic_s if passes and since_s is None else since_s
                self._record = replace(self._record, checks_pass_since_s=since_s)
            case on.ServerContactLost(since_s):
                self._record = replace(self._record, lost_contact_s=since_s)
            case on.ServerContactRestored():
                self._record = replace(self._record, lost_contact_s=None)
            case _:
                pass  # Time passes with every event.

    def _of(self, name: str, step: TaskStep, then: Callable[[TaskRecord], None], run: int | None = None) -> None:
        """What comes late, about another step or an earlier run, says nothing any more."""
        task = next((task for task in self._record.tasks if task.name == name), None)
        if task is not None and task.step is step and run in (None, task.run):
            then(task)

    def _stop(self, skips_delays: bool) -> None:
        record = self._record
        skips_delays = skips_delays or record.skips_delays
        due_s = record.stop_due_s
        if skips_delays:
            due_s = None
        elif not record.is_to_stop and self._plan.shutdown_delay_s and any(t.has_process for t in record.tasks):
            due_s = self._now.monotonic_s + self._plan.shutdown_delay_s
        self._record = replace(record, is_to_stop=True, skips_delays=skips_delays, stop_due_s=due_s)
        if skips_delays:  # Those that wait already need not.
            for task in self._record.tasks:
                if task.step is TaskStep.SHUTDOWN_DELAY:
                    self._interrupt(task)

    def _not_prepared(self, task: TaskRecord, event: on.TaskPreparationFailed) -> None:
        task = add_task_event(task, event.event_type, self._now, **{event.detail_name: event.reason})
        self._try_again(task, is_final=event.is_final)

    def _start(self, task: TaskRecord) -> None:
        task = self._move(task, TaskStep.STARTING, run=task.run + 1)
        self._actions.append(on.StartTask(task.name, task.run))

    def _started(self, task: TaskRecord) -> None:
        task = add_task_event(task, TaskEventType.STARTED, self._now)
        now = self._now
        self._move(
            task,
            TaskStep.RUNNING,
            started_s=now.monotonic_s,
            started_ns=now.wall_ns,
            finished_ns=0,
            is_start_doubtful=False,
        )
        if self._record.began_s is None:
            self._record = replace(self._record, began_s=now.monotonic_s)
        if task.is_to_end:
            self._end(self._record.task(task.name))

    def _not_started(self, task: TaskRecord, event: on.TaskStartFailed) -> None:
        task = add_task_event(task, event.event_type, self._now, **{event.detail_name: event.reason})
        self._try_again(task, is_final=event.is_final)

    def _ended(self, name: str, run: int, outcome: Outcome) -> None:
        task = next((task for task in self._record.tasks if task.name == name), None)
        if task is None or task.run != run:
            return
        if task.step is TaskStep.STARTING:  # Over before anybody said that it had begun.
            is_doubtful = not outcome.is_known and not task.has_started
            self._started(task)
            task = replace(self._record.task(name), is_start_doubtful=is_doubtful)
        if not task.has_process:
            return
        task = replace(add_termination_event(task, outcome, self._now), finished_ns=self._now.wall_ns)
        if task.begins_anew and task.is_ill:
            self._try_again(replace(task, begins_anew=False, is_ill=False, is_to_end=False))
        elif task.begins_anew:
            task = replace(task, begins_anew=False, is_to_end=False)
            self._rest(task, RestartAfterDelay(0.0, "", task.window))
        elif task.is_to_end:
            self._move(add_task_event(task, TaskEventType.KILLED, self._now), TaskStep.DEAD)
        elif outcome.is_success and self._plan.task(name).is_run_to_completion:
            self._move(task, TaskStep.DEAD)
        else:
            self._try_again(task, is_success=outcome.is_success)

    def _try_again(self, task: TaskRecord, *, is_final: bool = False, is_success: bool = False) -> None:
        """As its restart policy says; what is to end does not begin again."""
        if task.is_to_end:
            self._move(
                add_task_event(task, TaskEventType.KILLED, self._now), TaskStep.DEAD, finished_ns=self._now.wall_ns
            )
            return
        policy = self._plan.task(task.name).restart_policy
        decision = NoRestart(UNRECOVERABLE_MESSAGE) if is_final else decide_restart(policy, task.window, self._now)
        if isinstance(decision, RestartAfterDelay):
            self._rest(task, decision)
            return
        task = add_task_event(
            task, TaskEventType.NOT_RESTARTING, self._now, restart_reason=decision.reason, fails_task="true"
        )
        has_failed = not (is_success and policy.attempts == 0)
        self._move(task, TaskStep.DEAD, has_failed=has_failed, finished_ns=self._now.wall_ns)

    def _rest(self, task: TaskRecord, again: RestartAfterDelay) -> None:
        delay_ns = round(again.delay_s * SECOND_NS)
        task = add_task_event(
            task, TaskEventType.RESTARTING, self._now, restart_reason=again.reason, start_delay=str(delay_ns)
        )
        self._move(
            task,
            TaskStep.BACKOFF,
            due_s=self._now.monotonic_s + again.delay_s,
            window=again.window,
            restarts=task.restarts + 1,
            last_restart_ns=self._now.wall_ns,
        )

    def _restart(self, event: on.RestartRequested) -> None:
        if self._record.is_to_stop:
            return
        for task in self._record.tasks:
            if event.tasks and task.name not in event.tasks:
                continue
            if task.step is TaskStep.RUNNING:
                task = add_task_event(task, TaskEventType.RESTART_SIGNALED, self._now, restart_reason=event.reason)
                self._interrupt(replace(task, begins_anew=True, is_ill=event.is_failure), is_said=False)
            elif task.step is TaskStep.BACKOFF:
                self._put(replace(task, due_s=self._now.monotonic_s))
            elif task.is_dead and event.is_including_dead_tasks:
                self._move(task, TaskStep.WAITING, has_failed=False, is_to_end=False)

    def _signal(self, event: on.SignalRequested) -> None:
        for task in self._record.tasks:
            if task.step is TaskStep.RUNNING and (not event.tasks or task.name in event.tasks):
                self._put(add_task_event(task, TaskEventType.SIGNALING, self._now, signal=event.signal))
                self._actions.append(on.SignalTask(task.name, task.run, event.signal))

    # -- what follows from it

    def settle(self) -> None:
        """Until nothing follows any more."""
        for _ in range(4 + 8 * len(self._plan.tasks)):
            before = self._record
            self._on_time()
            self._end_what_must()
            self._begin_what_may()
            if self._record == before:
                break
        else:
            raise AssertionError(f"allocation {self._record.id} does not come to rest")
        self._record = update_health(self._record, self._plan, self._now)

    def _on_time(self) -> None:
        now_s, record, plan = self._now.monotonic_s, self._record, self._plan
        if not record.is_to_stop and not record.is_over:
            if plan.max_run_s is not None and record.began_s is not None and now_s >= record.began_s + plan.max_run_s:
                self._record = replace(record, is_overdue=True)
                self._stop(False)
            elif (
                plan.stop_after_contact_lost_s is not None
                and record.lost_contact_s is not None
                and now_s >= record.lost_contact_s + plan.stop_after_contact_lost_s
            ):
                self._stop(False)
        if record.stop_due_s is not None and now_s >= record.stop_due_s:
            self._record = replace(self._record, stop_due_s=None)
        for task in self._record.tasks:
            if task.due_s is None or now_s < task.due_s:
                continue
            match task.step:
                case TaskStep.BACKOFF:
                    self._prepare(task)
                case TaskStep.SHUTDOWN_DELAY:
                    self._interrupt(task)
                case TaskStep.STOPPING | TaskStep.KILLING:
                    self._kill(task)
                case _:
                    raise AssertionError(f"nothing is due to task {task.name}, which is {task.step}")

    def _end_what_must(self) -> None:
        for name, reason, kind in list(self._doomed()):
            task = self._record.task(name)
            if task.is_dead or (task.is_to_end and not task.begins_anew):
                continue
            if kind is not None:
                details = {"failed_sibling": reason} if kind is TaskEventType.SIBLING_TASK_FAILED else {}
                task = add_task_event(task, kind, self._now, **details)
            self._end(task)

    def _doomed(self) -> Iterator[tuple[str, str, TaskEventType | None]]:
        """The tasks that are not to go on, each with the sibling that it is for, and what is said of it."""
        record, plan = self._record, self._plan
        lasting = [task for task in plan.tasks if task.hook != LifecycleHook.POSTSTOP]
        if record.is_to_stop:
            if record.stop_due_s is not None:
                return
            leaders = [task.name for task in lasting if task.is_leader and not record.task(task.name).is_dead]
            for task in lasting:
                if not leaders or task.name in leaders or not record.task(task.name).has_process:
                    yield task.name, "", None
            return
        failed = next((task.name for task in plan.tasks if record.task(task.name).has_failed), None)
        if failed is not None:
            for task in lasting:
                yield task.name, failed, TaskEventType.SIBLING_TASK_FAILED
            return
        if any(task.is_leader and record.task(task.name).is_dead for task in lasting):
            for task in lasting:
                yield task.name, "", TaskEventType.LEADER_TASK_DEAD
            return
        mains = [task for task in plan.tasks if task.is_main]
        if mains and all(record.task(task.name).is_dead for task in mains):
            for task in lasting:
                # What is to run to its end beside them may do so.
                if task.is_sidecar or not record.task(task.name).has_process:
                    yield task.name, "", TaskEventType.MAIN_TASKS_DEAD

    def _begin_what_may(self) -> None:
        if self._record.waits_for_former and not self._record.is_to_stop:
            return
        for task in self._plan.tasks:
            record = self._record.task(task.name)
            if record.step is not TaskStep.WAITING:
                continue
            match self._turn_of(task):
                case True:
                    self._prepare(record)
                case None:
                    self._move(record, TaskStep.DEAD)
                case _:
                    pass

    def _turn_of(self, task: TaskSpec) -> bool | None:
        """Whether the task may begin; None: it never will."""
        record, plan = self._record, self._plan
        match task.hook:
            case LifecycleHook.PRESTART:
                return True
            case LifecycleHook.POSTSTART:
                main = [record.task(t.name) for t in plan.tasks if t.is_main]
                return all(task.has_started and not task.is_start_doubtful for task in main)
            case LifecycleHook.POSTSTOP:
                others = [record.task(t.name) for t in plan.tasks if t.hook != LifecycleHook.POSTSTOP]
                if not all(other.is_dead for other in others):
                    return False
                return True if any(other.has_started for other in others) else None
            case _:
                before = [(t, record.task(t.name)) for t in plan.tasks if t.hook == LifecycleHook.PRESTART]
                return all(r.step is TaskStep.RUNNING if t.is_sidecar else r.is_dead for t, r in before)

    # -- steps

    def _prepare(self, task: TaskRecord) -> None:
        self._move(task, TaskStep.PREPARING)
        self._actions.append(on.PrepareTask(task.name))

    def _end(self, task: TaskRecord) -> None:
        """Have it end, from wherever it is."""
        task = replace(task, is_to_end=True, begins_anew=False, is_ill=False)
        match task.step:
            case TaskStep.WAITING:
                self._move(task, TaskStep.DEAD)
            case TaskStep.PREPARING | TaskStep.BACKOFF:
                task = add_task_event(task, TaskEventType.KILLED, self._now)
                self._move(task, TaskStep.DEAD, finished_ns=self._now.wall_ns)
            case TaskStep.RUNNING:
                delay_s = self._plan.task(task.name).shutdown_delay_s
                if not delay_s or self._record.skips_delays:
                    self._interrupt(task)
                    return
                said = f"Waiting for shutdown_delay of {format_duration(round(delay_s * SECOND_NS))} before killing the task."
                task = add_task_event(task, TaskEventType.WAITING_FOR_SHUTDOWN_DELAY, self._now, message=said)
                self._move(task, TaskStep.SHUTDOWN_DELAY, due_s=self._now.monotonic_s + delay_s)
            case TaskStep.STARTING:
                self._put(task)
                self._actions.append(on.CancelStart(task.name, task.run))
            case _:
                self._put(task)

    def _interrupt(self, task: TaskRecord, *, is_said: bool = True) -> None:
        plan = self._plan.task(task.name)
        if is_said:
            timeout = format_duration(round(plan.kill_timeout_s * SECOND_NS))
            task = add_task_event(task, TaskEventType.KILLING, self._now, kill_timeout=timeout)
        self._move(task, TaskStep.STOPPING, due_s=self._now.monotonic_s + plan.kill_timeout_s)
        self._actions.append(on.SignalTask(task.name, task.run, plan.kill_signal))

    def _kill(self, task: TaskRecord) -> None:
        wait_s = KILL_RETRY_DELAYS_S[min(task.kill_tries, len(KILL_RETRY_DELAYS_S) - 1)]
        tries = task.kill_tries + 1
        self._move(task, TaskStep.KILLING, due_s=self._now.monotonic_s + wait_s, kill_tries=tries)
        self._actions.append(on.KillTask(task.name, task.run))

    def _move(self, task: TaskRecord, target: TaskStep, *, due_s: float | None = None, **changes: object) -> TaskRecord:
        advance_state(TASK_STEPS, task.step, target, record_id=f"{self._record.id}/{task.name}")
        if target is not TaskStep.KILLING:
            changes["kill_tries"] = 0
        if target is TaskStep.DEAD and not task.finished_ns and task.has_started:
            changes.setdefault("finished_ns", self._now.wall_ns)
        task = replace(task, step=target, due_s=due_s, is_of_former_boot=False, **changes)
        self._put(task)
        return task

    def _put(self, task: TaskRecord) -> None:
        tasks = tuple(task if known.name == task.name else known for known in self._record.tasks)
        self._record = replace(self._record, tasks=tasks)


def add_termination_event(task: TaskRecord, outcome: Outcome, now: ClockReading) -> TaskRecord:
    details = {"exit_code": str(outcome.exit_code), "signal": str(outcome.signal)}
    if outcome.message:
        details["exit_message"] = outcome.message
    if outcome.is_out_of_memory:
        details["oom_killed"] = "true"
    return add_task_event(task, TaskEventType.TERMINATED, now, **details)


def find_next_deadline_s(record: AllocationRecord, plan: AllocationSpec) -> float | None:
    dues = [task.due_s for task in record.tasks]
    dues += [record.stop_due_s, find_health_deadline_s(record, plan)]
    if not record.is_to_stop and not record.is_over:
        if plan.max_run_s is not None and record.began_s is not None:
            dues.append(record.began_s + plan.max_run_s)
        if plan.stop_after_contact_lost_s is not None and record.lost_contact_s is not None:
            dues.append(record.lost_contact_s + plan.stop_after_contact_lost_s)
    return find_earliest(dues)
