"""Nodes: registration, heartbeats, missed heartbeats, reconnects and reports (scheduling.md 9, nodes-allocations.md 1)."""

import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group_with_services, a_job, a_service, a_system_job
from tests.kit.state import SECOND_NS, SECRET, AState, a_node
from wharf.cluster.engines.port import WriteConflict
from wharf.cluster.operations.nodes import evaluations, registration, reports
from wharf.cluster.operations.nodes import status as nodes
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, NODE_PLACEMENTS, NODES, SERVICES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.nodes.node import (
    DrainStrategy,
    DriverInfo,
    Node,
    NodeEvent,
    NodeEventSubsystem,
    NodeStatus,
    SchedulingEligibility,
)
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.secrets import hash_secret
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.model.times import to_datetime

MANY = 100


def register(state: AState, node: Node) -> nodes.NodeWriteResult:
    return state.lead(registration.register_node(state.replica, node, state.moment, max_evaluations=MANY))


def send_heartbeat(state: AState) -> nodes.NodeWriteResult:
    return state.lead(nodes.mark_node_reachable(state.replica, "node-1", state.moment, max_evaluations=MANY))


def miss_heartbeat(state: AState) -> nodes.NodeWriteResult:
    return state.lead(nodes.mark_heartbeat_missed(state.replica, "node-1", state.moment, max_evaluations=MANY))


def set_eligible(state: AState, eligible: bool) -> nodes.NodeWriteResult:
    return state.lead(nodes.set_node_eligibility(state.replica, "node-1", eligible, state.moment, max_evaluations=MANY))


def report(
    state: AState, *result: AllocationReport, node_id: str = "node-1", is_whole: bool = False
) -> nodes.NodeWriteResult:
    decision = reports.apply_reports(
        state.replica, node_id, result, state.moment, is_complete=is_whole, max_evaluations=MANY
    )
    return state.lead(decision)


def report_running(allocation_id: str = "a1") -> AllocationReport:
    return AllocationReport(id=allocation_id, client_status=ClientStatus.RUNNING)


def make_report(status: ClientStatus, allocation_id: str = "a1") -> AllocationReport:
    return AllocationReport(id=allocation_id, client_status=status)


def get_capacity_version(state: AState) -> int:
    return state.replica.get_version(NODE_PLACEMENTS, "node-1")


def list_triggers(state: AState, job_id: str = "shop") -> list[str]:
    return [evaluation.triggered_by for evaluation in state.evaluations(job_id)]


def make_state(**fields: Any) -> tuple[AState, Allocation]:
    """Return a state with a ready node that runs one service allocation, and the allocation."""
    state = AState()
    state.with_node()
    services = (a_service("web", port_label="http"), a_service("web", port_label="admin"))
    state.register(a_job("shop", a_group_with_services(*services)))
    state.end_evaluations()
    allocation = state.with_allocation(state.job(), **{"client_status": ClientStatus.RUNNING, **fields})
    return state, allocation


# -- registering


def test_a_new_node_is_initializing_with_a_first_event() -> None:
    state = AState()

    result = register(state, a_node())

    node = state.node()
    assert (node.status, node.create_index) == ("initializing", result.index)
    assert [event.message for event in node.events or ()] == ["Node registered"]
    assert node.status_updated_at == state.now_ns // SECOND_NS
    assert get_capacity_version(state) == result.index


def test_a_node_cannot_set_fields_that_only_servers_set() -> None:
    result = a_node(
        status=NodeStatus.READY,
        scheduling_eligibility=SchedulingEligibility.INELIGIBLE,
        drain=True,
        drain_strategy=DrainStrategy(),
        last_missed_heartbeat_index=9,
        last_alloc_update_index=9,
        create_index=9,
    )
    state = AState()

    register(state, result)
    send_heartbeat(state)
    register(state, result)

    node = state.node()
    assert (node.status, node.scheduling_eligibility, node.drain, node.drain_strategy) == (
        "ready",
        "eligible",
        False,
        None,
    )
    assert [event.message for event in node.events or ()] == ["Node registered"]
    assert (node.last_missed_heartbeat_index, node.last_alloc_update_index) == (0, 0)


