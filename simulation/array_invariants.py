"""Invariants of arrays: limits, one allocation for each element, one success, and results that have a cause and never change."""

from typing import Final

from simulation.record_history import ObservedBatch, RecordHistory
from simulation.timeline import InvariantViolation
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    ARRAY_ATTEMPTS,
    ARRAY_RESULTS,
    ATTEMPTS_OF_JOB,
    JOBS,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.jobs.array_attempts import CHUNK_ELEMENTS, ArrayResults

CAUSES: Final = {ord("s"): ClientStatus.COMPLETE, ord("f"): ClientStatus.FAILED}
"""The client status of the allocation that ends an element with each result."""
OPEN_STATE: Final = ord(".")
ABSENT_STATE: Final = ord("-")


class ArrayInvariants:
    """The checks of each batch that concern arrays."""

    def __init__(self, history: RecordHistory) -> None:
        self._history = history
        self.ended_count = 0
        """How many elements have ended. Shows that the checks had something to do."""
        history.batch_checks += [self.check_limits, self.check_results, self.check_ends]

    def check_limits(self, observed: ObservedBatch) -> None:
        """Require that a placed element is open, has no other allocation, and that its array stays within its limit."""
        replica = self._history.replica
        for changed in observed.changes:
            placed = changed.new
            if (
                changed.table == ALLOCATIONS.name
                and changed.old is None
                and placed is not None
                and placed.array_attempt
            ):
                _require_limit(replica, placed)

    def check_results(self, observed: ObservedBatch) -> None:
        """Require that results do not change, and that each new one has its cause in the same write."""
        for changed in observed.changes:
            if changed.table != ARRAY_RESULTS.name or changed.new is None:
                continue
            new: ArrayResults = changed.new
            old = changed.old.results if changed.old is not None else None
            for position, result in enumerate(new.results):
                before = old[position] if old is not None else OPEN_STATE
                if before == result or result not in CAUSES:
                    continue
                index = new.chunk * CHUNK_ELEMENTS + position
                if before != OPEN_STATE:
                    raise InvariantViolation(
                        f"element {index} of {new.job_id} ended twice: {before:c}, then {result:c}", new.job_id
                    )
                self.ended_count += 1
                if not any(_ends_element(each.new, new, index, CAUSES[result]) for each in observed.changes):
                    raise InvariantViolation(
                        f"element {index} of {new.job_id} has the result {result:c} without a cause at {observed.batch.index}",
                        new.job_id,
                    )

    def check_ends(self, observed: ObservedBatch) -> None:
        """Require that an allocation that ends with success ends its element in the same write.

        Not if a newer attempt has the element: then the report is late and decides nothing.
        """
        replica = self._history.replica
        for changed in observed.changes:
            ended = changed.new
            if changed.table != ALLOCATIONS.name or ended is None or not ended.array_attempt:
                continue
            if not _is_success(ended) or (changed.old is not None and _is_success(changed.old)):
                continue
            job = replica.get(JOBS, ended.namespace, ended.job_id)
            if job is None or job.create_index != ended.job_create_index or job.stop or is_superseded(replica, ended):
                continue
            if _read_result(replica, ended) == OPEN_STATE:
                raise InvariantViolation(
                    f"{ended.name} ended with success at {observed.batch.index} and has no result",
                    ended.job_id,
                    ended.id,
                )


def _is_success(allocation: Allocation) -> bool:
    """Return whether an allocation ended with success, and nobody wanted it to stop."""
    return allocation.client_status is ClientStatus.COMPLETE and allocation.desired_status is DesiredStatus.RUN


def parse_element(allocation: Allocation) -> int:
    return int(allocation.name.rpartition("[")[2].rstrip("]"))


def _read_result(replica: Replica, allocation: Allocation, attempt: int = 0) -> int:
    """Return the stored result of the allocation's element in its own attempt, or in another one."""
    chunk, position = divmod(parse_element(allocation), CHUNK_ELEMENTS)
    key = (allocation.namespace, allocation.job_id, attempt or allocation.array_attempt, allocation.task_group, chunk)
    results = replica.get(ARRAY_RESULTS, *key)
    if results is None:  # Of a rerun, a chunk without a selected element is not stored.
        return ABSENT_STATE if attempt else OPEN_STATE
    return results.results[position]


def is_superseded(replica: Replica, allocation: Allocation) -> bool:
    """Return whether a newer attempt decides about the element of an allocation, or its group has none any more."""
    for attempt in replica.list_by_index(ATTEMPTS_OF_JOB, allocation.namespace, allocation.job_id):
        group = attempt.groups.get(allocation.task_group)
        if group is None or attempt.job_create_index != allocation.job_create_index:
            continue
        if attempt.attempt > allocation.array_attempt and (
            group.is_full or _read_result(replica, allocation, attempt.attempt) != ABSENT_STATE
        ):
            return True
    return replica.get(ARRAY_ATTEMPTS, allocation.namespace, allocation.job_id, allocation.array_attempt) is None


def _ends_element(record: object, results: ArrayResults, index: int, status: ClientStatus) -> bool:
    """Return whether a written record is the allocation that ends an element with this status."""
    return (
        isinstance(record, Allocation)
        and (record.namespace, record.job_id, record.task_group, record.array_attempt)
        == (results.namespace, results.job_id, results.group, results.attempt)
        and record.client_status is status
        and record.name.endswith(f"[{index}]")
    )


def _require_limit(replica: Replica, placed: Allocation) -> None:
    """Require that an allocation of an array was permitted when it was placed."""
    job = replica.get(JOBS, placed.namespace, placed.job_id)
    group = job.find_group(placed.task_group) if job is not None else None
    array = group.array if group is not None else None
    if array is None:
        raise InvariantViolation(f"{placed.name} was placed, but its group has no array", placed.job_id, placed.id)
    running = [
        each
        for each in replica.list_by_index(ALLOCATIONS_OF_JOB, placed.namespace, placed.job_id)
        if (each.task_group, each.job_create_index) == (placed.task_group, placed.job_create_index)
        and each.client_status in (ClientStatus.PENDING, ClientStatus.RUNNING, ClientStatus.UNKNOWN)
    ]
    limit = array.max_running or array.size
    if len(running) > limit:
        raise InvariantViolation(
            f"{len(running)} elements of {placed.job_id} run; MaxRunning is {limit}",
            placed.job_id, *(each.id for each in running),
        )  # fmt: skip
    same = [each.id for each in running if each.name == placed.name and each.id != placed.id]
    if same:
        raise InvariantViolation(
            f"{placed.name} runs twice: {same[0]} and {placed.id}", placed.job_id, placed.id, *same
        )
    if _read_result(replica, placed) in CAUSES:
        raise InvariantViolation(f"{placed.name} was placed after it had ended", placed.job_id, placed.id)
