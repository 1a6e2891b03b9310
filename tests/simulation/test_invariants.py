"""The invariants of batches: each detects its violation."""

from typing import Any

from msgspec.structs import replace

from simulation.invariants import UPDATE_STOP_DESCRIPTION, BatchInvariants
from tests.simulation.small_log import SmallLog
from wharf.cluster.state.codec import encode_record
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, NAMESPACES, NODES, QUOTAS, VARIABLES
from wharf.contract.model.allocations.allocation import Allocation, AllocDeploymentStatus, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.resources import (
    AllocatedCpu,
    AllocatedPort,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType
from wharf.contract.model.log import LogPosition, StoredRecord
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.nodes.resources import NodeCpu, NodeDisk, NodeMemory, NodeResources
from wharf.contract.model.quotas import Quota
from wharf.contract.model.variables import Variable

NOW_NS = 1_000_000_000_000


def a_watched_log() -> SmallLog:
    log = SmallLog()
    BatchInvariants(log.history)
    return log


def a_node() -> Node:
    resources = NodeResources(
        cpu=NodeCpu(cpu_shares=1_000), memory=NodeMemory(memory_mb=1_000), disk=NodeDisk(disk_mb=1_000)
    )
    return Node(id="n1", name="first", secret_digest="x", node_resources=resources)


def an_allocation(id: str, *, cpu: int = 100, port: int = 0, **fields: Any) -> Allocation:
    resources = AllocatedResources(
        tasks={"task": AllocatedTaskResources(cpu=AllocatedCpu(cpu_shares=cpu))},
        shared=AllocatedSharedResources(ports=(AllocatedPort(label="http", value=port),) if port else None),
    )
    all_fields = {
        "desired_status": DesiredStatus.RUN, "client_status": ClientStatus.PENDING, "node_id": "n1", "node_name": "first", "job_id": "shop", "name": f"shop.web[{id}]", **fields,
    }  # fmt: skip
    return Allocation(id=id, allocated_resources=resources, **all_fields)


def an_evaluation(status: EvaluationStatus) -> Evaluation:
    return Evaluation(
        id="e1", job_id="shop", type=SchedulerType.SERVICE, triggered_by=EvaluationTrigger.JOB_REGISTER, status=status
    )


def test_an_overcommitted_node_is_a_violation() -> None:
    log = a_watched_log()
    log.put((NODES, a_node()), (ALLOCATIONS, an_allocation("a", cpu=600)))
    log.put((ALLOCATIONS, an_allocation("b", cpu=400)))
    assert log.failures == []

    log.put((ALLOCATIONS, an_allocation("c", cpu=1)))

    assert "over-committed at 3: 1001 of 1000 MHz" in log.failures[0]


def test_lost_allocations_use_no_resources_until_they_return() -> None:
    log = a_watched_log()
    full = an_allocation("a", cpu=1_000)
    log.put((NODES, a_node()), (ALLOCATIONS, full))
    log.put((ALLOCATIONS, replace(full, client_status=ClientStatus.LOST)))
    log.put((ALLOCATIONS, an_allocation("b", cpu=1_000)))
    assert log.failures == []

    log.put((ALLOCATIONS, replace(full, client_status=ClientStatus.RUNNING)))

    assert "over-committed" in log.failures[0]


def test_a_port_with_two_owners_is_a_violation() -> None:
    log = a_watched_log()
    log.put((NODES, a_node()), (ALLOCATIONS, an_allocation("a", port=80)), (ALLOCATIONS, an_allocation("b", port=80)))

    assert "has two owners" in log.failures[0]


def test_a_forbidden_state_transition_is_a_violation() -> None:
    log = a_watched_log()
    evaluation = an_evaluation(EvaluationStatus.PENDING)
    log.put((EVALUATIONS, evaluation))
    log.put((EVALUATIONS, replace(evaluation, status=EvaluationStatus.COMPLETE)))
    assert log.failures == []

    log.put((EVALUATIONS, replace(evaluation, status=EvaluationStatus.PENDING)))

    assert log.failures == ["evaluation e1 went from complete to pending at 3"]


def test_an_allocation_name_that_is_placed_twice_is_a_violation() -> None:
    log = a_watched_log()
    log.put((ALLOCATIONS, an_allocation("a", name="shop.web[0]")))
    log.put((ALLOCATIONS, an_allocation("b", name="shop.web[0]")))

    assert "shop.web[0] is placed twice" in log.failures[0]


def test_the_replacement_of_a_canary_may_share_its_name_with_the_old_allocation() -> None:
    log = a_watched_log()
    canary = AllocDeploymentStatus(canary=True)
    canary_allocation = an_allocation("b", name="shop.web[0]", deployment_id="d1", deployment_status=canary)
    log.put((ALLOCATIONS, an_allocation("a", name="shop.web[0]")), (ALLOCATIONS, canary_allocation))
    stopped = replace(canary_allocation, deployment_status=None, desired_status=DesiredStatus.STOP, next_allocation="c")
    log.put((ALLOCATIONS, replace(stopped, desired_description=UPDATE_STOP_DESCRIPTION)))

    log.put((ALLOCATIONS, an_allocation("c", name="shop.web[0]", previous_allocation="b")))

    assert log.failures == []


def test_the_replacement_of_an_unknown_allocation_has_its_name() -> None:
    log = a_watched_log()
    unknown = an_allocation("a", client_status=ClientStatus.UNKNOWN, name="shop.web[0]", next_allocation="b")
    log.put((ALLOCATIONS, replace(unknown, client_status=ClientStatus.PENDING)))
    log.put((ALLOCATIONS, replace(unknown, client_status=ClientStatus.RUNNING)))
    log.put((ALLOCATIONS, unknown), (ALLOCATIONS, an_allocation("b", name="shop.web[0]", previous_allocation="a")))
    assert log.failures == []

    log.put((ALLOCATIONS, an_allocation("c", name="shop.web[0]", previous_allocation="a")))

    assert "shop.web[0] is placed twice" in log.failures[0]


def test_the_second_replacement_of_an_unknown_allocation_may_have_its_name() -> None:
    log = a_watched_log()
    unknown = an_allocation("a", client_status=ClientStatus.UNKNOWN, name="shop.web[0]", next_allocation="b")
    first = an_allocation("b", name="shop.web[0]", previous_allocation="a")
    log.put((ALLOCATIONS, replace(unknown, client_status=ClientStatus.PENDING)))
    log.put((ALLOCATIONS, replace(unknown, client_status=ClientStatus.RUNNING)))
    log.put((ALLOCATIONS, unknown), (ALLOCATIONS, first))
    log.put((ALLOCATIONS, replace(first, desired_status=DesiredStatus.STOP, next_allocation="c")))

    log.put((ALLOCATIONS, an_allocation("c", name="shop.web[0]", previous_allocation="b")))

    assert log.failures == []


def test_after_a_restore_every_record_counts_from_the_first_index_of_the_new_epoch() -> None:
    log = a_watched_log()
    log.put((NODES, a_node()))
    log.put((ALLOCATIONS, an_allocation("a", cpu=600)))
    history = log.history
    restored = StoredRecord(NODES.name, "n1", 4, encode_record(NODES, a_node()))

    history.on_restored([restored], LogPosition(4, {NODES.name: 4}, 1, 3), 3)

    assert history.get_record(ALLOCATIONS, "a", 2) is not None
    assert history.get_record(ALLOCATIONS, "a", 3) is None
    assert history.get_record(NODES, "n1", 3).modify_index == 4
    assert (history.find_last_table_change(NODES, 4), history.find_last_table_change(ALLOCATIONS, 4)) == (4, 3)


def test_a_deleted_parent_with_children_is_a_violation() -> None:
    log = a_watched_log()
    log.put((QUOTAS, Quota(name="small")), (NAMESPACES, Namespace(name="team", quota="small")))
    log.put((VARIABLES, Variable(namespace="team", path="db", data=b"x", key_id="k")))
    assert log.failures == []

    log.delete(QUOTAS, "small")
    log.delete(NAMESPACES, "team")

    assert [failure.partition(" at ")[0] for failure in log.failures] == [
        "quotas small was deleted",
        "namespaces team was deleted",
    ]


def test_a_record_without_its_parent_is_a_violation() -> None:
    log = a_watched_log()

    log.put((NAMESPACES, Namespace(name="team", quota="gone")))
    log.put((VARIABLES, Variable(namespace="other", path="db", data=b"x", key_id="k")))

    assert "has the missing quota gone" in log.failures[0]
    assert "has no namespace" in log.failures[1]
