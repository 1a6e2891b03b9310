"""Nodes: registration, heartbeats, missed heartbeats, reconnects and reports (scheduling.md 9, nodes-allocations.md 1)."""

import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_job, a_system_job
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


def beat(state: AState) -> nodes.NodeWriteResult:
    return state.lead(nodes.mark_node_reachable(state.replica, "node-1", state.moment, max_evaluations=MANY))


def miss(state: AState) -> nodes.NodeWriteResult:
    return state.lead(nodes.mark_heartbeat_missed(state.replica, "node-1", state.moment, max_evaluations=MANY))


def set_eligible(state: AState, eligible: bool) -> nodes.NodeWriteResult:
    return state.lead(nodes.set_node_eligibility(state.replica, "node-1", eligible, state.moment, max_evaluations=MANY))


def report(
    state: AState, *told: AllocationReport, node_id: str = "node-1", is_whole: bool = False
) -> nodes.NodeWriteResult:
    decision = reports.apply_reports(
        state.replica, node_id, told, state.moment, is_complete=is_whole, max_evaluations=MANY
    )
    return state.lead(decision)


def running(allocation_id: str = "a1") -> AllocationReport:
    return AllocationReport(id=allocation_id, client_status=ClientStatus.RUNNING)


def of_status(status: ClientStatus, allocation_id: str = "a1") -> AllocationReport:
    return AllocationReport(id=allocation_id, client_status=status)


def placement(state: AState) -> int:
    return state.replica.get_version(NODE_PLACEMENTS, "node-1")


def triggered(state: AState, job_id: str = "shop") -> list[str]:
    return [evaluation.triggered_by for evaluation in state.evaluations(job_id)]


def with_work(**fields: Any) -> tuple[AState, Allocation]:
    """A ready node on which one allocation of a service runs."""
    state = AState()
    state.with_node()
    state.register(a_job())
    state.end_evaluations()
    allocation = state.with_allocation(state.job(), **{"client_status": ClientStatus.RUNNING, **fields})
    return state, allocation


# -- registering


def test_a_new_node_is_initializing_and_its_first_event_says_so() -> None:
    state = AState()

    done = register(state, a_node())

    node = state.node()
    assert (node.status, node.create_index) == ("initializing", done.index)
    assert [event.message for event in node.events or ()] == ["Node registered"]
    assert node.status_updated_at == state.now_ns // SECOND_NS
    assert placement(state) == done.index


def test_a_node_says_nothing_of_what_only_servers_know() -> None:
    told = a_node(
        status=NodeStatus.READY,
        scheduling_eligibility=SchedulingEligibility.INELIGIBLE,
        drain=True,
        drain_strategy=DrainStrategy(),
        last_missed_heartbeat_index=9,
        last_alloc_update_index=9,
        create_index=9,
    )
    state = AState()

    register(state, told)
    beat(state)
    register(state, told)

    node = state.node()
    assert (node.status, node.scheduling_eligibility, node.drain, node.drain_strategy) == (
        "ready",
        "eligible",
        False,
        None,
    )
    assert [event.message for event in node.events or ()] == ["Node registered"]
    assert (node.last_missed_heartbeat_index, node.last_alloc_update_index) == (0, 0)


def test_what_a_node_tells_of_itself_stands_among_its_events_once() -> None:
    state = AState()
    register(state, a_node())
    trouble = NodeEvent(message="the disk is full", subsystem=NodeEventSubsystem.STORAGE, timestamp=to_datetime(5))
    for _ in range(2):
        register(state, a_node(events=(trouble,)))
    register(state, a_node(events=(trouble, NodeEvent(message="there is room", timestamp=to_datetime(6)))))

    messages = [event.message for event in state.node().events or ()]
    assert messages == ["Node registered", "the disk is full", "there is room"]


def test_a_node_that_says_the_same_again_changes_nothing() -> None:
    state = AState()
    register(state, a_node())
    beat(state)
    index = state.replica.index

    register(state, a_node())

    assert state.replica.index == index


