"""When a disconnected node reconnects, either the original or its replacement continues (scheduling.md 5.9)."""

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SECOND_NS
from wharf.cluster.state.tables import ALLOCATIONS, JOBS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus, DesiredTransition
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.group_policies import DisconnectPolicy, ReschedulePolicy, UpdatePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.nodes.node import NodeStatus

RETRY = ReschedulePolicy(unlimited=True, delay=5 * SECOND_NS, delay_function="constant")
STRATEGIES = ("best_score", "keep_original", "keep_replacement", "longest_running")


GROUP = a_group("web", count=1, disconnect=DisconnectPolicy(lost_after=100_000 * SECOND_NS), reschedule_policy=RETRY)

SHORT_ABSENCE = replace(GROUP, disconnect=DisconnectPolicy(lost_after=30 * SECOND_NS))

NEVER_REPLACED = DisconnectPolicy(replace=False)


def make_cluster_with_disconnected(group: TaskGroup) -> SimulatedCluster:
    """Return a cluster with one disconnected allocation that was not replaced yet."""
    cluster = SimulatedCluster()
    for node_id in ("n0", "n1", "n2"):
        cluster.with_node(node_id)
    cluster.register(a_job("shop", group))
    cluster.settle()
    cluster.lose_node(cluster.list_active()[0].node_id, NodeStatus.DISCONNECTED)
    cluster.process_pending()
    return cluster


def make_cluster_with_replacement(reconcile: str) -> SimulatedCluster:
    """Return a cluster with two allocations of a service, one of them disconnected and replaced."""
    cluster = SimulatedCluster()
    for node_id in ("n0", "n1", "n2"):
        cluster.with_node(node_id)
    disconnect = DisconnectPolicy(lost_after=600 * SECOND_NS, reconcile=reconcile)
    group = a_group("web", count=2, disconnect=disconnect, reschedule_policy=RETRY)
    cluster.register(a_job("shop", group))
    cluster.settle()
    cluster.lose_node(cluster.list_active()[0].node_id, NodeStatus.DISCONNECTED)
    cluster.settle()
    cluster.pass_time(6)
    cluster.settle()
    return cluster


@pytest.mark.parametrize("reconcile", STRATEGIES)
@pytest.mark.parametrize("is_evaluated_first", [True, False])
def test_after_a_reconnect_the_count_runs_with_one_allocation_per_name(
    reconcile: str, is_evaluated_first: bool
) -> None:
    cluster = make_cluster_with_replacement(reconcile)
    (disconnected,) = [each for each in cluster.list_active() if each.client_status is ClientStatus.UNKNOWN]
    cluster.reconnect_node(disconnected.node_id)
    if is_evaluated_first:  # The evaluation runs before the node has reported its allocations.
        cluster.process_pending()
    if not cluster.allocation(disconnected.id).is_server_terminal:
        cluster.report(disconnected, ClientStatus.RUNNING)
    cluster.evaluate_job(trigger=EvaluationTrigger.RECONNECT)
    cluster.settle()

    assert sorted(each.name for each in cluster.list_active()) == ["shop.web[0]", "shop.web[1]"]
    assert cluster.allocation(disconnected.id).is_server_terminal == (reconcile == "keep_replacement")


@pytest.mark.parametrize("reconcile", STRATEGIES)
def test_a_disconnected_allocation_is_not_replaced_twice(reconcile: str) -> None:
    cluster = make_cluster_with_replacement(reconcile)
    cluster.evaluate_job()
    cluster.settle()

    assert len(cluster.list_active()) == 3


def list_timeouts(cluster: SimulatedCluster) -> list[str]:
    trigger = EvaluationTrigger.MAX_DISCONNECT_TIMEOUT
    return [each.id for each in cluster.open_evaluations() if each.triggered_by is trigger]


