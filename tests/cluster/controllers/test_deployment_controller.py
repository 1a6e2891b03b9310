"""When a deployment that makes no progress fails."""

from typing import NamedTuple

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SECOND_NS
from wharf.cluster.operations.deployments import PROGRESS_DEADLINE_DESCRIPTION
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS
from wharf.contract.model.allocations.allocation import AllocDeploymentStatus, ClientStatus, DesiredTransition
from wharf.contract.model.deployments import DeploymentStatus
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.group_policies import ReschedulePolicy, UpdatePolicy
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
