"""The content of a node's reports: all updates that servers require, in reports that they accept."""

import msgspec

from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.body_limits import is_large_body
from wharf.contract.wire.nodes.messages import AllocationUpdate, Assignment, NodeReportRequest
from wharf.node.agent.servers.reports import ReportQueue
from wharf.world import RealWorld


class FakeAllocations:
    """`count` allocations. The numbers in `running` run; all others have ended with this log tail."""

    def __init__(self, count: int, *, running: set[int], log_tail: bytes = b"") -> None:
        self.updates = {
            f"a{number}": AllocationUpdate(
                id=f"a{number}",
                client_status=ClientStatus.RUNNING if number in running else ClientStatus.COMPLETE,
                log_tails=b"" if number in running else log_tail,
            )
            for number in range(count)
        }
        self.acknowledged: list[str] = []

    def list_allocations(self) -> list[str]:
        return list(self.updates)

    def has_allocation(self, allocation_id: str) -> bool:
        return allocation_id in self.updates

    def find_assignment_index(self, allocation_id: str) -> int | None:
        return 1 if allocation_id in self.updates else None

    def list_droppable(self, _cluster_id: str, known: object) -> list[str]:
        raise AssertionError(f"no assignments are applied: {known}")

    def list_held(self) -> list[str]:
        return []

    def confirm_allocation(self, allocation_id: str) -> None:
        raise AssertionError(f"nothing is held: {allocation_id}")

    def end_allocations(self, assignment: object) -> None:
        raise AssertionError(f"nothing is held: {assignment}")

    def is_end_acknowledged(self, allocation_id: str) -> bool:
        return allocation_id in self.acknowledged

    def build_update(self, allocation_id: str) -> AllocationUpdate:
        return self.updates[allocation_id]

    def on_end_acknowledged(self, allocation_id: str) -> None:
        self.acknowledged.append(allocation_id)

    def apply_assignment(self, assignment: Assignment) -> None:
        raise AssertionError(f"a report queue applies no assignments: {assignment}")

    def drop_allocation(self, allocation_id: str) -> None:
        raise AssertionError(f"a report queue drops no allocations: {allocation_id}")

    async def wait_until_stored(self) -> None:
        return

    def on_server_contact(self) -> None:
        return

    def on_server_silence(self, since_s: float) -> None:
        raise AssertionError(f"a report queue does not notice silence: {since_s}")


def accept_all_reports(report_queue: ReportQueue) -> list[NodeReportRequest]:
    """Accept reports until the queue is empty, and return them."""
    reports = []
    while (report := report_queue.take_next_report()) is not None:
        reports.append(report)
        report_queue.on_accepted(should_send_full_report=False)
    return reports


def ids(*reports: NodeReportRequest) -> list[str]:
    return sorted(update.id for report in reports for update in report.allocations)


def test_a_full_report_has_ended_allocations_in_parts_and_all_running_ones_in_the_last_part() -> None:
    allocations = FakeAllocations(3_500, running={0, 1_700, 3_499})
    report_queue = ReportQueue(RealWorld(), allocations)
    report_queue.request_full_report()

    *parts, last_report = accept_all_reports(report_queue)

    assert [(1_000, False)] * 3 == [(len(part.allocations), part.is_whole) for part in parts]
    assert last_report.is_whole
    assert {"a0", "a1700", "a3499"} <= set(ids(last_report))
    assert sorted(allocations.updates) == ids(*parts, last_report)
    assert 3_497 == len(allocations.acknowledged)


def test_an_allocation_that_ends_during_a_full_report_is_reported_as_ended() -> None:
    allocations = FakeAllocations(1_500, running={3})
    report_queue = ReportQueue(RealWorld(), allocations)
    report_queue.request_full_report()
    report_queue.take_next_report()
    report_queue.on_accepted(should_send_full_report=True)
    allocations.updates["a3"] = AllocationUpdate(id="a3", client_status=ClientStatus.FAILED)
    report_queue.mark_changed("a3")

    (last_report,) = accept_all_reports(report_queue)

    assert (last_report.is_whole, len(last_report.allocations)) == (True, 500)
    assert [ClientStatus.FAILED] == [update.client_status for update in last_report.allocations if update.id == "a3"]


