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


def register_agent(state: AState) -> int:
    """Register a started agent; return the first number of its reports."""
    result = a_node(reports_from=1)
    return state.lead(
        registration.register_node(state.replica, result, state.moment, max_evaluations=MANY)
    ).reports_from


def send_report(
    state: AState,
    number: int,
    status: ClientStatus | None = RUNNING,
    *,
    services: tuple[ServiceRegistration, ...] | None = None,
    is_whole: bool = False,
) -> nodes.NodeWriteResult:
    """Apply a report of the node with this number. Without a status, it has no allocation."""
    result = [AllocationReport(id="a1", client_status=status, services=services)] if status is not None else []
    return state.lead(
        reports.apply_reports(
            state.replica,
            "node-1",
            result,
            state.moment,
            is_complete=is_whole,
            max_evaluations=MANY,
            report_number=number,
        )
    )


def expect_refusal(state: AState, number: int, status: ClientStatus = RUNNING) -> str:
    index = state.replica.index
    with pytest.raises(Refusal) as caught:
        send_report(state, number, status)
    assert (caught.value.code, state.replica.index) == (RefusalCode.INVALID, index)
    return caught.value.text


def make_state(**fields: Any) -> tuple[AState, int]:
    """Return a state with a ready node that runs one allocation, and the first number of its reports."""
    state = AState()
    first = register_agent(state)
    state.put(NODES.build_put(replace(state.node(), status=NodeStatus.READY)))
    state.register(a_job())
    state.end_evaluations()
    state.with_allocation(state.job(), **{"client_status": RUNNING, **fields})
    return state, first


def lose_contact(state: AState) -> None:
    """Mark the node disconnected; its allocation tolerates that for some time."""
    state.lead(nodes.mark_heartbeat_missed(state.replica, "node-1", state.moment, max_evaluations=MANY))
    state.with_client_status("a1", ClientStatus.UNKNOWN)


def reconnect(state: AState) -> int:
    return state.lead(
        nodes.mark_node_reachable(state.replica, "node-1", state.moment, max_evaluations=MANY)
    ).reports_from


def test_an_outdated_report_is_refused_with_instructions() -> None:
    state, first = make_state()
    send_report(state, first + 1, PENDING)  # Its only task waits for a restart.

    assert expect_refusal(state, first) == (
        f"report {first} is outdated: allocation a1 has report {first + 1}; "
        "register again and number the report as the reply says"
    )
    assert state.allocation("a1").client_status == "pending"


def test_a_repeated_report_changes_nothing() -> None:
    state, first = make_state()
    send_report(state, first, PENDING)
    index = state.replica.index

    send_report(state, first, PENDING)

    assert state.replica.index == index


def test_after_a_full_report_all_earlier_reports_are_outdated() -> None:
    state, first = make_state()
    send_report(state, first + 1, is_whole=True)  # Nothing differs, so no allocation stores the number.

    assert "count from" in expect_refusal(state, first, PENDING)
    assert send_report(state, first + 2, PENDING).index == state.replica.index


def test_reports_from_before_a_node_was_marked_down_are_outdated() -> None:
    state, first = make_state()
    send_report(state, first, PENDING)
    send_report(state, first + 1)
    lose_contact(state)

    repeated = reconnect(state)

    expect_refusal(state, first + 2)
    assert state.allocation("a1").client_status == "unknown"
    send_report(state, repeated)
    assert state.allocation("a1").client_status == "running"


def test_a_restarted_agent_numbers_reports_above_all_earlier_ones() -> None:
    state, first = make_state()
    send_report(state, first + 7, PENDING)

    second = register_agent(state)

    expect_refusal(state, first + 8)
    assert second > first + 8
    send_report(state, second)
    assert state.allocation("a1").client_status == "running"


def test_after_a_restore_report_numbers_start_above_the_stored_ones() -> None:
    state, first = make_state()
    far = first + 1_000 * reports.REPORT_NUMBERS_PER_INDEX
    send_report(state, far, PENDING)  # The node continues with its earlier numbers.

    assert register_agent(state) == far + 1


def test_only_the_start_of_an_agent_restarts_report_numbers() -> None:
    state = AState()
    first, second = register_agent(state), register_agent(state)

    result = a_node(attributes={"kernel.name": "linux"})
    news = state.lead(registration.register_node(state.replica, result, state.moment, max_evaluations=MANY))

    assert first < second == news.reports_from == state.node().reports_from


def test_a_report_about_services_only_counts_as_newer_too() -> None:
    state, first = make_state()
    send_report(state, first, services=(WEB,))
    send_report(state, first + 2, services=())

    expect_refusal(state, first + 1)

    assert [] == list(state.replica.iter_all(SERVICES))
    assert state.allocation("a1").report_number == first + 2


def test_a_report_without_a_number_is_applied() -> None:
    state, first = make_state()
    send_report(state, first, PENDING)

    send_report(state, 0)

    allocation = state.allocation("a1")
    assert (allocation.client_status, allocation.report_number) == ("running", first)


def test_a_node_without_report_numbers_gets_none_when_it_returns() -> None:
    state = AState()
    state.with_node()
    state.register(a_job())
    state.with_allocation(state.job(), client_status=RUNNING)
    lose_contact(state)

    assert reconnect(state) == 0


def test_a_lost_allocation_that_still_runs_occupies_its_node_until_it_is_stopped() -> None:
    state, first = make_state(client_status=ClientStatus.LOST, desired_status=DesiredStatus.STOP)

    send_report(state, first, PENDING)  # Its task may start before the node receives the stop.
    assert state.allocation("a1").is_occupying
    send_report(state, first + 1, RUNNING)
    send_report(state, first + 2, COMPLETE)

    assert not state.allocation("a1").is_occupying
