"""What an evaluation changes in a group that differs from what the job requests."""

from typing import Any

from msgspec.structs import replace

from tests.builders import a_batch_job, a_constraint, a_group, a_job, a_system_job, a_task, some_resources
from tests.cluster.scheduling.loop import Loop
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
WINDOW = DisconnectPolicy(lost_after=60 * SECOND_NS)


def a_version(
    value: int = 0, count: int = 3, *, cpu: int = 100, update: UpdatePolicy = NO_UPDATE, **fields: Any
) -> Job:
    task = a_task(resources=some_resources(cpu=cpu, memory_mb=10), env={"VERSION": str(value)})
    return a_job("shop", a_group("web", task, count=count, update=update, **fields))


def a_loop(*jobs: Job, nodes: int = 3, cpu: int = 1_000) -> Loop:
    loop = Loop()
    for number in range(nodes):
        loop.with_node(f"n{number}", cpu=cpu)
    for job in jobs:
        loop.register(job)
    loop.settle()
    return loop


def indexes(allocations: list[Allocation]) -> list[int]:
    return sorted(int(allocation.name.split("[")[1][:-1]) for allocation in allocations)


def opened(loop: Loop, trigger: EvaluationTrigger) -> list[Evaluation]:
    return [each for each in loop.open_evaluations() if each.triggered_by is trigger]


# -- names and count ---------------------------------------------------------------------------------------------------


def test_the_highest_names_are_stopped_first_and_the_lowest_assigned_first() -> None:
    loop = a_loop(a_version(count=5))
    loop.register(a_version(count=2))
    loop.settle()
    few = indexes(loop.list_active())
    loop.register(a_version(count=4))
    loop.settle()

    assert (few, indexes(loop.list_active())) == ([0, 1], [0, 1, 2, 3])


def test_a_count_of_zero_stops_everything() -> None:
    loop = a_loop(a_version(count=2))
    loop.register(a_version(count=0))
    loop.settle()

    assert (loop.list_active(), loop.open_evaluations()) == ([], [])


def test_a_stopped_job_leaves_nothing_running() -> None:
    loop = a_loop(a_version(count=3))
    loop.register(replace(a_version(count=3), stop=True))
    loop.settle()

    assert [allocation.client_status for allocation in loop.list_allocations()] == [COMPLETE] * 3
    assert loop.job().status == "dead"


def test_desired_updates_report_the_placements() -> None:
    loop = a_loop(nodes=1)
    loop.register(a_version(count=2))

    plan = loop.evaluate_job()

    assert plan.completed_evaluation is not None
    assert plan.completed_evaluation.plan_annotations is not None
    updates = (plan.completed_evaluation.plan_annotations.desired_tg_updates or {})["web"]
    assert (updates.place, updates.ignore, updates.stop) == (2, 0, 0)
    assert plan.completed_evaluation.queued_allocations == {"web": 0}


# -- updates -----------------------------------------------------------------------------------------------------------


def test_an_update_in_place_keeps_the_allocations_and_moves_them_to_the_new_version() -> None:
    loop = a_loop(a_version())
    before = [each.id for each in loop.list_active()]
    loop.register(replace(a_version(), priority=70))
    loop.settle()

    assert [each.id for each in loop.list_active()] == before
    assert {each.job_version for each in loop.list_active()} == {1}


def test_an_update_in_place_on_an_infeasible_node_replaces_the_allocation() -> None:
    loop = a_loop(a_version(count=1), nodes=2)
    (old,) = loop.list_active()
    loop.register(a_version(count=1, constraints=(a_constraint("${node.unique.id}", old.node_id, "!="),)))
    loop.settle()

    (new,) = loop.list_active()
    assert (new.previous_allocation, new.node_id == old.node_id) == (old.id, False)
    assert loop.allocation(old.id).desired_description == "alloc is being updated due to job update"


def test_an_update_replaces_each_allocation_under_its_name() -> None:
    loop = a_loop(a_version())
    loop.register(a_version(1))
    loop.settle()

    old = {allocation.id: allocation for allocation in loop.list_allocations() if allocation.job_version == 0}
    assert indexes(loop.list_active()) == [0, 1, 2]
    assert [old[each.previous_allocation].name for each in loop.list_active()] == [
        each.name for each in loop.list_active()
    ]
    assert all(loop.allocation(each.previous_allocation).next_allocation == each.id for each in loop.list_active())


