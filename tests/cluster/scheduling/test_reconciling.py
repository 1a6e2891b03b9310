"""What an evaluation changes in a group that differs from what the job requests."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_constraint, a_group, a_job, a_system_job, a_task, some_resources
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SECOND_NS
from wharf.cluster.operations import deployments
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus, DesiredTransition
from wharf.contract.model.evaluations import Evaluation, EvaluationTrigger
from wharf.contract.model.jobs.group_policies import DisconnectPolicy, EphemeralDisk, ReschedulePolicy, UpdatePolicy
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.nodes.node import NodeStatus, SchedulingEligibility
from wharf.contract.model.times import to_ns

RUNNING, FAILED, COMPLETE = ClientStatus.RUNNING, ClientStatus.FAILED, ClientStatus.COMPLETE
LOST, UNKNOWN = ClientStatus.LOST, ClientStatus.UNKNOWN
NO_UPDATE = UpdatePolicy(max_parallel=0)
ROLLING = UpdatePolicy(max_parallel=1, progress_deadline=600 * SECOND_NS)
LOST_AFTER = DisconnectPolicy(lost_after=60 * SECOND_NS)


def make_version(
    value: int = 0, count: int = 3, *, cpu: int = 100, update: UpdatePolicy = NO_UPDATE, **fields: Any
) -> Job:
    task = a_task(resources=some_resources(cpu=cpu, memory_mb=10), env={"VERSION": str(value)})
    return a_job("shop", a_group("web", task, count=count, update=update, **fields))


def make_cluster(*jobs: Job, nodes: int = 3, cpu: int = 1_000) -> SimulatedCluster:
    cluster = SimulatedCluster()
    for number in range(nodes):
        cluster.with_node(f"n{number}", cpu=cpu)
    for job in jobs:
        cluster.register(job)
    cluster.settle()
    return cluster


def list_indexes(allocations: list[Allocation]) -> list[int]:
    return sorted(int(allocation.name.split("[")[1][:-1]) for allocation in allocations)


def list_open(cluster: SimulatedCluster, trigger: EvaluationTrigger) -> list[Evaluation]:
    return [each for each in cluster.open_evaluations() if each.triggered_by is trigger]


# -- names and count ---------------------------------------------------------------------------------------------------


def test_the_highest_names_are_stopped_first_and_the_lowest_assigned_first() -> None:
    cluster = make_cluster(make_version(count=5))
    cluster.register(make_version(count=2))
    cluster.settle()
    few = list_indexes(cluster.list_active())
    cluster.register(make_version(count=4))
    cluster.settle()

    assert (few, list_indexes(cluster.list_active())) == ([0, 1], [0, 1, 2, 3])


@pytest.mark.parametrize("is_failed", [True, False], ids=["failed", "unhealthy"])
def test_a_lower_count_stops_the_allocation_that_failed_and_keeps_those_that_run(*, is_failed: bool) -> None:
    never = ReschedulePolicy(attempts=0, unlimited=False)
    cluster = make_cluster(make_version(count=3, update=ROLLING, reschedule_policy=never))
    ill = cluster.list_active()[0]
    cluster.report(ill, FAILED if is_failed else RUNNING, healthy=None if is_failed else False)

    cluster.register(make_version(count=2, update=ROLLING, reschedule_policy=never))
    cluster.process_pending()

    assert cluster.allocation(ill.id).desired_status is DesiredStatus.STOP
    assert list_indexes(cluster.list_active()) == [1, 2]


def test_an_update_replaces_the_allocation_that_failed_first() -> None:
    never = ReschedulePolicy(attempts=0, unlimited=False)
    cluster = make_cluster(make_version(count=3, update=ROLLING, reschedule_policy=never))
    ill = cluster.list_active()[-1]
    cluster.report(ill, FAILED)

    cluster.register(make_version(1, count=3, update=ROLLING, reschedule_policy=never))
    cluster.process_pending()

    running = [each for each in cluster.list_active() if each.client_status is RUNNING]
    assert cluster.allocation(ill.id).desired_status is DesiredStatus.STOP
    assert list_indexes(running) == [0, 1]


def test_a_count_of_zero_stops_everything() -> None:
    cluster = make_cluster(make_version(count=2))
    cluster.register(make_version(count=0))
    cluster.settle()

    assert (cluster.list_active(), cluster.open_evaluations()) == ([], [])


def test_a_stopped_job_leaves_nothing_running() -> None:
    cluster = make_cluster(make_version(count=3))
    cluster.register(replace(make_version(count=3), stop=True))
    cluster.settle()

    assert [allocation.client_status for allocation in cluster.list_allocations()] == [COMPLETE] * 3
    assert cluster.job().status == "dead"


def test_desired_updates_report_the_placements() -> None:
    cluster = make_cluster(nodes=1)
    cluster.register(make_version(count=2))

    plan = cluster.evaluate_job()

    assert plan.completed_evaluation is not None
    assert plan.completed_evaluation.plan_annotations is not None
    updates = (plan.completed_evaluation.plan_annotations.desired_tg_updates or {})["web"]
    assert (updates.place, updates.ignore, updates.stop) == (2, 0, 0)
    assert plan.completed_evaluation.queued_allocations == {"web": 0}


# -- updates -----------------------------------------------------------------------------------------------------------


def test_an_update_in_place_keeps_the_allocations_and_moves_them_to_the_new_version() -> None:
    cluster = make_cluster(make_version())
    before = [each.id for each in cluster.list_active()]
    cluster.register(replace(make_version(), priority=70))
    cluster.settle()

    assert [each.id for each in cluster.list_active()] == before
    assert {each.job_version for each in cluster.list_active()} == {1}


def test_an_update_in_place_on_an_infeasible_node_replaces_the_allocation() -> None:
    cluster = make_cluster(make_version(count=1), nodes=2)
    (old,) = cluster.list_active()
    cluster.register(make_version(count=1, constraints=(a_constraint("${node.unique.id}", old.node_id, "!="),)))
    cluster.settle()

    (new,) = cluster.list_active()
    assert (new.previous_allocation, new.node_id == old.node_id) == (old.id, False)
    assert cluster.allocation(old.id).desired_description == "alloc is being updated due to job update"


def test_an_update_replaces_each_allocation_under_its_name() -> None:
    cluster = make_cluster(make_version())
    cluster.register(make_version(1))
    cluster.settle()

    old = {allocation.id: allocation for allocation in cluster.list_allocations() if allocation.job_version == 0}
    assert list_indexes(cluster.list_active()) == [0, 1, 2]
    assert [old[each.previous_allocation].name for each in cluster.list_active()] == [
        each.name for each in cluster.list_active()
    ]
    assert all(
        cluster.allocation(each.previous_allocation).next_allocation == each.id for each in cluster.list_active()
    )


def test_a_permanently_failed_allocation_is_replaced_by_a_new_version() -> None:
    policy = ReschedulePolicy(attempts=0, unlimited=False)
    cluster = make_cluster(make_version(count=1, reschedule_policy=policy))
    cluster.report(cluster.list_active()[0], FAILED)
    cluster.evaluate_job()
    assert cluster.list_active() == []

    cluster.register(make_version(1, count=1, reschedule_policy=policy))
    cluster.settle()

    assert [each.job_version for each in cluster.list_active()] == [1]


def test_without_capacity_for_both_the_old_version_stops_first_one_at_a_time() -> None:
    rolling = UpdatePolicy(max_parallel=1, min_healthy_time=SECOND_NS)
    cluster = make_cluster(make_version(count=2, cpu=900, update=rolling), nodes=2)
    min_active_count = 2

    def count() -> None:
        nonlocal min_active_count
        min_active_count = min(min_active_count, len(cluster.list_active()))

    cluster.checks.append(count)
    cluster.register(make_version(1, count=2, cpu=900, update=rolling))
    cluster.settle()

    assert (min_active_count, [each.job_version for each in cluster.list_active()]) == (1, [1, 1])
    assert cluster.deployment().status == "successful"


def test_distinct_hosts_do_not_block_an_update() -> None:
    distinct = (a_constraint("", operand="distinct_hosts"),)
    cluster = make_cluster(make_version(constraints=distinct))
    cluster.register(make_version(1, constraints=distinct))

    plan = cluster.evaluate_job()

    assert sorted(plan.placements) == ["n0", "n1", "n2"]


def test_an_update_that_also_needs_one_more_host_than_exist_replaces_the_others() -> None:
    distinct = (a_constraint("", operand="distinct_hosts"),)
    cluster = make_cluster(make_version(constraints=distinct))
    cluster.register(make_version(1, count=4, constraints=distinct))

    plan = cluster.evaluate_job()

    assert sorted(plan.placements) == ["n0", "n1", "n2"]
    assert [each.job_version for each in cluster.list_active()] == [1, 1, 1]


def test_two_groups_of_a_job_with_distinct_hosts_are_kept_apart_in_one_evaluation() -> None:
    task = a_task(resources=some_resources(cpu=10, memory_mb=10))
    job = a_job(
        "shop", a_group("web", task), a_group("db", task), constraints=(a_constraint("", operand="distinct_hosts"),)
    )
    cluster = make_cluster(job, nodes=2)

    assert sorted(each.node_id for each in cluster.list_active()) == ["n0", "n1"]


def test_an_allocation_with_a_sticky_disk_keeps_its_node() -> None:
    sticky = EphemeralDisk(sticky=True)
    cluster = make_cluster(make_version(count=1, ephemeral_disk=sticky), nodes=1)
    for number in range(1, 4):
        cluster.with_node(f"n{number}", cpu=500)
    cluster.register(make_version(1, count=1, ephemeral_disk=sticky))
    cluster.settle()

    assert [each.node_id for each in cluster.list_active()] == ["n0"]


# -- rescheduling ------------------------------------------------------------------------------------------------------


def test_a_retry_without_a_node_keeps_its_history_and_is_made_when_a_node_exists() -> None:
    policy = ReschedulePolicy(attempts=1, interval=3_600 * SECOND_NS, unlimited=False, delay=5 * SECOND_NS)
    job = a_batch_job("shop", a_group("web", a_task(resources=some_resources(cpu=900)), reschedule_policy=policy))
    cluster = make_cluster(job, nodes=1)
    first = cluster.report(cluster.list_active()[0], FAILED)
    cluster.put(NODES.build_put(replace(cluster.node("n0"), scheduling_eligibility=SchedulingEligibility.INELIGIBLE)))
    cluster.evaluate_job()
    cluster.pass_time(10)
    cluster.process_pending()
    waiting = cluster.allocation(first.id)
    assert waiting.reschedule_tracker is not None
    assert (waiting.desired_status, waiting.reschedule_tracker.last_reschedule) == (DesiredStatus.RUN, "no placement")

    cluster.with_node("n1")
    cluster.retry_blocked()
    cluster.settle()
    (second,) = cluster.list_active()
    cluster.report(second, FAILED)
    cluster.evaluate_job()
    cluster.pass_time(10)
    cluster.settle()

    assert second.previous_allocation == first.id
    assert cluster.list_active() == []
    assert cluster.job().status == "dead"


def test_no_more_failed_allocations_are_retried_than_are_missing() -> None:
    cluster = make_cluster(make_version(count=2, reschedule_policy=ReschedulePolicy()))
    for allocation in cluster.list_active():
        cluster.report(allocation, FAILED)
    cluster.pass_time(31)
    cluster.register(make_version(count=1, reschedule_policy=ReschedulePolicy()))
    cluster.settle()

    assert (len(cluster.list_active()), len(cluster.list_allocations())) == (1, 3)


def test_failures_close_together_share_a_follow_up_evaluation() -> None:
    cluster = make_cluster(make_version(count=3, reschedule_policy=ReschedulePolicy()))
    for delay, allocation in zip((0, 3, 20), cluster.list_active(), strict=True):
        cluster.pass_time(delay)
        cluster.report(allocation, FAILED)
    now_ns = cluster.now_ns
    cluster.evaluate_job()

    waiting = [each for each in cluster.open_evaluations() if each.wait_until is not None]
    later = sorted(waiting, key=lambda evaluation: str(evaluation.wait_until))
    assert [(e.triggered_by, round((to_ns(e.wait_until) - now_ns) / SECOND_NS)) for e in later] == [  # type: ignore[arg-type]
        ("alloc-reschedule", 7),
        ("alloc-failure", 30),
    ]
    marks = [allocation.followup_eval_id for allocation in cluster.list_allocations()]
    assert marks == [later[0].id, later[0].id, later[1].id]


def test_a_completed_batch_allocation_never_runs_again_even_if_it_was_stopped() -> None:
    cluster = make_cluster(a_batch_job("shop", a_group("web", count=2)))
    done = [cluster.report(each, COMPLETE) for each in cluster.list_active()]
    cluster.put_led(ALLOCATIONS.build_put(replace(done[0], desired_status=DesiredStatus.STOP)))
    cluster.evaluate_job()
    cluster.settle()

    assert len(cluster.list_allocations()) == 2


# -- lost, disconnected and reconnected nodes -------------------------------------------------------------------


def test_an_allocation_on_a_node_that_is_down_is_lost_and_replaced_under_its_name() -> None:
    cluster = make_cluster(make_version(count=1), nodes=2)
    (first,) = cluster.list_active()
    cluster.lose_node(first.node_id)
    cluster.settle()

    (second,) = cluster.list_active()
    old = cluster.allocation(first.id)
    assert (old.client_status, old.desired_description, old.next_allocation) == (
        LOST,
        "alloc is lost since its node is down",
        second.id,
    )
    assert (second.name, second.previous_allocation) == (first.name, first.id)


def test_nothing_is_placed_before_a_disconnected_node_has_stopped_its_tasks() -> None:
    policy = DisconnectPolicy(stop_on_client_after=30 * SECOND_NS)
    cluster = make_cluster(make_version(count=1, disconnect=policy), nodes=2)
    cluster.lose_node(cluster.list_active()[0].node_id)
    cluster.settle()
    (follow_up,) = list_open(cluster, EvaluationTrigger.ALLOC_FAILURE)
    assert follow_up.wait_until is not None
    assert (cluster.list_active(), to_ns(follow_up.wait_until)) == ([], cluster.now_ns + 35 * SECOND_NS)

    cluster.pass_time(34)
    cluster.evaluate_job()
    early = cluster.list_active()
    cluster.pass_time(2)
    cluster.settle()

    assert (early, len(cluster.list_active())) == ([], 1)


def test_an_update_stops_no_other_allocation_while_the_replacement_of_a_lost_one_waits() -> None:
    policy = DisconnectPolicy(stop_on_client_after=30 * SECOND_NS)
    update = UpdatePolicy(max_parallel=1, min_healthy_time=SECOND_NS)
    cluster = make_cluster(make_version(0, disconnect=policy, update=update), nodes=4)
    cluster.register(make_version(1, disconnect=policy, update=update))
    cluster.process_pending()
    (updated,) = [each for each in cluster.list_active() if each.job_version == 1]
    cluster.lose_node(updated.node_id)
    cluster.process_pending()
    cluster.evaluate_job()
    versions_while_waiting = [each.job_version for each in cluster.list_active()]

    cluster.pass_time(36)
    cluster.settle()

    assert ([0, 0], [1, 1, 1]) == (versions_while_waiting, [each.job_version for each in cluster.list_active()])


def disconnect_and_replace(**policy: Any) -> tuple[SimulatedCluster, Allocation, str]:
    """Disconnect a node and replace its allocation. Return the original and its replacement's id."""
    disconnect = DisconnectPolicy(**{"lost_after": 600 * SECOND_NS, **policy})
    delays = ReschedulePolicy(delay=5 * SECOND_NS)
    cluster = make_cluster(make_version(count=1, disconnect=disconnect, reschedule_policy=delays), nodes=2)
    (original,) = cluster.list_active()
    cluster.lose_node(original.node_id, NodeStatus.DISCONNECTED)
    cluster.process_pending()
    cluster.pass_time(10)
    cluster.settle()
    return cluster, cluster.allocation(original.id), cluster.allocation(original.id).next_allocation


