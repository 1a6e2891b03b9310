"""Collects the changes that one evaluation makes to existing allocations.

Several changes to one allocation are merged into one record. What to change is decided elsewhere, and new allocations
are not collected here.
"""

from typing import Any

from msgspec.structs import replace

from wharf.cluster.scheduling.plans.plan import AllocationChange
from wharf.cluster.scheduling.reconcile.input import LOST_TEXT, add_state
from wharf.cluster.scheduling.reconcile.outcome import AllocationStop
from wharf.contract.model.allocations.allocation import (
    Allocation,
    ClientStatus,
    DesiredStatus,
    RescheduleOutcome,
    RescheduleTracker,
)
from wharf.contract.model.log import WRITE_INDEX


class AllocationChanges:
    """The changes of one evaluation to existing allocations.

    Several changes of one allocation are merged into one record.
    """

    def __init__(self, now_ns: int) -> None:
        self.changes: dict[str, AllocationChange] = {}
        """By allocation id, in the order in which the allocations were first changed."""
        self._now_ns = now_ns

    def update_allocation(self, allocation: Allocation, *, is_stop: bool = False, **fields: Any) -> Allocation:
        """Set these fields of the allocation, in addition to earlier changes, and return the changed record.

        With `is_stop`, the change counts as a stop from now on.
        """
        earlier_change = self.changes.get(allocation.id)
        base = earlier_change.allocation if earlier_change is not None else allocation
        updated = replace(base, **fields, alloc_modify_index=WRITE_INDEX, modify_time=self._now_ns)
        self.changes[allocation.id] = AllocationChange(
            updated, is_stop or (earlier_change is not None and earlier_change.is_stop)
        )
        return updated

    def set_base(self, base: Allocation) -> None:
        """Record this version of the allocation as a change. Later changes of the allocation build on it."""
        self.changes[base.id] = AllocationChange(
            replace(base, alloc_modify_index=WRITE_INDEX, modify_time=self._now_ns), False
        )

    def stop_allocation(self, stop: AllocationStop) -> None:
        """Record that the allocation stops: set its desired status, and its client status if the stop sets one."""
        fields: dict[str, Any] = {}
        if not stop.allocation.is_server_terminal:
            fields |= {"desired_status": DesiredStatus.STOP, "desired_description": stop.reason}
        if stop.client_status is not None:
            fields["client_status"] = stop.client_status
            if stop.client_status is ClientStatus.LOST and stop.reason == LOST_TEXT:
                allocation_with_state = add_state(stop.allocation, ClientStatus.LOST, self._now_ns)
                fields["alloc_states"] = allocation_with_state.alloc_states
        self.update_allocation(stop.allocation, is_stop=True, **fields)

    def link_replacement(
        self, allocation: Allocation, *, next_allocation: str = "", outcome: RescheduleOutcome | None = None
    ) -> None:
        """Record on the allocation the id of its replacement (`next_allocation`), or the outcome of an attempt to
        reschedule it.
        """
        fields: dict[str, Any] = {"next_allocation": next_allocation} if next_allocation else {}
        if outcome is not None:
            tracker = allocation.reschedule_tracker or RescheduleTracker()
            if tracker.last_reschedule is not outcome:
                fields["reschedule_tracker"] = replace(tracker, last_reschedule=outcome)
        if fields:
            self.update_allocation(allocation, **fields)
