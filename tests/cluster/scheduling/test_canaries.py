"""Canaries run beside the allocations that they may replace, and replace none before promotion (scheduling.md 5.10)."""

from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.state import SECOND_NS, AState
from wharf.cluster.operations.deployments import promote_deployment
from wharf.cluster.operations.derived_state import add_derived_changes
from wharf.cluster.scheduling.plans.check import check_plan
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS
from wharf.contract.model.allocations.allocation import (
    Allocation,
    AllocDeploymentStatus,
    ClientStatus,
    DesiredTransition,
)
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.jobs.group_policies import UpdatePolicy
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.times import to_datetime

UPDATE = UpdatePolicy(max_parallel=1, canary=1, min_healthy_time=SECOND_NS)


def make_version(value: int, count: int = 3, update: UpdatePolicy = UPDATE) -> Job:
    task = a_task(resources=some_resources(cpu=10, memory_mb=10), config={"command": f"/bin/{value}"})
    return a_job("shop", a_group("web", task, count=count, update=update))


def process_evaluations(state: AState) -> None:
    for evaluation in state.open_evaluations():
        plan: Plan | None = state.plan(evaluation)
        while plan is not None:
            checked = check_plan(plan, state.replica, max_changes=100)
            if checked.write is not None:
                state.commit(add_derived_changes(state.replica, checked.write))
            plan = checked.remaining_plan


def promote_all(state: AState) -> None:
    decision = promote_deployment(
        state.replica, get_latest_deployment(state).id, state.moment, should_promote_all=True, max_changes=100
    )
    assert decision.write is not None
    state.commit(add_derived_changes(state.replica, decision.write))


def report_status(state: AState, allocation: Allocation, status: ClientStatus, *, healthy: bool) -> None:
    health = replace(
        allocation.deployment_status or AllocDeploymentStatus(),
        healthy=healthy,
        timestamp=to_datetime(state.now_ns),
        modify_index=WRITE_INDEX,
    )
    state.put_led(ALLOCATIONS.build_put(replace(allocation, client_status=status, deployment_status=health)))


def list_desired(state: AState, version: int) -> list[Allocation]:
    return [a for a in state.replica.iter_all(ALLOCATIONS) if a.job_version == version and not a.is_server_terminal]


def make_state_with_version_0() -> AState:
    state = AState()
    for number in range(3):
        state.with_node(f"node-{number}")
    state.register(make_version(0))
    process_evaluations(state)
    for allocation in list_desired(state, 0):
        report_status(state, allocation, ClientStatus.RUNNING, healthy=True)
    state.register(make_version(0))
    process_evaluations(state)
    return state


def get_latest_deployment(state: AState) -> Deployment:
    return max(state.replica.iter_all(DEPLOYMENTS), key=lambda each: each.create_index)


def test_a_new_version_starts_with_its_canaries_and_changes_nothing_else() -> None:
    state = make_state_with_version_0()

    state.register(make_version(1))
    process_evaluations(state)

    assert [a.name for a in list_desired(state, 1)] == ["shop.web[0]"]
    assert sorted(a.name for a in list_desired(state, 0)) == [f"shop.web[{index}]" for index in range(3)]
    assert get_latest_deployment(state).status_description == "Deployment is running but requires manual promotion"


def test_a_failed_canary_stops_nothing_of_the_old_version_and_is_replaced_by_a_canary() -> None:
    state = make_state_with_version_0()
    state.register(make_version(1))
    process_evaluations(state)

    (canary,) = list_desired(state, 1)
    report_status(state, canary, ClientStatus.FAILED, healthy=False)
    state.register(make_version(1))
    process_evaluations(state)

    assert len(list_desired(state, 0)) == 3
    assert [a.id for a in list_desired(state, 1)] == [canary.id]
    group = (get_latest_deployment(state).task_groups or {})["web"]
    assert (group.placed_allocs, group.desired_canaries) == (1, 1)


def test_a_failed_canary_of_an_earlier_deployment_is_not_retried_in_the_next() -> None:
    state = make_state_with_version_0()
    state.register(make_version(1))
    process_evaluations(state)
    (old,) = list_desired(state, 1)
    report_status(state, old, ClientStatus.FAILED, healthy=False)
    state.register(make_version(1))
    process_evaluations(state)

    state.register(make_version(2))
    process_evaluations(state)
    state.now_ns += 60 * SECOND_NS
    process_evaluations(state)

    assert list_desired(state, 1) == []
    assert [a.name for a in list_desired(state, 2)] == ["shop.web[0]"]
    assert len(list_desired(state, 0)) == 3


def test_a_canary_that_is_being_stopped_is_not_stopped_again_by_the_next_version() -> None:
    state = make_state_with_version_0()
    state.register(make_version(1))
    process_evaluations(state)
    (old,) = list_desired(state, 1)
    report_status(state, old, ClientStatus.RUNNING, healthy=True)
    state.register(make_version(2))
    process_evaluations(state)
    stopping = state.replica.get(ALLOCATIONS, old.id)
    assert stopping is not None
    assert stopping.is_server_terminal

    state.register(make_version(3))
    process_evaluations(state)

    assert state.replica.get(ALLOCATIONS, old.id) == stopping


def test_a_migrated_allocation_of_the_old_version_has_the_create_index_of_its_job() -> None:
    state = make_state_with_version_0()
    state.register(make_version(1))
    process_evaluations(state)
    migrated = list_desired(state, 0)[0]
    state.put_led(ALLOCATIONS.build_put(replace(migrated, desired_transition=DesiredTransition(migrate=True))))

    state.register(make_version(1))
    process_evaluations(state)

    (placed,) = [each for each in list_desired(state, 0) if each.name == migrated.name]
    assert placed.id != migrated.id
    assert placed.job_create_index == state.job().create_index


def test_a_promoted_deployment_ends_although_a_surplus_canary_failed_after_the_promotion() -> None:
    two_canaries = replace(UPDATE, canary=2)
    state = make_state_with_version_0()
    state.register(make_version(1, count=1, update=two_canaries))
    process_evaluations(state)
    healthy, failing = sorted(list_desired(state, 1), key=lambda each: each.name)
    for canary in (healthy, failing):
        report_status(state, canary, ClientStatus.RUNNING, healthy=True)
    promote_all(state)
    (failing,) = [a for a in list_desired(state, 1) if a.id == failing.id]
    report_status(state, failing, ClientStatus.FAILED, healthy=False)

    process_evaluations(state)

    assert [a.id for a in list_desired(state, 1)] == [healthy.id]
    assert list_desired(state, 0) == []
    assert get_latest_deployment(state).status == "successful"
