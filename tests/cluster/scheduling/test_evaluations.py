"""Evaluations: missing allocations are placed and surplus ones are stopped."""

from typing import Any

from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_system_job, a_task, some_resources
from tests.kit.state import SECOND_NS, AState
from wharf.cluster.operations.derived_state import add_derived_changes
from wharf.cluster.operations.evaluations import unblock_evaluations
from wharf.cluster.scheduling.plans.check import check_plan
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, KEYRING, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus, DesiredTransition
from wharf.contract.model.cluster import KeyringKey, KeyState
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import NodeStatus, SchedulingEligibility
from wharf.contract.model.times import to_datetime


def make_plan(state: AState, job_id: str = "shop") -> Plan:
    return state.plan(state.open_evaluations(job_id)[-1])


def commit_plan(state: AState, job_id: str = "shop") -> None:
    """Evaluate the job and commit the whole plan."""
    plan: Plan | None = make_plan(state, job_id)
    while plan is not None:
        checked = check_plan(plan, state.replica, max_changes=100)
        if checked.write is not None:
            state.commit(add_derived_changes(state.replica, checked.write))
        plan = checked.remaining_plan


def list_placements(plan: Plan) -> list[tuple[str, str]]:
    return sorted((a.name, a.node_id) for some in plan.placements.values() for a in some)


def get_stopped_statuses(plan: Plan) -> dict[str, tuple[str, str]]:
    return {allocation.id: (allocation.desired_status, allocation.client_status) for allocation in plan.stops}


def make_job(count: int, **fields: Any) -> Job:
    return a_job("shop", a_group("web", a_task(resources=some_resources(**fields)), count=count))


def list_active(state: AState) -> list[Allocation]:
    return [allocation for allocation in state.replica.iter_all(ALLOCATIONS) if not allocation.is_terminal]


def test_an_allocation_names_the_key_that_was_active_when_it_was_placed() -> None:
    state = AState()
    state.with_node()
    active, old = (
        KeyringKey(key_id=name, state=kind) for name, kind in (("k2", KeyState.ACTIVE), ("k1", KeyState.INACTIVE))
    )
    state.put(KEYRING.build_put(old), KEYRING.build_put(active))
    state.register(make_job(12))

    plan = make_plan(state)

    assert {each.signing_key_id for some in plan.placements.values() for each in some} == {"k2"}


def test_a_new_job_is_placed_name_by_name() -> None:
    state = AState()
    state.with_node()
    state.register(make_job(3))

    plan = make_plan(state)

    assert list_placements(plan) == [(f"shop.web[{index}]", "node-1") for index in range(3)]
    assert plan.completed_evaluation is not None
    assert (plan.completed_evaluation.status, plan.completed_evaluation.queued_allocations) == ("complete", {"web": 0})


def test_allocations_without_capacity_are_queued_with_a_reason_and_a_blocked_evaluation() -> None:
    state = AState()
    state.with_node(cpu=250)
    state.register(make_job(4, cpu=100))

    plan = make_plan(state)

    assert (len(list_placements(plan)), plan.completed_evaluation and plan.completed_evaluation.queued_allocations) == (
        2,
        {"web": 2},
    )
    blocked = plan.follow_ups[0]
    assert plan.completed_evaluation is not None
    assert (blocked.status, blocked.previous_eval, plan.completed_evaluation.blocked_eval) == (
        "blocked",
        plan.evaluation.id,
        blocked.id,
    )
    assert blocked.failed_tg_allocs is not None
    assert blocked.failed_tg_allocs["web"].dimension_exhausted == {"cpu": 1}


def test_a_blocked_evaluation_that_fails_again_keeps_its_id() -> None:
    state = AState()
    state.register(make_job(1))
    commit_plan(state)
    blocked = state.open_evaluations()[0]

    state.commit(unblock_evaluations(state.replica, [blocked], state.moment))

    plan = make_plan(state)

    assert plan.completed_evaluation is not None
    assert (plan.completed_evaluation.id, plan.completed_evaluation.status, plan.follow_ups) == (
        blocked.id,
        EvaluationStatus.BLOCKED,
        (),
    )


def test_when_everything_is_placed_the_blocked_evaluation_is_canceled() -> None:
    state = AState()
    state.register(make_job(1))
    commit_plan(state)
    state.with_node()
    state.register(make_job(1))

    commit_plan(state)

    assert [(e.status, e.triggered_by) for e in state.evaluations()] == [
        ("complete", "job-register"),
        ("canceled", "queued-allocs"),
        ("complete", "job-register"),
    ]


def test_a_lower_count_stops_the_highest_names() -> None:
    state = AState()
    state.with_node()
    state.register(make_job(3))
    commit_plan(state)
    state.register(make_job(1))

    commit_plan(state)

    assert [allocation.name for allocation in list_active(state)] == ["shop.web[0]"]


def test_a_deleted_group_is_stopped_and_has_no_queued_allocations() -> None:
    state = AState()
    state.register(make_job(3))
    commit_plan(state)
    assert state.summary().summary["web"].queued == 3
    state.with_node()
    state.register(a_job("shop", a_group("db", a_task())))

    commit_plan(state)

    assert state.summary().summary["web"].queued == 0
    assert [allocation.task_group for allocation in list_active(state)] == ["db"]


def test_a_stopped_job_has_no_queued_allocations() -> None:
    state = AState()
    state.register(make_job(3))
    commit_plan(state)
    state.register(replace(make_job(3), stop=True))

    commit_plan(state)

    assert state.summary().summary["web"].queued == 0
    assert state.open_evaluations() == []


