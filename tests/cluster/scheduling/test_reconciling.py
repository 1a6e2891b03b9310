"""What an evaluation makes of a group that differs from what is wanted."""

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
    return sorted(int(each.name.split("[")[1][:-1]) for each in allocations)


def opened(loop: Loop, trigger: EvaluationTrigger) -> list[Evaluation]:
    return [each for each in loop.open_evaluations() if each.triggered_by is trigger]


# -- names and count ---------------------------------------------------------------------------------------------------


def test_the_highest_names_are_stopped_first_and_the_lowest_given_first() -> None:
    loop = a_loop(a_version(count=5))
    loop.register(a_version(count=2))
    loop.settle()
    few = indexes(loop.live())
    loop.register(a_version(count=4))
    loop.settle()

    assert (few, indexes(loop.live())) == ([0, 1], [0, 1, 2, 3])


def test_a_count_of_none_stops_all_and_nothing_is_left_to_do() -> None:
    loop = a_loop(a_version(count=2))
    loop.register(a_version(count=0))
    loop.settle()

    assert (loop.live(), loop.open_evaluations()) == ([], [])


def test_a_stopped_job_leaves_nothing_running() -> None:
    loop = a_loop(a_version(count=3))
    loop.register(replace(a_version(count=3), stop=True))
    loop.settle()

    assert [each.client_status for each in loop.of()] == [COMPLETE] * 3
    assert loop.job().status == "dead"


def test_what_was_placed_is_told_by_what_was_desired() -> None:
    loop = a_loop(nodes=1)
    loop.register(a_version(count=2))

    plan = loop.look_at()

    assert plan.completed_evaluation is not None
    assert plan.completed_evaluation.plan_annotations is not None
    updates = (plan.completed_evaluation.plan_annotations.desired_tg_updates or {})["web"]
    assert (updates.place, updates.ignore, updates.stop) == (2, 0, 0)
    assert plan.completed_evaluation.queued_allocations == {"web": 0}


# -- updates -----------------------------------------------------------------------------------------------------------


def test_a_change_in_place_keeps_the_allocations_and_moves_them_to_the_new_version() -> None:
    loop = a_loop(a_version())
    before = [each.id for each in loop.live()]
    loop.register(replace(a_version(), priority=70))
    loop.settle()

    assert [each.id for each in loop.live()] == before
    assert {each.job_version for each in loop.live()} == {1}


def test_a_change_in_place_of_what_may_no_longer_be_there_replaces_it() -> None:
    loop = a_loop(a_version(count=1), nodes=2)
    (old,) = loop.live()
    loop.register(a_version(count=1, constraints=(a_constraint("${node.unique.id}", old.node_id, "!="),)))
    loop.settle()

    (new,) = loop.live()
    assert (new.previous_allocation, new.node_id == old.node_id) == (old.id, False)
    assert loop.allocation(old.id).desired_description == "alloc is being updated due to job update"


def test_an_update_replaces_each_under_its_name() -> None:
    loop = a_loop(a_version())
    loop.register(a_version(1))
    loop.settle()

    old = {each.id: each for each in loop.of() if each.job_version == 0}
    assert indexes(loop.live()) == [0, 1, 2]
    assert [old[each.previous_allocation].name for each in loop.live()] == [each.name for each in loop.live()]
    assert all(loop.allocation(each.previous_allocation).next_allocation == each.id for each in loop.live())


def test_what_failed_for_good_is_replaced_by_a_new_version() -> None:
    never = ReschedulePolicy(attempts=0, unlimited=False)
    loop = a_loop(a_version(count=1, reschedule_policy=never))
    loop.tell(loop.live()[0], FAILED)
    loop.look_at()
    assert loop.live() == []

    loop.register(a_version(1, count=1, reschedule_policy=never))
    loop.settle()

    assert [each.job_version for each in loop.live()] == [1]


