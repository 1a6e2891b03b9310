"""The states of an allocation's tasks, and the events that led to them, as the node reports them.

Texts that can be derived from an event's details are derived when the event is shown (`display_message`), not stored.
"""

import datetime
import enum

from wharf.contract.model.record import Record, SparseRecord


class TaskStatus(enum.StrEnum):
    """The state of a task: not started yet, running, or ended."""

    PENDING = "pending"
    RUNNING = "running"
    DEAD = "dead"  # Ended, whether it succeeded or failed.


class TaskEventType(enum.StrEnum):
    """The types of task events, by their names in Nomad's API."""

    RECEIVED = "Received"
    SETUP = "Task Setup"
    STARTED = "Started"
    RUNNING = "Running"
    PAUSING = "Pausing"
    TERMINATED = "Terminated"
    RESTARTING = "Restarting"
    NOT_RESTARTING = "Not Restarting"
    RESTART_SIGNALED = "Restart Signaled"
    SIGNALING = "Signaling"
    KILLING = "Killing"
    KILLED = "Killed"
    DRIVER_FAILURE = "Driver Failure"
    DRIVER = "Driver"
    SETUP_FAILURE = "Setup Failure"
    FAILED_VALIDATION = "Failed Validation"
    DOWNLOADING_ARTIFACTS = "Downloading Artifacts"
    FAILED_ARTIFACT_DOWNLOAD = "Failed Artifact Download"
    BUILDING_TASK_DIRECTORY = "Building Task Directory"
    DISK_RESOURCES_EXCEEDED = "Disk Resources Exceeded"
    SIBLING_TASK_FAILED = "Sibling Task Failed"
    LEADER_TASK_DEAD = "Leader Task Dead"
    MAIN_TASKS_DEAD = "Main Tasks Dead"
    HOOK_FAILED = "Task hook failed"
    HOOK_MESSAGE = "Task hook message"
    FAILED_RESTORING_TASK = "Failed Restoring Task"
    RECONNECTED = "Reconnected"
    WAITING_FOR_SHUTDOWN_DELAY = "Waiting for shutdown delay"
    SKIPPING_SHUTDOWN_DELAY = "Skipping shutdown delay"
    PLUGIN_UNHEALTHY = "Plugin became unhealthy"
    PLUGIN_HEALTHY = "Plugin became healthy"
    TEMPLATE = "Template"
    ALLOC_UNHEALTHY = "Alloc Unhealthy"


MAX_TASK_EVENTS = 10
"""Events stored for each task, the newest; limits the size of an allocation."""


class TaskEvent(SparseRecord):
    """An event in the life of a task. `type` is text, because a newer node may report types that this version lacks."""

    type: str
    time: int = 0  # ns since the epoch
    message: str = ""  # Text from the node.
    display_message: str = ""  # Text for users; takes precedence over the text that is derived from the details.
    details: dict[str, str] | None = None  # Such as `exit_code`.


class TaskEventView(Record):
    """A task event as replies show it.

    The fields after `details` repeat single details, because older clients read them.
    """

    type: str
    time: int = 0  # ns since the epoch
    message: str = ""
    display_message: str = ""  # Always set: the text for users.
    details: dict[str, str] | None = None
    fails_task: bool = False
    restart_reason: str = ""
    setup_error: str = ""
    driver_error: str = ""
    exit_code: int = 0
    signal: int = 0  # The number of the signal that ended the task.
    kill_timeout: int = 0  # ns
    kill_error: str = ""
    kill_reason: str = ""
    start_delay: int = 0  # ns
    download_error: str = ""
    validation_error: str = ""
    disk_limit: int = 0  # Bytes.
    failed_sibling: str = ""
    vault_error: str = ""
    task_signal_reason: str = ""
    task_signal: str = ""
    driver_message: str = ""
    generic_source: str = ""


class TaskState(Record):
    """The state of one task and its newest events, as the node reports them."""

    state: TaskStatus
    failed: bool = False  # Ended with a failure that is not retried.
    restarts: int = 0  # How often it was restarted.
    last_restart: datetime.datetime | None = None
    started_at: datetime.datetime | None = None
    finished_at: datetime.datetime | None = None
    events: tuple[TaskEvent, ...] | None = None  # Oldest first.
    paused: str = ""  # Why the task is paused; empty: not paused.

    @property
    def is_successful(self) -> bool:
        """Whether the task has ended without a failure."""
        return self.state is TaskStatus.DEAD and not self.failed


class TaskStateView(Record):
    """The state of one task as replies show it: its events have messages."""

    state: TaskStatus
    failed: bool = False  # Ended with a failure that is not retried.
    restarts: int = 0  # How often it was restarted.
    last_restart: datetime.datetime | None = None
    started_at: datetime.datetime | None = None
    finished_at: datetime.datetime | None = None
    events: tuple[TaskEventView, ...] | None = None  # Oldest first.
    paused: str = ""  # Why the task is paused; empty: not paused.
