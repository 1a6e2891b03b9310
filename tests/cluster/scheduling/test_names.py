"""Each allocation of a group has a unique name (scheduling.md 5.6), whatever happens to other allocations."""

import pytest
from msgspec.structs import replace

from tests.builders import a_constraint, a_group, a_job, a_task
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SECOND_NS
from wharf.cluster.operations import deployments
from wharf.cluster.state.tables import ALLOCATIONS, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredTransition
from wharf.contract.model.jobs.group_policies import DisconnectPolicy, ReschedulePolicy, UpdatePolicy
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import NodeStatus

RETRY = ReschedulePolicy(unlimited=True, delay=5 * SECOND_NS, delay_function="constant")


def make_version(value: int, count: int) -> Job:
    """Return a version of the job. Its update places two canaries, and its hosts are distinct."""
    group = a_group(
        "web",
        a_task(env={"VERSION": str(value)}),
        count=count,
        constraints=(a_constraint("", operand="distinct_hosts"),),
        disconnect=DisconnectPolicy(lost_after=600 * SECOND_NS),
        reschedule_policy=RETRY,
        update=UpdatePolicy(max_parallel=count, canary=2, min_healthy_time=SECOND_NS),
    )
    return a_job("shop", group)


def make_cluster_with_two_canaries(count: int) -> SimulatedCluster:
    """Return a cluster where version 0 runs and two canaries of version 1 are healthy."""
    cluster = SimulatedCluster()
    for number in range(12):
        cluster.with_node(f"n{number}")
    for value in (0, 1):
        cluster.register(make_version(value, count))
        cluster.settle()
    return cluster


def list_names(allocations: list[Allocation]) -> list[str]:
    return sorted(allocation.name for allocation in allocations)


def promote(cluster: SimulatedCluster) -> None:
    deployment_id = cluster.deployment().id
    cluster.lead(
        deployments.promote_deployment(
            cluster.replica, deployment_id, cluster.moment, should_promote_all=True, max_changes=100
        )
    )


@pytest.mark.parametrize("failure", ["failed", NodeStatus.DOWN, NodeStatus.DISCONNECTED])
def test_an_old_allocation_that_gives_its_name_to_a_promoted_canary_gets_a_free_name(
    failure: str,
) -> None:
    cluster = make_cluster_with_two_canaries(count=5)
    for allocation in [each for each in cluster.list_active() if each.name in ("shop.web[2]", "shop.web[3]")]:
        if isinstance(failure, NodeStatus):
            cluster.put(NODES.build_put(replace(cluster.node(allocation.node_id), status=failure)))
        else:
            cluster.report(allocation, ClientStatus.FAILED)
    cluster.pass_time(6)
    promote(cluster)

    # The two canaries fill the group, so the two allocations that failed or are lost are not replaced.
    cluster.evaluate_job()

    assert [f"shop.web[{index}]" for index in range(5)] == list_names(cluster.list_active())


def test_a_retried_canary_leaves_its_name_to_the_version_that_it_does_not_replace_yet() -> None:
    cluster = make_cluster_with_two_canaries(count=2)
    (canary,) = [each for each in cluster.list_active() if (each.name, each.job_version) == ("shop.web[1]", 1)]
    (old,) = [each for each in cluster.list_active() if (each.name, each.job_version) == ("shop.web[1]", 0)]
    failed = cluster.report(canary, ClientStatus.FAILED)
    cluster.put_led(ALLOCATIONS.build_put(replace(failed, desired_transition=DesiredTransition(reschedule=True))))
    cluster.report(old, ClientStatus.COMPLETE)
    cluster.pass_time(6)

    cluster.evaluate_job()

    assert ["shop.web[0]", "shop.web[1]"] == list_names(
        [each for each in cluster.list_active() if each.job_version == 0]
    )


def test_unknown_allocations_are_not_replaced_while_the_group_has_its_count_without_them() -> None:
    cluster = make_cluster_with_two_canaries(count=2)
    promote(cluster)
    for canary in [each for each in cluster.list_active() if each.job_version == 1]:
        cluster.lose_node(canary.node_id, NodeStatus.DISCONNECTED)
    cluster.settle()
    known = [each for each in cluster.list_active() if each.client_status is ClientStatus.RUNNING]
    assert ["shop.web[0]", "shop.web[1]"] == list_names(known)
    cluster.pass_time(6)

    cluster.evaluate_job()

    assert known == [each for each in cluster.list_active() if each.client_status is not ClientStatus.UNKNOWN]