def test_where_the_new_has_no_room_beside_the_old_the_old_goes_first_and_one_at_a_time() -> None:
    rolling = UpdatePolicy(max_parallel=1, min_healthy_time=SECOND_NS)
    loop = a_loop(a_version(count=2, cpu=900, update=rolling), nodes=2)
    least = 2

    def count() -> None:
        nonlocal least
        least = min(least, len(loop.live()))

    loop.looks.append(count)
    loop.register(a_version(1, count=2, cpu=900, update=rolling))
    loop.settle()

    assert (least, [each.job_version for each in loop.live()]) == (1, [1, 1])
    assert loop.deployment().status == "successful"


def test_hosts_that_must_be_distinct_do_not_stand_in_the_way_of_an_update() -> None:
    distinct = (a_constraint("", operand="distinct_hosts"),)
    loop = a_loop(a_version(constraints=distinct))
    loop.register(a_version(1, constraints=distinct))

    plan = loop.look_at()

    assert sorted(plan.placements) == ["n0", "n1", "n2"]


def test_two_groups_of_a_job_that_wants_distinct_hosts_are_kept_apart_in_one_evaluation() -> None:
    task = a_task(resources=some_resources(cpu=10, memory_mb=10))
    job = a_job(
        "shop", a_group("web", task), a_group("db", task), constraints=(a_constraint("", operand="distinct_hosts"),)
    )
    loop = a_loop(job, nodes=2)

    assert sorted(each.node_id for each in loop.live()) == ["n0", "n1"]


def test_a_disk_that_sticks_keeps_its_node() -> None:
    sticky = EphemeralDisk(sticky=True)
    loop = a_loop(a_version(count=1, ephemeral_disk=sticky), nodes=1)
    for number in range(1, 4):
        loop.with_node(f"n{number}", cpu=500)
    loop.register(a_version(1, count=1, ephemeral_disk=sticky))
    loop.settle()

    assert [each.node_id for each in loop.live()] == ["n0"]


# -- rescheduling ------------------------------------------------------------------------------------------------------


def test_an_attempt_that_finds_no_node_keeps_its_history_and_is_made_when_there_is_one() -> None:
    policy = ReschedulePolicy(attempts=1, interval=3_600 * SECOND_NS, unlimited=False, delay=5 * SECOND_NS)
    job = a_batch_job("shop", a_group("web", a_task(resources=some_resources(cpu=900)), reschedule_policy=policy))
    loop = a_loop(job, nodes=1)
    first = loop.tell(loop.live()[0], FAILED)
    loop.put(NODES.build_put(replace(loop.node("n0"), scheduling_eligibility=SchedulingEligibility.INELIGIBLE)))
    loop.look_at()
    loop.pass_time(10)
    loop.think()
    waiting = loop.allocation(first.id)
    assert waiting.reschedule_tracker is not None
    assert (waiting.desired_status, waiting.reschedule_tracker.last_reschedule) == (DesiredStatus.RUN, "no placement")

    loop.with_node("n1")
    loop.room_came()
    loop.settle()
    (second,) = loop.live()
    loop.tell(second, FAILED)
    loop.look_at()
    loop.pass_time(10)
    loop.settle()

    assert second.previous_allocation == first.id
    assert loop.live() == []
    assert loop.job().status == "dead"


def test_no_more_are_tried_again_than_are_missing() -> None:
    loop = a_loop(a_version(count=2, reschedule_policy=ReschedulePolicy()))
    for allocation in loop.live():
        loop.tell(allocation, FAILED)
    loop.pass_time(31)
    loop.register(a_version(count=1, reschedule_policy=ReschedulePolicy()))
    loop.settle()

    assert (len(loop.live()), len(loop.of())) == (1, 3)


