"""The state machine of a task on its node. Servers see fewer states: `STATUS_BY_STEP` maps them."""

import enum
from collections.abc import Mapping
from typing import Final

from wharf.contract.model.allocations.task_states import TaskStatus
from wharf.contract.model.state_machines.machine import StateMachine, StateOwnership, StateTransition


class TaskStep(enum.StrEnum):
    """The states of a task on its node.

    The values are stored in the journal and must not change; two of them differ from their names.
    """

    WAITING = "waiting"  # for other tasks, such as prestart tasks, or the predecessor
    PREPARING = "preparing"  # folders, devices, secrets, templates
    STARTING = "starting"  # the driver is starting it
    RUNNING = "running"
    BACKOFF = "resting"  # waits for the delay before a restart
    SHUTDOWN_DELAY = "leaving"  # still runs, until its shutdown delay is over
    STOPPING = "stopping"  # its kill signal was sent
    KILLING = "killing"  # SIGKILL was sent
    DEAD = "dead"  # ended, and not restarted


TASK_STEPS: Final = StateMachine(
    "task on its node",
    TaskStep,
    transitions=[
        StateTransition(None, TaskStep.WAITING, "received"),
        StateTransition(TaskStep.WAITING, TaskStep.PREPARING, "the tasks before it allow it to start"),
        StateTransition(TaskStep.WAITING, TaskStep.DEAD, "it can never start any more"),
        StateTransition(TaskStep.PREPARING, TaskStep.STARTING, "everything it needs is prepared"),
        StateTransition(
            TaskStep.PREPARING,
            TaskStep.BACKOFF,
            "its preparation failed, and its restart policy allows another attempt",
        ),
        StateTransition(TaskStep.PREPARING, TaskStep.DEAD, "its preparation failed for good, or it was stopped"),
        StateTransition(TaskStep.STARTING, TaskStep.RUNNING, "its driver started it"),
        StateTransition(
            TaskStep.STARTING,
            TaskStep.BACKOFF,
            "its driver failed to start it, and its restart policy allows another attempt",
        ),
        StateTransition(TaskStep.STARTING, TaskStep.DEAD, "its driver failed to start it, and no attempt is left"),
        StateTransition(TaskStep.STARTING, TaskStep.SHUTDOWN_DELAY, "started, but a stop was requested meanwhile"),
        StateTransition(
            TaskStep.STARTING, TaskStep.STOPPING, "started, but a stop without delay was requested meanwhile"
        ),
        StateTransition(TaskStep.RUNNING, TaskStep.BACKOFF, "ended, and its restart policy starts it again"),
        StateTransition(TaskStep.RUNNING, TaskStep.DEAD, "ended for good"),
        StateTransition(TaskStep.RUNNING, TaskStep.SHUTDOWN_DELAY, "a stop was requested, and it has a shutdown delay"),
        StateTransition(TaskStep.RUNNING, TaskStep.STOPPING, "a stop was requested, and its kill signal is sent"),
        StateTransition(TaskStep.BACKOFF, TaskStep.PREPARING, "the restart delay is over"),
        StateTransition(TaskStep.BACKOFF, TaskStep.DEAD, "stopped between two attempts"),
        StateTransition(TaskStep.SHUTDOWN_DELAY, TaskStep.STOPPING, "the shutdown delay is over"),
        StateTransition(TaskStep.SHUTDOWN_DELAY, TaskStep.DEAD, "ended by itself during the shutdown delay"),
        StateTransition(TaskStep.STOPPING, TaskStep.KILLING, "its kill timeout is over"),
        StateTransition(TaskStep.STOPPING, TaskStep.BACKOFF, "ended, and a restart was requested"),
        StateTransition(TaskStep.STOPPING, TaskStep.DEAD, "ended"),
        StateTransition(TaskStep.KILLING, TaskStep.BACKOFF, "ended, and a restart was requested"),
        StateTransition(TaskStep.KILLING, TaskStep.DEAD, "ended"),
        StateTransition(TaskStep.DEAD, TaskStep.WAITING, "a user restarts all tasks of the allocation"),
    ],
    ownership={
        TaskStep.WAITING: StateOwnership("its allocation", "the end of the tasks before it, or the allocation's stop"),
        TaskStep.PREPARING: StateOwnership("its hooks", "each hook has its own time limit"),
        TaskStep.STARTING: StateOwnership("its driver", "the driver's own time limit"),
        TaskStep.RUNNING: StateOwnership("its driver", "the group's max run duration; without one it stays here"),
        TaskStep.BACKOFF: StateOwnership("its restart policy", "the delay of the policy"),
        TaskStep.SHUTDOWN_DELAY: StateOwnership("its allocation", "the shutdown delay"),
        TaskStep.STOPPING: StateOwnership("its driver", "the kill timeout"),
        TaskStep.KILLING: StateOwnership(
            "its driver", "the kill is repeated until the task is dead, at most two minutes apart"
        ),
    },
    terminal_states=frozenset({TaskStep.DEAD}),
)

STEPS_WITH_PROCESS: Final = frozenset({TaskStep.RUNNING, TaskStep.SHUTDOWN_DELAY, TaskStep.STOPPING, TaskStep.KILLING})
"""The steps in which the task has a process."""

STATUS_BY_STEP: Final[Mapping[TaskStep, TaskStatus]] = {
    TaskStep.WAITING: TaskStatus.PENDING,
    TaskStep.PREPARING: TaskStatus.PENDING,
    TaskStep.STARTING: TaskStatus.PENDING,
    TaskStep.BACKOFF: TaskStatus.PENDING,
    TaskStep.RUNNING: TaskStatus.RUNNING,
    TaskStep.SHUTDOWN_DELAY: TaskStatus.RUNNING,
    TaskStep.STOPPING: TaskStatus.RUNNING,
    TaskStep.KILLING: TaskStatus.RUNNING,
    TaskStep.DEAD: TaskStatus.DEAD,
}
"""The task status that servers are sent for each step."""
