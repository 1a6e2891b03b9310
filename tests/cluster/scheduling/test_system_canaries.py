"""Canaries of system jobs: a new version starts on a part of the nodes (scheduling.md 5.11)."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_constraint, a_group, a_system_job, a_task, some_resources
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SECOND_NS, SETTINGS
from wharf.cluster.operations import deployments
from wharf.cluster.operations.jobs import registration
from wharf.cluster.scheduling.reconcile.input import UPDATING_TEXT
from wharf.cluster.scheduling.reconcile.system_group import count_canaries
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus, DesiredTransition
from wharf.contract.model.deployments import DeploymentStatus
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.group_policies import UpdatePolicy
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import NodeStatus, SchedulingEligibility


def make_version(
    value: int, *, canary: int = 40, max_parallel: int = 5, auto_revert: bool = False, auto_promote: bool = False
) -> Job:
    update = UpdatePolicy(
        max_parallel=max_parallel, canary=canary, min_healthy_time=SECOND_NS, auto_revert=auto_revert,
        auto_promote=auto_promote,
    )  # fmt: skip
    return a_system_job("shop", a_group("web", a_task(env={"V": str(value)}), update=update))


def make_cluster_with_version_0(nodes: int = 5, **fields: int | bool) -> SimulatedCluster:
    cluster = SimulatedCluster()
    for number in range(nodes):
        cluster.with_node(f"n{number}")
    cluster.register(make_version(0, **fields))  # type: ignore[arg-type]  # The fields are passed on by name.
    cluster.settle()
    return cluster


def list_version(cluster: SimulatedCluster, version: int) -> list[Allocation]:
    return [each for each in cluster.list_active() if each.job_version == version]


def promote(cluster: SimulatedCluster) -> None:
    cluster.lead(
        deployments.promote_deployment(
            cluster.replica, cluster.deployment().id, cluster.moment, should_promote_all=True, max_changes=100
        )
    )


@given(st.integers(0, 500), st.integers(0, 100), st.integers(1, 50))
def test_the_canary_count_is_a_percentage_of_nodes_rounded_up_and_at_most_max_parallel(
    nodes: int, percent: int, at_once: int
) -> None:
    canaries = count_canaries(nodes, UpdatePolicy(max_parallel=at_once, canary=percent))

    assert canaries == at_once or (canaries - 1 < nodes * percent / 100 <= canaries)
    assert canaries <= at_once


def test_a_new_version_starts_on_the_canary_nodes_and_waits_for_promotion() -> None:
    cluster = make_cluster_with_version_0()
    cluster.register(make_version(1))
    cluster.settle()
    state = (cluster.deployment().task_groups or {})["web"]

    assert (len(list_version(cluster, 1)), len(list_version(cluster, 0))) == (2, 3)
    assert (state.desired_canaries, len(state.placed_canaries or ()), state.desired_total) == (2, 2, 5)
    assert cluster.deployment().status_description == "Deployment is running but requires manual promotion"


def test_after_promotion_the_new_version_runs_on_all_nodes() -> None:
    cluster = make_cluster_with_version_0()
    cluster.register(make_version(1))
    cluster.settle()
    promote(cluster)
    cluster.settle()

    assert (len(list_version(cluster, 1)), len(list_version(cluster, 0)), cluster.deployment().status) == (
        5,
        0,
        "successful",
    )


def test_a_canary_without_capacity_beside_the_old_allocation_waits_until_that_has_stopped() -> None:
    def large(value: int) -> Job:
        task = a_task(env={"V": str(value)}, resources=some_resources(cpu=700, memory_mb=10))
        update = UpdatePolicy(max_parallel=2, canary=25, min_healthy_time=SECOND_NS)
        return a_system_job("shop", a_group("web", task, update=update))

    cluster = SimulatedCluster()
    for number in range(4):
        cluster.with_node(f"n{number}", cpu=1_000)
    cluster.register(large(0))
    cluster.settle()
    cluster.register(large(1))
    for _ in range(3):
        cluster.process_pending()
        cluster.evaluate_job()
    stopped = [allocation for allocation in cluster.list_allocations() if allocation.is_server_terminal]
    cluster.settle()

    assert len(stopped) == 1
    assert (len(list_version(cluster, 1)), len(list_version(cluster, 0))) == (1, 3)
    assert [
        allocation.next_allocation for allocation in cluster.list_allocations() if allocation.is_server_terminal
    ] == [list_version(cluster, 1)[0].id]
    promote(cluster)
    cluster.settle()
    assert (len(list_version(cluster, 1)), len(list_version(cluster, 0)), cluster.deployment().status) == (
        4,
        0,
        "successful",
    )


def test_a_failed_canary_is_retried_on_its_own_node() -> None:
    cluster = SimulatedCluster()
    for number in range(5):
        cluster.with_node(f"n{number}")
    cluster.register(replace(make_version(0), task_groups=(a_group("web", a_task(env={"V": "0"}), update=None),)))
    cluster.settle()
    cluster.register(make_version(1, max_parallel=2))
    cluster.evaluate_job()
    canaries = list_version(cluster, 1)
    for canary in canaries:
        cluster.report(canary, ClientStatus.FAILED, healthy=False)
    cluster.evaluate_job()

    assert {each.node_id for each in canaries} == {each.node_id for each in list_version(cluster, 1)}
    assert (2, 3) == (len(list_version(cluster, 1)), len(list_version(cluster, 0)))
    assert {each.id for each in canaries} == {each.previous_allocation for each in list_version(cluster, 1)}
    assert all(
        each.deployment_status is not None and each.deployment_status.canary for each in list_version(cluster, 1)
    )


def test_a_failed_allocation_of_a_deployment_counts_as_down_until_one_is_healthy_there() -> None:
    cluster = make_cluster_with_version_0(canary=0, max_parallel=2)
    cluster.register(make_version(1, canary=0, max_parallel=2))
    cluster.evaluate_job()
    updated = list_version(cluster, 1)
    for each in updated:
        cluster.report(each, ClientStatus.FAILED)
    cluster.evaluate_job()

    assert {each.node_id for each in updated} == {each.node_id for each in list_version(cluster, 1)}
    assert (2, 3) == (len(list_version(cluster, 1)), len(list_version(cluster, 0)))


def test_a_node_that_joins_during_the_canary_phase_gets_the_older_version() -> None:
    cluster = make_cluster_with_version_0()
    cluster.register(make_version(1))
    cluster.settle()
    cluster.with_node("joins")
    cluster.evaluate_job()

    assert [each.job_version for each in cluster.list_active() if each.node_id == "joins"] == [0]


def make_canary_phase(*, canary: int = 20, max_parallel: int = 1, auto_promote: bool = False) -> SimulatedCluster:
    """Return a cluster of five nodes with version 0, on which the canaries of version 1 were just placed."""
    cluster = make_cluster_with_version_0(canary=canary, max_parallel=max_parallel)
    cluster.register(make_version(1, canary=canary, max_parallel=max_parallel, auto_promote=auto_promote))
    cluster.process_pending()
    return cluster


def make_healthy(cluster: SimulatedCluster, allocation: Allocation) -> None:
    cluster.report(allocation, ClientStatus.RUNNING, healthy=True)
    cluster.process_pending()


def lose_nodes(cluster: SimulatedCluster, node_ids: Iterable[str]) -> None:
    for node_id in list(node_ids):
        cluster.lose_node(node_id)
        cluster.process_pending()


def drain_node(cluster: SimulatedCluster, node_id: str) -> None:
    """Mark the node's allocations for migration, as a drain does. Do not evaluate the job."""
    ineligible = SchedulingEligibility.INELIGIBLE
    cluster.put(NODES.build_put(replace(cluster.node(node_id), scheduling_eligibility=ineligible)))
    for each in list_on_node(cluster, node_id):
        cluster.put_led(ALLOCATIONS.build_put(replace(each, desired_transition=DesiredTransition(migrate=True))))