def test_events_that_a_node_sends_are_stored_once() -> None:
    state = AState()
    register(state, a_node())
    trouble = NodeEvent(message="the disk is full", subsystem=NodeEventSubsystem.STORAGE, timestamp=to_datetime(5))
    for _ in range(2):
        register(state, a_node(events=(trouble,)))
    register(state, a_node(events=(trouble, NodeEvent(message="there is room", timestamp=to_datetime(6)))))

    messages = [event.message for event in state.node().events or ()]
    assert messages == ["Node registered", "the disk is full", "there is room"]


def test_an_unchanged_registration_writes_nothing() -> None:
    state = AState()
    register(state, a_node())
    send_heartbeat(state)
    index = state.replica.index

    register(state, a_node())

    assert state.replica.index == index


def test_a_repeated_registration_keeps_the_fields_that_servers_set() -> None:
    state = AState()
    register(state, a_node())
    send_heartbeat(state)
    set_eligible(state, eligible=False)

    register(state, a_node(attributes={"kernel.name": "linux"}))

    node = state.node()
    assert (node.scheduling_eligibility, node.attributes) == ("ineligible", {"kernel.name": "linux"})


@pytest.mark.parametrize("node", [a_node(id=""), a_node(secret_digest="")])
def test_a_node_without_an_id_or_a_secret_is_refused(node: Node) -> None:
    with pytest.raises(Refusal) as caught:
        register(AState(), node)

    assert caught.value.code is RefusalCode.INVALID


def test_a_registration_with_another_secret_is_refused() -> None:
    state = AState()
    register(state, a_node())

    with pytest.raises(Refusal) as caught:
        register(state, a_node(secret_digest=hash_secret("another")))

    assert caught.value.code is RefusalCode.FORBIDDEN
    assert state.node().secret_digest == hash_secret(SECRET)


def test_a_fingerprint_with_unchanged_capacity_does_not_invalidate_plans() -> None:
    state = AState()
    register(state, a_node())
    send_heartbeat(state)
    before = get_capacity_version(state)

    register(state, a_node(attributes={"a": "b"}))

    assert get_capacity_version(state) == before


def test_a_node_with_less_capacity_invalidates_plans() -> None:
    state = AState()
    register(state, a_node())
    send_heartbeat(state)

    result = register(state, a_node(cpu=500))

    assert get_capacity_version(state) == result.index


def test_a_changed_fingerprint_evaluates_the_jobs_of_the_node() -> None:
    state, _ = make_state()

    register(state, a_node(attributes={"a": "b"}))

    assert list_triggers(state) == ["job-register", "node-update"]


def test_a_new_driver_timestamp_evaluates_no_job() -> None:
    state = AState()
    noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    state.with_node(drivers={"exec": DriverInfo(detected=True, update_time=noon)})
    state.register(a_system_job("agent"))
    state.end_evaluations("agent")

    later = noon + datetime.timedelta(hours=1)
    register(state, a_node(drivers={"exec": DriverInfo(detected=True, update_time=later)}))

    assert list_triggers(state, "agent") == ["job-register"]


def test_a_node_of_an_unknown_pool_is_not_ready() -> None:
    state = AState()
    register(state, a_node(node_pool="gpu"))

    send_heartbeat(state)

    node = state.node()
    assert node.status == "initializing"
    assert [event.message for event in node.events or ()] == [
        "Node registered but waiting for node pool to be created",
    ]


# -- heartbeats


def test_the_first_heartbeat_makes_a_node_ready_and_evaluates_system_jobs() -> None:
    state = AState()
    state.register(a_system_job("agent"))
    state.end_evaluations("agent")
    register(state, a_node())

    result = send_heartbeat(state)

    assert state.node().status == "ready"
    assert get_capacity_version(state) == result.index
    evaluation = state.evaluations("agent")[-1]
    assert (evaluation.triggered_by, evaluation.node_id, evaluation.node_modify_index) == (
        EvaluationTrigger.NODE_UPDATE,
        "node-1",
        result.index,
    )
    assert result.eval_ids == (evaluation.id,)