def test_a_disconnected_allocation_is_unknown_and_replaced_without_a_stop() -> None:
    cluster, original, replacement = disconnect_and_replace()

    assert (original.client_status, original.desired_status) == (UNKNOWN, DesiredStatus.RUN)
    assert original.client_description == "alloc is unknown since its node is disconnected"
    assert [state.value for state in original.alloc_states or ()] == ["unknown"]
    assert cluster.allocation(replacement).client_status is RUNNING
    assert len(list_open(cluster, EvaluationTrigger.MAX_DISCONNECT_TIMEOUT)) == 1


def test_a_group_with_replace_disabled_gets_no_replacement() -> None:
    _, original, replacement = disconnect_and_replace(replace=False)

    assert (original.client_status, replacement) == (UNKNOWN, "")


def test_an_allocation_that_is_disconnected_for_too_long_is_lost() -> None:
    cluster, original, replacement = disconnect_and_replace()
    cluster.pass_time(600)
    cluster.settle()

    assert cluster.allocation(original.id).client_status is LOST
    assert [each.id for each in cluster.list_active()] == [replacement]


def reconnect(cluster: SimulatedCluster, original: Allocation, status: ClientStatus = RUNNING) -> list[str]:
    """Reconnect the node, report the original, and return the active allocations."""
    cluster.reconnect_node(original.node_id)
    cluster.report(original, status)
    cluster.evaluate_job()
    cluster.settle()
    return [each.id for each in cluster.list_active()]


