"""The invariants of contact: each detects its violation, and only while nodes are watched."""

import pytest
from msgspec.structs import replace

from simulation.contact_invariants import ContactInvariants
from tests.simulation.small_log import SmallLog
from wharf.cluster.state.tables import ALLOCATIONS, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.nodes.node import Node, NodeStatus

NODE = Node(id="n1", name="first", secret_digest="x", status=NodeStatus.READY)
ALLOCATION = Allocation(
    id="a1",
    name="shop.web[0]",
    job_id="shop",
    node_id="n1",
    node_name="first",
    desired_status=DesiredStatus.RUN,
    client_status=ClientStatus.RUNNING,
)
WHY = "although only faults happened that must not cost a node"


def watch_nodes(*names: str) -> tuple[SmallLog, ContactInvariants]:
    """Return a log with a ready node and an allocation on it, and the invariants that watch the nodes with these names."""
    log = SmallLog()
    invariants = ContactInvariants(log.history)
    log.put((NODES, NODE), (ALLOCATIONS, ALLOCATION))
    invariants.begin(set(names))
    return log, invariants


@pytest.mark.parametrize("status", [NodeStatus.DOWN, NodeStatus.DISCONNECTED])
def test_a_watched_node_that_is_declared_lost_is_a_violation(status: NodeStatus) -> None:
    log, _ = watch_nodes("first")
    log.put((NODES, replace(NODE, status=status)))

    assert log.failures == [f"nodes n1 on first went from ready to {status} at 2, {WHY}"]


@pytest.mark.parametrize("status", [ClientStatus.LOST, ClientStatus.UNKNOWN])
def test_an_allocation_of_a_watched_node_that_is_declared_lost_is_a_violation(status: ClientStatus) -> None:
    log, _ = watch_nodes("first")
    log.put((ALLOCATIONS, replace(ALLOCATION, client_status=status)))

    assert log.failures == [f"allocations a1 on first went from running to {status} at 2, {WHY}"]


def test_a_node_that_is_not_watched_may_be_lost() -> None:
    log, _ = watch_nodes("second")
    log.put((NODES, replace(NODE, status=NodeStatus.DOWN)))

    assert log.failures == []


def test_a_node_that_was_lost_before_is_not_watched() -> None:
    log = SmallLog()
    invariants = ContactInvariants(log.history)
    log.put((NODES, replace(NODE, status=NodeStatus.DISCONNECTED)))
    invariants.begin({"first"})
    log.put((NODES, replace(NODE, status=NodeStatus.DOWN)))

    assert (log.failures, invariants.watched_count) == ([], 0)


def test_a_node_may_be_lost_after_the_end_of_the_check() -> None:
    log, invariants = watch_nodes("first")
    invariants.end()
    log.put((NODES, replace(NODE, status=NodeStatus.DOWN)))

    assert log.failures == []