def test_a_node_that_registers_again_keeps_what_servers_know_of_it() -> None:
    state = AState()
    register(state, a_node())
    beat(state)
    set_eligible(state, eligible=False)

    register(state, a_node(attributes={"kernel.name": "linux"}))

    node = state.node()
    assert (node.scheduling_eligibility, node.attributes) == ("ineligible", {"kernel.name": "linux"})


@pytest.mark.parametrize("node", [a_node(id=""), a_node(secret_digest="")])
def test_a_node_without_an_id_or_a_secret_is_refused(node: Node) -> None:
    with pytest.raises(Refusal) as refused:
        register(AState(), node)

    assert refused.value.code is RefusalCode.INVALID


def test_a_node_with_another_secret_is_another_node() -> None:
    state = AState()
    register(state, a_node())

    with pytest.raises(Refusal) as refused:
        register(state, a_node(secret_digest=hash_secret("another")))

    assert refused.value.code is RefusalCode.FORBIDDEN
    assert state.node().secret_digest == hash_secret(SECRET)


def test_a_fingerprint_that_changes_no_room_does_not_disturb_plans() -> None:
    state = AState()
    register(state, a_node())
    beat(state)
    before = placement(state)

    register(state, a_node(attributes={"a": "b"}))

    assert placement(state) == before


def test_a_node_that_has_less_disturbs_plans() -> None:
    state = AState()
    register(state, a_node())
    beat(state)

    done = register(state, a_node(cpu=500))

    assert placement(state) == done.index


def test_a_changed_fingerprint_has_the_nodes_jobs_looked_at_again() -> None:
    state, _ = with_work()

    register(state, a_node(attributes={"a": "b"}))

    assert triggered(state) == ["job-register", "node-update"]


def test_a_driver_that_only_says_a_new_time_changes_nothing_to_look_at() -> None:
    state = AState()
    noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    state.with_node(drivers={"exec": DriverInfo(detected=True, update_time=noon)})
    state.register(a_system_job("agent"))
    state.end_evaluations("agent")

    later = noon + datetime.timedelta(hours=1)
    register(state, a_node(drivers={"exec": DriverInfo(detected=True, update_time=later)}))

    assert triggered(state, "agent") == ["job-register"]


def test_a_node_of_a_pool_that_is_not_there_waits_for_it() -> None:
    state = AState()
    register(state, a_node(node_pool="gpu"))

    beat(state)

    node = state.node()
    assert node.status == "initializing"
    assert [event.message for event in node.events or ()] == [
        "Node registered but waiting for node pool to be created",
    ]


# -- heartbeats


def test_the_first_heartbeat_makes_a_node_ready_and_has_system_jobs_placed_there() -> None:
    state = AState()
    state.register(a_system_job("agent"))
    state.end_evaluations("agent")
    register(state, a_node())

    done = beat(state)

    assert state.node().status == "ready"
    assert placement(state) == done.index
    evaluation = state.evaluations("agent")[-1]
    assert (evaluation.triggered_by, evaluation.node_id, evaluation.node_modify_index) == (
        EvaluationTrigger.NODE_UPDATE,
        "node-1",
        done.index,
    )
    assert done.eval_ids == (evaluation.id,)


@pytest.mark.parametrize("elsewhere", [{"datacenters": ("dc9",)}, {"node_pool": "all", "stop": True}])
def test_a_system_job_that_does_not_want_the_node_is_not_looked_at(elsewhere: dict[str, Any]) -> None:
    state = AState()
    state.register(a_system_job("agent", **elsewhere))
    register(state, a_node())

    beat(state)

    assert triggered(state, "agent") == ["job-register"]


def test_a_heartbeat_of_a_node_that_nobody_knows_is_told_so() -> None:
    with pytest.raises(Refusal) as refused:
        beat(AState())

    assert (refused.value.code, refused.value.text) == (RefusalCode.NOT_FOUND, "node not found")


def test_a_silent_node_is_down_and_the_jobs_that_live_there_are_looked_at() -> None:
    state, _ = with_work()
    state.register(a_batch_job("done"))
    state.end_evaluations("done")
    state.with_allocation(state.job("done"), "a2", client_status=ClientStatus.COMPLETE)

    done = miss(state)

    node = state.node()
    assert (node.status, node.last_missed_heartbeat_index) == ("down", done.index)
    assert [event.message for event in node.events or ()] == ["Node heartbeat missed"]
    assert placement(state) == done.index
    assert (triggered(state)[-1], triggered(state, "done")) == ("node-update", ["job-register"])


