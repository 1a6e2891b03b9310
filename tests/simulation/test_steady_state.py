"""The invariants of a steady cluster: each detects its violation."""

from typing import Any

import pytest
from msgspec.structs import replace

from simulation.steady_state import RESERVATION_CHECKS_NS, require_steady_state
from simulation.timeline import InvariantViolation
from tests.builders import a_batch_job, a_group, a_job, a_system_job, a_task, some_resources
from tests.simulation.small_log import SmallLog
from tests.simulation.test_invariants import a_node, an_allocation, an_evaluation
from wharf.cluster.scheduling.blocked.reservation_policy import RESERVATION_DELAY_NS
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, JOBS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus, SchedulerType
from wharf.contract.model.jobs.job import JobStatus, JobType
from wharf.contract.model.nodes.node import DrainStrategy, DriverInfo, NodeStatus

NOW_NS = 1_000_000_000_000


def test_an_allocation_of_a_deleted_job_is_not_a_steady_state() -> None:
    log = SmallLog()
    log.put((ALLOCATIONS, an_allocation("a", client_status=ClientStatus.RUNNING)))

    with pytest.raises(InvariantViolation, match="a still uses resources, but its job shop does not exist"):
        require_steady_state(log.history, NOW_NS)


def test_a_drain_without_allocations_must_end() -> None:
    log = SmallLog()
    log.put((NODES, replace(a_node(), drain_strategy=DrainStrategy())))

    with pytest.raises(InvariantViolation, match="the drain of first does not end; 0 allocations are left"):
        require_steady_state(log.history, NOW_NS)


def test_a_pending_evaluation_is_not_a_steady_state() -> None:
    log = SmallLog()
    log.put((EVALUATIONS, an_evaluation(EvaluationStatus.PENDING)))

    with pytest.raises(InvariantViolation, match="evaluation e1 of shop is still pending"):
        require_steady_state(log.history, NOW_NS)


def test_a_blocked_evaluation_must_have_a_reason() -> None:
    log = SmallLog()
    log.put((EVALUATIONS, an_evaluation(EvaluationStatus.BLOCKED)))

    with pytest.raises(InvariantViolation, match="is blocked without a reason"):
        require_steady_state(log.history, NOW_NS)


def a_steady_system_job(**allocation: Any) -> SmallLog:
    """Return a log with a system job in version 1, a node, and an allocation if fields are passed."""
    log = SmallLog()
    job = a_system_job("shop", a_group("web"), version=1, status=JobStatus.RUNNING, datacenters=("*",))
    log.put((NODES, replace(a_node(), status=NodeStatus.READY, datacenter="dc1")), (JOBS, job))
    if allocation:
        fields = {"client_status": ClientStatus.RUNNING, "namespace": "default", **allocation}
        log.put((ALLOCATIONS, an_allocation("a", **fields)))
    return log


def test_a_system_job_must_run_in_its_version_on_every_eligible_node() -> None:
    require_steady_state(a_steady_system_job(job_version=1).history, NOW_NS)

    with pytest.raises(
        InvariantViolation, match="system job shop has 0 allocations on first, 0 in its current version"
    ):
        require_steady_state(a_steady_system_job().history, NOW_NS)
    with pytest.raises(
        InvariantViolation, match="system job shop has 1 allocations on first, 0 in its current version"
    ):
        require_steady_state(a_steady_system_job(job_version=0).history, NOW_NS)


def a_steady_sysbatch_job(*, is_late: bool = False, **allocation: Any) -> SmallLog:
    """Return a log in which version 1 of a sysbatch job was evaluated. `is_late`: the node joined after that."""
    log = SmallLog()
    node = replace(a_node(), status=NodeStatus.READY, datacenter="dc1")
    log.put((NODES, replace(node, status=NodeStatus.DOWN) if is_late else node))
    job = a_job("shop", a_group("web"), type=JobType.SYSBATCH, version=1, status=JobStatus.DEAD, datacenters=("*",))
    evaluation = replace(an_evaluation(EvaluationStatus.COMPLETE), namespace="default", create_index=2)
    log.put((JOBS, replace(job, create_index=2, job_modify_index=2)), (EVALUATIONS, evaluation))
    log.put((NODES, node))
    if allocation:
        fields = {"client_status": ClientStatus.COMPLETE, "namespace": "default", "create_index": 2, **allocation}
        log.put((ALLOCATIONS, an_allocation("a", **fields)))
    return log


@pytest.mark.parametrize(
    "log",
    [
        a_steady_sysbatch_job(job_version=1),
        a_steady_sysbatch_job(job_version=1, client_status=ClientStatus.FAILED),
        a_steady_sysbatch_job(is_late=True),
    ],
    ids=["completed", "failed", "node joined later"],
)
def test_a_sysbatch_job_must_have_run_on_the_nodes_that_were_ready_at_its_evaluation(log: SmallLog) -> None:
    require_steady_state(log.history, NOW_NS)


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        (a_steady_sysbatch_job(), "has 0 allocations in its current version on first, and 0 in older versions"),
        (
            a_steady_sysbatch_job(job_version=0),
            "has 0 allocations in its current version on first, and 0 in older versions",
        ),
    ],
    ids=["no allocation", "only an older version"],
)
def test_a_sysbatch_job_that_did_not_run_in_its_version_is_not_a_steady_state(log: SmallLog, problem: str) -> None:
    with pytest.raises(InvariantViolation, match=f"sysbatch job shop {problem}"):
        require_steady_state(log.history, NOW_NS)


def test_a_job_with_a_failed_deployment_is_dead_although_its_evaluations_are_deleted() -> None:
    deployment = Deployment(id="d1", namespace="default", job_id="shop", job_version=1, status=DeploymentStatus.FAILED)
    for status, problem in ((JobStatus.DEAD, None), (JobStatus.PENDING, "has status pending; its records imply dead")):
        log = SmallLog()
        log.put(
            (JOBS, a_job("shop", a_group("web"), type=JobType.SERVICE, version=1, status=status)),
            (DEPLOYMENTS, deployment),
        )
        if problem is None:
            require_steady_state(log.history, NOW_NS)
        else:
            with pytest.raises(InvariantViolation, match=problem):
                require_steady_state(log.history, NOW_NS)


def test_a_job_that_waits_too_long_without_a_reserved_node_is_a_violation() -> None:
    def a_waiting_log(since_ns: int) -> SmallLog:
        """Return a log in which a large job has waited for a node since this time."""
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

    require_steady_state(a_waiting_log(NOW_NS - RESERVATION_DELAY_NS).history, NOW_NS)

    with pytest.raises(
        InvariantViolation, match="evaluations wait without a reserved node: default/big has waited since"
    ):
        require_steady_state(a_waiting_log(NOW_NS - RESERVATION_DELAY_NS - RESERVATION_CHECKS_NS).history, NOW_NS)
