"""Builds the reports about the node's allocations, none longer than servers accept.

A change is reported once. If servers request a full report, ended allocations are sent first, in parts, without those
whose end servers still have (ADR 98). The last part has `is_whole` set and contains everything that is left, so no
running allocation is ever missing in it. A report that
servers may or may not have received is repeated before any new one; servers recognize old ones by their number (ADR
64).
"""

from collections.abc import Collection, Container, Sequence
from typing import Final, Protocol

import msgspec

from wharf.contract.wire.nodes import messages
from wharf.world import World

MAX_UPDATES_PER_REPORT: Final = 1_000
"""Limit of updates in one report."""
MAX_CHANGE_REPORT_BYTES: Final = 48_000
"""Limit of the size of a report that contains only changes. Servers decode a request of more than 64 kB in a copy of their process,
which costs about 25 ms, as much as 50 small requests (record 0333)."""
MAX_REPORT_BYTES: Final = 2_000_000
"""Limit of a report's size, log tails included; the last update may exceed it.

Halved when servers reject a report as too large.
"""


class AssignmentHandler(Protocol):
    """Applies assignments and builds the reports about allocations.

    Implemented by the real node, the fake node and the simulated node.
    """

    def find_assignment_index(self, allocation_id: str) -> int | None:
        """Return the modify index of the last assignment of this allocation; `None` if the allocation is unknown."""
        ...

    def list_allocations(self) -> list[str]:
        """Return the ids of all allocations that servers know and that this node has."""
        ...

    def has_allocation(self, allocation_id: str) -> bool:
        """Return whether this node has the allocation and servers still know it."""
        ...

    def is_end_acknowledged(self, allocation_id: str) -> bool:
        """Return whether servers have acknowledged that the allocation has ended. They may have lost this since."""
        ...

    def list_held(self) -> list[str]:
        """Return the ids of restored allocations whose tasks do not start before servers confirm them."""
        ...

    def confirm_allocation(self, allocation_id: str) -> None:
        """Let the tasks of a held allocation start: servers know that it has not ended."""
        ...

    def end_allocations(self, assignments: Sequence[messages.Assignment]) -> None:
        """End held allocations, of which servers know that they have ended."""
        ...

    def list_droppable(self, cluster_id: str, known: Container[str]) -> list[str]:
        """Return the ids of the allocations that servers do not know, without those of another cluster.

        `cluster_id` is the cluster of the servers, empty if it has no id; `known` are the allocations that they know.
        """
        ...

    def apply_assignment(self, assignment: messages.Assignment) -> None:
        """Start, update or stop the allocation as the assignment requires."""
        ...

    def drop_allocation(self, allocation_id: str) -> None:
        """Request the stop of an allocation that servers no longer know; delete it at once if it has already ended."""
        ...

    def build_update(self, allocation_id: str) -> messages.AllocationUpdate:
        """Return the report about the allocation's current state. The allocation must be known."""
        ...

    async def wait_until_stored(self) -> None:
        """Wait until everything that `build_update` returned survives a power cut."""
        ...

    def on_end_acknowledged(self, allocation_id: str) -> None:
        """Release the allocation's data: servers have acknowledged that it has ended."""
        ...

    def on_server_contact(self) -> None:
        """Record that a server has replied."""
        ...

    def on_server_silence(self, since_s: float) -> None:
        """Record that no server has replied since `since_s`, in seconds of the monotonic clock."""
        ...


