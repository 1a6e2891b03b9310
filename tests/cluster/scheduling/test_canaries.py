"""Canaries run beside the allocations that they may replace, and replace none before promotion (scheduling.md 5.10)."""

from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.state import SECOND_NS, AState
from wharf.cluster.operations.derived_state import add_derived_changes
from wharf.cluster.scheduling.plans.plan import Plan, check_plan
from wharf.cluster.scheduling.scheduler import plan_evaluation_from_state
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


def of_version(value: int, count: int = 3) -> Job:
    task = a_task(resources=some_resources(cpu=10, memory_mb=10), config={"command": f"/bin/{value}"})
    return a_job("shop", a_group("web", task, count=count, update=UPDATE))


def run(state: AState) -> None:
    for evaluation in state.open_evaluations():
        plan: Plan | None = plan_evaluation_from_state(state.replica, evaluation, state.moment)
        while plan is not None:
            checked = check_plan(plan, state.replica, max_changes=100)
            if checked.write is not None:
                state.commit(add_derived_changes(state.replica, checked.write))
            plan = checked.remaining_plan


def report(state: AState, allocation: Allocation, status: ClientStatus, *, healthy: bool) -> None:
    told = replace(
        allocation.deployment_status or AllocDeploymentStatus(),
        healthy=healthy,
        timestamp=to_datetime(state.now_ns),
        modify_index=WRITE_INDEX,
    )
    state.put_led(ALLOCATIONS.build_put(replace(allocation, client_status=status, deployment_status=told)))


def list_desired(state: AState, version: int) -> list[Allocation]:
    return [a for a in state.replica.iter_all(ALLOCATIONS) if a.job_version == version and not a.is_server_terminal]


def a_state_with_version_0() -> AState:
    state = AState()
    for number in range(3):
        state.with_node(f"node-{number}")
    state.register(of_version(0))
    run(state)
    for allocation in list_desired(state, 0):
        report(state, allocation, ClientStatus.RUNNING, healthy=True)
    state.register(of_version(0))
    run(state)
    return state


def latest(state: AState) -> Deployment:
    return max(state.replica.iter_all(DEPLOYMENTS), key=lambda each: each.create_index)


def test_a_new_version_starts_with_its_canaries_and_changes_nothing_else() -> None:
    state = a_state_with_version_0()

    state.register(of_version(1))
    run(state)

    assert [a.name for a in list_desired(state, 1)] == ["shop.web[0]"]
    assert sorted(a.name for a in list_desired(state, 0)) == [f"shop.web[{index}]" for index in range(3)]
    assert latest(state).status_description == "Deployment is running but requires manual promotion"


def test_a_failed_canary_stops_nothing_of_the_old_version_and_is_replaced_by_a_canary() -> None:
    state = a_state_with_version_0()
    state.register(of_version(1))
    run(state)

    (canary,) = list_desired(state, 1)
    report(state, canary, ClientStatus.FAILED, healthy=False)
    state.register(of_version(1))
    run(state)

    assert len(list_desired(state, 0)) == 3
    assert [a.id for a in list_desired(state, 1)] == [canary.id]
    group = (latest(state).task_groups or {})["web"]
    assert (group.placed_allocs, group.desired_canaries) == (1, 1)


def test_a_failed_canary_of_an_earlier_deployment_is_not_retried_in_the_next() -> None:
    state = a_state_with_version_0()
    state.register(of_version(1))
    run(state)
    (old,) = list_desired(state, 1)
    report(state, old, ClientStatus.FAILED, healthy=False)
    state.register(of_version(1))
    run(state)

    state.register(of_version(2))
    run(state)
    state.now_ns += 60 * SECOND_NS
    run(state)

    assert list_desired(state, 1) == []
    assert [a.name for a in list_desired(state, 2)] == ["shop.web[0]"]
    assert len(list_desired(state, 0)) == 3


def test_a_migrated_allocation_of_the_old_version_has_the_create_index_of_its_job() -> None:
    state = a_state_with_version_0()
    state.register(of_version(1))
    run(state)
    moved = list_desired(state, 0)[0]
    state.put_led(ALLOCATIONS.build_put(replace(moved, desired_transition=DesiredTransition(migrate=True))))

    state.register(of_version(1))
    run(state)

    (placed,) = [each for each in list_desired(state, 0) if each.name == moved.name]
    assert placed.id != moved.id
    assert placed.job_create_index == state.job().create_index