def test_a_permanently_failed_allocation_is_replaced_by_a_new_version() -> None:
    never = ReschedulePolicy(attempts=0, unlimited=False)
    loop = a_loop(a_version(count=1, reschedule_policy=never))
    loop.report(loop.list_active()[0], FAILED)
    loop.evaluate_job()
    assert loop.list_active() == []

    loop.register(a_version(1, count=1, reschedule_policy=never))
    loop.settle()

    assert [each.job_version for each in loop.list_active()] == [1]


def test_without_capacity_for_both_the_old_version_stops_first_one_at_a_time() -> None:
    rolling = UpdatePolicy(max_parallel=1, min_healthy_time=SECOND_NS)
    loop = a_loop(a_version(count=2, cpu=900, update=rolling), nodes=2)
    least = 2

    def count() -> None:
        nonlocal least
        least = min(least, len(loop.list_active()))

    loop.checks.append(count)
    loop.register(a_version(1, count=2, cpu=900, update=rolling))
    loop.settle()

    assert (least, [each.job_version for each in loop.list_active()]) == (1, [1, 1])
    assert loop.deployment().status == "successful"


def test_distinct_hosts_do_not_block_an_update() -> None:
    distinct = (a_constraint("", operand="distinct_hosts"),)
    loop = a_loop(a_version(constraints=distinct))
    loop.register(a_version(1, constraints=distinct))

    plan = loop.evaluate_job()

    assert sorted(plan.placements) == ["n0", "n1", "n2"]


def test_two_groups_of_a_job_with_distinct_hosts_are_kept_apart_in_one_evaluation() -> None:
    task = a_task(resources=some_resources(cpu=10, memory_mb=10))
    job = a_job(
        "shop", a_group("web", task), a_group("db", task), constraints=(a_constraint("", operand="distinct_hosts"),)
    )
    loop = a_loop(job, nodes=2)

    assert sorted(each.node_id for each in loop.list_active()) == ["n0", "n1"]


def test_an_allocation_with_a_sticky_disk_keeps_its_node() -> None:
    sticky = EphemeralDisk(sticky=True)
    loop = a_loop(a_version(count=1, ephemeral_disk=sticky), nodes=1)
    for number in range(1, 4):
        loop.with_node(f"n{number}", cpu=500)
    loop.register(a_version(1, count=1, ephemeral_disk=sticky))
    loop.settle()

    assert [each.node_id for each in loop.list_active()] == ["n0"]


# -- rescheduling ------------------------------------------------------------------------------------------------------


def test_a_retry_without_a_node_keeps_its_history_and_is_made_when_a_node_exists() -> None:
    policy = ReschedulePolicy(attempts=1, interval=3_600 * SECOND_NS, unlimited=False, delay=5 * SECOND_NS)
    job = a_batch_job("shop", a_group("web", a_task(resources=some_resources(cpu=900)), reschedule_policy=policy))
    loop = a_loop(job, nodes=1)
    first = loop.report(loop.list_active()[0], FAILED)
    loop.put(NODES.build_put(replace(loop.node("n0"), scheduling_eligibility=SchedulingEligibility.INELIGIBLE)))
    loop.evaluate_job()
    loop.pass_time(10)
    loop.process_pending()
    waiting = loop.allocation(first.id)
    assert waiting.reschedule_tracker is not None
    assert (waiting.desired_status, waiting.reschedule_tracker.last_reschedule) == (DesiredStatus.RUN, "no placement")

    loop.with_node("n1")
    loop.retry_blocked()
    loop.settle()
    (second,) = loop.list_active()
    loop.report(second, FAILED)
    loop.evaluate_job()
    loop.pass_time(10)
    loop.settle()

    assert second.previous_allocation == first.id
    assert loop.list_active() == []
    assert loop.job().status == "dead"


