"""When a deployment that makes no progress fails."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task, some_job_settings, some_resources
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SECOND_NS
from wharf.cluster.operations import deployments
from wharf.cluster.operations.deployments import PROGRESS_DEADLINE_DESCRIPTION
from wharf.cluster.operations.jobs import registration
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS
from wharf.contract.model.allocations.allocation import (
    Allocation,
    AllocDeploymentStatus,
    ClientStatus,
    DesiredTransition,
)
from wharf.contract.model.deployments import DeploymentStatus
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.group_policies import ReschedulePolicy, UpdatePolicy
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.times import to_datetime

ROLLING = UpdatePolicy(
    max_parallel=3, min_healthy_time=SECOND_NS, healthy_deadline=20 * SECOND_NS, progress_deadline=60 * SECOND_NS
)
RETRY = ReschedulePolicy(unlimited=True, delay=5 * SECOND_NS, delay_function="constant")


class CanaryCase(NamedTuple):
    """A deployment that waits for promotion: the number of canaries and the health of its allocations."""

    desired_count: int
    canary_count: int
    canaries: list[bool]
    other_allocations: list[bool]


def a_rollout(count: int) -> SimulatedCluster:
    cluster = SimulatedCluster()
    for node_id in ("n0", "n1", "n2"):
        cluster.with_node(node_id)
    cluster.register(a_job("shop", a_group("web", count=count, update=ROLLING, reschedule_policy=RETRY)))
    cluster.process_pending()
    return cluster


@pytest.mark.parametrize(
    ("case", "becomes"),
    [
        pytest.param(CanaryCase(2, 1, [False], [True]), DeploymentStatus.FAILED, id="only others are well"),
        pytest.param(
            CanaryCase(1, 2, [True], []), DeploymentStatus.FAILED, id="as many as are wanted, and too few canaries"
        ),
        pytest.param(CanaryCase(2, 1, [True], [False]), DeploymentStatus.RUNNING, id="all canaries are well"),
    ],
)
def test_a_deployment_with_unhealthy_canaries_fails_at_its_deadline(
    case: CanaryCase, becomes: DeploymentStatus
) -> None:
    cluster = a_rollout(len(case.canaries) + len(case.other_allocations))
    for allocation, is_well in zip(cluster.list_active(), [*case.canaries, *case.other_allocations], strict=True):
        reported = cluster.report(allocation, ClientStatus.RUNNING, healthy=is_well)
        marked = replace(reported.desired_transition or DesiredTransition(), reschedule=True)
        cluster.put_led(ALLOCATIONS.build_put(replace(reported, desired_transition=marked)))
    deployment = cluster.deployment()
    group = replace(
        (deployment.task_groups or {})["web"],
        desired_total=case.desired_count,
        desired_canaries=case.canary_count,
        placed_canaries=tuple(each.id for each in cluster.list_active()[: len(case.canaries)]),
        require_progress_by=to_datetime(cluster.now_ns),
    )
    cluster.put_led(DEPLOYMENTS.build_put(replace(deployment, task_groups={"web": group})))

    cluster.advance_deployments()

    assert becomes is cluster.deployment().status


def test_a_deployment_does_not_end_while_a_failed_allocation_waits_for_its_retry() -> None:
    cluster = a_rollout(2)
    for allocation in cluster.list_active():
        cluster.report(allocation, ClientStatus.RUNNING, healthy=True)
    deployment = cluster.deployment()
    # A server of an earlier version also counted an allocation that was lost later.
    group = replace((deployment.task_groups or {})["web"], healthy_allocs=3)
    cluster.put_led(DEPLOYMENTS.build_put(replace(deployment, task_groups={"web": group})))
    cluster.report(cluster.list_active()[0], ClientStatus.FAILED, healthy=False)

    cluster.evaluate_job(
        trigger=EvaluationTrigger.NODE_UPDATE
    )  # This comes before the deployment controller's next step.
    cluster.process_pending()
    cluster.pass_time(6)
    cluster.settle()

    assert 2 == len(cluster.list_active())
    assert DeploymentStatus.SUCCESSFUL is cluster.deployment().status


def test_a_deployment_waits_until_the_replacement_of_a_lost_healthy_allocation_is_healthy() -> None:
    cluster = a_rollout(3)
    first, second, third = cluster.list_active()
    cluster.report(first, ClientStatus.RUNNING, healthy=True)
    cluster.lose_node(first.node_id)
    cluster.process_pending()
    for allocation in (second, third):
        if allocation.node_id != first.node_id:
            cluster.report(allocation, ClientStatus.RUNNING, healthy=True)
    for allocation in cluster.list_active():
        cluster.report(allocation, ClientStatus.RUNNING)
    cluster.process_pending()
    before = cluster.deployment().status

    cluster.settle()

    assert (before, cluster.deployment().status) == (DeploymentStatus.RUNNING, DeploymentStatus.SUCCESSFUL)


def test_a_clock_that_was_set_back_does_not_extend_the_progress_deadline() -> None:
    cluster = a_rollout(2)

    cluster.pass_time(-3_600)
    cluster.advance_deployments()
    cluster.pass_time(61)
    cluster.advance_deployments()

    assert (DeploymentStatus.FAILED, PROGRESS_DEADLINE_DESCRIPTION) == (
        cluster.deployment().status,
        cluster.deployment().status_description,
    )


def test_a_node_whose_clock_is_ahead_does_not_extend_the_progress_deadline() -> None:
    cluster = a_rollout(2)
    well = AllocDeploymentStatus(
        healthy=True, timestamp=to_datetime(cluster.now_ns + 3_600 * SECOND_NS), modify_index=WRITE_INDEX
    )
    reported = replace(cluster.list_active()[0], deployment_status=well, modify_time=cluster.now_ns)
    cluster.put_led(ALLOCATIONS.build_put(reported))

    assert (
        to_datetime(cluster.now_ns + 60 * SECOND_NS)
        == (cluster.deployment().task_groups or {})["web"].require_progress_by
    )


CANARY = replace(ROLLING, max_parallel=1, canary=1)


def a_version(value: int, *, count: int = 2, update: UpdatePolicy = CANARY) -> Job:
    task = a_task(resources=some_resources(cpu=10, memory_mb=10), config={"command": f"/bin/{value}"})
    return a_job("shop", a_group("web", task, count=count, update=update, reschedule_policy=RETRY))


def a_cluster_that_runs(job: Job) -> SimulatedCluster:
    cluster = SimulatedCluster()
    for number in range(4):
        cluster.with_node(f"n{number}")
    cluster.register(job)
    cluster.settle()
    return cluster


def start_healthy_canary(cluster: SimulatedCluster, job: Job) -> Allocation:
    """Register the new version and return its canary, which is healthy and whose progress deadline has passed."""
    cluster.register(job)
    cluster.settle()
    (canary,) = [each for each in cluster.list_active() if each.job_version == cluster.job().version]
    cluster.pass_time(61)
    return canary


def drain(cluster: SimulatedCluster, allocation: Allocation) -> None:
    marked = replace(allocation, desired_transition=DesiredTransition(migrate=True))
    cluster.put_led(ALLOCATIONS.build_put(marked))
    cluster.evaluate_job(trigger=EvaluationTrigger.NODE_DRAIN)
    cluster.process_pending()


def crash(cluster: SimulatedCluster, allocation: Allocation) -> None:
    cluster.report(allocation, ClientStatus.FAILED, healthy=False)
    cluster.evaluate_job(trigger=EvaluationTrigger.ALLOC_FAILURE)
    cluster.process_pending()


def lose(cluster: SimulatedCluster, allocation: Allocation) -> None:
    cluster.lose_node(allocation.node_id)
    cluster.process_pending()


@pytest.mark.parametrize("end", [drain, crash, lose])
def test_a_rollout_that_waits_for_promotion_survives_the_end_of_a_healthy_canary(
    end: Callable[[SimulatedCluster, Allocation], None],
) -> None:
    cluster = a_cluster_that_runs(a_version(0))
    canary = start_healthy_canary(cluster, a_version(1))

    end(cluster, canary)
    cluster.pass_time(30)
    cluster.settle()

    canaries = [each for each in cluster.list_active() if each.job_version == 1]
    assert (cluster.deployment().status, len(canaries)) == (DeploymentStatus.RUNNING, 1)
    assert canaries[0].id != canary.id


def test_a_rollout_fails_if_the_replacement_of_a_healthy_canary_is_not_healthy_in_time() -> None:
    cluster = a_cluster_that_runs(a_version(0))
    canary = start_healthy_canary(cluster, a_version(1))

    drain(cluster, canary)
    cluster.settle(healthy=None)
    cluster.pass_time(61)
    cluster.process_pending()

    deployment = cluster.deployment()
    assert (deployment.status, deployment.status_description) == (
        DeploymentStatus.FAILED,
        PROGRESS_DEADLINE_DESCRIPTION,
    )


def test_a_group_that_is_rolled_out_does_not_fail_a_rollout_that_waits_for_promotion_elsewhere() -> None:
    def make_two_groups(value: int) -> Job:
        task = a_task(resources=some_resources(cpu=10, memory_mb=10), config={"command": f"/bin/{value}"})
        return a_job("shop", a_group("web", task, update=CANARY), a_group("api", task, update=ROLLING))

    cluster = a_cluster_that_runs(make_two_groups(0))
    cluster.register(make_two_groups(1))
    cluster.settle()
    cluster.pass_time(61)
    (done,) = [each for each in cluster.list_active() if each.task_group == "api"]

    drain(cluster, done)
    cluster.settle()

    assert cluster.deployment().status is DeploymentStatus.RUNNING


def test_a_rollback_to_a_version_with_canaries_waits_for_promotion_and_survives_a_drain() -> None:
    cluster = a_cluster_that_runs(a_version(0))
    start_healthy_canary(cluster, a_version(1))
    cluster.lead(
        deployments.promote_deployment(
            cluster.replica, cluster.deployment().id, cluster.moment, should_promote_all=True, max_changes=40
        )
    )
    cluster.settle()
    cluster.lead(registration.revert_job(cluster.replica, "default", "shop", 0, cluster.moment, some_job_settings()))
    cluster.settle()
    waiting = cluster.deployment()
    (canary,) = [each for each in cluster.list_active() if each.job_version == 2]
    cluster.pass_time(61)

    drain(cluster, canary)
    cluster.settle()

    assert waiting.status_description == "Deployment is running but requires manual promotion"
    assert (cluster.deployment().id, cluster.deployment().status) == (waiting.id, DeploymentStatus.RUNNING)
