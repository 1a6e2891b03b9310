"""Nodes that miss heartbeats become down, or disconnected while allocations tolerate it (scheduling.md 9.2)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SECOND_NS, AState, an_allocation
from wharf.cluster.operations.nodes import reports, status
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.operations.nodes.status import mark_heartbeat_missed, mark_node_reachable
from wharf.cluster.state.tables import ALLOCATIONS, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.group_policies import DisconnectPolicy
from wharf.contract.model.nodes.node import NodeStatus

MANY = 20


def make_cluster(lost_after_s: int = 60) -> tuple[SimulatedCluster, Allocation]:
    cluster = SimulatedCluster()
    cluster.with_node("node-1")
    disconnect = DisconnectPolicy(lost_after=lost_after_s * SECOND_NS) if lost_after_s else None
    cluster.register(a_job("shop", a_group("web", disconnect=disconnect)))
    cluster.settle()
    return cluster, cluster.list_active()[0]


def miss_heartbeat(cluster: SimulatedCluster) -> NodeStatus:
    cluster.lead(status.mark_heartbeat_missed(cluster.replica, "node-1", cluster.moment, max_evaluations=MANY))
    return cluster.node("node-1").status


def test_a_silent_node_is_disconnected_while_allocations_tolerate_it_and_then_down() -> None:
    cluster, allocation = make_cluster()
    first = miss_heartbeat(cluster)
    (evaluation,) = cluster.list_due()
    cluster.process_pending()
    cluster.pass_time(20)
    second = miss_heartbeat(cluster)
    quiet = cluster.list_due()
    cluster.pass_time(41)
    cluster.process_pending()
    third = miss_heartbeat(cluster)

    assert [first, second, third] == ["disconnected", "disconnected", "down"]
    assert (evaluation.triggered_by, quiet) == ("node-update", [])
    assert cluster.allocation(allocation.id).client_status is ClientStatus.LOST
    assert [e.message for e in cluster.node("node-1").events or ()] == ["Node heartbeat missed"] * 3


def test_a_silent_node_without_tolerant_allocations_is_down() -> None:
    cluster, _ = make_cluster(lost_after_s=0)

    assert miss_heartbeat(cluster) is NodeStatus.DOWN


def test_a_reconnected_allocation_evaluates_its_job() -> None:
    cluster, allocation = make_cluster()
    miss_heartbeat(cluster)
    cluster.process_pending()
    assert cluster.allocation(allocation.id).client_status is ClientStatus.UNKNOWN

    cluster.lead(status.mark_node_reachable(cluster.replica, "node-1", cluster.moment, max_evaluations=MANY))
    taken_lock = cluster.node("node-1").status
    result = [AllocationReport(id=allocation.id, client_status=ClientStatus.RUNNING)]
    cluster.lead(
        reports.apply_reports(cluster.replica, "node-1", result, cluster.moment, is_complete=True, max_evaluations=MANY)
    )
    triggers = [each.triggered_by for each in cluster.list_due()]
    cluster.settle()

    assert (taken_lock, cluster.node("node-1").status) == ("initializing", "ready")
    assert EvaluationTrigger.RECONNECT in triggers
    (still,) = cluster.list_active()
    assert (still.id, still.client_status) == (allocation.id, ClientStatus.RUNNING)
    assert [state.value for state in still.alloc_states or ()] == ["unknown", "running"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        pytest.param({}, NodeStatus.DISCONNECTED, id="running"),
        pytest.param({"client_status": ClientStatus.COMPLETE}, NodeStatus.DOWN, id="ended"),
        pytest.param({"desired_status": DesiredStatus.STOP}, NodeStatus.DOWN, id="stopping"),
        pytest.param({"job_version": 7}, NodeStatus.DISCONNECTED, id="of a deleted version"),
        pytest.param({"task_group": "other"}, NodeStatus.DOWN, id="of a group without tolerance"),
        pytest.param({"node_id": "node-2"}, NodeStatus.DOWN, id="on another node"),
        pytest.param({"job_id": "gone"}, NodeStatus.DOWN, id="of a deleted job"),
    ],
)
def test_only_active_allocations_that_tolerate_it_keep_a_silent_node_from_being_down(
    fields: dict[str, Any], status: NodeStatus
) -> None:
    state = AState()
    state.with_node()
    tolerant = a_group("web", disconnect=DisconnectPolicy(lost_after=60 * SECOND_NS))
    state.register(a_job("shop", tolerant, a_group("other")))
    state.put(ALLOCATIONS.build_put(an_allocation(state.job(), **{"client_status": ClientStatus.RUNNING, **fields})))

    state.lead(mark_heartbeat_missed(state.replica, "node-1", state.moment, max_evaluations=MANY))

    assert state.node().status is status


def test_one_tolerant_allocation_after_others_keeps_a_silent_node_from_being_down() -> None:
    state = AState()
    state.with_node()
    tolerant = a_group("web", disconnect=DisconnectPolicy(lost_after=60 * SECOND_NS))
    state.register(a_job("shop", tolerant, a_group("other")))
    for allocation_id, group, client_status in (
        ("a1", "web", ClientStatus.COMPLETE),
        ("a2", "other", ClientStatus.RUNNING),
        ("a3", "web", ClientStatus.RUNNING),
    ):
        allocation = an_allocation(state.job(), allocation_id, task_group=group, client_status=client_status)
        state.put(ALLOCATIONS.build_put(allocation))

    state.lead(mark_heartbeat_missed(state.replica, "node-1", state.moment, max_evaluations=MANY))

    assert state.node().status is NodeStatus.DISCONNECTED


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        pytest.param({"status": NodeStatus.READY}, NodeStatus.READY, id="ready"),
        pytest.param({"status": NodeStatus.DISCONNECTED}, NodeStatus.INITIALIZING, id="disconnected"),
        pytest.param({"status": NodeStatus.DOWN}, NodeStatus.READY, id="down"),
        pytest.param({"status": NodeStatus.DOWN, "node_pool": "gone"}, NodeStatus.INITIALIZING, id="of a deleted pool"),
    ],
)
def test_the_status_of_a_node_without_allocations_that_contacts_a_server_again(
    fields: dict[str, Any], status: NodeStatus
) -> None:
    state = AState()
    state.with_node(node_pool="default", last_alloc_update_index=9, last_missed_heartbeat_index=5)
    state.put(NODES.build_put(replace(state.node(), **fields)))

    state.lead(mark_node_reachable(state.replica, "node-1", state.moment, max_evaluations=MANY))

    assert state.node().status is status
