"""Which of a group's allocations failed and are tried again, now or later, and which are given up (scheduling.md 5.7)."""

import msgspec

from wharf.model.allocation import Allocation, ClientStatus, RescheduleOutcome
from wharf.model.evaluation import EvaluationTrigger
from wharf.model.group import TaskGroup
from wharf.scheduling.reconcile.outcome import LookAgain
from wharf.scheduling.reconcile.rescheduling import NEVER, NOW, Retry, When, retry_of
from wharf.scheduling.reconcile.sight import Sight
from wharf.scheduling.reconcile.surplus import Allocations


class Sorted(msgspec.Struct):
    """What failed and may be tried again leaves the set when it is due; what waits, or is given up, stays in it."""

    kept: Allocations = msgspec.field(default_factory=dict)
    now: list[Allocation] = msgspec.field(default_factory=list)
    later: list[LookAgain] = msgspec.field(default_factory=list)
    watched: list[Allocation] = msgspec.field(default_factory=list)
    """Those that wait for the word of who watches their deployment."""


class Retries:
    def __init__(self, sight: Sight, group: TaskGroup) -> None:
        self._sight = sight
        self._group = group

    def sort_out(self, untainted: Allocations) -> Sorted:
        found = Sorted()
        kept = found.kept
        for key, allocation in untainted.items():
            if allocation.next_allocation and allocation.is_terminal:
                continue  # Somebody took its place already.
            if not self._is_candidate(allocation):
                if not self._is_over(allocation):
                    kept[key] = allocation
                continue
            retry = self._retry(allocation)
            if retry.when is When.NOW:
                found.now.append(allocation)
                continue
            kept[key] = allocation
            if self.waits_for_watcher(allocation):
                found.watched.append(allocation)
            if retry.when is When.LATER:
                found.later.append(LookAgain(allocation, retry.at_ns, EvaluationTrigger.ALLOC_RESCHEDULE))
        return found

    def _is_candidate(self, allocation: Allocation) -> bool:
        transition = allocation.desired_transition
        if transition is not None and transition.force_reschedule and allocation.is_client_terminal:
            return True
        tracker = allocation.reschedule_tracker
        has_failed_to_place = tracker is not None and tracker.last_reschedule is RescheduleOutcome.NO_PLACEMENT
        if allocation.is_server_terminal:
            return has_failed_to_place and not (self._sight.is_batch and ran_well(allocation))
        return allocation.client_status is ClientStatus.FAILED

    def _is_over(self, allocation: Allocation) -> bool:
        """Of a service: it ended, and nothing counts it any more. Work of a batch job that ended is done."""
        if self._sight.is_batch:
            return False
        return allocation.is_server_terminal or allocation.client_status in (ClientStatus.COMPLETE, ClientStatus.LOST)

    def _retry(self, allocation: Allocation) -> Retry:
        transition = allocation.desired_transition
        if transition is not None and transition.force_reschedule and allocation.is_client_terminal:
            return NOW
        if self.waits_for_watcher(allocation):
            return NEVER
        follow_up = allocation.followup_eval_id
        return retry_of(
            allocation,
            self._group,
            self._sight.now_ns,
            is_followed_up=bool(follow_up) and follow_up == self._sight.evaluation_id,
            is_awaited=bool(follow_up) and self._sight.is_pending(follow_up),
        )

    def waits_for_watcher(self, allocation: Allocation) -> bool:
        """While its deployment goes on, the deployment's watcher decides whether it is tried again."""
        deployment, transition = self._sight.deployment, allocation.desired_transition
        if deployment is None or not deployment.is_active or allocation.deployment_id != deployment.id:
            return False
        return transition is None or not transition.reschedule


def ran_well(allocation: Allocation) -> bool:
    """All its tasks ended as they should."""
    states = allocation.task_states or {}
    return bool(states) and all(state.is_successful for state in states.values())
