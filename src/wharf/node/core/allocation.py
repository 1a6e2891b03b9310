"""Applies one event to one allocation: returns its next record and the actions that follow.

The only writer of records. Every step of a task goes through the table in `steps`; a transition that the table lacks
raises, because it is a bug here. Nothing here waits or performs an action.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.step_outputs import ReportedOutputs
from wharf.contract.model.state_machines.machine import advance_state
from wharf.contract.model.times import SECOND, format_duration
from wharf.node.core import events
from wharf.node.core.allocation_spec import AllocationSpec
from wharf.node.core.clock import ClockReading, find_earliest
from wharf.node.core.health import find_health_deadline_s, update_health
from wharf.node.core.outcome import Outcome
from wharf.node.core.record import AllocationRecord, TaskRecord, add_task_event
from wharf.node.core.restart_policy import UNRECOVERABLE_MESSAGE, NoRestart, RestartAfterDelay, decide_restart
from wharf.node.core.steps import TASK_STEPS, TaskStep
from wharf.node.core.task_order import StartDecision, decide_start, find_tasks_to_stop

KILL_RETRY_DELAYS_S: Final = (5.0, 20.0, 80.0, 120.0)
"""Seconds between repeated kills of a task that does not die; the last value repeats."""


BUILDING_FOLDERS_MESSAGE: Final = "Building Task Directory"
"""The message of the event `Task Setup`, as Nomad writes it. Clients show it."""


class Transition(msgspec.Struct, frozen=True):
    """The result of an event: the allocation's new record and the actions to perform, in order."""

    record: AllocationRecord
    actions: tuple[events.NodeTaskAction, ...] = ()


def receive_allocation(
    allocation_id: str, spec: AllocationSpec, now: ClockReading, *, is_waiting_for_predecessor: bool = False
) -> Transition:
    """Return the first record of a new allocation, and the actions that prepare its first tasks.

    No task is prepared while the allocation waits for its predecessor.
    """
    tasks = tuple(add_task_event(TaskRecord(task.name), TaskEventType.RECEIVED, now) for task in spec.tasks)
    builder = _TransitionBuilder(
        AllocationRecord(allocation_id, tasks, is_waiting_for_predecessor=is_waiting_for_predecessor), spec, now
    )
    builder.apply(events.HealthWatchStarted())
    builder.apply_consequences()
    return builder.build()


def apply_event(
    record: AllocationRecord, spec: AllocationSpec, event: events.AllocationEvent, now: ClockReading
) -> Transition:
    """Return the record after `event` and all its consequences, with the actions to perform."""
    builder = _TransitionBuilder(record, spec, now)
    builder.apply(event)
    builder.apply_consequences()
    return builder.build()


def list_interrupted_actions(record: AllocationRecord, spec: AllocationSpec) -> tuple[events.NodeTaskAction, ...]:
    """Return the actions that must be repeated after a restart of the node agent.

    The agent may have ended before or after it performed them. Performing them twice does no harm.
    """
    return tuple(
        _build_repeated_action(task, spec)
        for task in record.tasks
        if task.step in _STEPS_WITH_ACTION and not task.is_of_former_boot
    )


_STEPS_WITH_ACTION: Final = frozenset({TaskStep.PREPARING, TaskStep.STARTING, TaskStep.STOPPING, TaskStep.KILLING})
"""Steps that begin with an action: it may not have been performed when the agent ended."""


def _build_repeated_action(task: TaskRecord, spec: AllocationSpec) -> events.NodeTaskAction:
    """Return the action with which the task's current step begins."""
    match task.step:
        case TaskStep.PREPARING:
            return events.PrepareTask(task.name)
        case TaskStep.STARTING:
            return events.StartTask(task.name, task.run)
        case TaskStep.STOPPING:
            return events.SignalTask(task.name, task.run, spec.task(task.name).kill_signal)
        case _:
            return events.KillTask(task.name, task.run)


def add_outputs(
    record: AllocationRecord, spec: AllocationSpec, outputs: ReportedOutputs, now: ClockReading
) -> AllocationRecord:
    """Return the record of an ended allocation with the texts of its programs.

    If a text could not be stored, the history of the first main task has an event with the reason.
    """
    tasks = record.tasks
    if outputs.problem:
        main = next((task.name for task in spec.tasks if task.is_main), "")
        message = f"Outputs: {outputs.problem}"
        tasks = tuple(
            add_task_event(task, TaskEventType.HOOK_MESSAGE, now, message=message) if task.name == main else task
            for task in tasks
        )
    return replace(record, tasks=tasks, output_names=spec.output_names, outputs=outputs)