@pytest.mark.parametrize("elsewhere", [{"datacenters": ("dc9",)}, {"node_pool": "all", "stop": True}])
def test_a_system_job_that_excludes_the_node_is_not_evaluated(elsewhere: dict[str, Any]) -> None:
    state = AState()
    state.register(a_system_job("agent", **elsewhere))
    register(state, a_node())

    send_heartbeat(state)

    assert list_triggers(state, "agent") == ["job-register"]


def test_a_heartbeat_of_an_unknown_node_is_not_found() -> None:
    with pytest.raises(Refusal) as caught:
        send_heartbeat(AState())

    assert (caught.value.code, caught.value.text) == (RefusalCode.NOT_FOUND, "node not found")


def test_a_node_that_misses_heartbeats_is_down_and_its_jobs_are_evaluated() -> None:
    state, _ = make_state()
    state.register(a_batch_job("done"))
    state.end_evaluations("done")
    state.with_allocation(state.job("done"), "a2", client_status=ClientStatus.COMPLETE)

    result = miss_heartbeat(state)

    node = state.node()
    assert (node.status, node.last_missed_heartbeat_index) == ("down", result.index)
    assert [event.message for event in node.events or ()] == ["Node heartbeat missed"]
    assert get_capacity_version(state) == result.index
    assert (list_triggers(state)[-1], list_triggers(state, "done")) == ("node-update", ["job-register"])


def test_a_down_or_deleted_node_is_not_marked_down_again() -> None:
    state = AState()
    state.with_node()
    miss_heartbeat(state)
    index = state.replica.index

    miss_heartbeat(state)
    state.put(NODES.build_delete("node-1"))
    miss_heartbeat(state)

    assert state.replica.index == index + 1


def test_a_returning_node_without_allocations_is_ready_at_once() -> None:
    state = AState()
    state.with_node()
    miss_heartbeat(state)

    result = send_heartbeat(state)

    node = state.node()
    assert (node.status, node.last_missed_heartbeat_index) == ("ready", 0)
    assert [event.message for event in node.events or ()][-1] == "Node reregistered by heartbeat"
    assert (get_capacity_version(state), result.must_report) == (result.index, False)


def test_a_registration_after_a_down_status_adds_a_node_event() -> None:
    state = AState()
    state.with_node()
    miss_heartbeat(state)

    register(state, a_node())

    assert [event.message for event in state.node().events or ()][-1] == "Node re-registered"


def test_a_returning_node_with_allocations_must_report_before_it_is_ready() -> None:
    state, allocation = make_state()
    miss_heartbeat(state)
    state.put_led(
        ALLOCATIONS.build_put(replace(allocation, client_status=ClientStatus.LOST, desired_status=DesiredStatus.STOP))
    )

    first = send_heartbeat(state)
    second = send_heartbeat(state)

    assert (state.node().status, first.must_report, second.must_report) == ("initializing", True, True)

    report(state, report_running())
    assert state.node().status == "initializing"

    result = report(state, make_report(ClientStatus.COMPLETE), is_whole=True)
    node = state.node()
    assert (node.status, node.last_missed_heartbeat_index, node.last_alloc_update_index) == ("ready", 0, result.index)
    assert get_capacity_version(state) == result.index


def test_a_purged_node_that_registers_again_must_report_before_it_is_ready() -> None:
    state, allocation = make_state()
    state.lead(registration.purge_node(state.replica, "node-1", state.moment, max_evaluations=MANY))
    state.put_led(
        ALLOCATIONS.build_put(replace(allocation, client_status=ClientStatus.LOST, desired_status=DesiredStatus.STOP))
    )

    registered = register(state, a_node())
    result = send_heartbeat(state)
    assert (state.node().status, registered.must_report, result.must_report) == ("initializing", True, True)

    report(state, report_running(), is_whole=True)
    assert state.node().status == "ready"


def test_a_purged_node_whose_allocations_have_ended_is_ready_at_its_first_heartbeat() -> None:
    state, _ = make_state(client_status=ClientStatus.COMPLETE)
    state.lead(registration.purge_node(state.replica, "node-1", state.moment, max_evaluations=MANY))

    registered = register(state, a_node())
    result = send_heartbeat(state)

    assert (state.node().status, registered.must_report, result.must_report) == ("ready", False, False)


