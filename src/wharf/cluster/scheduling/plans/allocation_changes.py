"""What an evaluation makes of allocations that are there already: each as it stood, with all that was decided of it since.

It writes down what others decide. What is placed is no matter of it.
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
    """`changes`: by id, in the order in which they were first changed."""

    def __init__(self, now_ns: int) -> None:
        self.changes: dict[str, AllocationChange] = {}
        self._now_ns = now_ns

    def update_allocation(self, allocation: Allocation, *, is_stop: bool = False, **fields: Any) -> Allocation:
        """These fields of it, beside what was changed before. Returns it as it shall be."""
        standing = self.changes.get(allocation.id)
        base = standing.allocation if standing is not None else allocation
        shall = replace(base, **fields, alloc_modify_index=WRITE_INDEX, modify_time=self._now_ns)
        self.changes[allocation.id] = AllocationChange(shall, is_stop or (standing is not None and standing.is_stop))
        return shall

    def set_base(self, shall: Allocation) -> None:
        """It is as it was found to be, before anything else is decided of it."""
        self.changes[shall.id] = AllocationChange(
            replace(shall, alloc_modify_index=WRITE_INDEX, modify_time=self._now_ns), False
        )

    def stop_allocation(self, stop: AllocationStop) -> None:
        fields: dict[str, Any] = {}
        if not stop.allocation.is_server_terminal:
            fields |= {"desired_status": DesiredStatus.STOP, "desired_description": stop.reason}
        if stop.client_status is not None:
            fields["client_status"] = stop.client_status
            if stop.client_status is ClientStatus.LOST and stop.reason == LOST_TEXT:
                noted = add_state(stop.allocation, ClientStatus.LOST, self._now_ns)
                fields["alloc_states"] = noted.alloc_states
        self.update_allocation(stop.allocation, is_stop=True, **fields)

    def link_replacement(
        self, allocation: Allocation, *, next_allocation: str = "", outcome: RescheduleOutcome | None = None
    ) -> None:
        """Another takes its place, or was to."""
        fields: dict[str, Any] = {"next_allocation": next_allocation} if next_allocation else {}
        if outcome is not None:
            tracker = allocation.reschedule_tracker or RescheduleTracker()
            if tracker.last_reschedule is not outcome:
                fields["reschedule_tracker"] = replace(tracker, last_reschedule=outcome)
        if fields:
            self.update_allocation(allocation, **fields)