def test_no_more_failed_allocations_are_retried_than_are_missing() -> None:
    loop = a_loop(a_version(count=2, reschedule_policy=ReschedulePolicy()))
    for allocation in loop.list_active():
        loop.report(allocation, FAILED)
    loop.pass_time(31)
    loop.register(a_version(count=1, reschedule_policy=ReschedulePolicy()))
    loop.settle()

    assert (len(loop.list_active()), len(loop.list_allocations())) == (1, 3)


def test_failures_close_together_share_a_follow_up_evaluation() -> None:
    loop = a_loop(a_version(count=3, reschedule_policy=ReschedulePolicy()))
    for delay, allocation in zip((0, 3, 20), loop.list_active(), strict=True):
        loop.pass_time(delay)
        loop.report(allocation, FAILED)
    now_ns = loop.now_ns
    loop.evaluate_job()

    waiting = [each for each in loop.open_evaluations() if each.wait_until is not None]
    later = sorted(waiting, key=lambda evaluation: str(evaluation.wait_until))
    assert [(e.triggered_by, round((to_ns(e.wait_until) - now_ns) / SECOND_NS)) for e in later] == [  # type: ignore[arg-type]
        ("alloc-reschedule", 7),
        ("alloc-failure", 30),
    ]
    marks = [allocation.followup_eval_id for allocation in loop.list_allocations()]
    assert marks == [later[0].id, later[0].id, later[1].id]


def test_a_completed_batch_allocation_never_runs_again_even_if_it_was_stopped() -> None:
    loop = a_loop(a_batch_job("shop", a_group("web", count=2)))
    done = [loop.report(each, COMPLETE) for each in loop.list_active()]
    loop.put_led(ALLOCATIONS.build_put(replace(done[0], desired_status=DesiredStatus.STOP)))
    loop.evaluate_job()
    loop.settle()

    assert len(loop.list_allocations()) == 2


# -- nodes that are lost, out of contact, back -------------------------------------------------------------------------


def test_an_allocation_on_a_node_that_is_down_is_lost_and_replaced_under_its_name() -> None:
    loop = a_loop(a_version(count=1), nodes=2)
    (first,) = loop.list_active()
    loop.lose_node(first.node_id)
    loop.settle()

    (second,) = loop.list_active()
    old = loop.allocation(first.id)
    assert (old.client_status, old.desired_description, old.next_allocation) == (
        LOST,
        "alloc is lost since its node is down",
        second.id,
    )
    assert (second.name, second.previous_allocation) == (first.name, first.id)


def test_nothing_is_placed_before_a_disconnected_node_has_stopped_its_tasks() -> None:
    policy = DisconnectPolicy(stop_on_client_after=30 * SECOND_NS)
    loop = a_loop(a_version(count=1, disconnect=policy), nodes=2)
    loop.lose_node(loop.list_active()[0].node_id)
    loop.settle()
    (again,) = opened(loop, EvaluationTrigger.ALLOC_FAILURE)
    assert again.wait_until is not None
    assert (loop.list_active(), to_ns(again.wait_until)) == ([], loop.now_ns + 35 * SECOND_NS)

    loop.pass_time(34)
    loop.evaluate_job()
    early = loop.list_active()
    loop.pass_time(2)
    loop.settle()

    assert (early, len(loop.list_active())) == ([], 1)


def test_an_update_stops_no_other_allocation_while_the_replacement_of_a_lost_one_is_held_back() -> None:
    policy = DisconnectPolicy(stop_on_client_after=30 * SECOND_NS)
    update = UpdatePolicy(max_parallel=1, min_healthy_time=SECOND_NS)
    loop = a_loop(a_version(0, disconnect=policy, update=update), nodes=4)
    loop.register(a_version(1, disconnect=policy, update=update))
    loop.process_pending()
    (updated,) = [each for each in loop.list_active() if each.job_version == 1]
    loop.lose_node(updated.node_id)
    loop.process_pending()
    loop.evaluate_job()
    while_held_back = [each.job_version for each in loop.list_active()]

    loop.pass_time(36)
    loop.settle()

    assert ([0, 0], [1, 1, 1]) == (while_held_back, [each.job_version for each in loop.list_active()])