def test_a_full_report_without_allocations_makes_a_returning_node_ready() -> None:
    state, _ = make_state()
    miss_heartbeat(state)
    send_heartbeat(state)

    report(state, is_whole=True)

    assert state.node().status == "ready"


def test_a_failure_in_the_report_that_makes_a_node_ready_evaluates_its_job_once() -> None:
    state, _ = make_state()
    state.put_led(NODES.build_put(replace(state.node(), status=NodeStatus.INITIALIZING)))
    before = list_triggers(state)

    report(state, make_report(ClientStatus.FAILED), is_whole=True)

    assert state.node().status == "ready"
    assert list_triggers(state)[len(before) :] == ["alloc-failure"]


def test_a_full_report_does_not_make_a_node_of_an_unknown_pool_ready() -> None:
    state = AState()
    register(state, a_node(node_pool="gpu"))

    report(state, is_whole=True)

    assert state.node().status == "initializing"


# -- eligibility


def test_making_a_node_ineligible_invalidates_plans_and_evaluates_no_job() -> None:
    state, _ = make_state()

    result = set_eligible(state, eligible=False)

    assert state.node().scheduling_eligibility == "ineligible"
    assert (get_capacity_version(state), result.eval_ids) == (result.index, ())
    assert [event.message for event in state.node().events or ()] == ["Node marked as ineligible for scheduling"]


def test_making_a_node_eligible_evaluates_its_jobs() -> None:
    state, _ = make_state()
    set_eligible(state, eligible=False)

    result = set_eligible(state, eligible=True)

    assert result.eval_ids == (state.evaluations()[-1].id,)
    assert get_capacity_version(state) == result.index


def test_an_unchanged_eligibility_writes_nothing() -> None:
    state, _ = make_state()
    index = state.replica.index

    result = set_eligible(state, eligible=True)

    assert (result.index, state.replica.index) == (0, index)


def test_a_draining_node_cannot_be_made_eligible() -> None:
    state = AState()
    ineligible = SchedulingEligibility.INELIGIBLE
    state.with_node(drain=True, drain_strategy=DrainStrategy(), scheduling_eligibility=ineligible)

    with pytest.raises(Refusal, match="can not set node's scheduling eligibility to eligible while it is draining"):
        set_eligible(state, eligible=True)


# -- reports


def test_a_report_is_stored_with_its_derived_changes() -> None:
    state, _ = make_state(create_time=5)

    result = report(
        state,
        AllocationReport(id="a1", client_status=ClientStatus.FAILED, client_description="Failed tasks", task_states={}),
    )

    allocation = state.allocation("a1")
    assert (allocation.client_status, allocation.client_description) == ("failed", "Failed tasks")
    assert (allocation.modify_index, allocation.modify_time) == (result.index, state.now_ns)
    assert allocation.alloc_modify_index < result.index
    assert state.summary().summary["web"].failed == 1


def test_a_failed_allocation_evaluates_its_job_once() -> None:
    state, _ = make_state()
    state.with_allocation(state.job(), "a2", client_status=ClientStatus.RUNNING)

    report(state, make_report(ClientStatus.FAILED), make_report(ClientStatus.FAILED, "a2"))

    assert list_triggers(state) == ["job-register", "alloc-failure"]


def test_a_service_allocation_that_completed_without_a_stop_evaluates_its_job() -> None:
    state, _ = make_state()

    report(state, make_report(ClientStatus.COMPLETE))

    assert list_triggers(state) == ["job-register", "alloc-failure"]


def test_stopped_service_and_completed_batch_allocations_evaluate_no_job() -> None:
    state, _ = make_state(desired_status=DesiredStatus.STOP)
    state.register(a_batch_job("sums"))
    state.end_evaluations("sums")
    state.with_allocation(state.job("sums"), "b1", client_status=ClientStatus.RUNNING)

    report(state, make_report(ClientStatus.COMPLETE), make_report(ClientStatus.COMPLETE, "b1"))

    assert (list_triggers(state), list_triggers(state, "sums")) == (["job-register"], ["job-register"])