def reconnect(cluster: SimulatedCluster, disconnected: Allocation) -> None:
    cluster.reconnect_node(disconnected.node_id)
    cluster.report(disconnected, ClientStatus.RUNNING)
    cluster.evaluate_job(trigger=EvaluationTrigger.RECONNECT)


def test_the_disconnect_timeout_of_a_reconnected_allocation_is_canceled() -> None:
    cluster = make_cluster_with_disconnected(GROUP)
    (disconnected,) = [each for each in cluster.list_active() if each.client_status is ClientStatus.UNKNOWN]
    before = list_timeouts(cluster)
    reconnect(cluster, disconnected)

    assert (before, list_timeouts(cluster)) == ([cluster.allocation(disconnected.id).followup_eval_id], [])


def test_the_disconnect_timeout_of_another_allocation_stays() -> None:
    cluster = make_cluster_with_disconnected(
        replace(GROUP, count=2, disconnect=replace(NEVER_REPLACED, lost_after=SECOND_NS * 600))
    )
    for node_id in {each.node_id for each in cluster.list_active() if each.client_status is not ClientStatus.UNKNOWN}:
        cluster.lose_node(node_id, NodeStatus.DISCONNECTED)
    cluster.process_pending()
    first, second = cluster.list_active()
    reconnect(cluster, first)

    assert list_timeouts(cluster) == [cluster.allocation(second.id).followup_eval_id]


def test_a_reconnected_surplus_allocation_is_stopped() -> None:
    cluster = make_cluster_with_replacement("keep_original")
    (disconnected,) = [each for each in cluster.list_active() if each.client_status is ClientStatus.UNKNOWN]
    cluster.reconnect_node(disconnected.node_id)
    cluster.report(disconnected, ClientStatus.RUNNING)
    cluster.put_led(
        ALLOCATIONS.build_put(replace(cluster.allocation(disconnected.id), next_allocation=""))
    )  # The link to the replacement is missing.
    cluster.evaluate_job(trigger=EvaluationTrigger.RECONNECT)
    cluster.settle()

    assert sorted(each.name for each in cluster.list_active()) == ["shop.web[0]", "shop.web[1]"]


def test_an_allocation_that_was_migrated_while_disconnected_is_replaced_once() -> None:
    group = a_group("web", count=1, disconnect=DisconnectPolicy(lost_after=600 * SECOND_NS))
    cluster = make_cluster_with_disconnected(group)
    (original,) = cluster.list_active()
    cluster.reconnect_node(original.node_id)
    cluster.report(original, ClientStatus.RUNNING)
    migrated = replace(cluster.allocation(original.id), desired_transition=DesiredTransition(migrate=True))
    cluster.put_led(ALLOCATIONS.build_put(migrated))

    cluster.evaluate_job()
    # Its node has not stopped it yet, and the last state that servers recorded is still unknown.
    cluster.register(a_job("shop", replace(group, count=3)))
    cluster.evaluate_job()

    assert ["shop.web[0]", "shop.web[1]", "shop.web[2]"] == sorted(each.name for each in cluster.list_active())


def test_the_replacement_of_a_disconnected_allocation_shares_its_name_with_no_new_one() -> None:
    cluster = make_cluster_with_disconnected(GROUP)
    cluster.pass_time(6)

    cluster.register(a_job("shop", replace(GROUP, count=3)))
    cluster.evaluate_job()

    known = [each for each in cluster.list_active() if each.client_status is not ClientStatus.UNKNOWN]
    assert ["shop.web[0]", "shop.web[1]", "shop.web[2]"] == sorted(allocation.name for allocation in known)


def test_a_disconnected_allocation_is_replaced_even_if_an_earlier_placement_failed_to_commit() -> None:
    cluster = make_cluster_with_disconnected(GROUP)
    (original,) = cluster.list_active()
    # The state after a plan was committed only in part: with its stops, without its placement.
    cluster.put_led(
        ALLOCATIONS.build_put(replace(cluster.allocation(original.id), next_allocation="missing-replacement"))
    )
    cluster.pass_time(6)

    cluster.settle()

    (replacement,) = [each for each in cluster.list_active() if each.id != original.id]
    assert replacement.id == cluster.allocation(original.id).next_allocation


