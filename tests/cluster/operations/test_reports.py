"""Outdated reports of nodes, and how they are refused (ADR 64)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group_with_services, a_job, a_service, a_system_job
from tests.kit.state import AState, a_node
from wharf.cluster.operations.nodes import registration, reports
from wharf.cluster.operations.nodes import status as nodes
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.state.tables import ALLOCATIONS, NODE_PLACEMENTS, NODES, SERVICES
from wharf.contract.model.allocations.allocation import (
    REPORT_NUMBERS_PER_INDEX,
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
    NetworkStatus,
)
from wharf.contract.model.allocations.logs import MAX_PACKED_BYTES
from wharf.contract.model.allocations.task_states import TaskState, TaskStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.model.times import to_datetime

MANY = 100
PENDING, RUNNING, COMPLETE = ClientStatus.PENDING, ClientStatus.RUNNING, ClientStatus.COMPLETE
WEB = ServiceRegistration(id="_nomad-task-a1-group-web-web-http", namespace="default", service_name="web")


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
    state.register(a_job("shop", a_group_with_services(a_service("web", port_label="http"))))
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
    far = first + 1_000 * REPORT_NUMBERS_PER_INDEX
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


def apply(state: AState, report: AllocationReport, *, is_complete: bool = False) -> nodes.NodeWriteResult:
    return state.lead(
        reports.apply_reports(
            state.replica, "node-1", [report], state.moment, is_complete=is_complete, max_evaluations=MANY
        )
    )


@pytest.mark.parametrize(
    ("status", "tails", "stored"),
    [
        pytest.param(RUNNING, b"new", b"old", id="running"),
        pytest.param(COMPLETE, b"new", b"new", id="ended"),
        pytest.param(COMPLETE, b"", b"old", id="ended without logs"),
        pytest.param(COMPLETE, b"x" * MAX_PACKED_BYTES, b"x" * MAX_PACKED_BYTES, id="the largest"),
        pytest.param(COMPLETE, b"x" * (MAX_PACKED_BYTES + 1), b"old", id="too large"),
    ],
)
def test_the_last_log_lines_are_stored_when_an_allocation_ended_and_they_are_small_enough(
    status: ClientStatus, tails: bytes, stored: bytes
) -> None:
    state, _ = make_state(log_tails=b"old")

    apply(state, AllocationReport(id="a1", client_status=status, client_description="changed", log_tails=tails))

    assert state.allocation("a1").log_tails == stored


@pytest.mark.parametrize(
    ("job", "fields", "status", "is_evaluated"),
    [
        pytest.param(a_job("other"), {}, ClientStatus.FAILED, True, id="failed"),
        pytest.param(a_job("other"), {}, COMPLETE, True, id="a service that completed"),
        pytest.param(a_system_job("other"), {}, COMPLETE, True, id="a system job that completed"),
        pytest.param(a_batch_job("other"), {}, COMPLETE, False, id="a batch job that completed"),
        pytest.param(a_job("other"), {"desired_status": DesiredStatus.STOP}, COMPLETE, False, id="stopped"),
        pytest.param(a_job("other"), {"job_id": "gone"}, COMPLETE, False, id="of a deleted job"),
    ],
)
def test_an_allocation_that_ended_without_being_stopped_is_replaced(
    job: Job, fields: dict[str, Any], status: ClientStatus, is_evaluated: bool
) -> None:
    state, _ = make_state()
    state.register(job)
    state.end_evaluations("other")
    state.with_allocation(state.job("other"), "a2", **{"client_status": RUNNING, **fields})

    apply(state, AllocationReport(id="a2", client_status=status))

    assert bool(state.open_evaluations("other")) is is_evaluated


def test_health_without_a_time_is_stored_with_the_time_of_the_write_and_keeps_the_canary_flag() -> None:
    state, _ = make_state(deployment_status=AllocDeploymentStatus(canary=True))

    apply(
        state, AllocationReport(id="a1", client_status=RUNNING, deployment_status=AllocDeploymentStatus(healthy=True))
    )

    assert state.allocation("a1").deployment_status == AllocDeploymentStatus(
        healthy=True, canary=True, timestamp=to_datetime(state.now_ns), modify_index=state.replica.index
    )


def test_the_time_of_the_node_at_which_the_health_was_decided_is_stored() -> None:
    state, _ = make_state()
    decided = AllocDeploymentStatus(healthy=False, timestamp=to_datetime(7_000))

    apply(state, AllocationReport(id="a1", client_status=RUNNING, deployment_status=decided))

    status = state.allocation("a1").deployment_status
    assert status is not None
    assert (status.healthy, status.timestamp) == (False, to_datetime(7_000))


def test_lost_allocations_that_a_full_report_omits_are_reported_as_complete() -> None:
    state, _ = make_state(client_status=ClientStatus.LOST)
    for allocation_id, status in (("a2", ClientStatus.LOST), ("a3", RUNNING)):
        state.with_allocation(state.job(), allocation_id, client_status=status)

    omitted = reports.build_omitted_reports(state.replica, "node-1", ["a2"])

    assert omitted == [AllocationReport(id="a1", client_status=COMPLETE)]


@pytest.mark.parametrize(
    ("before", "after", "is_written"),
    [
        pytest.param(PENDING, RUNNING, False, id="started"),
        pytest.param(RUNNING, COMPLETE, False, id="ended"),
        pytest.param(ClientStatus.LOST, RUNNING, True, id="runs although it was lost"),
    ],
)
def test_plans_for_a_node_conflict_if_an_ended_allocation_occupies_it_again(
    before: ClientStatus, after: ClientStatus, is_written: bool
) -> None:
    state, _ = make_state(client_status=before)
    version = state.replica.get_version(NODE_PLACEMENTS, "node-1")

    apply(state, AllocationReport(id="a1", client_status=after))

    assert state.allocation("a1").client_status is after
    assert (state.replica.get_version(NODE_PLACEMENTS, "node-1") > version) is is_written


def test_a_report_without_a_description_or_a_network_keeps_the_stored_ones() -> None:
    network = NetworkStatus(interface_name="eth0")
    state, _ = make_state(client_description="stored", network_status=network)

    apply(
        state,
        AllocationReport(id="a1", client_status=RUNNING, task_states={"server": TaskState(state=TaskStatus.RUNNING)}),
    )
    kept = state.allocation("a1")
    other = NetworkStatus(interface_name="eth1")
    apply(state, AllocationReport(id="a1", client_status=RUNNING, client_description="new", network_status=other))

    assert (kept.client_description, kept.network_status) == ("stored", network)
    assert (state.allocation("a1").client_description, state.allocation("a1").network_status) == ("new", other)


def test_a_report_without_a_change_does_not_hide_those_behind_it() -> None:
    state, _ = make_state()
    state.with_allocation(state.job(), "a2", client_status=PENDING)
    sent = [
        AllocationReport(id="unknown", client_status=RUNNING),
        AllocationReport(id="a1", client_status=RUNNING),
        AllocationReport(id="a2", client_status=RUNNING),
    ]

    state.lead(
        reports.apply_reports(state.replica, "node-1", sent, state.moment, is_complete=False, max_evaluations=MANY)
    )

    assert state.allocation("a2").client_status is RUNNING


def test_the_part_of_a_report_that_was_applied_already_does_not_hide_the_rest() -> None:
    state, first = make_state(client_status=PENDING)
    state.with_allocation(state.job(), "a2", client_status=PENDING)
    send_report(state, first)
    sent = [AllocationReport(id="a1", client_status=COMPLETE), AllocationReport(id="a2", client_status=RUNNING)]

    state.lead(
        reports.apply_reports(
            state.replica, "node-1", sent, state.moment, report_number=first, is_complete=False, max_evaluations=MANY
        )
    )

    assert [state.allocation(each).client_status for each in ("a1", "a2")] == [RUNNING, RUNNING]


@pytest.mark.parametrize("highest", ["log", "node", "allocation"])
def test_the_first_report_of_an_agent_has_a_higher_number_than_all_earlier_ones(highest: str) -> None:
    state, _ = make_state()
    numbers = {"node": 7, "allocation": 8} | ({highest: 10**9} if highest != "log" else {})
    state.put(NODES.build_put(replace(state.node(), reports_from=numbers["node"])))
    state.put(ALLOCATIONS.build_put(replace(state.allocation("a1"), report_number=numbers["allocation"])))

    first = reports.compute_first_report_number(state.replica, state.node())

    if highest == "log":
        assert state.replica.index * REPORT_NUMBERS_PER_INDEX < first < 10**9
    else:
        assert first == 10**9 + 1