def test_failures_close_together_are_looked_at_together() -> None:
    loop = a_loop(a_version(count=3, reschedule_policy=ReschedulePolicy()))
    for delay, allocation in zip((0, 3, 20), loop.live(), strict=True):
        loop.pass_time(delay)
        loop.tell(allocation, FAILED)
    now_ns = loop.now_ns
    loop.look_at()

    waiting = [each for each in loop.open_evaluations() if each.wait_until is not None]
    later = sorted(waiting, key=lambda each: str(each.wait_until))
    assert [(e.triggered_by, round((to_ns(e.wait_until) - now_ns) / SECOND_NS)) for e in later] == [  # type: ignore[arg-type]
        ("alloc-reschedule", 7),
        ("alloc-failure", 30),
    ]
    marks = [each.followup_eval_id for each in loop.of()]
    assert marks == [later[0].id, later[0].id, later[1].id]


def test_work_that_completed_never_runs_again_even_if_it_was_told_to_stop() -> None:
    loop = a_loop(a_batch_job("shop", a_group("web", count=2)))
    done = [loop.tell(each, COMPLETE) for each in loop.live()]
    loop.put_led(ALLOCATIONS.build_put(replace(done[0], desired_status=DesiredStatus.STOP)))
    loop.look_at()
    loop.settle()

    assert len(loop.of()) == 2


# -- nodes that are lost, out of contact, back -------------------------------------------------------------------------


def test_what_ran_on_a_node_that_is_down_is_lost_and_replaced_under_its_name() -> None:
    loop = a_loop(a_version(count=1), nodes=2)
    (first,) = loop.live()
    loop.lose(first.node_id)
    loop.settle()

    (second,) = loop.live()
    old = loop.allocation(first.id)
    assert (old.client_status, old.desired_description, old.next_allocation) == (
        LOST,
        "alloc is lost since its node is down",
        second.id,
    )
    assert (second.name, second.previous_allocation) == (first.name, first.id)


def test_where_the_node_stops_by_itself_nothing_is_placed_before_it_has() -> None:
    policy = DisconnectPolicy(stop_on_client_after=30 * SECOND_NS)
    loop = a_loop(a_version(count=1, disconnect=policy), nodes=2)
    loop.lose(loop.live()[0].node_id)
    loop.settle()
    (again,) = opened(loop, EvaluationTrigger.ALLOC_FAILURE)
    assert again.wait_until is not None
    assert (loop.live(), to_ns(again.wait_until)) == ([], loop.now_ns + 35 * SECOND_NS)

    loop.pass_time(34)
    loop.look_at()
    early = loop.live()
    loop.pass_time(2)
    loop.settle()

    assert (early, len(loop.live())) == ([], 1)


def test_an_update_stops_no_other_allocation_while_the_replacement_of_a_lost_one_is_held_back() -> None:
    policy = DisconnectPolicy(stop_on_client_after=30 * SECOND_NS)
    update = UpdatePolicy(max_parallel=1, min_healthy_time=SECOND_NS)
    loop = a_loop(a_version(0, disconnect=policy, update=update), nodes=4)
    loop.register(a_version(1, disconnect=policy, update=update))
    loop.think()
    (updated,) = [each for each in loop.live() if each.job_version == 1]
    loop.lose(updated.node_id)
    loop.think()
    loop.look_at()
    while_held_back = [each.job_version for each in loop.live()]

    loop.pass_time(36)
    loop.settle()

    assert ([0, 0], [1, 1, 1]) == (while_held_back, [each.job_version for each in loop.live()])


def lose_contact(**policy: Any) -> tuple[Loop, Allocation, str]:
    """A node is out of contact, and what it ran is replaced. Answers the original and its replacement's id."""
    given = DisconnectPolicy(**{"lost_after": 600 * SECOND_NS, **policy})
    delays = ReschedulePolicy(delay=5 * SECOND_NS)
    loop = a_loop(a_version(count=1, disconnect=given, reschedule_policy=delays), nodes=2)
    (original,) = loop.live()
    loop.lose(original.node_id, NodeStatus.DISCONNECTED)
    loop.think()
    loop.pass_time(10)
    loop.settle()
    return loop, loop.allocation(original.id), loop.allocation(original.id).next_allocation