def test_the_original_continues_if_the_strategy_keeps_it() -> None:
    cluster, original, replacement = disconnect_and_replace(reconcile="keep_original")

    assert reconnect(cluster, original) == [original.id]
    stopped = cluster.allocation(replacement)
    assert stopped.desired_description == "alloc not needed due to disconnected client reconnect"
    assert [state.value for state in cluster.allocation(original.id).alloc_states or ()] == ["unknown", "running"]


def test_the_replacement_continues_if_the_strategy_keeps_it() -> None:
    cluster, original, replacement = disconnect_and_replace(reconcile="keep_replacement")

    assert reconnect(cluster, original) == [replacement]


def test_an_original_that_failed_meanwhile_is_stopped() -> None:
    cluster, original, replacement = disconnect_and_replace(reconcile="keep_original")

    assert reconnect(cluster, original, FAILED) == [replacement]
    assert cluster.allocation(original.id).desired_status is DesiredStatus.STOP


def test_a_replaced_unknown_allocation_does_not_count_in_place_of_a_lost_one() -> None:
    delays = ReschedulePolicy(delay=5 * SECOND_NS)
    cluster = make_cluster(make_version(count=2, disconnect=LOST_AFTER, reschedule_policy=delays, constraints=(
        a_constraint("", operand="distinct_hosts"),)), nodes=4)  # fmt: skip
    first, second = cluster.list_active()
    cluster.lose_node(first.node_id, NodeStatus.DISCONNECTED)
    cluster.process_pending()
    cluster.pass_time(10)
    cluster.settle()
    cluster.put(NODES.build_put(replace(cluster.node(second.node_id), status=NodeStatus.DOWN)))
    cluster.evaluate_job()
    cluster.settle()

    assert len([each for each in cluster.list_active() if each.client_status is RUNNING]) == 2