def test_a_node_that_is_down_already_or_gone_is_not_missed_again() -> None:
    state = AState()
    state.with_node()
    miss(state)
    index = state.replica.index

    miss(state)
    state.put(NODES.build_delete("node-1"))
    miss(state)

    assert state.replica.index == index + 1


def test_a_node_that_comes_back_with_nothing_to_tell_is_ready_at_once() -> None:
    state = AState()
    state.with_node()
    miss(state)

    done = beat(state)

    node = state.node()
    assert (node.status, node.last_missed_heartbeat_index) == ("ready", 0)
    assert [event.message for event in node.events or ()][-1] == "Node reregistered by heartbeat"
    assert (placement(state), done.must_report) == (done.index, False)


def test_a_node_that_registers_after_it_was_down_says_so_in_its_events() -> None:
    state = AState()
    state.with_node()
    miss(state)

    register(state, a_node())

    assert [event.message for event in state.node().events or ()][-1] == "Node re-registered"


def test_a_node_that_may_still_run_something_must_tell_of_it_before_it_gets_more() -> None:
    state, allocation = with_work()
    miss(state)
    state.put_led(
        ALLOCATIONS.build_put(replace(allocation, client_status=ClientStatus.LOST, desired_status=DesiredStatus.STOP))
    )

    first = beat(state)
    second = beat(state)

    assert (state.node().status, first.must_report, second.must_report) == ("initializing", True, True)

    report(state, running())
    assert state.node().status == "initializing"

    done = report(state, of_status(ClientStatus.COMPLETE), is_whole=True)
    node = state.node()
    assert (node.status, node.last_missed_heartbeat_index, node.last_alloc_update_index) == ("ready", 0, done.index)
    assert placement(state) == done.index


def test_a_node_that_ran_something_and_has_forgotten_it_tells_that_it_runs_nothing() -> None:
    state, _ = with_work()
    miss(state)
    beat(state)

    report(state, is_whole=True)

    assert state.node().status == "ready"


def test_a_whole_report_makes_no_node_ready_whose_pool_is_not_there() -> None:
    state = AState()
    register(state, a_node(node_pool="gpu"))

    report(state, is_whole=True)

    assert state.node().status == "initializing"


# -- eligibility


def test_a_node_that_is_no_longer_eligible_disturbs_plans_and_evaluates_nothing() -> None:
    state, _ = with_work()

    done = set_eligible(state, eligible=False)

    assert state.node().scheduling_eligibility == "ineligible"
    assert (placement(state), done.eval_ids) == (done.index, ())
    assert [event.message for event in state.node().events or ()] == ["Node marked as ineligible for scheduling"]


def test_a_node_that_is_eligible_again_has_its_jobs_looked_at() -> None:
    state, _ = with_work()
    set_eligible(state, eligible=False)

    done = set_eligible(state, eligible=True)

    assert done.eval_ids == (state.evaluations()[-1].id,)
    assert placement(state) == done.index


def test_an_eligibility_that_the_node_has_already_writes_nothing() -> None:
    state, _ = with_work()
    index = state.replica.index

    done = set_eligible(state, eligible=True)

    assert (done.index, state.replica.index) == (0, index)


def test_a_node_that_is_drained_cannot_be_made_eligible() -> None:
    state = AState()
    ineligible = SchedulingEligibility.INELIGIBLE
    state.with_node(drain=True, drain_strategy=DrainStrategy(), scheduling_eligibility=ineligible)

    with pytest.raises(Refusal, match="can not set node's scheduling eligibility to eligible while it is draining"):
        set_eligible(state, eligible=True)


# -- reports


def test_a_report_is_taken_over_with_all_that_follows_from_it() -> None:
    state, _ = with_work(create_time=5)

    done = report(
        state,
        AllocationReport(id="a1", client_status=ClientStatus.FAILED, client_description="Failed tasks", task_states={}),
    )

    allocation = state.allocation("a1")
    assert (allocation.client_status, allocation.client_description) == ("failed", "Failed tasks")
    assert (allocation.modify_index, allocation.modify_time) == (done.index, state.now_ns)
    assert allocation.alloc_modify_index < done.index
    assert state.summary().summary["web"].failed == 1


