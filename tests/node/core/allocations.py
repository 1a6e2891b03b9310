"""Builders for the rules of allocations, and a harness that applies events to one allocation."""

from typing import Any

from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.group_policies import RestartPolicy
from wharf.contract.model.times import SECOND
from wharf.node.core import events
from wharf.node.core.allocation import apply_event, find_next_deadline_s, receive_allocation
from wharf.node.core.allocation_spec import AllocationSpec, TaskSpec
from wharf.node.core.clock import ClockReading
from wharf.node.core.outcome import Outcome
from wharf.node.core.record import AllocationRecord, TaskRecord
from wharf.node.core.steps import TaskStep

NOON_NS = 1_767_268_800_000_000_000
SUCCESS = Outcome()
KILLED = Outcome(137, 9)


def failed(code: int = 1) -> Outcome:
    return Outcome(code)


def make_restart_policy(
    attempts: int = 0, *, delay_s: int = 15, interval_s: int = 1_800, mode: str = "fail"
) -> RestartPolicy:
    return RestartPolicy(attempts=attempts, delay=delay_s * SECOND, interval=interval_s * SECOND, mode=mode)


def make_task(name: str = "web", **fields: Any) -> TaskSpec:
    fields.setdefault("restart_policy", make_restart_policy())
    return TaskSpec(name, **fields)


def make_batch_task(name: str = "work", **fields: Any) -> TaskSpec:
    return make_task(name, is_run_to_completion=True, **fields)


def make_spec(*tasks: TaskSpec, **fields: Any) -> AllocationSpec:
    return AllocationSpec(tasks=tasks or (make_task(),), **fields)


class AllocationHarness:
    """One allocation to which a test applies events.

    Preparations and starts succeed at once unless they are switched off.
    """

    def __init__(
        self,
        spec: AllocationSpec,
        *,
        prepares: bool = True,
        starts: bool = True,
        is_waiting_for_predecessor: bool = False,
    ) -> None:
        self.spec = spec
        self.now_s = 100.0
        self.actions: list[events.NodeTaskAction] = []
        self.random = 0.0
        self._prepares = prepares
        self._starts = starts
        transition = receive_allocation("a1", spec, self.now(), is_waiting_for_predecessor=is_waiting_for_predecessor)
        self.record: AllocationRecord = transition.record
        self._do(transition.actions)

    def now(self) -> ClockReading:
        return ClockReading(NOON_NS + round(self.now_s * SECOND), self.now_s, self.random)

    def apply(self, event: events.AllocationEvent) -> None:
        transition = apply_event(self.record, self.spec, event, self.now())
        self.record = transition.record
        self._do(transition.actions)

    def _do(self, actions: tuple[events.NodeTaskAction, ...]) -> None:
        """Record the actions, and report prepared and started tasks at once unless that is switched off."""
        self.actions += actions
        for action in actions:
            match action:
                case events.PrepareTask(name) if self._prepares:
                    self.apply(events.TaskPrepared(name))
                case events.StartTask(name, run) if self._starts:
                    self.apply(events.TaskStarted(name, run))
                case _:
                    pass

    def end(self, name: str, outcome: Outcome = SUCCESS) -> None:
        self.apply(events.TaskEnded(name, self.task(name).run, outcome))

    def stop(self, *, skips_delays: bool = False) -> None:
        self.apply(events.AllocationStopRequested(skips_delays))

    def pass_time(self, seconds: float) -> None:
        """Let time pass; every deadline on the way is applied at its time."""
        until_s = self.now_s + seconds
        while (due_s := find_next_deadline_s(self.record, self.spec)) is not None and due_s <= until_s:
            self.now_s = max(due_s, self.now_s)
            self.apply(events.DeadlineReached())
        self.now_s = until_s
        self.apply(events.DeadlineReached())

    def task(self, name: str) -> TaskRecord:
        return self.record.task(name)

    def steps(self) -> dict[str, TaskStep]:
        return {task.name: task.step for task in self.record.tasks}

    def status(self) -> ClientStatus:
        return self.record.status

    def event_types(self, name: str) -> list[str]:
        return [str(event.type) for event in self.task(name).events]

    def details(self, name: str, kind: TaskEventType) -> dict[str, str]:
        return next(event.details or {} for event in reversed(self.task(name).events) if event.type == kind)

    def take_actions(self) -> list[events.NodeTaskAction]:
        actions, self.actions = self.actions, []
        return actions