# -- migrations --------------------------------------------------------------------------------------------------------


def test_a_marked_allocation_migrates_whatever_the_state_of_its_deployment() -> None:
    rolling = UpdatePolicy(max_parallel=1)
    cluster = make_cluster(nodes=2)
    cluster.register(make_version(count=2, update=rolling))
    cluster.settle(healthy=None)
    (first, _) = cluster.list_active()
    cluster.put_led(ALLOCATIONS.build_put(replace(first, desired_transition=DesiredTransition(migrate=True))))
    cluster.put_led(
        DEPLOYMENTS.build_put(replace(cluster.deployment(), status=type(cluster.deployment().status).PAUSED))
    )

    cluster.evaluate_job()

    assert cluster.allocation(first.id).desired_description == "alloc is being migrated"
    assert list_indexes(cluster.list_active()) == [0, 1]


# -- system jobs ----------------------------------------------------------------------------------------------------


def test_a_system_job_starts_on_a_new_node_and_leaves_one_outside_its_datacenters() -> None:
    cluster = make_cluster(a_system_job("shop"), nodes=2)
    cluster.with_node("n2")
    cluster.evaluate_job()
    cluster.settle()
    joined = sorted(each.node_id for each in cluster.list_active())
    cluster.put(NODES.build_put(replace(cluster.node("n0"), datacenter="other")))
    cluster.register(a_system_job("shop", datacenters=("dc1",)))
    cluster.settle()

    assert (joined, sorted(each.node_id for each in cluster.list_active())) == (["n0", "n1", "n2"], ["n1", "n2"])


