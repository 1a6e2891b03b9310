"""The runs of the simulation: their steps, drawn from the value of a job."""

from collections.abc import Sequence
from random import Random
from typing import Final

from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.group_policies import ReschedulePolicy, RestartPolicy
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.jobs.steps import Flow, Gate, Need, NeedWhen
from wharf.contract.model.times import SECOND

MAX_STEPS: Final = 7
NO_RETRY: Final = ReschedulePolicy(attempts=0, unlimited=False)
NO_RESTART: Final = RestartPolicy(attempts=0, interval=1_800 * SECOND, delay=SECOND, mode="fail")


def make_steps(draw: Random) -> tuple[TaskGroup, ...]:
    """Return the steps of a run. A step stands after those that it needs."""
    steps: list[TaskGroup] = []
    for number in range(draw.randint(2, MAX_STEPS)):
        size = draw.choice([1, 1, 1, 2, 3])
        needed = draw.sample(steps, min(len(steps), draw.choice([0, 1, 1, 1, 2])))
        steps.append(_make_step(draw, f"step-{number}", size, needed))
    return tuple(steps)


def _make_step(draw: Random, name: str, size: int, needed: Sequence[TaskGroup]) -> TaskGroup:
    needs = tuple(_make_need(draw, size, other) for other in needed)
    is_final = bool(needed) and draw.random() < 0.15
    has_gate = not is_final and draw.random() < 0.25
    task = Task(
        name="task", driver="mock", resources=Resources(cpu=20, memory_mb=16),
        config={"run_for": draw.randint(1, 4) * SECOND, "exit_code": draw.choice([0, 0, 0, 1])},
    )  # fmt: skip
    return TaskGroup(
        name=name, count=1, tasks=(task,), depends=needs or None, array=GroupArray(size=size, max_running=draw.choice([0, 1])),
        may_fail=draw.random() < 0.3, final=is_final, gate=Gate(timeout=draw.randint(5, 20) * SECOND) if has_gate else None,
        restart_policy=NO_RESTART, reschedule_policy=NO_RETRY,
    )  # fmt: skip


def _make_need(draw: Random, size: int, other: TaskGroup) -> Need:
    other_size = other.array.element_count if other.array is not None else 1
    form = draw.choice(["whole", "whole", "each", "count"])
    return Need(
        on=other.name,
        when=draw.choice([NeedWhen.SUCCEEDED, NeedWhen.SUCCEEDED, NeedWhen.FAILED, NeedWhen.ENDED, NeedWhen.ANY]).value,
        each=form == "each" and other_size == size,
        at_least=draw.randint(1, other_size) if form == "count" and other_size > 1 else 0,
    )


def make_flow(draw: Random) -> Flow:
    return Flow(deadline=draw.choice([0, 0, 0, 15, 60]) * SECOND, final_timeout=draw.choice([5, 30]) * SECOND)