def disconnect_and_replace(**policy: Any) -> tuple[Loop, Allocation, str]:
    """Disconnect a node and replace its allocation. Return the original and its replacement's id."""
    given = DisconnectPolicy(**{"lost_after": 600 * SECOND_NS, **policy})
    delays = ReschedulePolicy(delay=5 * SECOND_NS)
    loop = a_loop(a_version(count=1, disconnect=given, reschedule_policy=delays), nodes=2)
    (original,) = loop.list_active()
    loop.lose_node(original.node_id, NodeStatus.DISCONNECTED)
    loop.process_pending()
    loop.pass_time(10)
    loop.settle()
    return loop, loop.allocation(original.id), loop.allocation(original.id).next_allocation


def test_a_disconnected_allocation_is_unknown_and_replaced_without_a_stop() -> None:
    loop, original, replacement = disconnect_and_replace()

    assert (original.client_status, original.desired_status) == (UNKNOWN, DesiredStatus.RUN)
    assert original.client_description == "alloc is unknown since its node is disconnected"
    assert [state.value for state in original.alloc_states or ()] == ["unknown"]
    assert loop.allocation(replacement).client_status is RUNNING
    assert len(opened(loop, EvaluationTrigger.MAX_DISCONNECT_TIMEOUT)) == 1


def test_a_group_with_replace_disabled_gets_no_replacement() -> None:
    _, original, replacement = disconnect_and_replace(replace=False)

    assert (original.client_status, replacement) == (UNKNOWN, "")


def test_an_allocation_that_is_disconnected_for_too_long_is_lost() -> None:
    loop, original, replacement = disconnect_and_replace()
    loop.pass_time(600)
    loop.settle()

    assert loop.allocation(original.id).client_status is LOST
    assert [each.id for each in loop.list_active()] == [replacement]


def reconnect(loop: Loop, original: Allocation, status: ClientStatus = RUNNING) -> list[str]:
    """Reconnect the node, report the original, and return the active allocations."""
    loop.reconnect_node(original.node_id)
    loop.report(original, status)
    loop.evaluate_job()
    loop.settle()
    return [each.id for each in loop.list_active()]


def test_the_original_continues_if_the_strategy_keeps_it() -> None:
    loop, original, replacement = disconnect_and_replace(reconcile="keep_original")

    assert reconnect(loop, original) == [original.id]
    stopped = loop.allocation(replacement)
    assert stopped.desired_description == "alloc not needed due to disconnected client reconnect"
    assert [state.value for state in loop.allocation(original.id).alloc_states or ()] == ["unknown", "running"]


def test_the_replacement_continues_if_the_strategy_keeps_it() -> None:
    loop, original, replacement = disconnect_and_replace(reconcile="keep_replacement")

    assert reconnect(loop, original) == [replacement]


def test_an_original_that_failed_meanwhile_is_stopped() -> None:
    loop, original, replacement = disconnect_and_replace(reconcile="keep_original")

    assert reconnect(loop, original, FAILED) == [replacement]
    assert loop.allocation(original.id).desired_status is DesiredStatus.STOP


def test_a_replaced_unknown_allocation_does_not_count_in_place_of_a_lost_one() -> None:
    delays = ReschedulePolicy(delay=5 * SECOND_NS)
    loop = a_loop(a_version(count=2, disconnect=WINDOW, reschedule_policy=delays, constraints=(
        a_constraint("", operand="distinct_hosts"),)), nodes=4)  # fmt: skip
    first, second = loop.list_active()
    loop.lose_node(first.node_id, NodeStatus.DISCONNECTED)
    loop.process_pending()
    loop.pass_time(10)
    loop.settle()
    loop.put(NODES.build_put(replace(loop.node(second.node_id), status=NodeStatus.DOWN)))
    loop.evaluate_job()
    loop.settle()

    assert len([each for each in loop.list_active() if each.client_status is RUNNING]) == 2


# -- migrations --------------------------------------------------------------------------------------------------------