def test_a_system_allocation_that_ended_is_started_again() -> None:
    cluster = make_cluster(a_system_job("shop"), nodes=1)
    cluster.report(cluster.list_active()[0], COMPLETE)
    cluster.evaluate_job()

    assert len(cluster.list_active()) == 1


def test_a_sysbatch_job_runs_once_on_each_node_and_again_when_it_changes() -> None:
    def job(value: int) -> Job:
        return a_job("shop", a_group("web", a_task(env={"V": str(value)})), type=JobType.SYSBATCH)

    cluster = make_cluster(job(0), nodes=2)
    first, second = cluster.list_active()
    cluster.report(first, COMPLETE)
    stopped = cluster.report(second, FAILED)
    cluster.put_led(ALLOCATIONS.build_put(replace(stopped, desired_status=DesiredStatus.STOP)))
    cluster.evaluate_job()
    once = len(cluster.list_allocations())
    cluster.register(job(1))
    cluster.settle()

    assert (once, len(cluster.list_allocations()), {each.job_version for each in cluster.list_active()}) == (2, 4, {1})


def test_a_node_without_placements_keeps_its_allocations_until_they_are_outdated() -> None:
    cluster = make_cluster(a_system_job("shop"), nodes=1)
    cluster.put(NODES.build_put(replace(cluster.node("n0"), scheduling_eligibility=SchedulingEligibility.INELIGIBLE)))
    cluster.evaluate_job()
    active_count = len(cluster.list_active())
    cluster.register(a_system_job("shop", a_group("web", a_task(env={"V": "1"}))))
    cluster.settle()

    assert (active_count, cluster.list_active()) == (1, [])