def test_what_is_out_of_contact_is_unknown_and_replaced_without_being_stopped() -> None:
    loop, original, replacement = lose_contact()

    assert (original.client_status, original.desired_status) == (UNKNOWN, DesiredStatus.RUN)
    assert original.client_description == "alloc is unknown since its node is disconnected"
    assert [state.value for state in original.alloc_states or ()] == ["unknown"]
    assert loop.allocation(replacement).client_status is RUNNING
    assert len(opened(loop, EvaluationTrigger.MAX_DISCONNECT_TIMEOUT)) == 1


def test_what_is_not_to_be_replaced_stays_alone() -> None:
    _, original, replacement = lose_contact(replace=False)

    assert (original.client_status, replacement) == (UNKNOWN, "")


def test_what_is_out_of_contact_for_too_long_is_lost() -> None:
    loop, original, replacement = lose_contact()
    loop.pass_time(600)
    loop.settle()

    assert loop.allocation(original.id).client_status is LOST
    assert [each.id for each in loop.live()] == [replacement]


def back(loop: Loop, original: Allocation, status: ClientStatus = RUNNING) -> list[str]:
    """The node is back and tells of what it ran; answers who goes on."""
    loop.come_back(original.node_id)
    loop.tell(original, status)
    loop.look_at()
    loop.settle()
    return [each.id for each in loop.live()]


def test_the_original_goes_on_where_it_is_to_be_kept() -> None:
    loop, original, replacement = lose_contact(reconcile="keep_original")

    assert back(loop, original) == [original.id]
    stopped = loop.allocation(replacement)
    assert stopped.desired_description == "alloc not needed due to disconnected client reconnect"
    assert [state.value for state in loop.allocation(original.id).alloc_states or ()] == ["unknown", "running"]


def test_the_replacement_goes_on_where_it_is_to_be_kept() -> None:
    loop, original, replacement = lose_contact(reconcile="keep_replacement")

    assert back(loop, original) == [replacement]


def test_an_original_that_failed_meanwhile_is_given_up() -> None:
    loop, original, replacement = lose_contact(reconcile="keep_original")

    assert back(loop, original, FAILED) == [replacement]
    assert loop.allocation(original.id).desired_status is DesiredStatus.STOP


def test_what_was_replaced_while_nobody_knew_of_it_does_not_stand_for_another_that_is_lost() -> None:
    delays = ReschedulePolicy(delay=5 * SECOND_NS)
    loop = a_loop(a_version(count=2, disconnect=WINDOW, reschedule_policy=delays, constraints=(
        a_constraint("", operand="distinct_hosts"),)), nodes=4)  # fmt: skip
    first, second = loop.live()
    loop.lose(first.node_id, NodeStatus.DISCONNECTED)
    loop.think()
    loop.pass_time(10)
    loop.settle()
    loop.put(NODES.build_put(replace(loop.node(second.node_id), status=NodeStatus.DOWN)))
    loop.look_at()
    loop.settle()

    assert len([each for each in loop.live() if each.client_status is RUNNING]) == 2


# -- migrations --------------------------------------------------------------------------------------------------------


def test_what_is_marked_moves_whatever_its_deployment_does() -> None:
    rolling = UpdatePolicy(max_parallel=1)
    loop = a_loop(nodes=2)
    loop.register(a_version(count=2, update=rolling))
    loop.settle(healthy=None)
    (first, _) = loop.live()
    loop.put_led(ALLOCATIONS.build_put(replace(first, desired_transition=DesiredTransition(migrate=True))))
    loop.put_led(DEPLOYMENTS.build_put(replace(loop.deployment(), status=type(loop.deployment().status).PAUSED)))

    loop.look_at()

    assert loop.allocation(first.id).desired_description == "alloc is being migrated"
    assert indexes(loop.live()) == [0, 1]


# -- every node --------------------------------------------------------------------------------------------------------


