"""What of the node's allocations is to be told, as reports that servers take: none is longer than they read.

What changed is told once. When servers ask for all, what is over goes before, in parts, and with the report that says of
itself that it is whole goes all that is left: of what runs nothing is ever missing there. A report that may have been heard
or not is said again before anything new; by its number servers know it from newer ones (ADR 64).
"""

from typing import Final, Protocol

import msgspec

from wharf.contract.wire.nodes import messages
from wharf.world import World

MAX_UPDATES_PER_REPORT: Final = 1_000
MAX_REPORT_BYTES: Final = 2_000_000
"""With the ends of logs in it; one update more may begin below that. Servers that read less say so."""


class AssignmentHandler(Protocol):
    def has_allocation(self, allocation_id: str) -> bool: ...

    def list_allocations(self) -> list[str]: ...

    def find_assignment_index(self, allocation_id: str) -> int | None: ...

    def build_update(self, allocation_id: str) -> messages.AllocationUpdate: ...

    def on_end_acknowledged(self, allocation_id: str) -> None: ...


class ReportQueue:
    def __init__(self, world: World, assignment_handler: AssignmentHandler) -> None:
        self._world = world
        self._work = assignment_handler
        self.full_report_count = 0
        """How many were begun."""
        self._changed: dict[str, None] = {}
        self._told: dict[str, tuple[int | None, messages.AllocationUpdate]] = {}
        """What was said of each, and under which orders: under other ones the same says something new."""
        self._report: messages.NodeReportRequest | None = None
        """A report that servers may have heard or not."""
        self._orders_of_report: dict[str, int | None] = {}
        self._must_tell_all = False
        self._all: list[str] | None = None
        """While all is told: what was not looked at yet."""
        self._not_over: list[str] = []
        """While all is told: what goes with the whole report."""
        self._length_max_bytes = MAX_REPORT_BYTES
        self._first_number = self._next_number = 0
        """0: no server has told where to begin, and reports have no numbers."""

    def start_numbering(self, first_number: int) -> None:
        """From here on reports are numbered, if not from further on already."""
        self._first_number = max(self._first_number, first_number)
        self._next_number = max(self._next_number, first_number)

    def skip_to_number(self, first_number: int) -> None:
        """All that was numbered lower is old. Of a life that was told no beginning of its own the number says nothing."""
        if self._next_number:
            self.start_numbering(first_number)

    def mark_changed(self, allocation_id: str) -> None:
        """There may be something to tell of it."""
        self._changed[allocation_id] = None

    def forget_allocation(self, allocation_id: str) -> None:
        self._told.pop(allocation_id, None)

    def request_full_report(self) -> None:
        self._must_tell_all = True

    def next_report(self) -> messages.NodeReportRequest | None:
        """What is to be said now; the same until it is answered or refused."""
        if self._report is not None and self._report.number < self._first_number:
            self.on_rejected()
        if self._must_tell_all and self._all is None:
            self._all, self._not_over, self._report = self._work.list_allocations()[::-1], [], None
            self._changed.clear()
        if self._report is None:
            self._report = self._part_of_all(self._all) if self._all is not None else self._news()
        return self._report

    def on_accepted(self, *, should_send_full_report: bool) -> None:
        """Servers have heard what was said last."""
        report, self._report = self._report, None
        assert report is not None, "what is answered was said"
        for update in report.allocations:
            if self._work.find_assignment_index(update.id) is None:
                continue  # Nobody would ever forget it.
            if update.client_status.is_terminal:
                self._told.pop(update.id, None)
                self._work.on_end_acknowledged(update.id)
            else:
                self._told[update.id] = self._orders_of_report.get(update.id), update
        if report.is_whole:
            self._all = None
        self._must_tell_all = should_send_full_report or (self._must_tell_all and not report.is_whole)

    def on_rejected(self, *, is_too_large: bool = False) -> None:
        """As it is it will never be taken."""
        if is_too_large:
            self._length_max_bytes = max(1, self._length_max_bytes // 2)
        if self._report is not None:
            self._changed.update(dict.fromkeys(update.id for update in self._report.allocations))
        self._report = self._all = None

    def _news(self) -> messages.NodeReportRequest | None:
        part = _Part(self._length_max_bytes)
        for id in list(self._changed):
            if part.is_full:
                break
            del self._changed[id]
            if not self._work.has_allocation(id):
                continue
            update = self._work.build_update(id)
            if self._told.get(id) != (self._work.find_assignment_index(id), update):
                part.add(update)
        return self._report_of(part) if part.updates else None

    def _part_of_all(self, left: list[str]) -> messages.NodeReportRequest:
        part = _Part(self._length_max_bytes)
        while left and not part.is_full:
            id = left.pop()
            if not self._work.has_allocation(id):
                continue
            update = self._work.build_update(id)
            if update.client_status.is_terminal:
                part.add(update)
            else:
                self._not_over.append(id)
        if left:
            return self._report_of(part)
        # As they are now: the parts before took their time.
        for id in {**dict.fromkeys(self._not_over), **self._changed}:
            if self._work.has_allocation(id):
                part.add(self._work.build_update(id))
        self._changed.clear()
        self.full_report_count += 1
        return self._report_of(part, is_whole=True)

    def _report_of(self, part: "_Part", *, is_whole: bool = False) -> messages.NodeReportRequest:
        self._orders_of_report = {update.id: self._work.find_assignment_index(update.id) for update in part.updates}
        number = self._next_number
        self._next_number += 1 if number else 0
        return messages.NodeReportRequest(
            report_id=self._world.new_id(), number=number, allocations=tuple(part.updates), is_whole=is_whole
        )


class _Part:
    def __init__(self, length_max_bytes: int) -> None:
        self.updates: list[messages.AllocationUpdate] = []
        self._length_max_bytes = length_max_bytes
        self._length_bytes = 0

    def add(self, update: messages.AllocationUpdate) -> None:
        self.updates.append(update)
        self._length_bytes += len(msgspec.json.encode(update))

    @property
    def is_full(self) -> bool:
        return len(self.updates) >= MAX_UPDATES_PER_REPORT or self._length_bytes >= self._length_max_bytes