def test_a_failed_replacement_of_a_disconnected_allocation_is_retried() -> None:
    cluster = make_cluster_with_disconnected(GROUP)
    (original,) = cluster.list_active()
    cluster.pass_time(6)
    cluster.settle()
    (first,) = [each for each in cluster.list_active() if each.id != original.id]
    cluster.report(first, ClientStatus.FAILED)
    cluster.evaluate_job()  # Its retry waits for a delay. Until then nothing else is stopped or placed.
    assert [] == [allocation for allocation in cluster.list_allocations() if allocation.is_server_terminal]
    cluster.pass_time(6)
    cluster.settle()

    (second,) = [each for each in cluster.list_active() if each.id != original.id]
    assert (first.id, original.name) == (second.previous_allocation, second.name)


def test_a_disconnected_allocation_is_not_replaced_again_when_its_first_replacement_was_collected() -> None:
    cluster = make_cluster_with_disconnected(GROUP)
    (original,) = cluster.list_active()
    cluster.pass_time(6)
    cluster.settle()
    (first,) = [each for each in cluster.list_active() if each.id != original.id]
    cluster.report(first, ClientStatus.FAILED)
    cluster.pass_time(6)
    cluster.evaluate_job()
    cluster.settle()
    (second,) = [each for each in cluster.list_active() if each.id != original.id]
    cluster.put_led(ALLOCATIONS.build_delete(first.id))

    cluster.evaluate_job()
    cluster.settle()

    assert {original.id, second.id} == {each.id for each in cluster.list_active()}


def test_a_replaced_disconnected_allocation_is_not_replaced_again_by_a_new_version() -> None:
    cluster = make_cluster_with_disconnected(GROUP)
    cluster.pass_time(6)
    cluster.settle()

    cluster.register(a_job("shop", replace(GROUP, tasks=(a_task(env={"V": "1"}),))))
    cluster.evaluate_job()

    assert [("shop.web[0]", 1)] == [(each.name, each.job_version) for each in cluster.list_active()]


def test_a_job_change_stops_a_replaced_unknown_allocation_even_if_another_is_missing() -> None:
    cluster = make_cluster_with_replacement("best_score")
    (replacement,) = [each for each in cluster.list_active() if each.name == "shop.web[1]"]
    cluster.report(replacement, ClientStatus.COMPLETE)

    (group,) = cluster.job().groups
    cluster.register(
        a_job("shop", replace(group, tasks=(a_task(env={"V": "1"}),), update=UpdatePolicy(max_parallel=0)))
    )
    cluster.evaluate_job()

    assert [("shop.web[0]", 1), ("shop.web[1]", 1)] == sorted(
        (each.name, each.job_version) for each in cluster.list_active()
    )


def test_an_update_stops_a_surplus_unknown_allocation_even_if_its_replacement_is_due() -> None:
    cluster = make_cluster_with_disconnected(replace(GROUP, count=3))
    cluster.pass_time(6)
    update = UpdatePolicy(max_parallel=1, min_healthy_time=SECOND_NS)
    cluster.register(a_job("shop", replace(GROUP, count=2, tasks=(a_task(env={"V": "1"}),), update=update)))

    cluster.settle()

    assert [1, 1] == [each.job_version for each in cluster.list_active()]