def test_a_rollout_ends_if_a_node_that_lost_a_healthy_canary_returns_and_no_allocation_can_be_replaced() -> None:
    cluster = make_canary_phase(canary=60, max_parallel=2, auto_promote=True)
    first, second = list_version(cluster, 1)
    lose_nodes(cluster, {each.node_id for each in list_version(cluster, 0)})
    make_healthy(cluster, first)
    lose_nodes(cluster, [first.node_id])
    make_healthy(cluster, second)
    for node in cluster.replica.iter_all(NODES):
        cluster.reconnect_node(node.id)
    cluster.evaluate_job(trigger=EvaluationTrigger.NODE_UPDATE)
    canaries, other_allocations = list_version(cluster, 1), list_version(cluster, 0)
    cluster.settle()

    assert (len(canaries), len(other_allocations)) == (2, 3)
    assert (len(list_version(cluster, 1)), len(list_version(cluster, 0)), cluster.deployment().status) == (
        5,
        0,
        "successful",
    )


@pytest.mark.parametrize("is_canary_lost_first", [True, False])
def test_one_returning_node_gets_the_missing_canary_and_the_others_the_older_version(
    *, is_canary_lost_first: bool
) -> None:
    cluster = make_canary_phase()
    (canary,) = list_version(cluster, 1)
    make_healthy(cluster, canary)
    other_nodes = [each.node_id for each in list_version(cluster, 0)]
    # Without other nodes, a lost canary has no allocation to replace.
    lose_nodes(cluster, other_nodes[1:])
    if is_canary_lost_first:
        cluster.lose_node(canary.node_id)
        cluster.lose_node(other_nodes[0])
        cluster.process_pending()
    else:
        lose_nodes(cluster, [other_nodes[0], canary.node_id])
    placed = []
    for node_id in [other_nodes[1], canary.node_id, other_nodes[0]]:
        cluster.reconnect_node(node_id)
        cluster.evaluate_job(trigger=EvaluationTrigger.NODE_UPDATE)
        placed.append([(each.node_id, each.job_version) for each in cluster.list_active()][-1])

    assert placed == [(other_nodes[1], 1), (canary.node_id, 0), (other_nodes[0], 0)]
    assert len(cluster.list_active()) == 3