def test_infeasible_nodes_are_no_failure_of_a_system_job_unless_all_are() -> None:
    cluster = make_cluster(nodes=2)
    cluster.with_node("bare", attributes={})
    cluster.register(a_system_job("shop"))
    some = cluster.evaluate_job()
    infeasible = a_system_job("none", a_group("web", a_task(driver="java")))
    cluster.register(infeasible)
    nowhere = cluster.evaluate_job("none")

    assert some.completed_evaluation is not None
    assert nowhere.completed_evaluation is not None
    assert (some.completed_evaluation.failed_tg_allocs, some.completed_evaluation.queued_allocations) == (
        None,
        {"web": 0},
    )
    failed = (nowhere.completed_evaluation.failed_tg_allocs or {})["web"]
    assert failed.constraint_filtered == {"missing drivers": 3}


def test_a_system_job_ignores_distinct_hosts() -> None:
    distinct = (a_constraint("", operand="distinct_hosts"),)
    cluster = make_cluster(a_system_job("shop", a_group("web"), a_group("db"), constraints=distinct), nodes=1)

    assert len(cluster.list_active()) == 2


def test_a_system_job_leaves_a_node_that_its_new_version_cannot_run_on() -> None:
    cluster = make_cluster(a_system_job("shop"), nodes=2)
    cluster.register(a_system_job("shop", constraints=(a_constraint("${node.unique.id}", "n0", "!="),)))
    cluster.settle()

    assert [each.node_id for each in cluster.list_active()] == ["n1"]
    assert [each for each in cluster.open_evaluations() if each.failed_tg_allocs] == []


def test_a_system_job_continues_where_its_new_version_has_no_capacity_and_reports_it() -> None:
    def make_job(cpu: int) -> Job:
        return a_system_job("shop", a_group("web", a_task(resources=some_resources(cpu=cpu, memory_mb=10))))

    cluster = make_cluster(make_job(100), nodes=1)
    cluster.register(make_job(2_000))
    cluster.settle()

    assert [each.job_version for each in cluster.list_active()] == [0]
    (blocked,) = [each for each in cluster.open_evaluations() if each.failed_tg_allocs]
    assert (blocked.failed_tg_allocs or {})["web"].dimension_exhausted == {"cpu": 1}


