"""Nodes that miss heartbeats become down, or disconnected while allocations tolerate it (scheduling.md 9.2)."""

from tests.builders import a_group, a_job
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SECOND_NS
from wharf.cluster.operations.nodes import reports, status
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
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
