"""Reads what is stored about the steps of a run: the attempt that decides each step, its state, and its elements."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from wharf.cluster.scheduling.steps.decider import StepFacts, describe_needed, select_startable
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ARRAY_RESULTS, ATTEMPTS_OF_JOB, ELEMENTS_OF_GROUP, ElementPhase
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.names import parse_index
from wharf.contract.model.jobs.array_attempts import CANCELED, ArrayAttempt, ElementStates, FindResults, GroupAttempt
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_states import StepCause, StepPhase, StepState


class StepRecord(NamedTuple):
    """A step and where its state is stored."""

    facts: StepFacts
    states: ElementStates
    attempt: ArrayAttempt | None
    """The attempt that has the state of the step; `None`: the step has no attempt and never begins."""


class RunFacts:
    """The steps of a run, in the order of the file."""

    def __init__(self, attempts: list[ArrayAttempt], steps: dict[str, StepRecord]) -> None:
        self.attempts = attempts
        """The attempts of the run, oldest first."""
        self.steps = steps

    @property
    def newest_attempt(self) -> ArrayAttempt | None:
        """The attempt that has the deadline of the run and its cancellation."""
        return self.attempts[-1] if self.attempts else None

    def get_facts(self) -> dict[str, StepFacts]:
        """Return the facts about each step as users see them: a canceled or stopped step has the reason, which is stored
        only once, with the attempt."""
        newest = self.newest_attempt
        return {name: add_cancel_reason(record.facts, newest) for name, record in self.steps.items()}

    def iter_facts(self) -> Iterator[StepFacts]:
        """Yield what is stored about each step."""
        for record in self.steps.values():
            yield record.facts

    def select_startable(self, name: str) -> bytes:
        """Return the elements of a step with `OPEN` for those that may begin now, as far as other steps decide."""
        facts = self.steps[name].facts
        if facts.state.phase is not StepPhase.READY:
            return b""
        needed = {
            need.on: describe_needed(self.steps[need.on].facts) for need in facts.group.depends or () if need.each
        }
        return select_startable(facts.group, facts.elements, needed)


def add_cancel_reason(facts: StepFacts, attempt: ArrayAttempt | None) -> StepFacts:
    """Return the facts about a canceled or stopped step with the person and the reason that an attempt has."""
    state = facts.state
    if attempt is None or state.phase is not StepPhase.CANCELED:
        return facts
    canceled, stopped = attempt.cancel_cause, attempt.stop_cause
    if canceled is not None and canceled.detail and state.cause == replace(canceled, detail=""):
        return facts._replace(state=replace(state, cause=canceled))
    if stopped is not None and state.cause == StepCause(kind=stopped.kind) and state.since == attempt.stopped_at:
        return facts._replace(state=replace(state, cause=stopped))
    return facts


def read_snapshot_run(snapshot: Replica, job: Job) -> RunFacts:
    """Return the facts about all steps of a job in a snapshot."""
    key = (job.namespace, job.id)
    return read_run(
        job,
        snapshot.list_by_index(ATTEMPTS_OF_JOB, *key),
        lambda attempt, group, chunk: snapshot.get(ARRAY_RESULTS, *key, attempt, group, chunk),
        lambda group: snapshot.count_by_index(ELEMENTS_OF_GROUP, *key, job.create_index, group, ElementPhase.ALIVE),
        lambda group: snapshot.list_by_index(ELEMENTS_OF_GROUP, *key, job.create_index, group, ElementPhase.ALIVE),
    )


def read_run(
    job: Job,
    attempts: Iterable[ArrayAttempt],
    find_results: FindResults,
    count_alive: Callable[[str], int],
    list_alive: Callable[[str], Iterable[Allocation]],
) -> RunFacts:
    """Return the facts about all steps of a job.

    `attempts` are those of the job in any order, also of earlier jobs with its ID. `count_alive` returns how many allocations
    of a group have not ended, and `list_alive` returns these allocations.
    """
    own = sorted(
        (each for each in attempts if each.job_create_index == job.create_index), key=lambda each: each.attempt
    )
    steps = {}
    for group in job.groups:
        layers = _select_layers(own, group.name)
        states = ElementStates(group.name, layers, find_results)
        facts = _read_facts(group, states, count_alive, list_alive)
        steps[group.name] = StepRecord(facts, states, layers[-1] if layers else None)
    return RunFacts(own, steps)


def _select_layers(attempts: list[ArrayAttempt], group: str) -> list[ArrayAttempt]:
    """Return the attempts of a group that decide the states of its elements, oldest first. `attempts` are sorted."""
    layers: list[ArrayAttempt] = []
    for attempt in reversed(attempts):
        part = attempt.groups.get(group)
        if part is not None:
            layers.append(attempt)
            if part.is_full:
                return layers[::-1]
    return []


def _read_facts(
    group: TaskGroup,
    states: ElementStates,
    count_alive: Callable[[str], int],
    list_alive: Callable[[str], Iterable[Allocation]],
) -> StepFacts:
    if not states.attempts:
        return StepFacts(group, StepState(phase=StepPhase.CANCELED), b"")
    part: GroupAttempt = states.attempts[-1].groups[group.name]
    # An attempt of a version without steps: its elements may begin at once.
    state = part.step if part.step is not None else StepState(phase=StepPhase.READY)
    alive = stopping = count_alive(group.name)
    # All elements of a canceled step that still run were canceled. Of other steps, users may have stopped single elements.
    if alive and state.phase is not StepPhase.CANCELED:
        stopping = _count_stopping(states.states, list_alive(group.name)) if CANCELED in states.states else 0
    return StepFacts(group, state, states.states, alive, stopping)


def _count_stopping(elements: bytes, alive: Iterable[Allocation]) -> int:
    """Return how many of the allocations belong to canceled elements."""
    indexes = (parse_index(each.name) for each in alive)
    return sum(elements[index : index + 1] == CANCELED for index in indexes)