def test_a_failed_allocation_of_a_stopped_job_evaluates_nothing() -> None:
    state, _ = make_state()
    state.register(a_job(stop=True))
    state.end_evaluations()
    count = len(state.evaluations())

    report(state, make_report(ClientStatus.FAILED))

    assert len(state.evaluations()) == count


def test_a_repeated_report_writes_nothing() -> None:
    state, _ = make_state()
    report(state, make_report(ClientStatus.COMPLETE))
    index = state.replica.index

    report(state, make_report(ClientStatus.COMPLETE))

    assert state.replica.index == index


def test_a_late_report_changes_nothing() -> None:
    state, _ = make_state()
    report(state, make_report(ClientStatus.COMPLETE))
    index = state.replica.index

    report(state, report_running())

    assert (state.allocation("a1").client_status, state.replica.index) == ("complete", index)


def test_a_report_about_an_allocation_of_another_node_changes_nothing() -> None:
    state, _ = make_state()
    state.with_node("node-2")
    index = state.replica.index

    report(state, make_report(ClientStatus.FAILED), node_id="node-2")

    assert (state.allocation("a1").client_status, state.replica.index) == ("running", index)


def test_a_report_about_a_deleted_allocation_changes_nothing() -> None:
    state, _ = make_state()
    index = state.replica.index

    report(state, report_running("a9"))

    assert state.replica.index == index


def test_the_last_entry_of_an_allocation_in_a_report_applies() -> None:
    state, _ = make_state()

    report(state, report_running(), make_report(ClientStatus.COMPLETE))

    assert state.allocation("a1").client_status == "complete"


def test_a_report_of_an_unknown_node_is_refused() -> None:
    with pytest.raises(Refusal, match="node not found"):
        report(AState(), report_running())


@pytest.mark.parametrize("status", [NodeStatus.DOWN, NodeStatus.DISCONNECTED])
def test_a_report_of_a_down_or_disconnected_node_is_refused(status: NodeStatus) -> None:
    state, _ = make_state()
    state.put(NODES.build_put(replace(state.node(), status=status)))

    with pytest.raises(Refusal) as caught:
        report(state, make_report(ClientStatus.FAILED))

    assert caught.value.code is RefusalCode.INVALID
    assert state.allocation("a1").client_status == "running"


def test_a_lost_allocation_that_runs_occupies_its_node_again() -> None:
    state, _ = make_state(client_status=ClientStatus.LOST)
    before = get_capacity_version(state)

    result = report(state, report_running())

    assert get_capacity_version(state) == result.index > before


def test_a_report_without_new_occupancy_does_not_invalidate_plans() -> None:
    state, _ = make_state()
    before = get_capacity_version(state)

    report(state, make_report(ClientStatus.COMPLETE))

    assert get_capacity_version(state) == before


def test_a_report_conflicts_with_a_concurrent_change_of_its_allocation() -> None:
    state, allocation = make_state()
    result = [make_report(ClientStatus.COMPLETE)]
    decision = reports.apply_reports(
        state.replica, "node-1", result, state.moment, is_complete=False, max_evaluations=MANY
    )
    state.put(ALLOCATIONS.build_put(replace(allocation, desired_status=DesiredStatus.STOP)))
    assert decision.write is not None

    assert isinstance(state.try_commit(decision.write), WriteConflict)


# -- more jobs than fit in one write


def jobs_with_open_evaluations(state: AState) -> set[str]:
    return {e.job_id for e in state.replica.iter_all(EVALUATIONS) if not e.status.is_terminal}


def make_state_with_many_jobs(count: int) -> AState:
    state = AState()
    state.with_node()
    for number in range(count):
        state.register(a_job(f"job-{number}"))
        state.end_evaluations(f"job-{number}")
        state.with_allocation(state.job(f"job-{number}"), f"a{number}", client_status=ClientStatus.RUNNING)
    return state


def test_a_node_with_many_jobs_goes_down_in_one_write_and_the_remaining_jobs_follow() -> None:
    state = make_state_with_many_jobs(10)

    state.lead(nodes.mark_heartbeat_missed(state.replica, "node-1", state.moment, max_evaluations=3))
    found = [len(jobs_with_open_evaluations(state))]
    while (
        write := evaluations.evaluate_remaining_jobs(state.replica, "node-1", state.moment, max_evaluations=3)
    ) is not None:
        state.lead(write)
        found.append(len(jobs_with_open_evaluations(state)))

    assert found == [3, 6, 9, 10]