def test_a_marked_allocation_migrates_whatever_the_state_of_its_deployment() -> None:
    rolling = UpdatePolicy(max_parallel=1)
    loop = a_loop(nodes=2)
    loop.register(a_version(count=2, update=rolling))
    loop.settle(healthy=None)
    (first, _) = loop.list_active()
    loop.put_led(ALLOCATIONS.build_put(replace(first, desired_transition=DesiredTransition(migrate=True))))
    loop.put_led(DEPLOYMENTS.build_put(replace(loop.deployment(), status=type(loop.deployment().status).PAUSED)))

    loop.evaluate_job()

    assert loop.allocation(first.id).desired_description == "alloc is being migrated"
    assert indexes(loop.list_active()) == [0, 1]


# -- every node --------------------------------------------------------------------------------------------------------


def test_a_system_job_starts_on_a_new_node_and_leaves_one_outside_its_datacenters() -> None:
    loop = a_loop(a_system_job("shop"), nodes=2)
    loop.with_node("n2")
    loop.evaluate_job()
    loop.settle()
    joined = sorted(each.node_id for each in loop.list_active())
    loop.put(NODES.build_put(replace(loop.node("n0"), datacenter="other")))
    loop.register(a_system_job("shop", datacenters=("dc1",)))
    loop.settle()

    assert (joined, sorted(each.node_id for each in loop.list_active())) == (["n0", "n1", "n2"], ["n1", "n2"])


def test_a_system_allocation_that_ended_is_started_again() -> None:
    loop = a_loop(a_system_job("shop"), nodes=1)
    loop.report(loop.list_active()[0], COMPLETE)
    loop.evaluate_job()

    assert len(loop.list_active()) == 1


def test_a_sysbatch_job_runs_once_on_each_node_and_again_when_it_changes() -> None:
    def job(value: int) -> Job:
        return a_job("shop", a_group("web", a_task(env={"V": str(value)})), type=JobType.SYSBATCH)

    loop = a_loop(job(0), nodes=2)
    first, second = loop.list_active()
    loop.report(first, COMPLETE)
    stopped = loop.report(second, FAILED)
    loop.put_led(ALLOCATIONS.build_put(replace(stopped, desired_status=DesiredStatus.STOP)))
    loop.evaluate_job()
    once = len(loop.list_allocations())
    loop.register(job(1))
    loop.settle()

    assert (once, len(loop.list_allocations()), {each.job_version for each in loop.list_active()}) == (2, 4, {1})


def test_a_node_without_placements_keeps_its_allocations_until_they_are_outdated() -> None:
    loop = a_loop(a_system_job("shop"), nodes=1)
    loop.put(NODES.build_put(replace(loop.node("n0"), scheduling_eligibility=SchedulingEligibility.INELIGIBLE)))
    loop.evaluate_job()
    active_count = len(loop.list_active())
    loop.register(a_system_job("shop", a_group("web", a_task(env={"V": "1"}))))
    loop.settle()

    assert (active_count, loop.list_active()) == (1, [])


def test_infeasible_nodes_are_no_failure_of_a_system_job_unless_all_are() -> None:
    loop = a_loop(nodes=2)
    loop.with_node("bare", attributes={})
    loop.register(a_system_job("shop"))
    some = loop.evaluate_job()
    none = a_system_job("none", a_group("web", a_task(driver="java")))
    loop.register(none)
    nowhere = loop.evaluate_job("none")

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
    loop = a_loop(a_system_job("shop", a_group("web"), a_group("db"), constraints=distinct), nodes=1)

    assert len(loop.list_active()) == 2


def test_a_system_job_leaves_a_node_that_its_new_version_cannot_run_on() -> None:
    loop = a_loop(a_system_job("shop"), nodes=2)
    loop.register(a_system_job("shop", constraints=(a_constraint("${node.unique.id}", "n0", "!="),)))
    loop.settle()

    assert [each.node_id for each in loop.list_active()] == ["n1"]
    assert [each for each in loop.open_evaluations() if each.failed_tg_allocs] == []


