"""A plan is checked against the newest state and committed in parts that fit in the log."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.state import AState, an_allocation
from wharf.cluster.engines.port import WriteLimits
from wharf.cluster.operations.derived_state import add_derived_changes
from wharf.cluster.scheduling.plans.check import PlanCheck, check_plan
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, EVALUATIONS, JOBS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import NodeStatus, SchedulingEligibility
from wharf.contract.model.resource_usage import Usage, get_allocation_usage, get_node_capacity

MAX_DERIVED_CHANGES = 8


def make_job(count: int, cpu: int = 10) -> Job:
    return a_job("shop", a_group("web", a_task(resources=some_resources(cpu=cpu, memory_mb=10)), count=count))


def make_plan(state: AState) -> Plan:
    return state.plan(state.open_evaluations()[-1])


def commit_next(state: AState, plan: Plan, max_changes: int = 100) -> PlanCheck:
    checked = check_plan(plan, state.replica, max_changes=max_changes)
    if checked.write is not None:
        state.commit(add_derived_changes(state.replica, checked.write))
    return checked


def commit_all(state: AState, plan: Plan, max_changes: int = 100) -> list[PlanCheck]:
    checks = [commit_next(state, plan, max_changes)]
    while (remaining_plan := checks[-1].remaining_plan) is not None:
        checks.append(commit_next(state, remaining_plan, max_changes))
    return checks


def list_active_names(state: AState) -> list[str]:
    return sorted(a.name for a in state.replica.iter_all(ALLOCATIONS) if not a.is_terminal)


def is_over_committed(state: AState) -> bool:
    for node in state.replica.iter_all(NODES):
        occupying = [a for a in state.replica.list_by_index(ALLOCATIONS_ON_NODE, node.id) if a.is_occupying]
        if not Usage.sum_usages(get_allocation_usage(a) for a in occupying).fits_in(get_node_capacity(node)):
            return True
    return False


def test_a_plan_that_fits_is_one_write_with_the_end_of_its_evaluation() -> None:
    state = AState()
    state.with_node()
    state.register(make_job(3))

    checks = commit_all(state, make_plan(state))

    assert len(checks) == 1
    assert list_active_names(state) == ["shop.web[0]", "shop.web[1]", "shop.web[2]"]
    assert [e.status for e in state.evaluations()] == ["complete"]


@pytest.mark.parametrize(
    "break_node",
    [
        lambda state: state.put(NODES.build_delete("node-1")),
        lambda state: state.put(NODES.build_put(replace(state.node(), status=NodeStatus.DOWN))),
        lambda state: state.put(
            NODES.build_put(replace(state.node(), scheduling_eligibility=SchedulingEligibility.INELIGIBLE))
        ),
        lambda state: state.put(
            ALLOCATIONS.build_put(
                an_allocation(state.job("big"), "full", allocated_resources=state.allocation("big").allocated_resources)
            )
        ),
    ],
    ids=["deleted", "down", "ineligible", "full"],
)
def test_a_node_that_can_no_longer_take_its_placements_is_dropped(break_node: Callable[[AState], None]) -> None:
    state = AState()
    state.with_node(cpu=1_000)
    state.with_node("node-2", cpu=200)
    state.register(a_job("big", a_group("web", a_task(resources=some_resources(cpu=950, memory_mb=10)))))
    big = state.plan(state.open_evaluations("big")[-1]).placements["node-1"][0]
    state.put(ALLOCATIONS.build_put(replace(big, id="big", client_status=ClientStatus.COMPLETE)))
    state.register(make_job(20, cpu=20))
    plan = make_plan(state)
    assert set(plan.placements) == {"node-1", "node-2"}

    break_node(state)
    checks = commit_all(state, plan)

    assert [checked.dropped_nodes for checked in checks] == [["node-1"]]
    assert len(list_active_names(state)) >= len(plan.placements["node-2"])
    assert state.open_evaluations() == [plan.evaluation]
    assert not is_over_committed(state)


def test_each_part_fits_the_limits_with_derived_changes_and_the_evaluation_ends_last() -> None:
    state = AState(limits=WriteLimits(changes=16, conditions=16))
    for number in range(4):
        state.with_node(f"node-{number}", cpu=1_000)
    state.register(make_job(60, cpu=60))
    plan = make_plan(state)

    checks = commit_all(state, plan, max_changes=16 - MAX_DERIVED_CHANGES)

    assert len(checks) > 8
    assert len(list_active_names(state)) == 60
    assert [e.status for e in state.evaluations()] == ["complete"]
    assert state.summary().summary["web"].starting == 60


def test_after_a_crash_between_two_parts_only_missing_allocations_are_placed() -> None:
    state = AState(limits=WriteLimits(changes=16, conditions=16))
    for number in range(3):
        state.with_node(f"node-{number}")
    state.register(make_job(30))
    first = commit_next(state, make_plan(state), max_changes=8)
    while not list_active_names(state):
        assert first.remaining_plan is not None
        first = commit_next(state, first.remaining_plan, max_changes=8)
    placed_before = list_active_names(state)
    assert 0 < len(placed_before) < 30

    commit_all(state, make_plan(state), max_changes=8)

    names = list_active_names(state)
    assert len(names) == len(set(names)) == 30
    assert [e.status for e in state.evaluations()] == ["complete"]
    assert state.summary().summary["web"].starting == 30


def test_the_capacity_of_a_node_is_checked_again_between_two_parts() -> None:
    state = AState(limits=WriteLimits(changes=16, conditions=16))
    state.with_node(cpu=1_000)
    state.register(make_job(20, cpu=50))
    first = commit_next(state, make_plan(state), max_changes=8)
    assert first.remaining_plan is not None

    placed = len(list_active_names(state))
    smaller = state.node()
    assert smaller.node_resources is not None
    cpu = replace(smaller.node_resources.cpu, cpu_shares=placed * 50)
    state.put(NODES.build_put(replace(smaller, node_resources=replace(smaller.node_resources, cpu=cpu))))
    second = commit_all(state, first.remaining_plan, max_changes=8)

    assert [checked.dropped_nodes for checked in second if checked.dropped_nodes] == [["node-1"]] * len(second)
    assert len(list_active_names(state)) == placed
    assert not is_over_committed(state)
    assert len(state.open_evaluations()) == 1


def test_an_allocation_id_that_another_plan_used_is_not_overwritten() -> None:
    state = AState()
    state.with_node()
    state.register(make_job(1))
    plan = make_plan(state)
    ((planned,),) = plan.placements.values()
    state.put(ALLOCATIONS.build_put(replace(planned, job_id="pub", name="pub.web[0]")))

    checked = check_plan(plan, state.replica, max_changes=100)

    assert list(checked.dropped_nodes) == [planned.node_id]
    assert checked.write is None or all(change.key != planned.id for change in checked.write.changes)


def test_a_plan_for_an_older_version_of_the_job_is_rejected() -> None:
    state = AState()
    state.with_node()
    state.register(make_job(3))
    plan = make_plan(state)

    state.register(replace(make_job(2), version=9))

    assert check_plan(plan, state.replica, max_changes=100) == PlanCheck(None)


def test_a_plan_for_a_job_that_was_purged_and_registered_again_is_rejected() -> None:
    state = AState()
    state.with_node()
    state.register(make_job(3))
    plan = make_plan(state)

    state.put(JOBS.build_delete("default", "shop"))
    state.put(JOBS.build_put(replace(make_job(3), create_index=WRITE_INDEX, job_modify_index=WRITE_INDEX)))

    assert check_plan(plan, state.replica, max_changes=100).write is None


def test_a_plan_whose_evaluation_changed_is_rejected() -> None:
    state = AState()
    state.with_node()
    state.register(make_job(3))
    plan = make_plan(state)

    state.put(EVALUATIONS.build_put(replace(plan.evaluation, status=EvaluationStatus.CANCELED)))

    assert check_plan(plan, state.replica, max_changes=100).write is None


def test_a_job_registered_while_a_part_is_committed_causes_a_conflict() -> None:
    state = AState()
    state.with_node()
    state.register(make_job(3))
    checked = check_plan(make_plan(state), state.replica, max_changes=100)
    assert checked.write is not None
    write = add_derived_changes(state.replica, checked.write)

    state.register(replace(make_job(1), version=9))
    outcome = state.try_commit(write)

    assert type(outcome).__name__ == "WriteConflict"


def test_a_job_status_changed_by_the_plan_does_not_invalidate_its_next_part() -> None:
    state = AState()
    state.with_node()
    state.register(make_job(30))
    first = commit_next(state, make_plan(state), max_changes=12)
    assert (state.job().status, first.remaining_plan is not None) == ("running", True)
    assert first.remaining_plan is not None

    commit_all(state, first.remaining_plan, max_changes=12)

    assert len(list_active_names(state)) == 30


def test_a_stop_keeps_what_the_node_reported_meanwhile() -> None:
    state = AState()
    state.with_node()
    state.register(make_job(1))
    commit_all(state, make_plan(state))
    allocation = next(iter(state.replica.iter_all(ALLOCATIONS)))
    state.register(replace(make_job(1), stop=True))
    plan = make_plan(state)
    state.with_client_status(allocation.id, ClientStatus.RUNNING)

    commit_all(state, plan)

    stopped = state.allocation(allocation.id)
    assert (stopped.desired_status, stopped.client_status) == (DesiredStatus.STOP, ClientStatus.RUNNING)


def test_the_end_of_an_evaluation_requires_the_evaluations_that_it_cancels_unchanged() -> None:
    state = AState()
    state.register(make_job(1))
    commit_all(state, make_plan(state))
    blocked = state.open_evaluations()[0]
    state.with_node()
    state.register(make_job(1))
    checked = check_plan(make_plan(state), state.replica, max_changes=100)

    assert checked.write is not None
    assert state.replica.build_record_condition(EVALUATIONS, blocked) in checked.write.conditions