def test_a_failed_allocation_has_its_job_looked_at_once() -> None:
    state, _ = with_work()
    state.with_allocation(state.job(), "a2", client_status=ClientStatus.RUNNING)

    report(state, of_status(ClientStatus.FAILED), of_status(ClientStatus.FAILED, "a2"))

    assert triggered(state) == ["job-register", "alloc-failure"]


def test_a_service_that_ended_although_nobody_stopped_it_has_its_job_looked_at() -> None:
    state, _ = with_work()

    report(state, of_status(ClientStatus.COMPLETE))

    assert triggered(state) == ["job-register", "alloc-failure"]


def test_a_service_that_was_stopped_and_batch_work_that_is_done_ask_for_nothing() -> None:
    state, _ = with_work(desired_status=DesiredStatus.STOP)
    state.register(a_batch_job("sums"))
    state.end_evaluations("sums")
    state.with_allocation(state.job("sums"), "b1", client_status=ClientStatus.RUNNING)

    report(state, of_status(ClientStatus.COMPLETE), of_status(ClientStatus.COMPLETE, "b1"))

    assert (triggered(state), triggered(state, "sums")) == (["job-register"], ["job-register"])


def test_a_failed_allocation_of_a_stopped_job_evaluates_nothing() -> None:
    state, _ = with_work()
    state.register(a_job(stop=True))
    state.end_evaluations()
    count = len(state.evaluations())

    report(state, of_status(ClientStatus.FAILED))

    assert len(state.evaluations()) == count


def test_a_report_that_comes_again_changes_nothing() -> None:
    state, _ = with_work()
    report(state, of_status(ClientStatus.COMPLETE))
    index = state.replica.index

    report(state, of_status(ClientStatus.COMPLETE))

    assert state.replica.index == index


def test_a_report_that_comes_late_changes_nothing() -> None:
    state, _ = with_work()
    report(state, of_status(ClientStatus.COMPLETE))
    index = state.replica.index

    report(state, running())

    assert (state.allocation("a1").client_status, state.replica.index) == ("complete", index)


def test_a_report_on_another_nodes_allocation_changes_nothing() -> None:
    state, _ = with_work()
    state.with_node("node-2")
    index = state.replica.index

    report(state, of_status(ClientStatus.FAILED), node_id="node-2")

    assert (state.allocation("a1").client_status, state.replica.index) == ("running", index)


def test_a_report_on_an_allocation_that_is_gone_changes_nothing() -> None:
    state, _ = with_work()
    index = state.replica.index

    report(state, running("a9"))

    assert state.replica.index == index


def test_one_allocation_told_twice_in_a_report_is_as_told_last() -> None:
    state, _ = with_work()

    report(state, running(), of_status(ClientStatus.COMPLETE))

    assert state.allocation("a1").client_status == "complete"


def test_a_report_of_a_node_that_nobody_knows_is_refused() -> None:
    with pytest.raises(Refusal, match="node not found"):
        report(AState(), running())


@pytest.mark.parametrize("status", [NodeStatus.DOWN, NodeStatus.DISCONNECTED])
def test_a_report_of_a_node_that_is_out_is_refused(status: NodeStatus) -> None:
    state, _ = with_work()
    state.put(NODES.build_put(replace(state.node(), status=status)))

    with pytest.raises(Refusal) as refused:
        report(state, of_status(ClientStatus.FAILED))

    assert refused.value.code is RefusalCode.INVALID
    assert state.allocation("a1").client_status == "running"


def test_an_allocation_that_was_lost_and_runs_occupies_its_node_again() -> None:
    state, _ = with_work(client_status=ClientStatus.LOST)
    before = placement(state)

    done = report(state, running())

    assert placement(state) == done.index > before


def test_a_report_that_only_goes_on_does_not_disturb_plans() -> None:
    state, _ = with_work()
    before = placement(state)

    report(state, of_status(ClientStatus.COMPLETE))

    assert placement(state) == before