def test_a_system_job_continues_where_its_new_version_has_no_capacity_and_reports_it() -> None:
    def sized(cpu: int) -> Job:
        return a_system_job("shop", a_group("web", a_task(resources=some_resources(cpu=cpu, memory_mb=10))))

    loop = a_loop(sized(100), nodes=1)
    loop.register(sized(2_000))
    loop.settle()

    assert [each.job_version for each in loop.list_active()] == [0]
    (blocked,) = [each for each in loop.open_evaluations() if each.failed_tg_allocs]
    assert (blocked.failed_tg_allocs or {})["web"].dimension_exhausted == {"cpu": 1}


def test_a_system_job_reports_every_node_without_capacity() -> None:
    loop = a_loop(nodes=3)
    loop.register(a_system_job("shop", a_group("web", a_task(resources=some_resources(cpu=9_000)))))
    plan = loop.evaluate_job()

    assert plan.completed_evaluation is not None
    metric = (plan.completed_evaluation.failed_tg_allocs or {})["web"]
    reported = (metric.dimension_exhausted, metric.nodes_exhausted, metric.coalesced_failures)
    assert (reported, plan.completed_evaluation.queued_allocations) == (({"cpu": 3}, 3, 2), {"web": 3})


def test_an_update_of_a_system_job_replaces_at_most_max_parallel_at_once() -> None:
    def job(value: int) -> Job:
        update = UpdatePolicy(max_parallel=2, min_healthy_time=SECOND_NS)
        return a_system_job("shop", a_group("web", a_task(env={"V": str(value)}), update=update))

    loop = a_loop(job(0), nodes=5)
    loop.register(job(1))
    loop.process_pending()
    first = sum(each.job_version == 1 for each in loop.list_active())
    loop.settle()

    assert (first, {each.job_version for each in loop.list_active()}, len(loop.list_active())) == (2, {1}, 5)
    assert loop.deployment().status == "successful"


def a_system_version(value: int, *, at_once: int = 1, **fields: Any) -> Job:
    update = UpdatePolicy(max_parallel=at_once, min_healthy_time=SECOND_NS)
    return a_system_job("shop", a_group("web", a_task(env={"V": str(value)}), update=update), **fields)


def test_a_system_deployment_ends_though_an_old_allocation_must_only_stop() -> None:
    """All new allocations are healthy, and the last evaluation finds an old one on a node that accepts no placements."""
    loop = a_loop(a_system_version(0, at_once=2), nodes=2)
    (old, _) = loop.list_active()
    loop.register(a_system_version(1, at_once=2))
    loop.process_pending()
    new = loop.list_active()
    loop.with_node("closed")
    loop.put(NODES.build_put(replace(loop.node("closed"), scheduling_eligibility=SchedulingEligibility.INELIGIBLE)))
    loop.put(ALLOCATIONS.build_put(replace(old, id="left", node_id="closed", create_index=0)))
    for each in new:
        loop.report(each, RUNNING, healthy=True)
    loop.settle()

    assert loop.allocation("left").desired_status is DesiredStatus.STOP
    assert loop.deployment().status == "successful"


def test_without_capacity_for_both_versions_at_most_max_parallel_nodes_lack_a_system_job() -> None:
    def large(value: int) -> Job:
        task = a_task(resources=some_resources(cpu=700, memory_mb=10), env={"V": str(value)})
        update = UpdatePolicy(max_parallel=1, min_healthy_time=SECOND_NS)
        return a_system_job("shop", a_group("web", task, update=update))

    loop = a_loop(large(0), nodes=3)
    loop.register(large(1))
    loop.process_pending()
    for _ in range(3):
        loop.evaluate_job()
    stopped = [allocation for allocation in loop.list_allocations() if allocation.desired_status is DesiredStatus.STOP]
    loop.settle()

    assert len(stopped) == 1
    assert ({each.job_version for each in loop.list_active()}, len(loop.list_active())) == ({1}, 3)
    assert loop.deployment().status == "successful"


def test_a_reconnected_system_allocation_of_an_older_version_is_replaced() -> None:
    loop = a_loop(a_system_version(0), nodes=2)
    away = next(each for each in loop.list_active() if each.node_id == "n0")
    loop.lose_node("n0", NodeStatus.DISCONNECTED)
    loop.process_pending()
    assert loop.allocation(away.id).client_status is UNKNOWN
    loop.register(a_system_version(1))
    loop.settle()

    loop.reconnect_node("n0")
    loop.report(away, RUNNING)
    loop.evaluate_job(trigger=EvaluationTrigger.RECONNECT)
    loop.settle()

    assert {each.node_id: each.job_version for each in loop.list_active()} == {"n0": 1, "n1": 1}
    assert loop.deployment().status == "successful"