def test_a_node_that_joins_gets_a_missing_canary_if_no_allocation_can_be_replaced() -> None:
    cluster = make_canary_phase()
    (canary,) = list_version(cluster, 1)
    make_healthy(cluster, canary)
    lose_nodes(cluster, [*(each.node_id for each in list_version(cluster, 0)), canary.node_id])
    cluster.with_node("joins first")
    cluster.with_node("joins second")
    cluster.evaluate_job(trigger=EvaluationTrigger.NODE_UPDATE)

    assert sorted(each.job_version for each in cluster.list_active()) == [0, 1]


def test_a_canary_replaces_an_allocation_rather_than_wait_for_a_free_node_without_capacity() -> None:
    cluster = make_cluster_with_version_0(canary=20, max_parallel=1)
    cluster.with_node("full", cpu=1)
    cluster.register(make_version(1, canary=20, max_parallel=1))
    cluster.settle()

    assert (len(list_version(cluster, 1)), len(list_version(cluster, 0))) == (1, 4)
    assert list_on_node(cluster, "full") == []


@pytest.mark.parametrize("is_healthy", [True, False])
@pytest.mark.parametrize("is_drained", [True, False])
def test_another_node_gets_a_canary_when_the_node_of_a_canary_is_lost_or_drained(
    *, is_healthy: bool, is_drained: bool
) -> None:
    cluster = make_canary_phase()
    (canary,) = list_version(cluster, 1)
    if is_healthy:
        make_healthy(cluster, canary)
    if is_drained:
        drain_node(cluster, canary.node_id)
        cluster.evaluate_job(trigger=EvaluationTrigger.NODE_DRAIN)
    else:
        lose_nodes(cluster, [canary.node_id])
    (successor,) = list_version(cluster, 1)

    assert successor.node_id != canary.node_id
    assert successor.deployment_status is not None
    assert successor.deployment_status.canary
    assert len(list_version(cluster, 0)) == 3


def test_after_a_failed_canary_phase_its_nodes_get_the_older_version_back() -> None:
    cluster = make_cluster_with_version_0()
    cluster.register(make_version(1))
    cluster.process_pending()
    cluster.report(list_version(cluster, 1)[0], ClientStatus.RUNNING, healthy=False)
    cluster.settle()

    assert (len(list_version(cluster, 1)), len(list_version(cluster, 0)), cluster.deployment().status) == (
        0,
        5,
        "failed",
    )


def test_a_failed_canary_phase_with_auto_revert_ends_with_the_stable_version_on_all_nodes() -> None:
    cluster = make_cluster_with_version_0(auto_revert=True)
    cluster.register(make_version(1, auto_revert=True))
    cluster.process_pending()
    cluster.report(list_version(cluster, 1)[0], ClientStatus.RUNNING, healthy=False)
    cluster.settle()
    statuses = {each.status for each in cluster.replica.iter_all(DEPLOYMENTS) if each.job_version == 2}

    assert (len(list_version(cluster, 2)), len(cluster.list_active()), statuses) == (
        5,
        5,
        {DeploymentStatus.SUCCESSFUL},
    )


@given(st.integers(1, 12), st.integers(1, 100), st.integers(1, 4))
def test_system_canaries_never_exceed_their_percentage_before_promotion(nodes: int, percent: int, at_once: int) -> None:
    cluster = make_cluster_with_version_0(nodes, canary=percent, max_parallel=at_once)
    max_count = count_canaries(nodes, UpdatePolicy(max_parallel=at_once, canary=percent))
    cluster.checks.append(lambda: assert_at_most(len(list_version(cluster, 1)), max_count))
    cluster.register(make_version(1, canary=percent, max_parallel=at_once))
    cluster.settle()

    assert len(list_version(cluster, 1)) == max_count


