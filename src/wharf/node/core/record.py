"""What a node stores about one allocation and its tasks: immutable records, written to the journal unchanged."""

import msgspec

from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.task_states import (
    MAX_TASK_EVENTS,
    TaskEvent,
    TaskEventType,
    TaskState,
    TaskStatus,
)
from wharf.contract.model.times import to_datetime
from wharf.node.core.clock import ClockReading
from wharf.node.core.restart_policy import RestartWindow
from wharf.node.core.steps import STATUS_BY_STEP, STEPS_WITH_PROCESS, TaskStep


class TaskRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one task, as the journal stores it.

    Fields that end in `_s` are seconds of the monotonic clock, `_ns` is wall clock time. The stored names of fields
    must not change.
    """

    name: str
    step: TaskStep = TaskStep.WAITING
    run: int = 0
    """The number of the latest start. Allocation id, position of the task and this number make the name of the run."""
    due_s: float | None = None
    """When the current step ends by time alone."""
    has_failed: bool = False
    is_to_end: bool = False
    """The task is being stopped: its exit code no longer counts as a failure."""
    is_restarting: bool = msgspec.field(default=False, name="begins_anew")
    """The task is being stopped in order to be started again."""
    is_restart_after_failure: bool = msgspec.field(default=False, name="is_ill")
    """The restart was requested because the task is unhealthy: its restart policy counts it as a failure."""
    is_of_former_boot: bool = False
    """The task was being started when the machine went down. It is not started twice; the driver reports what became of it."""
    is_start_doubtful: bool = False
    """The start of the run was not observed, and its outcome is unknown: it may never have started."""
    restarts: int = 0
    window: RestartWindow = RestartWindow()
    kill_tries: int = 0
    started_s: float = 0.0
    started_ns: int = 0
    finished_ns: int = 0
    last_restart_ns: int = 0
    events: tuple[TaskEvent, ...] = ()

    @property
    def is_dead(self) -> bool:
        """Whether the task has ended for good."""
        return self.step is TaskStep.DEAD

    @property
    def has_process(self) -> bool:
        """Whether the task has a process in its current step."""
        return self.step in STEPS_WITH_PROCESS

    @property
    def should_recover(self) -> bool:
        """Whether the driver, after a restart of the node agent, must report what became of the run."""
        return self.has_process or self.is_of_former_boot

    @property
    def has_started(self) -> bool:
        """Whether any run of the task has started."""
        return self.started_ns != 0

    def to_task_state(self) -> TaskState:
        """Return the state of the task as servers are sent it."""
        return TaskState(
            state=STATUS_BY_STEP[self.step],
            failed=self.has_failed,
            restarts=self.restarts,
            last_restart=to_datetime(self.last_restart_ns) if self.last_restart_ns else None,
            started_at=to_datetime(self.started_ns) if self.started_ns else None,
            finished_at=to_datetime(self.finished_ns) if self.finished_ns else None,
            events=self.events,
        )


class AllocationRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one allocation, as the journal stores it.

    Fields that end in `_s` are seconds of the monotonic clock. The stored names of fields must not change.
    """

    id: str
    tasks: tuple[TaskRecord, ...] = ()
    is_waiting_for_predecessor: bool = msgspec.field(default=False, name="waits_for_former")
    """The allocation that this one replaces still runs; no task starts before it has ended."""
    is_to_stop: bool = False
    skips_delays: bool = False
    stop_due_s: float | None = None
    """End of the group's shutdown delay; until then the tasks keep running although a stop was requested."""
    is_overdue: bool = False
    """The allocation was stopped because it reached its max run duration."""
    began_s: float | None = None
    """When the first task started."""
    lost_contact_s: float | None = None
    """Since when no server has replied; `None` while there is contact."""
    health_watch_since_s: float | None = msgspec.field(default=None, name="judged_since_s")
    """Since when a deployment or a drain waits for the health; `None`: nothing waits for it."""
    is_healthy: bool | None = None
    checks_pass_since_s: float | None = None
    finished_s: float | None = None

    def task(self, name: str) -> TaskRecord:
        """Return the record of the task of this name."""
        return next(task for task in self.tasks if task.name == name)

    @property
    def is_over(self) -> bool:
        """Whether all tasks are dead and none will run again."""
        return all(task.is_dead for task in self.tasks)

    @property
    def status(self) -> ClientStatus:
        """The client status of the allocation.

        It is terminal only when all tasks are dead, because until then the resources of the allocation are in use.
        """
        if self.is_over:
            has_failed = self.is_overdue or any(task.has_failed for task in self.tasks)
            return ClientStatus.FAILED if has_failed else ClientStatus.COMPLETE
        if any(STATUS_BY_STEP[task.step] is TaskStatus.RUNNING for task in self.tasks):
            return ClientStatus.RUNNING
        return ClientStatus.PENDING

    @property
    def description(self) -> str:
        """The client description that servers are sent."""
        if self.is_over and self.is_overdue:
            return "allocation exceeded max_run_duration"
        return STATUS_DESCRIPTIONS[self.status]


STATUS_DESCRIPTIONS = {
    ClientStatus.PENDING: "No tasks have started",
    ClientStatus.RUNNING: "Tasks are running",
    ClientStatus.COMPLETE: "All tasks have completed",
    ClientStatus.FAILED: "Failed tasks",
}


def add_task_event(
    task: TaskRecord, event_type: TaskEventType, now: ClockReading, *, message: str = "", **details: str
) -> TaskRecord:
    """Return the task with one more event in its history; the oldest events beyond `MAX_TASK_EVENTS` are dropped."""
    event = TaskEvent(type=event_type, time=now.wall_ns, message=message, details=details or None)
    return msgspec.structs.replace(task, events=(*task.events, event)[-MAX_TASK_EVENTS:])