def test_a_reconnected_stopped_allocation_is_not_replaced_beside_an_existing_one() -> None:
    loop = a_loop(a_system_version(0), nodes=1)
    (away,) = loop.list_active()
    loop.lose_node("n0", NodeStatus.DISCONNECTED)
    loop.process_pending()
    loop.put(ALLOCATIONS.build_put(replace(loop.allocation(away.id), desired_status=DesiredStatus.STOP)))
    unknown = loop.allocation(away.id).alloc_states
    loop.reconnect_node("n0")
    loop.register(a_system_version(1))
    loop.settle()
    before = [each.id for each in loop.list_active()]
    loop.put_led(ALLOCATIONS.build_put(replace(loop.allocation(away.id), client_status=FAILED, alloc_states=unknown)))
    loop.evaluate_job()

    assert ([each.id for each in loop.list_active()], len(before)) == (before, 1)


def test_a_system_job_without_an_update_policy_is_replaced_everywhere_at_once() -> None:
    def of_size(value: int) -> Job:
        task = a_task(resources=some_resources(cpu=400, memory_mb=10), env={"V": str(value)})
        return a_system_job("shop", a_group("web", task, update=NO_UPDATE))

    loop = a_loop(of_size(0), nodes=3, cpu=2_000)
    loop.with_node("small", cpu=500)
    loop.evaluate_job()
    loop.settle()
    loop.register(of_size(1))
    loop.process_pending()
    before = [each.job_version for each in loop.list_active()]
    loop.register(of_size(2))
    loop.process_pending()

    assert (before, [each.job_version for each in loop.list_active()]) == ([1, 1, 1], [2, 2, 2])


def test_a_system_job_leaves_all_infeasible_nodes_at_once() -> None:
    loop = a_loop(a_system_version(0), nodes=4)
    loop.register(a_system_version(1, constraints=(a_constraint("${node.unique.id}", "n3"),)))
    loop.settle()

    assert [(each.node_id, each.job_version) for each in loop.list_active()] == [("n3", 1)]
    assert loop.deployment().status == "successful"


def test_migrating_allocations_count_against_max_parallel() -> None:
    loop = a_loop(a_version())
    loop.register(a_version(1, update=UpdatePolicy(max_parallel=1)))
    first, *others = loop.list_active()
    loop.put_led(ALLOCATIONS.build_put(replace(first, desired_transition=DesiredTransition(migrate=True))))

    loop.evaluate_job()

    assert loop.allocation(first.id).desired_description == "alloc is being migrated"
    assert {each.id for each in others} < {each.id for each in loop.list_active()}


def test_a_promoted_canary_that_migrates_shares_its_name_with_no_replaced_allocation() -> None:
    def of(value: int, count: int, canary: int) -> Job:
        update = UpdatePolicy(max_parallel=2, canary=canary, min_healthy_time=SECOND_NS)
        return a_job("shop", a_group("web", a_task(env={"V": str(value)}), count=count, update=update))

    loop = a_loop(of(0, 1, 0))
    loop.register(of(1, 1, 1))
    loop.settle()
    (canary,) = [each for each in loop.list_active() if each.job_version == 1]
    loop.lead(
        deployments.promote_deployment(
            loop.replica, loop.deployment().id, loop.moment, should_promote_all=True, max_changes=100
        )
    )
    promoted = loop.allocation(canary.id)
    assert 2 == sum(each.name == canary.name for each in loop.list_active())  # The old one was not stopped yet.
    loop.put_led(ALLOCATIONS.build_put(replace(promoted, desired_transition=DesiredTransition(migrate=True))))

    loop.register(of(2, 2, 0))
    loop.evaluate_job()

    assert ["shop.web[0]", "shop.web[1]"] == sorted(each.name for each in loop.list_active())