def test_an_allocation_on_a_node_that_is_down_is_lost_and_replaced_elsewhere() -> None:
    state = AState()
    state.with_node()
    state.register(make_job(1))
    commit_plan(state)
    first = list_active(state)[0]
    state.put(NODES.build_put(replace(state.node(), status=NodeStatus.DOWN)))
    state.with_node("node-2")
    state.register(make_job(1))

    plan = make_plan(state)

    assert get_stopped_statuses(plan) == {first.id: (DesiredStatus.STOP, ClientStatus.LOST)}
    assert list_placements(plan) == [("shop.web[0]", "node-2")]


def test_a_stopping_allocation_on_a_node_that_is_down_is_lost_too() -> None:
    state = AState()
    state.with_node()
    state.register(a_job(stop=True))
    state.with_allocation(
        state.job(),
        desired_status=DesiredStatus.EVICT,
        desired_description="evicted",
        client_status=ClientStatus.RUNNING,
    )
    state.put(NODES.build_put(replace(state.node(), status=NodeStatus.DOWN)))

    commit_plan(state)

    allocation = state.allocation("a1")
    assert (allocation.desired_status, allocation.desired_description, allocation.client_status) == (
        "evict",
        "evicted",
        "lost",
    )


def test_of_two_allocations_with_one_name_the_older_stays() -> None:
    state = AState()
    state.with_node()
    state.register(make_job(1))
    state.with_allocation(state.job(), "a1")
    state.with_allocation(state.job(), "a2")

    assert list(get_stopped_statuses(make_plan(state))) == ["a2"]


def test_an_allocation_marked_to_migrate_is_stopped_and_its_name_is_placed_again() -> None:
    state = AState()
    state.with_node()
    job = make_job(1)
    state.register(job)
    state.end_evaluations()
    state.with_allocation(state.job(), desired_transition=DesiredTransition(migrate=True))
    state.register(job)

    plan = make_plan(state)

    assert [(a.id, a.desired_status, a.desired_description) for a in plan.stops] == [
        ("a1", DesiredStatus.STOP, "alloc is being migrated")
    ]
    assert list_placements(plan) == [("shop.web[0]", "node-1")]


def test_a_failed_allocation_is_replaced_elsewhere_after_its_delay() -> None:
    state = AState()
    state.with_node()
    state.with_node("node-2")
    state.register(make_job(1, cpu=10))
    commit_plan(state)
    failed = list_active(state)[0]
    state.put_led(*(DEPLOYMENTS.build_delete(each.id) for each in state.replica.iter_all(DEPLOYMENTS)))
    state.with_client_status(failed.id, ClientStatus.FAILED)
    state.register(make_job(1, cpu=10))
    commit_plan(state)
    (follow_up,) = state.open_evaluations()
    waiting = (follow_up.triggered_by, follow_up.wait_until, state.allocation(failed.id).followup_eval_id)

    state.now_ns += 31 * SECOND_NS
    commit_plan(state)

    due = to_datetime(failed.modify_time + 30 * SECOND_NS)
    assert waiting == ("alloc-reschedule", due, follow_up.id)
    (replacement,) = list_active(state)
    assert (replacement.name, replacement.previous_allocation) == (failed.name, failed.id)
    assert replacement.node_id != failed.node_id


def test_completed_batch_allocations_do_not_run_again() -> None:
    state = AState()
    state.with_node()
    state.register(a_batch_job("shop"))
    commit_plan(state)
    state.with_client_status(list_active(state)[0].id, ClientStatus.COMPLETE)
    state.register(a_batch_job("shop"))

    assert list_placements(make_plan(state)) == []


def test_a_system_job_runs_on_every_ready_node_of_its_pool_and_datacenters() -> None:
    state = AState()
    state.with_node("node-1")
    state.with_node("node-2", datacenter="dc2")
    state.with_node("node-3", scheduling_eligibility=SchedulingEligibility.INELIGIBLE)
    state.register(a_system_job("agent", datacenters=("dc1",)))

    assert list_placements(make_plan(state, "agent")) == [("agent.web[0]", "node-1")]


def test_a_system_job_continues_on_a_node_that_accepts_no_placements() -> None:
    state = AState()
    state.with_node()
    state.register(a_system_job("agent"))
    commit_plan(state, "agent")
    ineligible = replace(state.node(), scheduling_eligibility=SchedulingEligibility.INELIGIBLE)
    state.put(NODES.build_put(ineligible))
    state.register(a_system_job("agent"))

    assert get_stopped_statuses(make_plan(state, "agent")) == {}


def test_the_fullest_node_with_enough_resources_is_chosen() -> None:
    state = AState()
    state.with_node("node-1", cpu=4_000)
    state.with_node("node-2", cpu=400)
    state.register(make_job(1, cpu=300))

    assert list_placements(make_plan(state)) == [("shop.web[0]", "node-2")]


def test_a_stopping_allocation_uses_resources_until_its_node_reports_the_end() -> None:
    state = AState()
    state.with_node(cpu=100)
    state.register(a_job("old", a_group("web", a_task(resources=some_resources(cpu=100)))))
    commit_plan(state, "old")
    state.register(a_job("old", a_group("web", a_task(resources=some_resources(cpu=100))), stop=True))
    commit_plan(state, "old")
    state.register(make_job(1, cpu=100))

    assert list_placements(make_plan(state)) == []


def test_one_evaluation_of_a_job_makes_other_pending_ones_redundant() -> None:
    state = AState()
    state.with_node()
    for _ in range(6):
        state.register(make_job(1))
    last = state.open_evaluations()[-1]

    commit_plan(state)

    assert sorted(e.status for e in state.evaluations()) == ["canceled"] * 2 + ["complete"] + ["pending"] * 3
    canceled = [e.status_description for e in state.evaluations() if e.status == "canceled"]
    assert canceled == ["canceled after more recent eval was processed"] * 2
    assert next(e.status for e in state.evaluations() if e.id == last.id) == "complete"