def test_a_system_job_reports_every_node_without_capacity() -> None:
    cluster = make_cluster(nodes=3)
    cluster.register(a_system_job("shop", a_group("web", a_task(resources=some_resources(cpu=9_000)))))
    plan = cluster.evaluate_job()

    assert plan.completed_evaluation is not None
    metric = (plan.completed_evaluation.failed_tg_allocs or {})["web"]
    reported = (metric.dimension_exhausted, metric.nodes_exhausted, metric.coalesced_failures)
    assert (reported, plan.completed_evaluation.queued_allocations) == (({"cpu": 3}, 3, 2), {"web": 3})


def test_an_update_of_a_system_job_replaces_at_most_max_parallel_at_once() -> None:
    def job(value: int) -> Job:
        update = UpdatePolicy(max_parallel=2, min_healthy_time=SECOND_NS)
        return a_system_job("shop", a_group("web", a_task(env={"V": str(value)}), update=update))

    cluster = make_cluster(job(0), nodes=5)
    cluster.register(job(1))
    cluster.process_pending()
    first = sum(each.job_version == 1 for each in cluster.list_active())
    cluster.settle()

    assert (first, {each.job_version for each in cluster.list_active()}, len(cluster.list_active())) == (2, {1}, 5)
    assert cluster.deployment().status == "successful"


def make_system_version(value: int, *, max_parallel: int = 1, **fields: Any) -> Job:
    update = UpdatePolicy(max_parallel=max_parallel, min_healthy_time=SECOND_NS)
    return a_system_job("shop", a_group("web", a_task(env={"V": str(value)}), update=update), **fields)


def test_a_system_deployment_ends_though_an_old_allocation_must_only_stop() -> None:
    """All new allocations are healthy, and the last evaluation finds an old one on a node that accepts no placements."""
    cluster = make_cluster(make_system_version(0, max_parallel=2), nodes=2)
    (old, _) = cluster.list_active()
    cluster.register(make_system_version(1, max_parallel=2))
    cluster.process_pending()
    new = cluster.list_active()
    cluster.with_node("closed")
    cluster.put(
        NODES.build_put(replace(cluster.node("closed"), scheduling_eligibility=SchedulingEligibility.INELIGIBLE))
    )
    cluster.put(ALLOCATIONS.build_put(replace(old, id="left", node_id="closed", create_index=0)))
    for each in new:
        cluster.report(each, RUNNING, healthy=True)
    cluster.settle()

    assert cluster.allocation("left").desired_status is DesiredStatus.STOP
    assert cluster.deployment().status == "successful"


def test_without_capacity_for_both_versions_at_most_max_parallel_nodes_lack_a_system_job() -> None:
    def large(value: int) -> Job:
        task = a_task(resources=some_resources(cpu=700, memory_mb=10), env={"V": str(value)})
        update = UpdatePolicy(max_parallel=1, min_healthy_time=SECOND_NS)
        return a_system_job("shop", a_group("web", task, update=update))

    cluster = make_cluster(large(0), nodes=3)
    cluster.register(large(1))
    cluster.process_pending()
    for _ in range(3):
        cluster.evaluate_job()
    stopped = [
        allocation for allocation in cluster.list_allocations() if allocation.desired_status is DesiredStatus.STOP
    ]
    cluster.settle()

    assert len(stopped) == 1
    assert ({each.job_version for each in cluster.list_active()}, len(cluster.list_active())) == ({1}, 3)
    assert cluster.deployment().status == "successful"


def test_a_reconnected_system_allocation_of_an_older_version_is_replaced() -> None:
    cluster = make_cluster(make_system_version(0), nodes=2)
    disconnected = next(each for each in cluster.list_active() if each.node_id == "n0")
    cluster.lose_node("n0", NodeStatus.DISCONNECTED)
    cluster.process_pending()
    assert cluster.allocation(disconnected.id).client_status is UNKNOWN
    cluster.register(make_system_version(1))
    cluster.settle()

    cluster.reconnect_node("n0")
    cluster.report(disconnected, RUNNING)
    cluster.evaluate_job(trigger=EvaluationTrigger.RECONNECT)
    cluster.settle()

    assert {each.node_id: each.job_version for each in cluster.list_active()} == {"n0": 1, "n1": 1}
    assert cluster.deployment().status == "successful"


