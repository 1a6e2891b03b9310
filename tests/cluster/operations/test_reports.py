"""Outdated reports of nodes, and how they are refused (ADR 64)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.state import AState, a_node
from wharf.cluster.operations.nodes import registration, reports
from wharf.cluster.operations.nodes import status as nodes
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.state.tables import NODES, SERVICES
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.services import ServiceRegistration

MANY = 100
PENDING, RUNNING, COMPLETE = ClientStatus.PENDING, ClientStatus.RUNNING, ClientStatus.COMPLETE
WEB = ServiceRegistration(id="s1", namespace="default", service_name="web")


def begin(state: AState) -> int:
    """The node's agent begins: from where on it is to number its reports."""
    told = a_node(reports_from=1)
    return state.lead(registration.register_node(state.replica, told, state.moment, max_evaluations=MANY)).reports_from


def report(
    state: AState,
    number: int,
    status: ClientStatus | None = RUNNING,
    *,
    services: tuple[ServiceRegistration, ...] | None = None,
    is_whole: bool = False,
) -> nodes.NodeWriteResult:
    told = [AllocationReport(id="a1", client_status=status, services=services)] if status is not None else []
    return state.lead(
        reports.apply_reports(
            state.replica,
            "node-1",
            told,
            state.moment,
            is_complete=is_whole,
            max_evaluations=MANY,
            report_number=number,
        )
    )


def refusal_of(state: AState, number: int, status: ClientStatus = RUNNING) -> str:
    index = state.replica.index
    with pytest.raises(Refusal) as refused:
        report(state, number, status)
    assert (refused.value.code, state.replica.index) == (RefusalCode.INVALID, index)
    return refused.value.text


def with_work(**fields: Any) -> tuple[AState, int]:
    """A ready node on which one allocation runs, and the first number of its reports."""
    state = AState()
    first = begin(state)
    state.put(NODES.build_put(replace(state.node(), status=NodeStatus.READY)))
    state.register(a_job())
    state.end_evaluations()
    state.with_allocation(state.job(), **{"client_status": RUNNING, **fields})
    return state, first


def lose_contact(state: AState) -> None:
    """What runs there may go on for a while."""
    state.lead(nodes.mark_heartbeat_missed(state.replica, "node-1", state.moment, max_evaluations=MANY))
    state.with_client_status("a1", ClientStatus.UNKNOWN)


def come_back(state: AState) -> int:
    return state.lead(
        nodes.mark_node_reachable(state.replica, "node-1", state.moment, max_evaluations=MANY)
    ).reports_from


def test_a_report_that_is_older_than_what_is_known_is_refused_and_says_what_to_do() -> None:
    state, first = with_work()
    report(state, first + 1, PENDING)  # Its only task waits for a restart.

    assert refusal_of(state, first) == (
        f"report {first} is outdated: allocation a1 has report {first + 1}; "
        "register again and number the report as the reply says"
    )
    assert state.allocation("a1").client_status == "pending"


def test_the_same_report_again_is_taken_already() -> None:
    state, first = with_work()
    report(state, first, PENDING)
    index = state.replica.index

    report(state, first, PENDING)

    assert state.replica.index == index


def test_after_a_whole_report_all_before_it_is_old_whatever_it_speaks_of() -> None:
    state, first = with_work()
    report(state, first + 1, is_whole=True)  # It finds all as it is known, so no allocation keeps its number.

    assert "count from" in refusal_of(state, first, PENDING)
    assert report(state, first + 2, PENDING).index == state.replica.index


def test_what_a_node_said_before_it_was_given_up_is_old_when_it_is_back() -> None:
    state, first = with_work()
    report(state, first, PENDING)
    report(state, first + 1)
    lose_contact(state)

    again = come_back(state)

    refusal_of(state, first + 2)
    assert state.allocation("a1").client_status == "unknown"
    report(state, again)
    assert state.allocation("a1").client_status == "running"


def test_an_agent_that_remembers_nothing_begins_above_all_that_was_said() -> None:
    state, first = with_work()
    report(state, first + 7, PENDING)

    second = begin(state)

    refusal_of(state, first + 8)
    assert second > first + 8
    report(state, second)
    assert state.allocation("a1").client_status == "running"


def test_where_an_older_log_was_put_back_a_beginning_is_above_what_stands_in_it() -> None:
    state, first = with_work()
    far = first + 1_000 * reports.REPORT_NUMBERS_PER_INDEX
    report(state, far, PENDING)  # As by a node that counts on from before.

    assert begin(state) == far + 1


def test_each_start_of_an_agent_has_a_beginning_of_its_own_and_other_news_have_none() -> None:
    state = AState()
    first, second = begin(state), begin(state)

    told = a_node(attributes={"kernel.name": "linux"})
    news = state.lead(registration.register_node(state.replica, told, state.moment, max_evaluations=MANY))

    assert first < second == news.reports_from == state.node().reports_from


def test_what_was_said_of_services_alone_is_known_as_newer_too() -> None:
    state, first = with_work()
    report(state, first, services=(WEB,))
    report(state, first + 2, services=())

    refusal_of(state, first + 1)

    assert [] == list(state.replica.iter_all(SERVICES))
    assert state.allocation("a1").report_number == first + 2


def test_a_report_without_a_number_is_taken_as_ever() -> None:
    state, first = with_work()
    report(state, first, PENDING)

    report(state, 0)

    allocation = state.allocation("a1")
    assert (allocation.client_status, allocation.report_number) == ("running", first)


def test_a_node_that_was_never_told_numbers_gets_none_when_it_is_back() -> None:
    state = AState()
    state.with_node()
    state.register(a_job())
    state.with_allocation(state.job(), client_status=RUNNING)
    lose_contact(state)

    assert come_back(state) == 0


def test_what_was_lost_and_is_there_after_all_holds_its_room_until_its_node_has_stopped_it() -> None:
    state, first = with_work(client_status=ClientStatus.LOST, desired_status=DesiredStatus.STOP)

    report(state, first, PENDING)  # Its task may begin before the node hears that it is to stop.
    assert state.allocation("a1").is_occupying
    report(state, first + 1, RUNNING)
    report(state, first + 2, COMPLETE)

    assert not state.allocation("a1").is_occupying