def assert_at_most(number: int, max_count: int) -> None:
    assert number <= max_count


def test_a_rollout_continues_when_a_node_is_lost_before_its_new_allocation_is_healthy() -> None:
    cluster = make_cluster_with_version_0(canary=0, max_parallel=1)
    cluster.register(make_version(1, canary=0, max_parallel=1))
    cluster.process_pending()
    (first,) = list_version(cluster, 1)

    cluster.lose_node(first.node_id)
    cluster.settle()  # Nothing else evaluates the job.

    assert (len(list_version(cluster, 1)), len(list_version(cluster, 0))) == (4, 0)
    assert cluster.deployment().status is DeploymentStatus.SUCCESSFUL


def test_a_rollout_ends_without_the_node_that_was_lost_after_its_new_allocation_was_healthy() -> None:
    cluster = make_cluster_with_version_0(canary=0, max_parallel=1)
    cluster.register(make_version(1, canary=0, max_parallel=1))
    cluster.process_pending()
    (first,) = list_version(cluster, 1)
    make_healthy(cluster, first)

    cluster.lose_node(first.node_id)
    cluster.settle()
    group = (cluster.deployment().task_groups or {})["web"]

    assert cluster.deployment().status is DeploymentStatus.SUCCESSFUL
    assert (group.desired_total, group.healthy_allocs) == (4, 4)


def test_a_returning_node_whose_new_version_was_lost_before_it_was_healthy_counts_as_down() -> None:
    cluster = make_cluster_with_version_0(canary=0, max_parallel=1)
    cluster.register(make_version(1, canary=0, max_parallel=1))
    cluster.process_pending()
    (first,) = list_version(cluster, 1)
    cluster.lose_node(first.node_id)
    cluster.process_pending()
    (second,) = list_version(cluster, 1)
    assert second.node_id != first.node_id

    cluster.reconnect_node(first.node_id)
    cluster.evaluate_job(trigger=EvaluationTrigger.NODE_UPDATE)
    make_healthy(cluster, second)

    # Until the allocation on the first node is healthy, no other node is updated.
    assert {first.node_id, second.node_id} == {each.node_id for each in list_version(cluster, 1)}
    cluster.settle()
    assert (5, 0) == (len(list_version(cluster, 1)), len(list_version(cluster, 0)))


def test_a_node_that_lost_its_canary_counts_as_down_until_an_allocation_is_healthy_there() -> None:
    cluster = make_cluster_with_version_0(canary=20, max_parallel=1)
    cluster.register(make_version(1, canary=20, max_parallel=1))
    cluster.process_pending()
    (first,) = list_version(cluster, 1)
    cluster.lose_node(first.node_id)
    cluster.process_pending()
    cluster.evaluate_job()
    (second,) = list_version(cluster, 1)
    cluster.reconnect_node(first.node_id)
    cluster.evaluate_job(trigger=EvaluationTrigger.NODE_UPDATE)
    (restored,) = [each for each in list_version(cluster, 0) if each.node_id == first.node_id]
    cluster.report(second, ClientStatus.RUNNING, healthy=True)

    promote(cluster)
    cluster.evaluate_job()

    assert restored.client_status is ClientStatus.PENDING
    assert [second.node_id, first.node_id] == [each.node_id for each in list_version(cluster, 1)]
    cluster.settle()
    assert (5, 0, "successful") == (
        len(list_version(cluster, 1)),
        len(list_version(cluster, 0)),
        cluster.deployment().status,
    )


def test_while_a_preempted_canary_waits_for_capacity_no_other_node_goes_down() -> None:
    cluster = make_cluster_with_version_0(canary=20, max_parallel=1)
    cluster.register(make_version(1, canary=20, max_parallel=1))
    cluster.process_pending()
    (first,) = list_version(cluster, 1)
    urgent_task = a_task(resources=some_resources(cpu=990, memory_mb=10))
    only_there = a_constraint("${node.unique.id}", first.node_id)
    cluster.register(a_system_job("urgent", a_group("web", urgent_task), priority=80, constraints=(only_there,)))
    cluster.settle()

    assert (["urgent"], 4) == (
        [each.job_id for each in list_on_node(cluster, first.node_id)],
        len(list_version(cluster, 0)),
    )

    cluster.do(registration.deregister_job(cluster.replica, "default", "urgent", cluster.moment, settings=SETTINGS))
    cluster.settle()

    assert [first.node_id] == [each.node_id for each in list_version(cluster, 1)]
    assert 4 == len(list_version(cluster, 0))


