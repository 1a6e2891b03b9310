"""Several small plans that are committed in one write, so that many registrations cost few writes (docs/adr/0120).

The write is committed completely or not at all. Each plan is checked as if the plans before it were committed.
"""

from typing import Final

from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.plans.capacity_versions import CLUSTER_KEY
from wharf.cluster.scheduling.plans.check import PLAN_WRITE_KIND, check_plan
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.server.leader.term import CHANGES_PER_JOB
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import NODE_PLACEMENTS
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.log import Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write

MAX_GROUP_PLANS: Final = 16
"""Limits how many evaluations are planned again if the write conflicts."""
MAX_GROUP_CHANGES: Final = 200
"""Limits the write of a group, with its derived changes. A plan with more changes is committed alone."""

_CLUSTER_VERSION: Final = (NODE_PLACEMENTS.name, CLUSTER_KEY)
"""The only record that several plans of a group may write: each of them writes the same value."""


def merge_placements(*plans: Plan) -> dict[str, tuple[Allocation, ...]]:
    """Return the new allocations of all plans by node id."""
    merged: dict[str, tuple[Allocation, ...]] = {}
    for plan in plans:
        for node_id, placed in plan.placements.items():
            merged[node_id] = (*merged[node_id], *placed) if node_id in merged else placed
    return merged


def can_join_group(plan: Plan) -> bool:
    """Return whether a plan is small, ends its evaluation, and depends on other jobs through free capacity only."""
    job_key = (plan.evaluation.namespace, plan.evaluation.job_id)
    change_count = len(plan.changes) + sum(map(len, plan.placements.values()))
    return (
        plan.completed_evaluation is not None
        and plan.job is not None
        # Jobs may compete for a volume or a lock.
        and not any(group.volumes or group.lock for group in plan.job.groups)
        and change_count <= MAX_GROUP_CHANGES
        and all((change.allocation.namespace, change.allocation.job_id) == job_key for change in plan.changes)
    )


class PlanGroup:
    """Plans that are committed in one write of at most `max_changes` changes."""

    def __init__(self, snapshot: Replica, cache: SchedulerCache, *, max_changes: int) -> None:
        self.plans: list[Plan] = []
        self._snapshot = snapshot
        self._cache = cache
        self._max_changes = min(max_changes, MAX_GROUP_CHANGES)
        self._changes: dict[tuple[str, str], PutRecord | DeleteRecord] = {}
        self._conditions: dict[tuple[str, str], Condition] = {}

    def try_add(self, plan: Plan) -> bool:
        """Check the plan and add it. Return whether all of it was added; otherwise the group is unchanged."""
        checked = check_plan(
            plan,
            self._snapshot,
            max_changes=self._max_changes,
            cache=self._cache,
            earlier_placements=merge_placements(*self.plans),
        )
        if checked.write is None or checked.remaining_plan is not None or checked.dropped_nodes:
            return False
        changes = {(change.table, change.key): change for change in checked.write.changes}
        if not (changes.keys() & self._changes.keys()) <= {_CLUSTER_VERSION}:
            return False
        conditions = {(condition.table, condition.key): condition for condition in checked.write.conditions}
        change_count = len(self._changes.keys() | changes.keys())
        condition_count = len(self._conditions.keys() | conditions.keys())
        derived_count = CHANGES_PER_JOB * (len(self.plans) + 1)
        if max(change_count, condition_count) + derived_count > self._max_changes:
            return False
        self._changes |= changes
        self._conditions |= conditions
        self.plans.append(plan)
        return True

    def build_write(self) -> Write:
        """Return the write of all added plans. Its cause is the evaluation of the first one."""
        cause = Cause(CauseKind.EVALUATION, self.plans[0].evaluation.id)
        return Write(PLAN_WRITE_KIND, cause, tuple(self._changes.values()), tuple(self._conditions.values()))