def test_a_system_job_comes_to_a_node_that_joins_and_leaves_one_that_is_out_of_its_reach() -> None:
    loop = a_loop(a_system_job("shop"), nodes=2)
    loop.with_node("n2")
    loop.look_at()
    loop.settle()
    joined = sorted(each.node_id for each in loop.live())
    loop.put(NODES.build_put(replace(loop.node("n0"), datacenter="other")))
    loop.register(a_system_job("shop", datacenters=("dc1",)))
    loop.settle()

    assert (joined, sorted(each.node_id for each in loop.live())) == (["n0", "n1", "n2"], ["n1", "n2"])


def test_a_system_job_that_ended_on_a_node_is_started_there_again() -> None:
    loop = a_loop(a_system_job("shop"), nodes=1)
    loop.tell(loop.live()[0], COMPLETE)
    loop.look_at()

    assert len(loop.live()) == 1


def test_a_sysbatch_job_runs_once_on_each_node_and_again_when_it_changes() -> None:
    def job(value: int) -> Job:
        return a_job("shop", a_group("web", a_task(env={"V": str(value)})), type=JobType.SYSBATCH)

    loop = a_loop(job(0), nodes=2)
    first, second = loop.live()
    loop.tell(first, COMPLETE)
    stopped = loop.tell(second, FAILED)
    loop.put_led(ALLOCATIONS.build_put(replace(stopped, desired_status=DesiredStatus.STOP)))
    loop.look_at()
    once = len(loop.of())
    loop.register(job(1))
    loop.settle()

    assert (once, len(loop.of()), {each.job_version for each in loop.live()}) == (2, 4, {1})


def test_a_node_that_takes_nothing_new_keeps_what_it_runs_until_that_is_outdated() -> None:
    loop = a_loop(a_system_job("shop"), nodes=1)
    loop.put(NODES.build_put(replace(loop.node("n0"), scheduling_eligibility=SchedulingEligibility.INELIGIBLE)))
    loop.look_at()
    kept = len(loop.live())
    loop.register(a_system_job("shop", a_group("web", a_task(env={"V": "1"}))))
    loop.settle()

    assert (kept, loop.live()) == (1, [])


def test_nodes_that_can_never_run_a_system_job_are_no_failure_unless_none_can() -> None:
    loop = a_loop(nodes=2)
    loop.with_node("bare", attributes={})
    loop.register(a_system_job("shop"))
    some = loop.look_at()
    none = a_system_job("none", a_group("web", a_task(driver="java")))
    loop.register(none)
    nowhere = loop.look_at("none")

    assert some.completed_evaluation is not None
    assert nowhere.completed_evaluation is not None
    assert (some.completed_evaluation.failed_tg_allocs, some.completed_evaluation.queued_allocations) == (
        None,
        {"web": 0},
    )
    failed = (nowhere.completed_evaluation.failed_tg_allocs or {})["web"]
    assert failed.constraint_filtered == {"missing drivers": 3}


def test_a_system_job_asks_for_no_distinct_hosts() -> None:
    distinct = (a_constraint("", operand="distinct_hosts"),)
    loop = a_loop(a_system_job("shop", a_group("web"), a_group("db"), constraints=distinct), nodes=1)

    assert len(loop.live()) == 2


def test_a_system_job_leaves_a_node_that_its_new_version_does_not_belong_on() -> None:
    loop = a_loop(a_system_job("shop"), nodes=2)
    loop.register(a_system_job("shop", constraints=(a_constraint("${node.unique.id}", "n0", "!="),)))
    loop.settle()

    assert [each.node_id for each in loop.live()] == ["n1"]
    assert [each for each in loop.open_evaluations() if each.failed_tg_allocs] == []


def test_a_system_job_goes_on_where_its_new_version_has_no_room_and_says_so() -> None:
    def sized(cpu: int) -> Job:
        return a_system_job("shop", a_group("web", a_task(resources=some_resources(cpu=cpu, memory_mb=10))))

    loop = a_loop(sized(100), nodes=1)
    loop.register(sized(2_000))
    loop.settle()

    assert [each.job_version for each in loop.live()] == [0]
    (blocked,) = [each for each in loop.open_evaluations() if each.failed_tg_allocs]
    assert (blocked.failed_tg_allocs or {})["web"].dimension_exhausted == {"cpu": 1}


