"""The steps that a task takes on its node, as a table. What servers are told of it is coarser: `told_status`."""

import enum
from collections.abc import Mapping
from typing import Final

from wharf.model.machine import Custody, Machine, Step
from wharf.model.task_state import TaskStatus


class TaskStep(enum.StrEnum):
    WAITING = "waiting"
    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    RESTING = "resting"
    LEAVING = "leaving"
    STOPPING = "stopping"
    KILLING = "killing"
    DEAD = "dead"


TASK_STEPS: Final = Machine(
    "task on its node",
    TaskStep,
    steps=[
        Step(None, TaskStep.WAITING, "received"),
        Step(TaskStep.WAITING, TaskStep.PREPARING, "its turn has come"),
        Step(TaskStep.WAITING, TaskStep.DEAD, "its turn will not come any more"),
        Step(TaskStep.PREPARING, TaskStep.STARTING, "all it needs is there"),
        Step(TaskStep.PREPARING, TaskStep.RESTING, "something it needs could not be had, and it may try again"),
        Step(TaskStep.PREPARING, TaskStep.DEAD, "something it needs cannot be had, or it was stopped"),
        Step(TaskStep.STARTING, TaskStep.RUNNING, "its driver started it"),
        Step(TaskStep.STARTING, TaskStep.RESTING, "its driver could not start it, and it may try again"),
        Step(TaskStep.STARTING, TaskStep.DEAD, "its driver cannot start it"),
        Step(TaskStep.STARTING, TaskStep.LEAVING, "started, and to stop meanwhile"),
        Step(TaskStep.STARTING, TaskStep.STOPPING, "started, and to stop meanwhile, without a delay"),
        Step(TaskStep.RUNNING, TaskStep.RESTING, "ended, and its policy starts it again"),
        Step(TaskStep.RUNNING, TaskStep.DEAD, "ended for good"),
        Step(TaskStep.RUNNING, TaskStep.LEAVING, "to stop, after its shutdown delay"),
        Step(TaskStep.RUNNING, TaskStep.STOPPING, "to stop, and told so by its kill signal"),
        Step(TaskStep.RESTING, TaskStep.PREPARING, "it has rested"),
        Step(TaskStep.RESTING, TaskStep.DEAD, "stopped between two tries"),
        Step(TaskStep.LEAVING, TaskStep.STOPPING, "the shutdown delay is over"),
        Step(TaskStep.LEAVING, TaskStep.DEAD, "ended by itself meanwhile"),
        Step(TaskStep.STOPPING, TaskStep.KILLING, "its kill timeout is over"),
        Step(TaskStep.STOPPING, TaskStep.RESTING, "ended, and somebody asked that it begin anew"),
        Step(TaskStep.STOPPING, TaskStep.DEAD, "ended"),
        Step(TaskStep.KILLING, TaskStep.RESTING, "ended, and somebody asked that it begin anew"),
        Step(TaskStep.KILLING, TaskStep.DEAD, "ended"),
        Step(TaskStep.DEAD, TaskStep.WAITING, "a person restarts all tasks of the allocation"),
    ],
    custody={
        TaskStep.WAITING: Custody("its allocation", "the end of the tasks before it, or the allocation's stop"),
        TaskStep.PREPARING: Custody("its hooks", "each hook has a bound of its own"),
        TaskStep.STARTING: Custody("its driver", "the driver's own bound"),
        TaskStep.RUNNING: Custody("its driver", "the group's max run duration; without one it rests here"),
        TaskStep.RESTING: Custody("its restart policy", "the delay of the policy"),
        TaskStep.LEAVING: Custody("its allocation", "the shutdown delay"),
        TaskStep.STOPPING: Custody("its driver", "the kill timeout"),
        TaskStep.KILLING: Custody("its driver", "tried again until it is dead, at most two minutes apart"),
    },
    terminal=frozenset({TaskStep.DEAD}),
)

HAS_PROCESS: Final = frozenset({TaskStep.RUNNING, TaskStep.LEAVING, TaskStep.STOPPING, TaskStep.KILLING})

TOLD: Final[Mapping[TaskStep, TaskStatus]] = {
    TaskStep.WAITING: TaskStatus.PENDING,
    TaskStep.PREPARING: TaskStatus.PENDING,
    TaskStep.STARTING: TaskStatus.PENDING,
    TaskStep.RESTING: TaskStatus.PENDING,
    TaskStep.RUNNING: TaskStatus.RUNNING,
    TaskStep.LEAVING: TaskStatus.RUNNING,
    TaskStep.STOPPING: TaskStatus.RUNNING,
    TaskStep.KILLING: TaskStatus.RUNNING,
    TaskStep.DEAD: TaskStatus.DEAD,
}
"""Each step as servers are told of it."""
