"""Explain the arrays of a job: which elements wait for `MaxRunning`, and how the elements of an ended array ended."""

from collections.abc import Iterator

import msgspec

from wharf.cluster.operations.array_views import count_states, show_running
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import list_elements
from wharf.cluster.state.tables import ElementPhase
from wharf.contract.model.allocations.names import parse_index
from wharf.contract.model.explanations import WaitCondition, WaitReason
from wharf.contract.model.jobs.array_attempts import OPEN, CancelCause, ElementStates
from wharf.contract.model.jobs.array_views import ArrayCounts
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job


class ArrayFacts(msgspec.Struct, frozen=True):
    """The facts about one array on which its explanation is based."""

    group: TaskGroup
    size: int
    counts: ArrayCounts  # Elements that have not ended count as waiting.
    alive: int  # The allocations that have not ended.
    unplaced: int  # How many open elements have no allocation.
    next_index: int  # The first open element without an allocation; -1: none.
    cancel_cause: CancelCause
    failed_element: int

    @property
    def is_at_limit(self) -> bool:
        """Whether `MaxRunning` is the reason why the next element does not begin."""
        array = self.group.array
        return array is not None and self.next_index >= 0 and self.alive >= array.running_limit


def read_array_facts(snapshot: Replica, job: Job, group: TaskGroup, elements: ElementStates) -> ArrayFacts:
    """Return the facts about the array of a group, whose elements have these states."""
    alive = list_elements(snapshot, job, group.name, ElementPhase.ALIVE)
    used = [*alive, *list_elements(snapshot, job, group.name, ElementPhase.AWAITS_RETRY)]
    used_indexes = {parse_index(each.name) for each in used}
    canceled = next(
        (each.groups[group.name] for each in reversed(elements.attempts) if each.groups[group.name].cancel_cause), None
    )
    return ArrayFacts(
        group,
        elements.size,
        count_states(elements.states),
        len(alive),
        show_running(elements.states, alive).count(OPEN),
        next((index for index in elements.iter_open() if index not in used_indexes), -1),
        canceled.cancel_cause if canceled is not None else CancelCause.NONE,
        canceled.failed_element if canceled is not None else -1,
    )


def iter_array_waits(arrays: list[ArrayFacts]) -> Iterator[WaitCondition]:
    """Yield a wait condition for each array whose next element waits for the end of another one."""
    for facts in arrays:
        if facts.is_at_limit and facts.group.array is not None:
            limit = facts.group.array.running_limit
            others = f", and {facts.unplaced - 1} more after it" if facts.unplaced > 1 else ""
            text = f"runs {facts.alive} elements of {facts.group.name}: element {facts.next_index} waits for MaxRunning {limit}{others}"
            yield WaitCondition(waits_for=WaitReason.ARRAY, text=text)


def describe_ended_arrays(job: Job, arrays: list[ArrayFacts]) -> WaitCondition:
    """Return how the elements of the arrays of a job ended, and what runs the failed ones again."""
    text = "; ".join(map(_describe_results, arrays))
    failed = sum(each.counts.failed + each.counts.canceled for each in arrays)
    if not failed:
        return WaitCondition(waits_for=WaitReason.NOTHING, text=f"is done: {text}")
    state = "is stopped" if job.stop else "has ended"
    return WaitCondition(
        waits_for=WaitReason.CHANGE, text=f"{state}: {text}; `wharf job rerun {job.id} --failed` runs these again"
    )


def _describe_results(facts: ArrayFacts) -> str:
    """Return how the elements of an array ended, such as `490 of 500 elements of train succeeded, 10 failed`."""
    counts = facts.counts
    text = f"{counts.succeeded} of {facts.size} elements of {facts.group.name} succeeded"
    if counts.failed:
        text += f", {counts.failed} failed"
    if counts.skipped:
        text += f", {counts.skipped} were skipped"
    if counts.canceled:
        reason = f" because element {facts.failed_element} failed" if facts.failed_element >= 0 else ""
        text += f", {counts.canceled} were canceled{reason}"
    return text