def test_a_report_rests_on_the_allocation_as_it_was() -> None:
    state, allocation = with_work()
    told = [of_status(ClientStatus.COMPLETE)]
    decision = reports.apply_reports(
        state.replica, "node-1", told, state.moment, is_complete=False, max_evaluations=MANY
    )
    state.put(ALLOCATIONS.build_put(replace(allocation, desired_status=DesiredStatus.STOP)))
    assert decision.write is not None

    assert isinstance(state.try_commit(decision.write), WriteConflict)


# -- more jobs than fit in one write


def jobs_with_open_evaluations(state: AState) -> set[str]:
    return {e.job_id for e in state.replica.iter_all(EVALUATIONS) if not e.status.is_terminal}


def with_many_jobs(count: int) -> AState:
    state = AState()
    state.with_node()
    for number in range(count):
        state.register(a_job(f"job-{number}"))
        state.end_evaluations(f"job-{number}")
        state.with_allocation(state.job(f"job-{number}"), f"a{number}", client_status=ClientStatus.RUNNING)
    return state


def test_a_node_with_many_jobs_goes_down_in_one_write_and_the_other_jobs_follow() -> None:
    state = with_many_jobs(10)

    state.lead(nodes.mark_heartbeat_missed(state.replica, "node-1", state.moment, max_evaluations=3))
    found = [len(jobs_with_open_evaluations(state))]
    while (
        write := evaluations.evaluate_remaining_jobs(state.replica, "node-1", state.moment, max_evaluations=3)
    ) is not None:
        state.lead(write)
        found.append(len(jobs_with_open_evaluations(state)))

    assert found == [3, 6, 9, 10]


def test_system_jobs_that_miss_a_ready_node_are_looked_at() -> None:
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


def test_where_every_job_has_been_looked_at_there_is_no_rest() -> None:
    state, _ = with_work()

    assert evaluations.evaluate_remaining_jobs(state.replica, "node-1", state.moment, max_evaluations=1) is None
    assert evaluations.evaluate_remaining_jobs(state.replica, "nobody", state.moment, max_evaluations=1) is None


def at(port: int, id: str = "i1", **fields: Any) -> ServiceRegistration:
    return ServiceRegistration(id=id, service_name="web", namespace="default", port=port, **fields)


def services_of(state: AState) -> dict[str, int]:
    return {each.id: each.port for each in state.replica.iter_all(SERVICES)}


def test_the_services_that_a_node_tells_of_become_the_list_of_them() -> None:
    state, allocation = with_work()

    report(state, replace(running(), services=(at(1), at(2, "i2"))))
    assert services_of(state) == {"i1": 1, "i2": 2}
    report(state, running())  # Nothing is said of them.
    assert services_of(state) == {"i1": 1, "i2": 2}
    report(state, replace(running(), services=(at(3),)))
    assert services_of(state) == {"i1": 3}
    report(state, of_status(ClientStatus.COMPLETE))
    assert services_of(state) == {}
    assert allocation.id == "a1"


def test_whose_a_service_is_a_node_does_not_say() -> None:
    state, allocation = with_work()
    told = replace(at(1, node_id="other", job_id="other", alloc_id="other"), namespace="secret")

    report(state, replace(running(), services=(told,)))

    (listed,) = state.replica.iter_all(SERVICES)
    assert (listed.namespace, listed.node_id, listed.job_id, listed.alloc_id) == (
        allocation.namespace,
        "node-1",
        allocation.job_id,
        "a1",
    )


def test_services_told_again_change_nothing() -> None:
    state, _ = with_work()
    report(state, replace(running(), services=(at(1),)))
    index = state.replica.get_last_change(SERVICES)

    report(state, replace(running(), services=(at(1),)))

    assert state.replica.get_last_change(SERVICES) == index


def test_the_services_of_a_node_that_is_down_are_taken_off_the_list() -> None:
    state, _ = with_work()
    report(state, replace(running(), services=(at(1), at(2, "i2"))))
    miss(state)

    while (
        write := evaluations.evaluate_remaining_jobs(state.replica, "node-1", state.moment, max_evaluations=1)
    ) is not None:
        state.lead(write)

    assert services_of(state) == {}