def reset_after_boot(record: AllocationRecord) -> AllocationRecord:
    """Return a record from before a reboot, adapted to the new monotonic clock.

    Times of the old clock are meaningless now. Deadlines become due at once, and intervals begin again.
    """
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
        health_watch_since_s=0.0 if record.health_watch_since_s is not None else None,
        checks_pass_since_s=None,
        finished_s=0.0 if record.finished_s is not None else None,
    )


class _TransitionBuilder:
    """Computes the new record and the actions for one event.

    Its methods replace the record step by step; callers see only the final one.
    """

    def __init__(self, record: AllocationRecord, spec: AllocationSpec, now: ClockReading) -> None:
        self._record = record
        self._spec = spec
        self._now = now
        self._actions: list[events.NodeTaskAction] = []

    def build(self) -> Transition:
        """Return the new record and the collected actions; set the finish time if the allocation has just ended."""
        record = self._record
        if record.is_over and record.finished_s is None:
            record = replace(record, finished_s=self._now.monotonic_s)
        return Transition(record, tuple(self._actions))

    # -- what happened

    def apply(self, event: events.AllocationEvent) -> None:
        """Change the record as the event itself requires; `apply_consequences` does the rest."""
        match event:
            case events.AllocationStopRequested(skips_delays):
                self._stop_allocation(skips_delays)
            case events.TaskEventOccurred(name, event_type, message, details):
                task = next((task for task in self._record.tasks if task.name == name and not task.is_dead), None)
                if task is not None:
                    self._replace_task(add_task_event(task, event_type, self._now, message=message, **details))
            case events.HealthWatchStarted():
                since_s = self._now.monotonic_s if self._spec.health is not None else None
                self._record = replace(self._record, health_watch_since_s=since_s, is_healthy=None)
            case events.PredecessorEnded():
                self._record = replace(self._record, is_waiting_for_predecessor=False)
            case events.TaskPrepared(name):
                self._if_at_step(name, TaskStep.PREPARING, self._begin_run)
            case events.TaskPreparationFailed(name):
                self._if_at_step(name, TaskStep.PREPARING, lambda task: self._handle_preparation_failure(task, event))
            case events.TaskStarted(name, run):
                self._if_at_step(name, TaskStep.STARTING, self._mark_started, run)
            case events.TaskStartFailed(name, run):
                self._if_at_step(name, TaskStep.STARTING, lambda task: self._handle_start_failure(task, event), run)
            case events.TaskEnded(name, run, outcome):
                self._handle_end(name, run, outcome)
            case events.RestartRequested():
                self._restart_tasks(event)
            case events.SignalRequested():
                self._signal_tasks(event)
            case events.ChecksChanged(is_passing):
                since_s = self._record.checks_pass_since_s if is_passing else None
                since_s = self._now.monotonic_s if is_passing and since_s is None else since_s
                self._record = replace(self._record, checks_pass_since_s=since_s)
            case events.ServerContactLost(since_s):
                self._record = replace(self._record, lost_contact_s=since_s)
            case events.ServerContactRestored():
                self._record = replace(self._record, lost_contact_s=None)
            case _:
                pass  # A deadline needs no effect of its own: every event checks the deadlines.

    def _if_at_step(
        self, name: str, step: TaskStep, action: Callable[[TaskRecord], None], run: int | None = None
    ) -> None:
        """Call `action` with the task if it is still at this step and, if `run` is given, at this run number.

        Otherwise do nothing: the event is about an earlier step or run.
        """
        task = next((task for task in self._record.tasks if task.name == name), None)
        if task is not None and task.step is step and run in (None, task.run):
            action(task)

    def _stop_allocation(self, skips_delays: bool) -> None:
        """Mark the allocation as stopping; its tasks stop after the group's shutdown delay, if there is one.

        `skips_delays`: tasks that already wait for their shutdown delay are stopped now.
        """
        record = self._record
        skips_delays = skips_delays or record.skips_delays
        due_s = record.stop_due_s
        if skips_delays:
            due_s = None
        elif not record.is_to_stop and self._spec.shutdown_delay_s and any(t.has_process for t in record.tasks):
            due_s = self._now.monotonic_s + self._spec.shutdown_delay_s
        self._record = replace(record, is_to_stop=True, skips_delays=skips_delays, stop_due_s=due_s)
        if skips_delays:  # Tasks that already wait for their shutdown delay are stopped now.
            for task in self._record.tasks:
                if task.step is TaskStep.SHUTDOWN_DELAY:
                    self._send_kill_signal(task)

    def _handle_preparation_failure(self, task: TaskRecord, event: events.TaskPreparationFailed) -> None:
        """Add the reason to the task's history, and restart or fail the task."""
        task = add_task_event(task, event.event_type, self._now, **{event.detail_name: event.reason})
        self._restart_or_fail(task, is_final=event.is_final)

    def _begin_run(self, task: TaskRecord) -> None:
        """Move a prepared task to the step `STARTING` and add the action that starts its next run."""
        task = self._advance(task, TaskStep.STARTING, run=task.run + 1)
        self._actions.append(events.StartTask(task.name, task.run))

    def _mark_started(self, task: TaskRecord) -> None:
        """Move the task to the step `RUNNING`; stop it if a stop was requested meanwhile."""
        task = add_task_event(task, TaskEventType.STARTED, self._now)
        now = self._now
        self._advance(
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
            self._stop_task(self._record.task(task.name))

    def _handle_start_failure(self, task: TaskRecord, event: events.TaskStartFailed) -> None:
        """Add the reason to the task's history, and restart or fail the task."""
        task = add_task_event(task, event.event_type, self._now, **{event.detail_name: event.reason})
        self._restart_or_fail(task, is_final=event.is_final)

    def _handle_end(self, name: str, run: int, outcome: Outcome) -> None:
        """Record the outcome of a run, and decide whether the task restarts, fails or is done.

        Ignored if the task is unknown, has no process or is at another run number.
        """
        task = next((task for task in self._record.tasks if task.name == name), None)
        if task is None or task.run != run:
            return
        if task.step is TaskStep.STARTING:  # It ended before its start was reported.
            is_doubtful = not outcome.is_known and not task.has_started
            self._mark_started(task)
            task = replace(self._record.task(name), is_start_doubtful=is_doubtful)
        if not task.has_process:
            return
        task = replace(add_termination_event(task, outcome, self._now), finished_ns=self._now.wall_ns)
        if task.is_restarting and task.is_restart_after_failure:
            self._restart_or_fail(replace(task, is_restarting=False, is_restart_after_failure=False, is_to_end=False))
        elif task.is_restarting:
            task = replace(task, is_restarting=False, is_to_end=False)
            self._back_off(task, RestartAfterDelay(0.0, "", task.window))
        elif task.is_to_end:
            self._advance(add_task_event(task, TaskEventType.KILLED, self._now), TaskStep.DEAD)
        elif outcome.is_success and self._spec.task(name).is_run_to_completion:
            self._advance(task, TaskStep.DEAD)
        else:
            self._restart_or_fail(task, is_success=outcome.is_success)

    def _restart_or_fail(self, task: TaskRecord, *, is_final: bool = False, is_success: bool = False) -> None:
        """Restart the task after a delay if its restart policy allows it; otherwise the task is dead.

        A task that is being stopped is not restarted. `is_final`: a restart would fail too.
        """
        if task.is_to_end:
            self._advance(
                add_task_event(task, TaskEventType.KILLED, self._now), TaskStep.DEAD, finished_ns=self._now.wall_ns
            )
            return
        policy = self._spec.task(task.name).restart_policy
        decision = NoRestart(UNRECOVERABLE_MESSAGE) if is_final else decide_restart(policy, task.window, self._now)
        if isinstance(decision, RestartAfterDelay):
            self._back_off(task, decision)
            return
        task = add_task_event(
            task, TaskEventType.NOT_RESTARTING, self._now, restart_reason=decision.reason, fails_task="true"
        )
        has_failed = not (is_success and policy.attempts == 0)
        self._advance(task, TaskStep.DEAD, has_failed=has_failed, finished_ns=self._now.wall_ns)

    def _back_off(self, task: TaskRecord, restart: RestartAfterDelay) -> None:
        """Move the task to the step `BACKOFF`, after whose delay it is prepared and started again."""
        delay_ns = round(restart.delay_s * SECOND)
        task = add_task_event(
            task, TaskEventType.RESTARTING, self._now, restart_reason=restart.reason, start_delay=str(delay_ns)
        )
        self._advance(
            task,
            TaskStep.BACKOFF,
            due_s=self._now.monotonic_s + restart.delay_s,
            window=restart.window,
            restarts=task.restarts + 1,
            last_restart_ns=self._now.wall_ns,
        )

    def _restart_tasks(self, event: events.RestartRequested) -> None:
        """Restart the requested tasks: send running ones the kill signal, end the delay of those in `BACKOFF`.

        Dead tasks wait to start again if the event includes them. Ignored while the allocation is stopping.
        """
        if self._record.is_to_stop:
            return
        for task in self._record.tasks:
            if event.tasks and task.name not in event.tasks:
                continue
            if task.step is TaskStep.RUNNING:
                task = add_task_event(task, TaskEventType.RESTART_SIGNALED, self._now, restart_reason=event.reason)
                self._send_kill_signal(
                    replace(task, is_restarting=True, is_restart_after_failure=event.is_failure), should_add_event=False
                )
            elif task.step is TaskStep.BACKOFF:
                self._replace_task(replace(task, due_s=self._now.monotonic_s))
            elif task.is_dead and event.is_including_dead_tasks:
                self._advance(task, TaskStep.WAITING, has_failed=False, is_to_end=False)

    def _signal_tasks(self, event: events.SignalRequested) -> None:
        """Add the action that sends the signal to each requested task in the step `RUNNING`."""
        for task in self._record.tasks:
            if task.step is TaskStep.RUNNING and (not event.tasks or task.name in event.tasks):
                self._replace_task(add_task_event(task, TaskEventType.SIGNALING, self._now, signal=event.signal))
                self._actions.append(events.SignalTask(task.name, task.run, event.signal))

    # -- consequences of the event

    def apply_consequences(self) -> None:
        """Apply deadlines, stops and starts of tasks until the record no longer changes, then update the health.

        Raises `AssertionError` if the record keeps changing, which is a bug here.
        """
        for _ in range(4 + 8 * len(self._spec.tasks)):
            before = self._record
            self._apply_deadlines()
            self._stop_tasks()
            self._prepare_ready_tasks()
            if self._record == before:
                break
        else:
            raise AssertionError(f"the record of allocation {self._record.id} keeps changing")
        self._record = update_health(self._record, self._spec, self._now)

    def _apply_deadlines(self) -> None:
        """Apply every deadline of the allocation and its tasks that has passed."""
        now_s, record, spec = self._now.monotonic_s, self._record, self._spec
        if not record.is_to_stop and not record.is_over:
            if spec.max_run_s is not None and record.began_s is not None and now_s >= record.began_s + spec.max_run_s:
                self._record = replace(record, is_overdue=True)
                self._stop_allocation(False)
            elif (
                spec.stop_after_contact_lost_s is not None
                and record.lost_contact_s is not None
                and now_s >= record.lost_contact_s + spec.stop_after_contact_lost_s
            ):
                self._stop_allocation(False)
        if record.stop_due_s is not None and now_s >= record.stop_due_s:
            self._record = replace(self._record, stop_due_s=None)
        for task in self._record.tasks:
            if task.due_s is None or now_s < task.due_s:
                continue
            match task.step:
                case TaskStep.BACKOFF:
                    self._prepare(task)
                case TaskStep.SHUTDOWN_DELAY:
                    self._send_kill_signal(task)
                case TaskStep.STOPPING | TaskStep.KILLING:
                    self._kill(task)
                case _:
                    raise AssertionError(f"task {task.name} has a deadline in step {task.step}, which has none")

    def _stop_tasks(self) -> None:
        """Stop every task that must not keep running because of the allocation or of other tasks."""
        for name, event_type, failed_sibling in list(find_tasks_to_stop(self._record, self._spec)):
            task = self._record.task(name)
            if task.is_dead or (task.is_to_end and not task.is_restarting):
                continue
            if event_type is not None:
                details = {"failed_sibling": failed_sibling} if failed_sibling else {}
                task = add_task_event(task, event_type, self._now, **details)
            self._stop_task(task)

    def _prepare_ready_tasks(self) -> None:
        """Begin the preparation of every waiting task that may start now; tasks that can never start are dead.

        Does nothing while the allocation waits for its predecessor.
        """
        if self._record.is_waiting_for_predecessor and not self._record.is_to_stop:
            return
        for task in self._spec.tasks:
            record = self._record.task(task.name)
            if record.step is not TaskStep.WAITING:
                continue
            match decide_start(task, self._record, self._spec):
                case StartDecision.START_NOW:
                    self._prepare(record)
                case StartDecision.NEVER_START:
                    self._advance(record, TaskStep.DEAD)
                case StartDecision.KEEP_WAITING:
                    pass

    # -- steps of a task

    def _prepare(self, task: TaskRecord) -> None:
        """Move the task to the step `PREPARING` and add the action that prepares it.

        The first preparation adds an event to the task's history; later ones find the task's folders in place.
        """
        if task.step is TaskStep.WAITING and not task.run:
            task = add_task_event(task, TaskEventType.SETUP, self._now, message=BUILDING_FOLDERS_MESSAGE)
        self._advance(task, TaskStep.PREPARING)
        self._actions.append(events.PrepareTask(task.name))

    def _stop_task(self, task: TaskRecord) -> None:
        """Move the task towards its end, depending on its step.

        A task without a process is dead at once. A start is canceled. A running task is sent its kill signal, after its
        shutdown delay if it has one.
        """
        task = replace(task, is_to_end=True, is_restarting=False, is_restart_after_failure=False)
        match task.step:
            case TaskStep.WAITING:
                self._advance(task, TaskStep.DEAD)
            case TaskStep.PREPARING | TaskStep.BACKOFF:
                task = add_task_event(task, TaskEventType.KILLED, self._now)
                self._advance(task, TaskStep.DEAD, finished_ns=self._now.wall_ns)
            case TaskStep.RUNNING:
                delay_s = self._spec.task(task.name).shutdown_delay_s
                if not delay_s or self._record.skips_delays:
                    self._send_kill_signal(task)
                    return
                message = (
                    f"Waiting for shutdown_delay of {format_duration(round(delay_s * SECOND))} before killing the task."
                )
                task = add_task_event(task, TaskEventType.WAITING_FOR_SHUTDOWN_DELAY, self._now, message=message)
                self._advance(task, TaskStep.SHUTDOWN_DELAY, due_s=self._now.monotonic_s + delay_s)
            case TaskStep.STARTING:
                self._replace_task(task)
                self._actions.append(events.CancelStart(task.name, task.run))
            case _:
                self._replace_task(task)

    def _send_kill_signal(self, task: TaskRecord, *, should_add_event: bool = True) -> None:
        """Add the action that sends the kill signal, and set the deadline after which the task is killed.

        `should_add_event`: an event is added to the task's history.
        """
        spec = self._spec.task(task.name)
        if should_add_event:
            timeout = format_duration(round(spec.kill_timeout_s * SECOND))
            task = add_task_event(task, TaskEventType.KILLING, self._now, kill_timeout=timeout)
        self._advance(task, TaskStep.STOPPING, due_s=self._now.monotonic_s + spec.kill_timeout_s)
        self._actions.append(events.SignalTask(task.name, task.run, spec.kill_signal))

    def _kill(self, task: TaskRecord) -> None:
        """Add the action that kills the task, and set the time of the next attempt in case that it does not die."""
        wait_s = KILL_RETRY_DELAYS_S[min(task.kill_tries, len(KILL_RETRY_DELAYS_S) - 1)]
        tries = task.kill_tries + 1
        self._advance(task, TaskStep.KILLING, due_s=self._now.monotonic_s + wait_s, kill_tries=tries)
        self._actions.append(events.KillTask(task.name, task.run))

    def _advance(
        self, task: TaskRecord, target: TaskStep, *, due_s: float | None = None, **changes: object
    ) -> TaskRecord:
        """Move the task to the step `target`, apply the other changes, and return its new record.

        Raises if the state machine in `steps` lacks this transition.
        """
        advance_state(TASK_STEPS, task.step, target, record_id=f"{self._record.id}/{task.name}")
        if target is not TaskStep.KILLING:
            changes["kill_tries"] = 0
        if target is TaskStep.DEAD and not task.finished_ns and task.has_started:
            changes.setdefault("finished_ns", self._now.wall_ns)
        task = replace(task, step=target, due_s=due_s, is_of_former_boot=False, **changes)
        self._replace_task(task)
        return task

    def _replace_task(self, task: TaskRecord) -> None:
        """Replace the record of the task with the same name."""
        tasks = tuple(task if task_record.name == task.name else task_record for task_record in self._record.tasks)
        self._record = replace(self._record, tasks=tasks)


def add_termination_event(task: TaskRecord, outcome: Outcome, now: ClockReading) -> TaskRecord:
    """Return the task with an event in its history that describes the outcome of its run."""
    details = {"exit_code": str(outcome.exit_code), "signal": str(outcome.signal)}
    if outcome.message:
        details["exit_message"] = outcome.message
    if outcome.is_out_of_memory:
        details["oom_killed"] = "true"
    return add_task_event(task, TaskEventType.TERMINATED, now, **details)


def find_next_deadline_s(record: AllocationRecord, spec: AllocationSpec) -> float | None:
    """Return the time of the allocation's next deadline, on the monotonic clock; `None` if it has none."""
    deadlines = [task.due_s for task in record.tasks]
    deadlines += [record.stop_due_s, find_health_deadline_s(record, spec)]
    if not record.is_to_stop and not record.is_over:
        if spec.max_run_s is not None and record.began_s is not None:
            deadlines.append(record.began_s + spec.max_run_s)
        if spec.stop_after_contact_lost_s is not None and record.lost_contact_s is not None:
            deadlines.append(record.lost_contact_s + spec.stop_after_contact_lost_s)
    return find_earliest(deadlines)
