"""The runs of the simulation: their steps, drawn from the value of a job."""

from collections.abc import Sequence
from random import Random
from typing import Final

from simulation.step_texts import PICK, PICKS, TEXT_NAMES, declares_texts
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.constraints import Spread
from wharf.contract.model.jobs.group_policies import ReschedulePolicy, RestartPolicy
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.jobs.steps import Flow, Gate, Need, NeedWhen, Outputs
from wharf.contract.model.times import SECOND

MAX_STEPS: Final = 7
MODE_KEY: Final = "mode"
"""The metadata of a run that conditions read."""
MODES: Final = ("fast", "full")
EVENLY: Final = Spread(attribute="${node.unique.name}", weight=100)
"""Small steps would otherwise all run on one node. Only three of four nodes run programs that write texts."""
NO_RETRY: Final = ReschedulePolicy(attempts=0, unlimited=False)
NO_RESTART: Final = RestartPolicy(attempts=0, interval=1_800 * SECOND, delay=SECOND, mode="fail")


def make_steps(draw: Random, *, max_steps: int = MAX_STEPS, has_gates: bool = True) -> tuple[TaskGroup, ...]:
    """Return the steps of a run. A step stands after those that it needs."""
    steps: list[TaskGroup] = []
    for number in range(draw.randint(2, max_steps)):
        size = draw.choice([1, 1, 1, 2, 3])
        needed = draw.sample(steps, min(len(steps), draw.choice([0, 1, 1, 1, 2])))
        steps.append(_make_step(draw, f"step-{number}", size, needed, has_gates=has_gates))
    return tuple(steps)


def _make_step(draw: Random, name: str, size: int, needed: Sequence[TaskGroup], *, has_gates: bool) -> TaskGroup:
    is_final = bool(needed) and draw.random() < 0.15
    needs = tuple(Need(on=other.name) if is_final else _make_need(draw, size, other) for other in needed)
    has_gate = has_gates and not is_final and draw.random() < 0.25
    task = Task(
        name="task", driver="mock", resources=Resources(cpu=20, memory_mb=16),
        config={"run_for": draw.randint(1, 4) * SECOND, "exit_code": draw.choice([0, 0, 0, 1])},
    )  # fmt: skip
    return TaskGroup(
        name=name, count=1, tasks=(task,), depends=needs or None, array=GroupArray(size=size, max_running=draw.choice([0, 1])),
        may_fail=draw.random() < 0.3, final=is_final, condition=_make_condition(draw, needed),
        outputs=Outputs(text=TEXT_NAMES) if draw.random() < 0.75 else None,
        gate=Gate(timeout=draw.randint(5, 20) * SECOND) if has_gate else None,
        restart_policy=NO_RESTART, reschedule_policy=NO_RETRY, spreads=(EVENLY,),
    )  # fmt: skip


def _make_need(draw: Random, size: int, other: TaskGroup) -> Need:
    other_size = other.array.element_count if other.array is not None else 1
    form = draw.choice(["whole", "whole", "each", "count"])
    return Need(
        on=other.name,
        when=draw.choice([NeedWhen.SUCCEEDED, NeedWhen.SUCCEEDED, NeedWhen.FAILED, NeedWhen.ENDED, NeedWhen.ANY]).value,
        each=form == "each" and other_size == size,
        at_least=draw.randint(1, other_size) if form == "count" and other_size > 1 else 0,
        optional=draw.random() < 0.3,
    )


def _make_condition(draw: Random, needed: Sequence[TaskGroup]) -> str:
    """Return a condition that compares a text of a needed step, or metadata, with a constant; mostly none."""
    if draw.random() < 0.55:
        return ""
    sign = draw.choice(["==", "!="])
    readable = [other for other in needed if declares_texts(other) and other.array and other.array.element_count == 1]
    if readable and draw.random() < 0.8:
        return f'steps["{draw.choice(readable).name}"].{PICK} {sign} "{draw.choice(PICKS)}"'
    return f'meta.{MODE_KEY} {sign} "{draw.choice(MODES)}"'


def make_flow(draw: Random) -> Flow:
    return Flow(deadline=draw.choice([0, 0, 0, 15, 60]) * SECOND, final_timeout=draw.choice([5, 30]) * SECOND)
