"""Says why elements of a step do not run now: a lock, a retry, a restart or capacity; and why they failed."""

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from wharf.cluster.operations.explanations.locks import describe_lock_wait
from wharf.cluster.operations.explanations.text import format_time, is_delayed
from wharf.cluster.operations.run_texts import RESTARTS_TEXT
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import list_elements
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, EVALUATIONS_OF_JOB, ElementPhase
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.failure_reasons import describe_failure, describe_task_failure, is_restarting
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.jobs.array_attempts import ElementResult
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.times import to_datetime

MAX_READ_ALLOCATIONS: Final = 2_000
"""Allocations of a run that are searched for failures. The view of a larger run has no causes: reading them takes too long."""


class StepWaits:
    """Finds what the elements of a run wait for. Reads evaluations only if a step asks, and once."""

    def __init__(self, snapshot: Replica, job: Job) -> None:
        self._snapshot = snapshot
        self._job = job

    @cached_property
    def _open_evaluations(self) -> list[Evaluation]:
        """The evaluations of the job that have not ended."""
        found = self._snapshot.list_by_index(EVALUATIONS_OF_JOB, self._job.namespace, self._job.id)
        return [each for each in found if each.status in (EvaluationStatus.BLOCKED, EvaluationStatus.PENDING)]

    def describe_unplaced(self, step: str) -> str:
        """Return what elements without an allocation wait for, after the name of the step."""
        return self.describe_known_wait(step) or "may begin: waits for capacity"

    def describe_known_wait(self, step: str) -> str:
        """Return the lock, the retry or the limit that elements without an allocation wait for; empty if none is known."""
        blocked = [each for each in self._open_evaluations if each.status is EvaluationStatus.BLOCKED]
        for evaluation in blocked:
            wait = evaluation.find_lock_wait(step)
            if wait is not None:
                return describe_lock_wait(self._snapshot, self._job.namespace, self._job.id, wait)
        failed = list_elements(self._snapshot, self._job, step, ElementPhase.AWAITS_RETRY)
        if failed:
            return self._describe_retry(failed)
        for evaluation in blocked:
            if evaluation.waits_behind:
                return f"may begin: waits for a slot of {evaluation.waits_behind}"
            if evaluation.quota_limit_reached:
                return f"may begin: waits for capacity in the quota {evaluation.quota_limit_reached}"
        if not blocked and self._open_evaluations:
            return "may begin: waits for its evaluation"
        return ""

    def _describe_retry(self, failed: Sequence[Allocation]) -> str:
        """Return when elements that failed run again, and why the newest of them failed."""
        newest = max(failed, key=lambda each: (each.modify_time, each.id))
        times = [each.wait_until for each in self._open_evaluations if each.wait_until is not None and is_delayed(each)]
        time = f" at {format_time(min(times))}" if times else ""
        cause = describe_failure(newest)
        return f"waits for its retry{time}" + (f": {cause}" if cause else "")


def describe_restart(alive: Sequence[Allocation]) -> str:
    """Return why and when a task starts again that failed on its node, after the name of its step; empty if none does."""
    restarting = [each for each in alive if is_restarting(each)]
    if not restarting:
        return ""
    newest = max(restarting, key=lambda each: (each.modify_time, each.id))
    delays = [
        event.time + int(delay)
        for state in (newest.task_states or {}).values()
        for event in state.events or ()
        if event.type == TaskEventType.RESTARTING
        and (delay := (event.details or {}).get("start_delay", "")).isdecimal()
    ]
    time = f" at {format_time(to_datetime(max(delays)))}" if delays else ""
    return f"{RESTARTS_TEXT}{time}: {describe_task_failure(newest.task_states)}"


class StepFailures:
    """Finds why steps of a run failed. Reads allocations only if a step asks, and once."""

    def __init__(self, snapshot: Replica, job: Job) -> None:
        self._snapshot = snapshot
        self._job = job

    @cached_property
    def _failed(self) -> dict[str, list[Allocation]]:
        """The allocations that decided that an element failed, newest first, by step."""
        key = (self._job.namespace, self._job.id)
        if self._snapshot.count_by_index(ALLOCATIONS_OF_JOB, *key) > MAX_READ_ALLOCATIONS:
            return {}
        found: dict[str, list[Allocation]] = {}
        for each in self._snapshot.list_by_index(ALLOCATIONS_OF_JOB, *key):
            if each.array_result == ElementResult.FAILED and each.job_create_index == self._job.create_index:
                found.setdefault(each.task_group, []).append(each)
        return {
            step: sorted(failed, key=lambda each: (-each.modify_time, -each.create_index, each.id))
            for step, failed in found.items()
        }

    def describe(self, step: str, first_attempt: int, last_attempt: int) -> str:
        """Return why elements of a step failed in these attempts, such as `main: Exit Code: 3`; empty if nothing is known."""
        failed = [each for each in self._failed.get(step, ()) if first_attempt <= each.array_attempt <= last_attempt]
        reasons = list(dict.fromkeys(filter(None, map(describe_failure, failed))))
        if not reasons:
            return ""
        more = len(reasons) - 1
        return reasons[0] + (f"; and {more} other cause{'s' if more > 1 else ''}" if more else "")
