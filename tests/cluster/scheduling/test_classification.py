"""The class of an allocation, row by row of the table (scheduling.md 5.3)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.kit.state import SECOND_NS, a_node, an_allocation
from wharf.cluster.scheduling.reconcile.classification import classify_allocation
from wharf.contract.model.allocations.allocation import (
    Allocation,
    AllocationState,
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
    DesiredTransition,
)
from wharf.contract.model.jobs.group_policies import DisconnectPolicy
from wharf.contract.model.nodes.node import DrainStrategy, Node, NodeStatus
from wharf.contract.model.times import to_datetime

NOW_NS = 1_700_000_000 * SECOND_NS
LOST_AFTER = DisconnectPolicy(lost_after=60 * SECOND_NS)
NO_REPLACE = DisconnectPolicy(replace=False)
LOST_AFTER_NO_REPLACE = DisconnectPolicy(lost_after=60 * SECOND_NS, replace=False)

PENDING, RUNNING, COMPLETE = ClientStatus.PENDING, ClientStatus.RUNNING, ClientStatus.COMPLETE
FAILED, LOST, UNKNOWN = ClientStatus.FAILED, ClientStatus.LOST, ClientStatus.UNKNOWN
STOP, EVICT = DesiredStatus.STOP, DesiredStatus.EVICT
MIGRATE = DesiredTransition(migrate=True)
NO_PLACEMENT = DesiredTransition(migrate_disable_placement=True)
CANARY = AllocDeploymentStatus(canary=True)


def make_allocation(status: ClientStatus, *, unknown_for_s: int | None = None, **fields: Any) -> Allocation:
    """Return an allocation. `unknown_for_s`: how long its state has been unknown to the servers."""
    allocation = an_allocation(a_job(), client_status=status, **fields)
    if unknown_for_s is None:
        return allocation
    since = to_datetime(NOW_NS - unknown_for_s * SECOND_NS)
    return replace(allocation, alloc_states=(AllocationState(value="unknown", time=since),))


def make_node(status: NodeStatus, **fields: Any) -> Node:
    return a_node(status=status, **fields)


READY, DOWN, DISCONNECTED = make_node(NodeStatus.READY), make_node(NodeStatus.DOWN), make_node(NodeStatus.DISCONNECTED)
DRAINING = make_node(NodeStatus.READY, drain_strategy=DrainStrategy())
STARTING = make_node(NodeStatus.INITIALIZING, drain_strategy=DrainStrategy())
DELETED = None
UNTAINTED = "untainted"
"""The node is not one of the tainted nodes."""


@pytest.mark.parametrize(
    ("row", "allocation", "node", "policy", "expected"),
    [
        (1, make_allocation(FAILED, unknown_for_s=5), UNTAINTED, LOST_AFTER, "reconnecting"),
        (1, make_allocation(FAILED, unknown_for_s=5), DOWN, LOST_AFTER, "reconnecting"),
        (
            2,
            make_allocation(COMPLETE, desired_status=STOP, desired_transition=NO_PLACEMENT),
            UNTAINTED,
            None,
            "untainted",
        ),
        (3, make_allocation(RUNNING, desired_status=STOP), UNTAINTED, None, "ignored"),
        (3, make_allocation(RUNNING, desired_status=EVICT), DOWN, None, "ignored"),
        (
            4,
            make_allocation(FAILED, desired_transition=MIGRATE, deployment_status=CANARY),
            UNTAINTED,
            None,
            "migrating",
        ),
        (5, make_allocation(FAILED, desired_transition=MIGRATE), UNTAINTED, None, "untainted"),
        (5, make_allocation(COMPLETE), DOWN, None, "untainted"),
        (5, make_allocation(LOST), DELETED, None, "untainted"),
        (6, make_allocation(UNKNOWN, unknown_for_s=60), DISCONNECTED, LOST_AFTER, "expiring"),
        (6, make_allocation(UNKNOWN, unknown_for_s=60), UNTAINTED, LOST_AFTER, "expiring"),
        # The clock was set back, by less and by more than the window.
        (8, make_allocation(UNKNOWN, unknown_for_s=-60), DISCONNECTED, LOST_AFTER, "untainted"),
        (6, make_allocation(UNKNOWN, unknown_for_s=-62), DISCONNECTED, LOST_AFTER, "expiring"),
        (7, make_allocation(FAILED, unknown_for_s=5, desired_status=STOP), UNTAINTED, LOST_AFTER, "ignored"),
        (8, make_allocation(UNKNOWN, unknown_for_s=5), DISCONNECTED, LOST_AFTER, "untainted"),
        (9, make_allocation(PENDING), DISCONNECTED, LOST_AFTER, "lost"),
        (10, make_allocation(RUNNING), DISCONNECTED, None, "lost"),
        (11, make_allocation(RUNNING), DISCONNECTED, LOST_AFTER, "disconnecting"),
        (11, make_allocation(RUNNING, desired_transition=MIGRATE), DISCONNECTED, LOST_AFTER, "disconnecting"),
        (12, make_allocation(RUNNING, desired_transition=MIGRATE), UNTAINTED, None, "migrating"),
        (12, make_allocation(RUNNING, desired_transition=MIGRATE), DOWN, None, "migrating"),
        (13, make_allocation(RUNNING, unknown_for_s=5), UNTAINTED, LOST_AFTER, "reconnecting"),
        (13, make_allocation(UNKNOWN, unknown_for_s=5), DRAINING, LOST_AFTER, "reconnecting"),
        (14, make_allocation(RUNNING), UNTAINTED, None, "untainted"),
        (14, make_allocation(RUNNING), DRAINING, None, "untainted"),
        (15, make_allocation(RUNNING), DELETED, None, "lost"),
        (16, make_allocation(UNKNOWN, unknown_for_s=5), DOWN, LOST_AFTER_NO_REPLACE, "untainted"),
        (17, make_allocation(RUNNING), DOWN, NO_REPLACE, "disconnecting"),
        (18, make_allocation(PENDING), DOWN, NO_REPLACE, "lost"),
        (18, make_allocation(RUNNING), DOWN, LOST_AFTER, "lost"),
        (18, make_allocation(UNKNOWN, unknown_for_s=5), DOWN, LOST_AFTER, "lost"),
        (19, make_allocation(RUNNING), STARTING, None, "untainted"),
    ],
)
def test_an_allocation_is_classified_by_the_first_matching_row(
    row: int, allocation: Allocation, node: Node | str | None, policy: DisconnectPolicy | None, expected: str
) -> None:
    tainted = {} if isinstance(node, str) else {allocation.node_id: node}

    assert expected == classify_allocation(allocation, a_group(disconnect=policy), tainted, NOW_NS).value, f"row {row}"
