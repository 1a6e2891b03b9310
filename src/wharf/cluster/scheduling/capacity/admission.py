"""Decides whether quota, child limit and locks allow more placements of a job.

The quota is that of the namespace, the child limit that of the parent job, and locks are those of steps.
"""

from collections.abc import Collection, Iterable, Mapping

from wharf.cluster.scheduling.capacity.child_limits import explain_child_limit
from wharf.cluster.scheduling.capacity.locks import LockAdmission
from wharf.cluster.scheduling.capacity.quotas import (
    QuotaUsageTracker,
    get_remaining_quota,
    measure_amounts,
    sum_requested_amounts,
)
from wharf.cluster.state import Replica
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.lock_waits import LockWait


class PlacementAdmission:
    """Decides for each placement of one evaluation whether quota, child limit and locks of the job allow it.

    What is placed must be reported with `consume_quota` and `take_slot`, so that it counts for the next placement.
    """

    def __init__(
        self, snapshot: Replica, quota_usage: QuotaUsageTracker, job: Job | None, allocations: Iterable[Allocation]
    ) -> None:
        self._remaining_quota = (
            None
            if job is None
            else get_remaining_quota(snapshot, job.namespace, job.region, quota_usage.get_quota_usage)
        )
        self.child_limit_reason = "" if job is None else explain_child_limit(snapshot, job, allocations)
        """Why no allocation of the job may start yet, even if resources are free. Empty: no limit applies.

        The child limit is the number of children of a parent job that may run at the same time.
        """
        self._locks = (
            LockAdmission(snapshot, job) if job is not None and any(group.lock for group in job.groups) else None
        )
        self._last_locked: dict[str, bool] = {}
        """By group name, whether a lock refused the last placement of the group."""
        self._reasons: dict[str, tuple[str, ...]] = {}
        """By group name, why the first refused placement of the group was refused."""
        self._refusal_counts: dict[str, int] = {}
        """By group name, how many placements were refused."""
        self._last_refused: dict[str, bool] = {}
        """By group name, whether the last placement of the group was refused."""

    @property
    def has_limits(self) -> bool:
        """Whether a quota or a child limit applies, so that placements may be refused."""
        return self._remaining_quota is not None or bool(self.child_limit_reason)

    def list_reasons(self, group: TaskGroup, *, released: AllocatedResources | None = None) -> tuple[str, ...]:
        """Return why quota, child limit or lock refuse one more allocation of the group. Empty: it is admitted.

        `released` are the resources of an allocation that the new one replaces. Only the quota applies then.
        """
        if self.child_limit_reason and released is None:
            return (self.child_limit_reason,)
        if released is None and (lock_reason := self._explain_lock(group)):
            return (lock_reason,)
        if self._remaining_quota is None:
            return ()
        released_amounts = None if released is None else measure_amounts(released)
        return self._remaining_quota.list_exceeded_limits(sum_requested_amounts(group), released=released_amounts)

    def _explain_lock(self, group: TaskGroup) -> str:
        """Return why the lock of a step refuses one more allocation; empty if it does not."""
        return self._locks.explain_refusal(group) if self._locks is not None else ""

    def try_admit(self, group: TaskGroup) -> bool:
        """Return whether quota, child limit and lock allow one more allocation of the group.

        A refusal is counted for `build_refusal_metric`. An admission consumes nothing.
        """
        reasons = self.list_reasons(group)
        self._last_refused[group.name] = bool(reasons)
        self._last_locked[group.name] = bool(reasons) and bool(self._explain_lock(group))
        if reasons:
            self._reasons.setdefault(group.name, reasons)
            self._refusal_counts[group.name] = self._refusal_counts.get(group.name, 0) + 1
        return not reasons

    def was_refused(self, group: TaskGroup) -> bool:
        """Return whether `try_admit` refused the last placement of the group."""
        return self._last_refused.get(group.name, False)

    def consume_quota(self, resources: AllocatedResources) -> None:
        """Count the resources of a new allocation as used in the quota, if there is one."""
        if self._remaining_quota is not None:
            self._remaining_quota.consume_amounts(measure_amounts(resources))

    def take_slot(self, group: TaskGroup) -> None:
        """Count a new allocation of the group as a holder of its lock, if it has one."""
        if self._locks is not None:
            self._locks.take_slot(group)

    def list_lock_waits(
        self, job: Job, queued_counts: Mapping[str, int], failed: Collection[str]
    ) -> tuple[LockWait, ...]:
        """Return the failed steps of the job that have a lock, with the number of their elements that wait."""
        if self._locks is None or self.child_limit_reason:
            return ()
        waits = (
            self._locks.make_wait(
                group, queued_counts.get(group.name, 0), lacks_capacity=not self._last_locked.get(group.name, False)
            )
            for group in job.groups
            if group.name in failed
        )
        return tuple(wait for wait in waits if wait is not None)

    def build_refusal_metric(self, job: Job, group: TaskGroup) -> AllocMetric | None:
        """Return the metric that says why placements of the group were refused, and how many.

        Return `None` if all of them were admitted.
        """
        reasons = self._reasons.get(group.name)
        if reasons is None:
            return None
        count = self._refusal_counts[group.name]
        return AllocMetric(node_pool=job.node_pool, quota_exhausted=reasons, coalesced_failures=count - 1)