def test_a_reconnected_stopped_allocation_is_not_replaced_beside_an_existing_one() -> None:
    cluster = make_cluster(make_system_version(0), nodes=1)
    (disconnected,) = cluster.list_active()
    cluster.lose_node("n0", NodeStatus.DISCONNECTED)
    cluster.process_pending()
    cluster.put(ALLOCATIONS.build_put(replace(cluster.allocation(disconnected.id), desired_status=DesiredStatus.STOP)))
    unknown = cluster.allocation(disconnected.id).alloc_states
    cluster.reconnect_node("n0")
    cluster.register(make_system_version(1))
    cluster.settle()
    before = [each.id for each in cluster.list_active()]
    cluster.put_led(
        ALLOCATIONS.build_put(replace(cluster.allocation(disconnected.id), client_status=FAILED, alloc_states=unknown))
    )
    cluster.evaluate_job()

    assert ([each.id for each in cluster.list_active()], len(before)) == (before, 1)


def test_a_system_job_without_an_update_policy_is_replaced_everywhere_at_once() -> None:
    def make_sized_job(value: int) -> Job:
        task = a_task(resources=some_resources(cpu=400, memory_mb=10), env={"V": str(value)})
        return a_system_job("shop", a_group("web", task, update=NO_UPDATE))

    cluster = make_cluster(make_sized_job(0), nodes=3, cpu=2_000)
    cluster.with_node("small", cpu=500)
    cluster.evaluate_job()
    cluster.settle()
    cluster.register(make_sized_job(1))
    cluster.process_pending()
    before = [each.job_version for each in cluster.list_active()]
    cluster.register(make_sized_job(2))
    cluster.process_pending()

    assert (before, [each.job_version for each in cluster.list_active()]) == ([1, 1, 1], [2, 2, 2])


def test_a_system_job_leaves_all_infeasible_nodes_at_once() -> None:
    cluster = make_cluster(make_system_version(0), nodes=4)
    cluster.register(make_system_version(1, constraints=(a_constraint("${node.unique.id}", "n3"),)))
    cluster.settle()

    assert [(each.node_id, each.job_version) for each in cluster.list_active()] == [("n3", 1)]
    assert cluster.deployment().status == "successful"


def test_migrating_allocations_count_against_max_parallel() -> None:
    cluster = make_cluster(make_version())
    cluster.register(make_version(1, update=UpdatePolicy(max_parallel=1)))
    first, *other_allocations = cluster.list_active()
    cluster.put_led(ALLOCATIONS.build_put(replace(first, desired_transition=DesiredTransition(migrate=True))))

    cluster.evaluate_job()

    assert cluster.allocation(first.id).desired_description == "alloc is being migrated"
    assert {each.id for each in other_allocations} < {each.id for each in cluster.list_active()}


def test_a_promoted_canary_that_migrates_shares_its_name_with_no_replaced_allocation() -> None:
    def make_canary_job(value: int, count: int, canary: int) -> Job:
        update = UpdatePolicy(max_parallel=2, canary=canary, min_healthy_time=SECOND_NS)
        return a_job("shop", a_group("web", a_task(env={"V": str(value)}), count=count, update=update))

    cluster = make_cluster(make_canary_job(0, 1, 0))
    cluster.register(make_canary_job(1, 1, 1))
    cluster.settle()
    (canary,) = [each for each in cluster.list_active() if each.job_version == 1]
    cluster.lead(
        deployments.promote_deployment(
            cluster.replica, cluster.deployment().id, cluster.moment, should_promote_all=True, max_changes=100
        )
    )
    promoted = cluster.allocation(canary.id)
    assert 2 == sum(each.name == canary.name for each in cluster.list_active())  # The old one was not stopped yet.
    cluster.put_led(ALLOCATIONS.build_put(replace(promoted, desired_transition=DesiredTransition(migrate=True))))

    cluster.register(make_canary_job(2, 2, 0))
    cluster.evaluate_job()

    assert ["shop.web[0]", "shop.web[1]"] == sorted(each.name for each in cluster.list_active())
