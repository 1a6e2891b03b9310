"""What an evaluation makes of allocations that are there already: each as it stood, with all that was decided of it since.

It writes down what others decide. What is placed is no matter of it.
"""

from typing import Any

from msgspec.structs import replace

from wharf.model.allocation import Allocation, ClientStatus, DesiredStatus, RescheduleOutcome, RescheduleTracker
from wharf.model.changes import THIS
from wharf.scheduling.plan import Change
from wharf.scheduling.reconcile.outcome import Stop
from wharf.scheduling.reconcile.sight import LOST, with_state


class Changing:
    """`changes`: by id, in the order in which they were first changed."""

    def __init__(self, now_ns: int) -> None:
        self.changes: dict[str, Change] = {}
        self._now_ns = now_ns

    def change(self, allocation: Allocation, *, is_stop: bool = False, **fields: Any) -> Allocation:
        """These fields of it, beside what was changed before. Returns it as it shall be."""
        standing = self.changes.get(allocation.id)
        base = standing.shall if standing is not None else allocation
        shall = replace(base, **fields, alloc_modify_index=THIS, modify_time=self._now_ns)
        self.changes[allocation.id] = Change(shall, is_stop or (standing is not None and standing.is_stop))
        return shall

    def begin_as(self, shall: Allocation) -> None:
        """It is as it was found to be, before anything else is decided of it."""
        self.changes[shall.id] = Change(replace(shall, alloc_modify_index=THIS, modify_time=self._now_ns), False)

    def stop(self, stop: Stop) -> None:
        fields: dict[str, Any] = {}
        if not stop.allocation.is_server_terminal:
            fields |= {"desired_status": DesiredStatus.STOP, "desired_description": stop.why}
        if stop.client_status is not None:
            fields["client_status"] = stop.client_status
            if stop.client_status is ClientStatus.LOST and stop.why == LOST:
                noted = with_state(stop.allocation, ClientStatus.LOST, self._now_ns)
                fields["alloc_states"] = noted.alloc_states
        self.change(stop.allocation, is_stop=True, **fields)

    def follow(
        self, allocation: Allocation, *, next_allocation: str = "", outcome: RescheduleOutcome | None = None
    ) -> None:
        """Another takes its place, or was to."""
        fields: dict[str, Any] = {"next_allocation": next_allocation} if next_allocation else {}
        if outcome is not None:
            tracker = allocation.reschedule_tracker or RescheduleTracker()
            if tracker.last_reschedule is not outcome:
                fields["reschedule_tracker"] = replace(tracker, last_reschedule=outcome)
        if fields:
            self.change(allocation, **fields)
