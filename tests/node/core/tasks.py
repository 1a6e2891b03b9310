"""Small words for allocations on a node: plans, moments, and a stage on which events are played."""

from typing import Any

from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.group_policies import RestartPolicy
from wharf.contract.model.times import SECOND
from wharf.node.core import events as on
from wharf.node.core.allocation import apply_event, find_next_deadline_s, receive_allocation
from wharf.node.core.allocation_spec import AllocationSpec, TaskSpec
from wharf.node.core.clock import ClockReading
from wharf.node.core.outcome import Outcome
from wharf.node.core.record import AllocationRecord, TaskRecord
from wharf.node.core.steps import TaskStep

NOON_NS = 1_767_268_800_000_000_000
ENDED_WELL = Outcome()
KILLED = Outcome(137, 9)


def failed(code: int = 1) -> Outcome:
    return Outcome(code)


def a_policy(attempts: int = 0, *, delay_s: int = 15, interval_s: int = 1_800, mode: str = "fail") -> RestartPolicy:
    return RestartPolicy(attempts=attempts, delay=delay_s * SECOND, interval=interval_s * SECOND, mode=mode)


def a_task(name: str = "web", **given: Any) -> TaskSpec:
    given.setdefault("restart_policy", a_policy())
    return TaskSpec(name, **given)


def a_batch_task(name: str = "work", **given: Any) -> TaskSpec:
    return a_task(name, is_run_to_completion=True, **given)


def a_plan(*tasks: TaskSpec, **given: Any) -> AllocationSpec:
    return AllocationSpec(tasks=tasks or (a_task(),), **given)


class Stage:
    """One allocation, to which things happen. What is asked for is done at once, unless it is held back."""

    def __init__(
        self, plan: AllocationSpec, *, prepares: bool = True, starts: bool = True, waits_for_former: bool = False
    ) -> None:
        self.plan = plan
        self.now_s = 100.0
        self.actions: list[on.TaskAction] = []
        self.chance = 0.0
        self._prepares = prepares
        self._starts = starts
        turned = receive_allocation("a1", plan, self.now(), is_waiting_for_predecessor=waits_for_former)
        self.record: AllocationRecord = turned.record
        self._do(turned.actions)

    def now(self) -> ClockReading:
        return ClockReading(NOON_NS + round(self.now_s * SECOND), self.now_s, self.chance)

    def happen(self, event: on.AllocationEvent) -> None:
        turned = apply_event(self.record, self.plan, event, self.now())
        self.record = turned.record
        self._do(turned.actions)

    def _do(self, actions: tuple[on.TaskAction, ...]) -> None:
        self.actions += actions
        for action in actions:
            match action:
                case on.PrepareTask(name) if self._prepares:
                    self.happen(on.TaskPrepared(name))
                case on.StartTask(name, run) if self._starts:
                    self.happen(on.TaskStarted(name, run))
                case _:
                    pass

    def end(self, name: str, outcome: Outcome = ENDED_WELL) -> None:
        self.happen(on.TaskEnded(name, self.task(name).run, outcome))

    def stop(self, *, skips_delays: bool = False) -> None:
        self.happen(on.StopRequested(skips_delays))

    def pass_s(self, seconds: float) -> None:
        """Whatever comes due on the way happens at its moment."""
        until_s = self.now_s + seconds
        while (due_s := find_next_deadline_s(self.record, self.plan)) is not None and due_s <= until_s:
            self.now_s = max(due_s, self.now_s)
            self.happen(on.DeadlineReached())
        self.now_s = until_s
        self.happen(on.DeadlineReached())

    def task(self, name: str) -> TaskRecord:
        return self.record.task(name)

    def steps(self) -> dict[str, TaskStep]:
        return {task.name: task.step for task in self.record.tasks}

    def status(self) -> ClientStatus:
        return self.record.status

    def events(self, name: str) -> list[str]:
        return [str(event.type) for event in self.task(name).events]

    def details(self, name: str, kind: TaskEventType) -> dict[str, str]:
        return next(event.details or {} for event in reversed(self.task(name).events) if event.type == kind)

    def take_actions(self) -> list[on.TaskAction]:
        taken, self.actions = self.actions, []
        return taken