def test_system_jobs_missing_on_a_ready_node_are_evaluated() -> None:
    state = AState()
    for number in range(3):
        state.register(a_system_job(f"agent-{number}"))
        state.end_evaluations(f"agent-{number}")
    register(state, a_node())

    state.lead(nodes.mark_node_reachable(state.replica, "node-1", state.moment, max_evaluations=1))
    while (
        write := evaluations.evaluate_remaining_jobs(state.replica, "node-1", state.moment, max_evaluations=1)
    ) is not None:
        state.lead(write)

    assert jobs_with_open_evaluations(state) == {"agent-0", "agent-1", "agent-2"}


def test_no_job_remains_after_all_were_evaluated() -> None:
    state, _ = make_state()

    assert evaluations.evaluate_remaining_jobs(state.replica, "node-1", state.moment, max_evaluations=1) is None
    assert evaluations.evaluate_remaining_jobs(state.replica, "nobody", state.moment, max_evaluations=1) is None


HTTP = "_nomad-task-a1-group-web-web-http"
ADMIN = "_nomad-task-a1-group-web-web-admin"
"""The ids of the registrations of the services in `make_state`."""


def make_instance(port: int, id: str = HTTP, **fields: Any) -> ServiceRegistration:
    return ServiceRegistration(id=id, service_name="web", namespace="default", port=port, **fields)


def get_service_ports(state: AState) -> dict[str, int]:
    return {each.id: each.port for each in state.replica.iter_all(SERVICES)}


def test_reported_services_become_the_registrations_of_the_allocation() -> None:
    state, allocation = make_state()

    report(state, replace(report_running(), services=(make_instance(1), make_instance(2, ADMIN))))
    assert get_service_ports(state) == {HTTP: 1, ADMIN: 2}
    report(state, report_running())  # The report does not cover services.
    assert get_service_ports(state) == {HTTP: 1, ADMIN: 2}
    report(state, replace(report_running(), services=(make_instance(3),)))
    assert get_service_ports(state) == {HTTP: 3}
    report(state, make_report(ClientStatus.COMPLETE))
    assert get_service_ports(state) == {}
    assert allocation.id == "a1"


def test_the_owner_of_a_service_is_taken_from_the_stored_allocation() -> None:
    state, allocation = make_state()
    result = replace(make_instance(1, node_id="other", job_id="other", alloc_id="other"), namespace="secret")

    report(state, replace(report_running(), services=(result,)))

    (listed,) = state.replica.iter_all(SERVICES)
    assert (listed.namespace, listed.node_id, listed.job_id, listed.alloc_id) == (
        allocation.namespace,
        "node-1",
        allocation.job_id,
        "a1",
    )


def test_repeated_services_change_nothing() -> None:
    state, _ = make_state()
    report(state, replace(report_running(), services=(make_instance(1),)))
    index = state.replica.get_last_change(SERVICES)

    report(state, replace(report_running(), services=(make_instance(1),)))

    assert state.replica.get_last_change(SERVICES) == index


def test_services_of_a_down_node_are_deleted() -> None:
    state, _ = make_state()
    report(state, replace(report_running(), services=(make_instance(1), make_instance(2, ADMIN))))
    miss_heartbeat(state)

    while (
        write := evaluations.evaluate_remaining_jobs(state.replica, "node-1", state.moment, max_evaluations=1)
    ) is not None:
        state.lead(write)

    assert get_service_ports(state) == {}


@pytest.mark.parametrize("is_down", [True, False])
def test_a_registration_evaluates_system_jobs_if_the_status_of_the_node_changes(*, is_down: bool) -> None:
    state = AState()
    state.with_node()
    state.register(a_system_job("agent"))
    if is_down:
        miss_heartbeat(state)
    before = len(state.evaluations("agent"))

    register(state, a_node())

    assert len(state.evaluations("agent")) == before + is_down