def test_a_replaced_unknown_allocation_is_not_migrated_when_its_node_reconnects() -> None:
    cluster = make_cluster_with_replacement("best_score")
    (disconnected,) = [each for each in cluster.list_active() if each.client_status is ClientStatus.UNKNOWN]
    (replacement,) = [each for each in cluster.list_active() if each.name == "shop.web[1]"]
    cluster.put_led(ALLOCATIONS.build_put(replace(disconnected, desired_transition=DesiredTransition(migrate=True))))
    cluster.lose_node(replacement.node_id, NodeStatus.DISCONNECTED)
    cluster.process_pending()
    before = {each.id for each in cluster.list_active()}

    cluster.reconnect_node(disconnected.node_id)
    cluster.process_pending()

    assert before - {disconnected.id} == {each.id for each in cluster.list_active()}


def test_a_stopped_unknown_allocation_is_not_migrated_when_its_node_reconnects() -> None:
    cluster = make_cluster_with_disconnected(replace(GROUP, count=3))
    (disconnected,) = [each for each in cluster.list_active() if each.client_status is ClientStatus.UNKNOWN]
    cluster.register(a_job("shop", replace(GROUP, count=2, tasks=(a_task(env={"V": "1"}),))))
    cluster.settle()
    stopped = cluster.allocation(disconnected.id)
    assert stopped.is_server_terminal
    cluster.put_led(ALLOCATIONS.build_put(replace(stopped, desired_transition=DesiredTransition(migrate=True))))
    replacement = cluster.list_active()[-1]
    cluster.lose_node(replacement.node_id, NodeStatus.DISCONNECTED)
    cluster.process_pending()
    before = {allocation.id for allocation in cluster.list_allocations()}

    cluster.reconnect_node(disconnected.node_id)
    cluster.process_pending()

    assert before == {allocation.id for allocation in cluster.list_allocations()}


@pytest.mark.parametrize("status", [NodeStatus.READY, NodeStatus.INITIALIZING])
def test_an_expired_allocation_occupies_its_returned_node_until_the_node_reports_its_end(status: NodeStatus) -> None:
    cluster = make_cluster_with_disconnected(SHORT_ABSENCE)
    (disconnected,) = [each for each in cluster.list_active() if each.client_status is ClientStatus.UNKNOWN]
    cluster.lose_node(disconnected.node_id, status)
    cluster.pass_time(60)
    cluster.evaluate_job(trigger=EvaluationTrigger.MAX_DISCONNECT_TIMEOUT)

    expired = cluster.allocation(disconnected.id)
    assert (expired.client_status, expired.desired_status) == (ClientStatus.UNKNOWN, DesiredStatus.STOP)
    assert expired.is_occupying

    cluster.settle()
    cluster.evaluate_job()
    assert len(cluster.list_active()) == 1


def test_an_expired_allocation_is_lost_when_its_node_leaves_again_before_it_reported_the_end() -> None:
    cluster = make_cluster_with_disconnected(SHORT_ABSENCE)
    (disconnected,) = [each for each in cluster.list_active() if each.client_status is ClientStatus.UNKNOWN]
    cluster.lose_node(disconnected.node_id, NodeStatus.READY)
    cluster.pass_time(60)
    cluster.evaluate_job(trigger=EvaluationTrigger.MAX_DISCONNECT_TIMEOUT)

    cluster.lose_node(disconnected.node_id, NodeStatus.DOWN)
    cluster.settle()

    assert cluster.allocation(disconnected.id).client_status is ClientStatus.LOST
    assert len(cluster.list_active()) == 1


def test_a_stopped_unknown_allocation_of_a_stopped_job_is_lost_with_its_node() -> None:
    cluster = make_cluster_with_disconnected(SHORT_ABSENCE)
    (disconnected,) = [each for each in cluster.list_active() if each.client_status is ClientStatus.UNKNOWN]
    cluster.put(JOBS.build_put(replace(cluster.job(), stop=True)))
    cluster.evaluate_job()
    assert cluster.allocation(disconnected.id).client_status is ClientStatus.UNKNOWN

    cluster.lose_node(disconnected.node_id, NodeStatus.DOWN)
    cluster.settle()

    assert cluster.allocation(disconnected.id).client_status is ClientStatus.LOST