class ReportQueue:
    """The changes that servers must be sent; decides which allocations the next report contains."""

    def __init__(self, world: World, assignment_handler: AssignmentHandler) -> None:
        self._world = world
        self._handler = assignment_handler
        self.full_report_count = 0
        """How many full reports were begun."""
        self._changed: dict[str, None] = {}
        self._accepted: dict[str, tuple[int | None, messages.AllocationUpdate]] = {}
        """The last update of each allocation that servers accepted, with the index of the assignment it was about."""
        self._report: messages.NodeReportRequest | None = None
        """The report that servers may or may not have received."""
        self._assignment_indexes: dict[str, int | None] = {}
        self._must_report_all = False
        self._remaining: list[str] | None = None
        """During a full report: the ids that were not handled yet, the next one last."""
        self._running: list[str] = []
        """During a full report: the running allocations, which go into its last part."""
        self._max_bytes = MAX_REPORT_BYTES
        self._first_number = self._next_number = 0
        """0: no server has assigned a first number, and reports are not numbered."""

    def start_numbering(self, first_number: int) -> None:
        """Number reports from `first_number` on, or from the current number if that is higher."""
        self._first_number = max(self._first_number, first_number)
        self._next_number = max(self._next_number, first_number)

    def skip_to_number(self, first_number: int) -> None:
        """Number reports from `first_number` on, because servers ignore lower numbers.

        Has no effect if reports are not numbered, or already have higher numbers.
        """
        if self._next_number:
            self.start_numbering(first_number)

    def mark_changed(self, allocation_id: str) -> None:
        """Add the allocation to the next report, if it then differs from its last accepted report."""
        self._changed[allocation_id] = None

    def drop_allocation(self, allocation_id: str) -> None:
        """Delete the record of the last accepted report about the allocation."""
        self._accepted.pop(allocation_id, None)

    def request_full_report(self) -> None:
        """Report all allocations in the next reports, not only changed ones."""
        self._must_report_all = True

    @property
    def is_full_report_due(self) -> bool:
        """Whether the next report begins a full report; `begin_full_report` may limit it before."""
        return self._must_report_all and self._remaining is None

    def begin_full_report(self, open_ids: Collection[str] | None) -> None:
        """Begin to report all allocations, except those that have ended and whose end servers have.

        `open_ids` are the allocations whose end servers do not have, at any time since the full report was requested;
        `None` if that is not known, so that everything is reported.
        """
        ids = self._handler.list_allocations()
        if open_ids is not None:
            ids = [id for id in ids if id in open_ids or not self._handler.is_end_acknowledged(id)]
        self._remaining, self._running, self._report = ids[::-1], [], None
        self._changed.clear()

    def take_next_report(self) -> messages.NodeReportRequest | None:
        """Return the report to send now; `None` if nothing is new.

        The same report is returned until it is accepted or rejected. It is built again if servers would ignore its
        number.
        """
        if self._report is not None and self._report.number < self._first_number:
            self.on_rejected()
        if self.is_full_report_due:
            self.begin_full_report(None)
        if self._report is None:
            self._report = (
                self._build_full_report_part(self._remaining)
                if self._remaining is not None
                else self._build_change_report()
            )
        return self._report

    def on_accepted(self, *, should_send_full_report: bool) -> None:
        """Record that servers have received the last report, and acknowledge the ends in it to the handler.

        `should_send_full_report`: servers request a report about all allocations.
        """
        report, self._report = self._report, None
        assert report is not None, "a report was sent"
        for update in report.allocations:
            if self._handler.find_assignment_index(update.id) is None:
                continue  # The allocation was dropped meanwhile; an entry for it would never be deleted.
            if update.client_status.is_terminal:
                self._accepted.pop(update.id, None)
                self._handler.on_end_acknowledged(update.id)
            else:
                self._accepted[update.id] = self._assignment_indexes.get(update.id), update
        if report.is_whole:
            self._remaining = None
        self._must_report_all = should_send_full_report or (self._must_report_all and not report.is_whole)

    def on_rejected(self, *, is_too_large: bool = False) -> None:
        """Discard the last report and mark its allocations as changed, so that they are reported again.

        `is_too_large`: the size limit of reports is halved. A full report begins again.
        """
        if is_too_large:
            self._max_bytes = max(1, self._max_bytes // 2)
        if self._report is not None:
            self._changed.update(dict.fromkeys(update.id for update in self._report.allocations))
        self._report = self._remaining = None

    def _build_change_report(self) -> messages.NodeReportRequest | None:
        """Return a report of the changed allocations, up to the size limit; `None` if nothing differs from the last
        report.
        """
        part = _ReportPart(min(self._max_bytes, MAX_CHANGE_REPORT_BYTES))
        for id in list(self._changed):
            if part.is_full:
                break
            del self._changed[id]
            if not self._handler.has_allocation(id):
                continue
            update = self._handler.build_update(id)
            if self._accepted.get(id) != (self._handler.find_assignment_index(id), update):
                part.add(update)
        return self._build_report(part) if part.updates else None

    def _build_full_report_part(self, remaining: list[str]) -> messages.NodeReportRequest:
        """Return the next part of a full report; `remaining` has the ids that were not handled yet, the next one last.

        Ended allocations are sent first. The last part contains all running ones and has `is_whole` set.
        """
        part = _ReportPart(self._max_bytes)
        while remaining and not part.is_full:
            id = remaining.pop()
            if not self._handler.has_allocation(id):
                continue
            update = self._handler.build_update(id)
            if update.client_status.is_terminal:
                part.add(update)
            else:
                self._running.append(id)
        if remaining:
            return self._build_report(part)
        # Running allocations are read only now, because the parts before took their time.
        for id in {**dict.fromkeys(self._running), **self._changed}:
            if self._handler.has_allocation(id):
                part.add(self._handler.build_update(id))
        self._changed.clear()
        self.full_report_count += 1
        return self._build_report(part, is_whole=True)

    def _build_report(self, part: "_ReportPart", *, is_whole: bool = False) -> messages.NodeReportRequest:
        """Return the request with the next number and these updates, and store the index of each one's assignment."""
        self._assignment_indexes = {
            update.id: self._handler.find_assignment_index(update.id) for update in part.updates
        }
        number = self._next_number
        self._next_number += 1 if number else 0
        return messages.NodeReportRequest(
            report_id=self._world.new_id(), number=number, allocations=tuple(part.updates), is_whole=is_whole
        )


class _ReportPart:
    """The updates of one report with their total size, which is compared with the limits of a report."""

    def __init__(self, max_bytes: int) -> None:
        self.updates: list[messages.AllocationUpdate] = []
        self._max_bytes = max_bytes
        self._size_bytes = 0

    def add(self, update: messages.AllocationUpdate) -> None:
        """Append an update, and add its length as JSON to the size of the report."""
        self.updates.append(update)
        self._size_bytes += len(msgspec.json.encode(update))

    @property
    def is_full(self) -> bool:
        """Whether the report is full; the update that exceeds the size limit still belongs to it."""
        return len(self.updates) >= MAX_UPDATES_PER_REPORT or self._size_bytes >= self._max_bytes
