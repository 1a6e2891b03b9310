"""What a cluster that has come to rest must not show."""

from typing import Any

import pytest
from msgspec.structs import replace

from simulation.steady_state import RESERVATION_CHECKS_NS, require_steady_state
from simulation.timeline import InvariantViolation
from tests.builders import a_batch_job, a_group, a_job, a_system_job, a_task, some_resources
from tests.simulation.small_log import SmallLog
from tests.simulation.test_invariants import a_node, an_allocation, an_evaluation
from wharf.cluster.scheduling.blocked.reservation_policy import RESERVATION_DELAY_NS
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, JOBS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.evaluations import EvaluationStatus, SchedulerType
from wharf.contract.model.jobs.job import JobStatus, JobType
from wharf.contract.model.nodes.node import DrainStrategy, DriverInfo, NodeStatus

NOW_NS = 1_000_000_000_000


def test_an_allocation_of_a_deleted_job_is_not_a_steady_state() -> None:
    log = SmallLog()
    log.put((ALLOCATIONS, an_allocation("a", client_status=ClientStatus.RUNNING)))

    with pytest.raises(InvariantViolation, match="a is left of shop, which is gone"):
        require_steady_state(log.witness, NOW_NS)


def test_a_drain_without_allocations_must_end() -> None:
    log = SmallLog()
    log.put((NODES, replace(a_node(), drain_strategy=DrainStrategy())))

    with pytest.raises(InvariantViolation, match="the drain of first does not end; 0 are there"):
        require_steady_state(log.witness, NOW_NS)


def test_a_pending_evaluation_is_not_a_steady_state() -> None:
    log = SmallLog()
    log.put((EVALUATIONS, an_evaluation(EvaluationStatus.PENDING)))

    with pytest.raises(InvariantViolation, match="evaluation e1 of shop is still pending"):
        require_steady_state(log.witness, NOW_NS)


def test_a_blocked_evaluation_must_have_a_reason() -> None:
    log = SmallLog()
    log.put((EVALUATIONS, an_evaluation(EvaluationStatus.BLOCKED)))

    with pytest.raises(InvariantViolation, match="does not say why"):
        require_steady_state(log.witness, NOW_NS)


def a_system_job_at_rest(**allocation: Any) -> SmallLog:
    log = SmallLog()
    job = a_system_job("shop", a_group("web"), version=1, status=JobStatus.RUNNING, datacenters=("*",))
    log.put((NODES, replace(a_node(), status=NodeStatus.READY, datacenter="dc1")), (JOBS, job))
    if allocation:
        given = {"client_status": ClientStatus.RUNNING, "namespace": "default", **allocation}
        log.put((ALLOCATIONS, an_allocation("a", **given)))
    return log


def test_a_system_job_must_run_in_its_version_on_every_eligible_node() -> None:
    require_steady_state(a_system_job_at_rest(job_version=1).witness, NOW_NS)

    with pytest.raises(InvariantViolation, match="system job shop has 0 on first, 0 of its version"):
        require_steady_state(a_system_job_at_rest().witness, NOW_NS)
    with pytest.raises(InvariantViolation, match="system job shop has 1 on first, 0 of its version"):
        require_steady_state(a_system_job_at_rest(job_version=0).witness, NOW_NS)


def a_sysbatch_job_at_rest(*, is_late: bool = False, **allocation: Any) -> SmallLog:
    """Version 1 of it was looked at, before or after the node came."""
    log = SmallLog()
    node = replace(a_node(), status=NodeStatus.READY, datacenter="dc1")
    log.put((NODES, replace(node, status=NodeStatus.DOWN) if is_late else node))
    job = a_job("shop", a_group("web"), type=JobType.SYSBATCH, version=1, status=JobStatus.DEAD, datacenters=("*",))
    look = replace(an_evaluation(EvaluationStatus.COMPLETE), namespace="default", create_index=2)
    log.put((JOBS, replace(job, create_index=2, job_modify_index=2)), (EVALUATIONS, look))
    log.put((NODES, node))
    if allocation:
        given = {"client_status": ClientStatus.COMPLETE, "namespace": "default", "create_index": 2, **allocation}
        log.put((ALLOCATIONS, an_allocation("a", **given)))
    return log


@pytest.mark.parametrize(
    "log",
    [
        a_sysbatch_job_at_rest(job_version=1),
        a_sysbatch_job_at_rest(job_version=1, client_status=ClientStatus.FAILED),
        a_sysbatch_job_at_rest(is_late=True),
    ],
    ids=["it ran", "it failed", "the node came later"],
)
def test_a_sysbatch_job_must_have_run_on_the_nodes_that_were_ready_at_its_evaluation(log: SmallLog) -> None:
    require_steady_state(log.witness, NOW_NS)


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (a_sysbatch_job_at_rest(), "has 0 of its version on first, and 0 older ones"),
        (a_sysbatch_job_at_rest(job_version=0), "has 0 of its version on first, and 0 older ones"),
    ],
    ids=["nothing", "only the version before"],
)
def test_a_sysbatch_job_that_did_not_run_in_its_version_is_not_a_steady_state(log: SmallLog, sentence: str) -> None:
    with pytest.raises(InvariantViolation, match=f"sysbatch job shop {sentence}"):
        require_steady_state(log.witness, NOW_NS)


def test_a_job_that_waits_too_long_without_a_reserved_node_is_a_violation() -> None:
    def waiting(since_ns: int) -> SmallLog:
        log = SmallLog()
        node = replace(a_node(), status=NodeStatus.READY, datacenter="dc1")
        task = a_task(driver="mock", resources=some_resources(cpu=1_000, memory_mb=10))
        big = a_batch_job("big", a_group("web", task), status=JobStatus.PENDING)
        node = replace(node, attributes={"driver.mock": "1"}, drivers={"mock": DriverInfo(detected=True, healthy=True)})
        evaluation = replace(
            an_evaluation(EvaluationStatus.BLOCKED), job_id="big", type=SchedulerType.BATCH, namespace="default",
            failed_tg_allocs={"web": AllocMetric()}, waiting_since=since_ns,
        )  # fmt: skip
        log.put((NODES, node), (JOBS, big), (EVALUATIONS, evaluation))
        return log

    require_steady_state(waiting(NOW_NS - RESERVATION_DELAY_NS).witness, NOW_NS)

    with pytest.raises(InvariantViolation, match="small work may starve big work: default/big has waited since"):
        require_steady_state(waiting(NOW_NS - RESERVATION_DELAY_NS - RESERVATION_CHECKS_NS).witness, NOW_NS)