def list_on_node(cluster: SimulatedCluster, node_id: str) -> list[Allocation]:
    return [each for each in cluster.replica.iter_all(ALLOCATIONS) if each.node_id == node_id and not each.is_terminal]


class DownNodes:
    """Checks after each plan that the update takes no further node down while `max_count` nodes are down for it."""

    def __init__(self, cluster: SimulatedCluster, max_count: int) -> None:
        self._cluster = cluster
        self._max_count = max_count
        self._before: set[str] = set()
        cluster.checks.append(self.check)

    def check(self) -> None:
        before, now = self._before, self.current()
        self._before = now
        assert now <= before or len(now) <= self._max_count, f"{sorted(now - before)} went down beside {sorted(before)}"

    def refresh(self) -> None:
        """Record nodes that went down through a node event, not through a plan."""
        self._before = self.current()

    def current(self) -> set[str]:
        """The nodes that accept placements, on which an allocation was stopped for the update and none has been healthy since."""
        down: set[str] = set()
        for allocation in self._cluster.list_allocations():
            status = allocation.deployment_status
            if allocation.desired_description == UPDATING_TEXT:
                down.add(allocation.node_id)
            elif status is not None and status.healthy:
                down.discard(allocation.node_id)
        return {node_id for node_id in down if self._cluster.node(node_id).is_ready_for_placements}


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["lost", "back", "failed", "healthy", "preempted", "joined", "drained", "evaluated"]),
        st.integers(0, 2),
    ),
    max_size=40,
)


@given(EVENTS, st.integers(1, 3), st.sampled_from([0, 20, 60]))
def test_an_update_takes_down_at_most_max_parallel_nodes_and_ends_despite_node_events(
    events: list[tuple[str, int]], max_count: int, canary: int
) -> None:
    cluster = make_cluster_with_version_0(canary=canary, max_parallel=max_count)
    down = DownNodes(cluster, max_count)
    max_canaries = count_canaries(5, UpdatePolicy(max_parallel=max_count, canary=canary))
    cluster.checks.append(lambda: assert_at_most(count_unpromoted_canaries(cluster), max_canaries))
    cluster.register(make_version(1, canary=canary, max_parallel=max_count, auto_promote=canary > 0))
    cluster.process_pending()
    for event, position in events:
        apply_event(cluster, event, position)
        down.refresh()
        cluster.process_pending()
        if event != "lost":
            # A lost node causes only the evaluation that stops its allocations.
            cluster.evaluate_job(trigger=EvaluationTrigger.NODE_UPDATE)
            cluster.process_pending()
    for node in cluster.replica.iter_all(NODES):
        eligible = replace(node, scheduling_eligibility=SchedulingEligibility.ELIGIBLE)
        cluster.put(NODES.build_put(eligible))
        cluster.reconnect_node(node.id)
    down.refresh()
    cluster.evaluate_job(trigger=EvaluationTrigger.NODE_UPDATE)
    cluster.settle()

    assert cluster.deployment().status is not DeploymentStatus.RUNNING


def count_unpromoted_canaries(cluster: SimulatedCluster) -> int:
    statuses = [each.deployment_status for each in cluster.list_active()]
    return sum(status is not None and status.canary for status in statuses)


def apply_event(cluster: SimulatedCluster, event: str, position: int) -> None:
    """`position` counts the lost nodes, or the active allocations on ready nodes, the newest first."""
    lost = [each.id for each in cluster.replica.iter_all(NODES) if each.status is NodeStatus.DOWN]
    active = [each for each in reversed(cluster.list_active()) if each.node_id not in lost]
    if event == "joined":
        cluster.with_node(f"joined{len(list(cluster.replica.iter_all(NODES)))}")
    elif event == "back" and lost:
        cluster.reconnect_node(lost[position % len(lost)])
    elif event not in ("back", "evaluated") and active:
        chosen = active[position % len(active)]
        match event:
            case "lost":
                cluster.lose_node(chosen.node_id)
            case "failed":
                cluster.report(chosen, ClientStatus.FAILED)
            case "healthy":
                cluster.report(chosen, ClientStatus.RUNNING, healthy=True)
            case "drained":
                drain_node(cluster, chosen.node_id)
            case _:
                evicted = replace(chosen, desired_status=DesiredStatus.EVICT, client_status=ClientStatus.COMPLETE)
                cluster.put_led(ALLOCATIONS.build_put(evicted))
