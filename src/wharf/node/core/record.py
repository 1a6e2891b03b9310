"""What a node remembers of one allocation and its tasks. Values, kept in the journal as they are."""

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
    name: str
    step: TaskStep = TaskStep.WAITING
    run: int = 0
    """The number of its latest start; with the allocation's id and the task's name it makes the run's own name."""
    due_s: float | None = None
    """When the step that it is in is over by itself."""
    has_failed: bool = False
    is_to_end: bool = False
    """Its end is wanted: whatever its exit code, it has not failed."""
    begins_anew: bool = False
    is_ill: bool = False
    """And not because a person wanted it, but because it was found ill: that counts as a failure."""
    """Somebody asked that it be stopped in order to start again."""
    is_of_former_boot: bool = False
    """It was being started when the machine went down: it is not started a second time, its driver is asked what became of it."""
    is_start_doubtful: bool = False
    """Nobody saw it begin, and nobody knows how it ended: it may never have begun."""
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
        return self.step is TaskStep.DEAD

    @property
    def has_process(self) -> bool:
        return self.step in STEPS_WITH_PROCESS

    @property
    def should_recover(self) -> bool:
        """Whether the driver knows more of it than this node's agent, when that was away."""
        return self.has_process or self.is_of_former_boot

    @property
    def has_started(self) -> bool:
        return self.started_ns != 0

    def to_task_state(self) -> TaskState:
        """As servers hear of it."""
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
    id: str
    tasks: tuple[TaskRecord, ...] = ()
    waits_for_former: bool = False
    """The allocation whose place it takes still runs: until it has ended nothing of this one begins."""
    is_to_stop: bool = False
    skips_delays: bool = False
    stop_due_s: float | None = None
    """Until then its tasks are left alone although it is to stop: the group's shutdown delay."""
    is_overdue: bool = False
    began_s: float | None = None
    """When its first task started."""
    lost_contact_s: float | None = None
    judged_since_s: float | None = None
    """Since when somebody waits for its health; None: nobody does."""
    is_healthy: bool | None = None
    checks_pass_since_s: float | None = None
    finished_s: float | None = None

    def task(self, name: str) -> TaskRecord:
        return next(task for task in self.tasks if task.name == name)

    @property
    def is_over(self) -> bool:
        """Nothing of it runs, and nothing of it will run any more."""
        return all(task.is_dead for task in self.tasks)

    @property
    def status(self) -> ClientStatus:
        """Terminal only when all has ended: until then what it holds is in use."""
        if self.is_over:
            has_failed = self.is_overdue or any(task.has_failed for task in self.tasks)
            return ClientStatus.FAILED if has_failed else ClientStatus.COMPLETE
        if any(STATUS_BY_STEP[task.step] is TaskStatus.RUNNING for task in self.tasks):
            return ClientStatus.RUNNING
        return ClientStatus.PENDING

    @property
    def description(self) -> str:
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
    task: TaskRecord, kind: TaskEventType, now: ClockReading, *, message: str = "", **details: str
) -> TaskRecord:
    """The task with one more thing that happened to it; of many the oldest are dropped."""
    event = TaskEvent(type=kind, time=now.wall_ns, message=message, details=details or None)
    return msgspec.structs.replace(task, events=(*task.events, event)[-MAX_TASK_EVENTS:])