def test_a_system_job_tells_of_every_node_that_has_no_room_for_it() -> None:
    loop = a_loop(nodes=3)
    loop.register(a_system_job("shop", a_group("web", a_task(resources=some_resources(cpu=9_000)))))
    plan = loop.look_at()

    assert plan.completed_evaluation is not None
    metric = (plan.completed_evaluation.failed_tg_allocs or {})["web"]
    told = (metric.dimension_exhausted, metric.nodes_exhausted, metric.coalesced_failures)
    assert (told, plan.completed_evaluation.queued_allocations) == (({"cpu": 3}, 3, 2), {"web": 3})


def test_an_update_of_a_system_job_exchanges_no_more_at_once_than_it_says() -> None:
    def job(value: int) -> Job:
        update = UpdatePolicy(max_parallel=2, min_healthy_time=SECOND_NS)
        return a_system_job("shop", a_group("web", a_task(env={"V": str(value)}), update=update))

    loop = a_loop(job(0), nodes=5)
    loop.register(job(1))
    loop.think()
    first = sum(each.job_version == 1 for each in loop.live())
    loop.settle()

    assert (first, {each.job_version for each in loop.live()}, len(loop.live())) == (2, {1}, 5)
    assert loop.deployment().status == "successful"


def a_system_version(value: int, *, at_once: int = 1, **fields: Any) -> Job:
    update = UpdatePolicy(max_parallel=at_once, min_healthy_time=SECOND_NS)
    return a_system_job("shop", a_group("web", a_task(env={"V": str(value)}), update=update), **fields)


def test_a_rollout_of_a_system_job_ends_though_all_that_is_left_to_do_is_to_leave_a_node() -> None:
    """All that is to be new is well, and the last look at the job finds an old one on a node that takes nothing new."""
    loop = a_loop(a_system_version(0, at_once=2), nodes=2)
    (old, _) = loop.live()
    loop.register(a_system_version(1, at_once=2))
    loop.think()
    new = loop.live()
    loop.with_node("closed")
    loop.put(NODES.build_put(replace(loop.node("closed"), scheduling_eligibility=SchedulingEligibility.INELIGIBLE)))
    loop.put(ALLOCATIONS.build_put(replace(old, id="left", node_id="closed", create_index=0)))
    for each in new:
        loop.tell(each, RUNNING, healthy=True)
    loop.settle()

    assert loop.allocation("left").desired_status is DesiredStatus.STOP
    assert loop.deployment().status == "successful"


def test_where_old_and_new_have_no_room_side_by_side_no_more_nodes_are_without_a_system_job_than_may_be() -> None:
    def large(value: int) -> Job:
        task = a_task(resources=some_resources(cpu=700, memory_mb=10), env={"V": str(value)})
        update = UpdatePolicy(max_parallel=1, min_healthy_time=SECOND_NS)
        return a_system_job("shop", a_group("web", task, update=update))

    loop = a_loop(large(0), nodes=3)
    loop.register(large(1))
    loop.think()
    for _ in range(3):
        loop.look_at()
    stopped = [each for each in loop.of() if each.desired_status is DesiredStatus.STOP]
    loop.settle()

    assert len(stopped) == 1
    assert ({each.job_version for each in loop.live()}, len(loop.live())) == ({1}, 3)
    assert loop.deployment().status == "successful"


def test_a_system_job_that_comes_back_from_lost_contact_in_an_older_version_is_exchanged() -> None:
    loop = a_loop(a_system_version(0), nodes=2)
    away = next(each for each in loop.live() if each.node_id == "n0")
    loop.lose("n0", NodeStatus.DISCONNECTED)
    loop.think()
    assert loop.allocation(away.id).client_status is UNKNOWN
    loop.register(a_system_version(1))
    loop.settle()

    loop.come_back("n0")
    loop.tell(away, RUNNING)
    loop.look_at(trigger=EvaluationTrigger.RECONNECT)
    loop.settle()

    assert {each.node_id: each.job_version for each in loop.live()} == {"n0": 1, "n1": 1}
    assert loop.deployment().status == "successful"