def test_log_tails_never_make_a_report_longer_than_servers_accept() -> None:
    allocations = FakeAllocations(60, running=set(), log_tail=b"x" * 100_000)
    report_queue = ReportQueue(RealWorld(), allocations)
    for id in allocations.updates:
        report_queue.mark_changed(id)

    reports = accept_all_reports(report_queue)

    assert sorted(allocations.updates) == ids(*reports)
    max_tail_bytes = max(sum(len(update.log_tails) for update in report.allocations) for report in reports)
    assert max_tail_bytes <= 2_000_000


def test_reports_become_smaller_after_one_was_rejected_as_too_large() -> None:
    allocations = FakeAllocations(60, running=set(), log_tail=b"x" * 100_000)
    report_queue = ReportQueue(RealWorld(), allocations)
    for id in allocations.updates:
        report_queue.mark_changed(id)
    first = report_queue.take_next_report()
    report_queue.on_rejected(is_too_large=True)

    second = report_queue.take_next_report()

    assert first is not None
    assert second is not None
    assert len(second.allocations) == (len(first.allocations) + 1) // 2


def test_a_full_report_leaves_out_acknowledged_ends_that_servers_still_have() -> None:
    allocations = FakeAllocations(6, running={0})
    report_queue = ReportQueue(RealWorld(), allocations)
    allocations.acknowledged = ["a1", "a2", "a3", "a4"]
    report_queue.request_full_report()
    assert report_queue.is_full_report_due

    # Servers lack the end of a2, for example because an older copy of the log was restored.
    report_queue.begin_full_report({"a0", "a2"})
    (report,) = accept_all_reports(report_queue)

    assert (["a0", "a2", "a5"], True) == (ids(report), report.is_whole)
    assert not report_queue.is_full_report_due


def test_a_full_report_that_is_rejected_must_be_limited_again() -> None:
    allocations = FakeAllocations(2, running=set())
    report_queue = ReportQueue(RealWorld(), allocations)
    allocations.acknowledged = ["a0", "a1"]
    report_queue.request_full_report()
    report_queue.begin_full_report(set())
    assert report_queue.take_next_report() is not None
    report_queue.on_rejected()

    assert report_queue.is_full_report_due


def numbers(*reports: NodeReportRequest) -> list[int]:
    return [report.number for report in reports]


def test_report_numbers_begin_at_the_number_from_the_servers_and_never_decrease() -> None:
    allocations = FakeAllocations(5, running={0, 1, 2, 3, 4})
    report_queue = ReportQueue(RealWorld(), allocations)
    report_queue.start_numbering(40)
    reports = []
    for id in allocations.updates:
        report_queue.skip_to_number({"a2": 70, "a3": 7}.get(id, 0))
        report_queue.mark_changed(id)
        reports += accept_all_reports(report_queue)

    assert numbers(*reports) == [40, 41, 70, 71, 72]


def test_a_report_without_reply_is_rebuilt_when_a_higher_first_number_makes_it_outdated() -> None:
    allocations = FakeAllocations(1, running={0})
    report_queue = ReportQueue(RealWorld(), allocations)
    report_queue.start_numbering(40)
    report_queue.mark_changed("a0")
    outdated = report_queue.take_next_report()
    assert outdated is not None
    assert report_queue.take_next_report() is outdated

    report_queue.skip_to_number(90)

    (rebuilt,) = accept_all_reports(report_queue)
    assert (rebuilt.number, rebuilt.allocations, rebuilt.report_id != outdated.report_id) == (
        90,
        outdated.allocations,
        True,
    )


def test_reports_are_not_numbered_before_a_server_has_assigned_a_first_number() -> None:
    allocations = FakeAllocations(1, running={0})
    report_queue = ReportQueue(RealWorld(), allocations)
    report_queue.start_numbering(0)
    report_queue.skip_to_number(90)
    report_queue.mark_changed("a0")

    assert numbers(*accept_all_reports(report_queue)) == [0]


def test_changes_are_reported_in_requests_that_servers_decode_without_a_copy_of_their_process() -> None:
    count = 1_000
    allocations = FakeAllocations(count, running=set(range(count)))
    report_queue = ReportQueue(RealWorld(), allocations)
    for allocation_id in allocations.list_allocations():
        report_queue.mark_changed(allocation_id)

    reports = accept_all_reports(report_queue)

    assert ids(*reports) == sorted(allocations.list_allocations())
    assert not any(is_large_body(msgspec.json.encode(each), "NodeReportRequest") for each in reports)
