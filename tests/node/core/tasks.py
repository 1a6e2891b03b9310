"""Small words for allocations on a node: plans, moments, and a stage on which events are played."""

from typing import Any

from wharf.model.allocation import ClientStatus
from wharf.model.durations import SECOND
from wharf.model.policies import RestartPolicy
from wharf.model.task_state import TaskEventType
from wharf.node.core import happenings as on
from wharf.node.core.allocation import receive, step
from wharf.node.core.dues import next_due_s
from wharf.node.core.moment import Now
from wharf.node.core.outcome import Outcome
from wharf.node.core.plan import Plan, TaskPlan
from wharf.node.core.record import AllocationRecord, TaskRecord
from wharf.node.core.steps import TaskStep

NOON_NS = 1_767_268_800_000_000_000
ENDED_WELL = Outcome()
KILLED = Outcome(137, 9)


def failed(code: int = 1) -> Outcome:
    return Outcome(code)


def a_policy(attempts: int = 0, *, delay_s: int = 15, interval_s: int = 1_800, mode: str = "fail") -> RestartPolicy:
    return RestartPolicy(attempts=attempts, delay=delay_s * SECOND, interval=interval_s * SECOND, mode=mode)


def a_task(name: str = "web", **given: Any) -> TaskPlan:
    given.setdefault("policy", a_policy())
    return TaskPlan(name, **given)


def a_batch_task(name: str = "work", **given: Any) -> TaskPlan:
    return a_task(name, ends=True, **given)


def a_plan(*tasks: TaskPlan, **given: Any) -> Plan:
    return Plan(tasks=tasks or (a_task(),), **given)


class Stage:
    """One allocation, to which things happen. What is asked for is done at once, unless it is held back."""

    def __init__(
        self, plan: Plan, *, prepares: bool = True, starts: bool = True, waits_for_former: bool = False
    ) -> None:
        self.plan = plan
        self.now_s = 100.0
        self.actions: list[on.Action] = []
        self.chance = 0.0
        self._prepares = prepares
        self._starts = starts
        turned = receive("a1", plan, self.now(), waits_for_former=waits_for_former)
        self.record: AllocationRecord = turned.record
        self._do(turned.actions)

    def now(self) -> Now:
        return Now(NOON_NS + round(self.now_s * SECOND), self.now_s, self.chance)

    def happen(self, event: on.Event) -> None:
        turned = step(self.record, self.plan, event, self.now())
        self.record = turned.record
        self._do(turned.actions)

    def _do(self, actions: tuple[on.Action, ...]) -> None:
        self.actions += actions
        for action in actions:
            match action:
                case on.Prepare(name) if self._prepares:
                    self.happen(on.Prepared(name))
                case on.Start(name, run) if self._starts:
                    self.happen(on.Started(name, run))
                case _:
                    pass

    def end(self, name: str, outcome: Outcome = ENDED_WELL) -> None:
        self.happen(on.Ended(name, self.task(name).run, outcome))

    def stop(self, *, skips_delays: bool = False) -> None:
        self.happen(on.StopWanted(skips_delays))

    def pass_s(self, seconds: float) -> None:
        """Whatever comes due on the way happens at its moment."""
        until_s = self.now_s + seconds
        while (due_s := next_due_s(self.record, self.plan)) is not None and due_s <= until_s:
            self.now_s = max(due_s, self.now_s)
            self.happen(on.TimePassed())
        self.now_s = until_s
        self.happen(on.TimePassed())

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

    def take_actions(self) -> list[on.Action]:
        taken, self.actions = self.actions, []
        return taken
