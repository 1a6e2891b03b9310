"""The steps that a task takes on its node, as a table. What servers are told of it is coarser: `told_status`."""

import enum
from collections.abc import Mapping
from typing import Final

from wharf.contract.model.allocations.task_states import TaskStatus
from wharf.contract.model.state_machines.machine import StateMachine, StateOwnership, StateTransition


class TaskStep(enum.StrEnum):
    WAITING = "waiting"
    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    BACKOFF = "resting"
    SHUTDOWN_DELAY = "leaving"
    STOPPING = "stopping"
    KILLING = "killing"
    DEAD = "dead"


TASK_STEPS: Final = StateMachine(
    "task on its node",
    TaskStep,
    transitions=[
        StateTransition(None, TaskStep.WAITING, "received"),
        StateTransition(TaskStep.WAITING, TaskStep.PREPARING, "its turn has come"),
        StateTransition(TaskStep.WAITING, TaskStep.DEAD, "its turn will not come any more"),
        StateTransition(TaskStep.PREPARING, TaskStep.STARTING, "all it needs is there"),
        StateTransition(
            TaskStep.PREPARING, TaskStep.BACKOFF, "something it needs could not be had, and it may try again"
        ),
        StateTransition(TaskStep.PREPARING, TaskStep.DEAD, "something it needs cannot be had, or it was stopped"),
        StateTransition(TaskStep.STARTING, TaskStep.RUNNING, "its driver started it"),
        StateTransition(TaskStep.STARTING, TaskStep.BACKOFF, "its driver could not start it, and it may try again"),
        StateTransition(TaskStep.STARTING, TaskStep.DEAD, "its driver cannot start it"),
        StateTransition(TaskStep.STARTING, TaskStep.SHUTDOWN_DELAY, "started, and to stop meanwhile"),
        StateTransition(TaskStep.STARTING, TaskStep.STOPPING, "started, and to stop meanwhile, without a delay"),
        StateTransition(TaskStep.RUNNING, TaskStep.BACKOFF, "ended, and its policy starts it again"),
        StateTransition(TaskStep.RUNNING, TaskStep.DEAD, "ended for good"),
        StateTransition(TaskStep.RUNNING, TaskStep.SHUTDOWN_DELAY, "to stop, after its shutdown delay"),
        StateTransition(TaskStep.RUNNING, TaskStep.STOPPING, "to stop, and told so by its kill signal"),
        StateTransition(TaskStep.BACKOFF, TaskStep.PREPARING, "it has rested"),
        StateTransition(TaskStep.BACKOFF, TaskStep.DEAD, "stopped between two tries"),
        StateTransition(TaskStep.SHUTDOWN_DELAY, TaskStep.STOPPING, "the shutdown delay is over"),
        StateTransition(TaskStep.SHUTDOWN_DELAY, TaskStep.DEAD, "ended by itself meanwhile"),
        StateTransition(TaskStep.STOPPING, TaskStep.KILLING, "its kill timeout is over"),
        StateTransition(TaskStep.STOPPING, TaskStep.BACKOFF, "ended, and somebody asked that it begin anew"),
        StateTransition(TaskStep.STOPPING, TaskStep.DEAD, "ended"),
        StateTransition(TaskStep.KILLING, TaskStep.BACKOFF, "ended, and somebody asked that it begin anew"),
        StateTransition(TaskStep.KILLING, TaskStep.DEAD, "ended"),
        StateTransition(TaskStep.DEAD, TaskStep.WAITING, "a person restarts all tasks of the allocation"),
    ],
    ownership={
        TaskStep.WAITING: StateOwnership("its allocation", "the end of the tasks before it, or the allocation's stop"),
        TaskStep.PREPARING: StateOwnership("its hooks", "each hook has a bound of its own"),
        TaskStep.STARTING: StateOwnership("its driver", "the driver's own bound"),
        TaskStep.RUNNING: StateOwnership("its driver", "the group's max run duration; without one it rests here"),
        TaskStep.BACKOFF: StateOwnership("its restart policy", "the delay of the policy"),
        TaskStep.SHUTDOWN_DELAY: StateOwnership("its allocation", "the shutdown delay"),
        TaskStep.STOPPING: StateOwnership("its driver", "the kill timeout"),
        TaskStep.KILLING: StateOwnership("its driver", "tried again until it is dead, at most two minutes apart"),
    },
    terminal_states=frozenset({TaskStep.DEAD}),
)

STEPS_WITH_PROCESS: Final = frozenset({TaskStep.RUNNING, TaskStep.SHUTDOWN_DELAY, TaskStep.STOPPING, TaskStep.KILLING})

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
"""Each step as servers are told of it."""