def test_what_comes_back_and_was_told_to_stop_is_not_exchanged_beside_the_one_that_is_there() -> None:
    loop = a_loop(a_system_version(0), nodes=1)
    (away,) = loop.live()
    loop.lose("n0", NodeStatus.DISCONNECTED)
    loop.think()
    loop.put(ALLOCATIONS.build_put(replace(loop.allocation(away.id), desired_status=DesiredStatus.STOP)))
    unknown = loop.allocation(away.id).alloc_states
    loop.come_back("n0")
    loop.register(a_system_version(1))
    loop.settle()
    before = [each.id for each in loop.live()]
    loop.put_led(ALLOCATIONS.build_put(replace(loop.allocation(away.id), client_status=FAILED, alloc_states=unknown)))
    loop.look_at()

    assert ([each.id for each in loop.live()], len(before)) == (before, 1)


def test_a_system_job_without_bounds_is_exchanged_everywhere_though_one_has_no_room_beside_the_old() -> None:
    def of_size(value: int) -> Job:
        task = a_task(resources=some_resources(cpu=400, memory_mb=10), env={"V": str(value)})
        return a_system_job("shop", a_group("web", task, update=NO_UPDATE))

    loop = a_loop(of_size(0), nodes=3, cpu=2_000)
    loop.with_node("small", cpu=500)
    loop.look_at()
    loop.settle()
    loop.register(of_size(1))
    loop.think()
    before = [each.job_version for each in loop.live()]
    loop.register(of_size(2))
    loop.think()

    assert (before, [each.job_version for each in loop.live()]) == ([1, 1, 1], [2, 2, 2])


def test_a_system_job_leaves_all_nodes_at_once_that_its_new_version_does_not_belong_on() -> None:
    loop = a_loop(a_system_version(0), nodes=4)
    loop.register(a_system_version(1, constraints=(a_constraint("${node.unique.id}", "n3"),)))
    loop.settle()

    assert [(each.node_id, each.job_version) for each in loop.live()] == [("n3", 1)]
    assert loop.deployment().status == "successful"


def test_while_one_leaves_its_node_no_more_are_exchanged_than_may_be_down_with_it() -> None:
    loop = a_loop(a_version())
    loop.register(a_version(1, update=UpdatePolicy(max_parallel=1)))
    first, *others = loop.live()
    loop.put_led(ALLOCATIONS.build_put(replace(first, desired_transition=DesiredTransition(migrate=True))))

    loop.look_at()

    assert loop.allocation(first.id).desired_description == "alloc is being migrated"
    assert {each.id for each in others} < {each.id for each in loop.live()}


def test_a_promoted_canary_that_leaves_its_node_shares_its_name_with_nobody_that_is_exchanged_meanwhile() -> None:
    def of(value: int, count: int, canary: int) -> Job:
        update = UpdatePolicy(max_parallel=2, canary=canary, min_healthy_time=SECOND_NS)
        return a_job("shop", a_group("web", a_task(env={"V": str(value)}), count=count, update=update))

    loop = a_loop(of(0, 1, 0))
    loop.register(of(1, 1, 1))
    loop.settle()
    (canary,) = [each for each in loop.live() if each.job_version == 1]
    loop.lead(
        deployments.promote_deployment(
            loop.replica, loop.deployment().id, loop.moment, should_promote_all=True, max_changes=100
        )
    )
    promoted = loop.allocation(canary.id)
    assert 2 == sum(each.name == canary.name for each in loop.live())  # The old one was not stopped yet.
    loop.put_led(ALLOCATIONS.build_put(replace(promoted, desired_transition=DesiredTransition(migrate=True))))

    loop.register(of(2, 2, 0))
    loop.look_at()

    assert ["shop.web[0]", "shop.web[1]"] == sorted(each.name for each in loop.live())
