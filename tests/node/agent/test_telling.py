"""What a node tells: all that servers ask for, in reports that they can read."""

from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.wire.nodes.messages import AllocationUpdate, NodeReportRequest
from wharf.node.agent.servers.reports import ReportQueue
from wharf.world import RealWorld


class Remembering:
    """So many allocations: those whose number is in `running` run, all others are over and left `tail` behind."""

    def __init__(self, count: int, *, running: set[int], tail: bytes = b"") -> None:
        self.updates = {
            f"a{number}": AllocationUpdate(
                id=f"a{number}",
                client_status=ClientStatus.RUNNING if number in running else ClientStatus.COMPLETE,
                log_tails=b"" if number in running else tail,
            )
            for number in range(count)
        }
        self.settled: list[str] = []

    def list_allocations(self) -> list[str]:
        return list(self.updates)

    def has_allocation(self, allocation_id: str) -> bool:
        return allocation_id in self.updates

    def find_assignment_index(self, allocation_id: str) -> int | None:
        return 1 if allocation_id in self.updates else None

    def build_update(self, allocation_id: str) -> AllocationUpdate:
        return self.updates[allocation_id]

    def on_end_acknowledged(self, allocation_id: str) -> None:
        self.settled.append(allocation_id)


def told(telling: ReportQueue) -> list[NodeReportRequest]:
    """All that it says, each answered at once."""
    said = []
    while (report := telling.next_report()) is not None:
        said.append(report)
        telling.on_accepted(should_send_full_report=False)
    return said


def ids(*reports: NodeReportRequest) -> list[str]:
    return sorted(update.id for report in reports for update in report.allocations)


def test_what_is_asked_for_in_whole_is_over_in_parts_and_all_that_runs_in_the_last_one() -> None:
    work = Remembering(3_500, running={0, 1_700, 3_499})
    telling = ReportQueue(RealWorld(), work)
    telling.request_full_report()

    *parts, whole = told(telling)

    assert [(1_000, False)] * 3 == [(len(part.allocations), part.is_whole) for part in parts]
    assert whole.is_whole
    assert {"a0", "a1700", "a3499"} <= set(ids(whole))
    assert sorted(work.updates) == ids(*parts, whole)
    assert 3_497 == len(work.settled)


def test_what_ends_while_all_is_told_is_told_as_over() -> None:
    work = Remembering(1_500, running={3})
    telling = ReportQueue(RealWorld(), work)
    telling.request_full_report()
    telling.next_report()
    telling.on_accepted(should_send_full_report=True)
    work.updates["a3"] = AllocationUpdate(id="a3", client_status=ClientStatus.FAILED)
    telling.mark_changed("a3")

    (whole,) = told(telling)

    assert (whole.is_whole, len(whole.allocations)) == (True, 500)
    assert [ClientStatus.FAILED] == [each.client_status for each in whole.allocations if each.id == "a3"]


def test_ends_of_logs_never_make_a_report_longer_than_servers_read() -> None:
    work = Remembering(60, running=set(), tail=b"x" * 100_000)
    telling = ReportQueue(RealWorld(), work)
    for id in work.updates:
        telling.mark_changed(id)

    reports = told(telling)

    assert sorted(work.updates) == ids(*reports)
    most = max(sum(len(each.log_tails) for each in report.allocations) for report in reports)
    assert most <= 2_000_000


def test_to_servers_that_read_less_less_is_said_at_once() -> None:
    work = Remembering(60, running=set(), tail=b"x" * 100_000)
    telling = ReportQueue(RealWorld(), work)
    for id in work.updates:
        telling.mark_changed(id)
    first = telling.next_report()
    telling.on_rejected(is_too_large=True)

    second = telling.next_report()

    assert first is not None
    assert second is not None
    assert len(second.allocations) == (len(first.allocations) + 1) // 2


def numbers(*reports: NodeReportRequest) -> list[int]:
    return [report.number for report in reports]


def test_reports_count_on_from_where_servers_say_and_never_back() -> None:
    work = Remembering(5, running={0, 1, 2, 3, 4})
    telling = ReportQueue(RealWorld(), work)
    telling.start_numbering(40)
    said = []
    for id in work.updates:
        telling.skip_to_number({"a2": 70, "a3": 7}.get(id, 0))
        telling.mark_changed(id)
        said += told(telling)

    assert numbers(*said) == [40, 41, 70, 71, 72]


def test_a_report_that_was_not_answered_is_made_anew_where_a_later_beginning_makes_it_old() -> None:
    work = Remembering(1, running={0})
    telling = ReportQueue(RealWorld(), work)
    telling.start_numbering(40)
    telling.mark_changed("a0")
    old = telling.next_report()
    assert old is not None
    assert telling.next_report() is old

    telling.skip_to_number(90)

    (anew,) = told(telling)
    assert (anew.number, anew.allocations, anew.report_id != old.report_id) == (90, old.allocations, True)


def test_reports_have_no_numbers_where_no_server_told_a_beginning_for_this_life() -> None:
    work = Remembering(1, running={0})
    telling = ReportQueue(RealWorld(), work)
    telling.start_numbering(0)
    telling.skip_to_number(90)
    telling.mark_changed("a0")

    assert numbers(*told(telling)) == [0]
