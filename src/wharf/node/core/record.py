"""What a node stores about one allocation and its tasks: immutable records, written to the journal unchanged."""

import msgspec

from wharf.contract.model.allocations.allocation import OVERDUE_TEXT, ClientStatus
from wharf.contract.model.allocations.task_states import (
    MAX_TASK_EVENTS,
    TaskEvent,
    TaskEventType,
    TaskState,
    TaskStatus,
)
from wharf.contract.model.jobs.step_outputs import ReportedOutputs
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
    step: TaskStep = TaskStep.WAITING  # the state of the task on this node
    run: int = 0
    """The number of the latest start. Allocation id, position of the task and this number make the name of the run."""
    due_s: float | None = None
    """The deadline of the current step; `None`: it has none."""
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
    restarts: int = 0  # how often the task was restarted
    window: RestartWindow = RestartWindow()  # the restarts that the restart policy counts now
    kill_tries: int = 0  # how often SIGKILL was sent to the current run
    started_s: float = 0.0  # start of the current run
    started_ns: int = 0
    finished_ns: int = 0
    last_restart_ns: int = 0
    events: tuple[TaskEvent, ...] = ()  # the history that users see, oldest first

    @property
    def is_dead(self) -> bool:
        """Whether the task has ended and is not restarted, unless a user requests it."""
        return self.step is TaskStep.DEAD

    @property
    def has_process(self) -> bool:
        """Whether the task has a process in its current step."""
        return self.step in STEPS_WITH_PROCESS

    @property
    def should_recover(self) -> bool:
        """Whether the driver must report the state of the task's run after a restart of the node agent.

        True if the task has a process, or was being started when the machine went down.
        """
        return self.has_process or self.is_of_former_boot

    @property
    def has_started(self) -> bool:
        """Whether any run of the task has started."""
        return self.started_ns != 0

    def to_task_state(self) -> TaskState:
        """Return the state of the task in the format that servers are sent."""
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
    is_to_stop: bool = False  # a stop was requested
    skips_delays: bool = False  # it stops without shutdown delays
    stop_due_s: float | None = None
    """End of the group's shutdown delay; until then the tasks keep running although a stop was requested."""
    is_overdue: bool = False
    """The allocation was stopped because it reached its max run duration."""
    began_s: float | None = None
    """When the first task started."""
    lost_contact_s: float | None = None
    """The time since which no server has replied; `None` while servers reply."""
    health_watch_since_s: float | None = msgspec.field(default=None, name="judged_since_s")
    """The time since which a deployment or a drain waits for the health; `None`: nothing waits for it."""
    is_healthy: bool | None = None  # None: not decided
    checks_pass_since_s: float | None = None  # None: a required check does not pass
    finished_s: float | None = None  # when the last task ended
    kept_paths: tuple[str, ...] = ()
    """Files and folders below `alloc/` that are removed after those of other allocations. Set when it has ended."""
    output_names: tuple[str, ...] = ()
    """The texts that its programs leave for later steps. Set when it has ended, so that they can be read again."""
    outputs: ReportedOutputs | None = None
    """These texts. `None`: it has not ended, declares none, or servers have acknowledged its end."""

    def task(self, name: str) -> TaskRecord:
        """Return the record of the task with this name. Raises `StopIteration` if there is none."""
        return next(task for task in self.tasks if task.name == name)

    @property
    def is_over(self) -> bool:
        """Whether all tasks are dead, so that none has a process."""
        return all(task.is_dead for task in self.tasks)

    @property
    def ended_ns(self) -> int:
        """The Unix time in nanoseconds of the last end of a task; 0 if no time is known.

        A task that never started has no time of its end, but its last event has one.
        """
        return max((task.finished_ns or (task.events[-1].time if task.events else 0) for task in self.tasks), default=0)

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
        """The sentence about the allocation's status that servers are sent."""
        if self.is_over and self.is_overdue:
            return OVERDUE_TEXT
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
    """Return the task with an event added to its history.

    The history holds at most `MAX_TASK_EVENTS`; the oldest events are dropped.
    """
    event = TaskEvent(type=event_type, time=now.wall_ns, message=message, details=details or None)
    return msgspec.structs.replace(task, events=(*task.events, event)[-MAX_TASK_EVENTS:])
