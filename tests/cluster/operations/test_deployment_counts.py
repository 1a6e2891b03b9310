"""Deployment counts follow from allocations, in the write that changes them (scheduling.md 7.3)."""

from typing import Any

from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.state import SECOND_NS, AState, an_allocation
from wharf.cluster.operations.derived_state import update_deployment_counts
from wharf.cluster.operations.nodes import reports
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS
from wharf.contract.model.allocations.allocation import AllocDeploymentStatus, ClientStatus
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.times import to_datetime

DEADLINE_NS = 60 * SECOND_NS


def with_deployment(**group: Any) -> AState:
    state = AState()
    state.register(a_job())
    deployed = DeploymentGroup(**{"progress_deadline": DEADLINE_NS, "desired_total": 3, **group})
    state.put(
        DEPLOYMENTS.build_put(
            Deployment(
                id="d1",
                namespace="default",
                job_id="shop",
                status=DeploymentStatus.RUNNING,
                task_groups={"web": deployed},
                create_index=WRITE_INDEX,
            )
        )
    )
    return state


def the_group(state: AState) -> DeploymentGroup:
    deployment = state.replica.get(DEPLOYMENTS, "d1")
    assert deployment is not None
    return (deployment.task_groups or {})["web"]


def place(state: AState, id: str = "a1", *, canary: bool = False, **fields: Any) -> None:
    status = AllocDeploymentStatus(canary=True) if canary else None
    allocation = an_allocation(
        state.job(),
        id,
        deployment_id="d1",
        deployment_status=status,
        create_time=state.now_ns,
        modify_time=state.now_ns,
        **fields,
    )
    state.put_led(ALLOCATIONS.build_put(allocation))


def say(state: AState, healthy: bool | None, id: str = "a1", *, at_ns: int = 0) -> None:
    allocation = state.allocation(id)
    status = replace(
        allocation.deployment_status or AllocDeploymentStatus(), healthy=healthy, timestamp=to_datetime(at_ns)
    )
    told = replace(allocation, deployment_status=status, modify_time=state.now_ns)
    state.put_led(ALLOCATIONS.build_put(told))


def health(state: AState) -> tuple[int, int]:
    return the_group(state).healthy_allocs, the_group(state).unhealthy_allocs


def test_an_allocation_counts_as_placed_once() -> None:
    state = with_deployment()

    place(state)
    state.put_led(ALLOCATIONS.build_put(replace(state.allocation("a1"), client_description="again")))

    assert (the_group(state).placed_allocs, the_group(state).placed_canaries) == (1, None)


def test_an_allocation_that_is_kept_in_place_counts_for_the_deployment_that_takes_it_over() -> None:
    state = with_deployment()
    state.put_led(ALLOCATIONS.build_put(an_allocation(state.job(), "a1", deployment_id="d0")))

    state.put_led(ALLOCATIONS.build_put(replace(state.allocation("a1"), deployment_id="d1")))

    assert the_group(state).placed_allocs == 1


def test_canaries_are_listed_in_the_order_in_which_they_were_placed() -> None:
    state = with_deployment(desired_canaries=2)

    place(state, "c2", canary=True)
    place(state, "c1", canary=True)

    assert the_group(state).placed_canaries == ("c2", "c1")


def test_health_counts_when_it_is_decided() -> None:
    state = with_deployment()
    place(state, "a1")
    place(state, "a2")

    say(state, True, "a1")
    say(state, False, "a2")

    assert health(state) == (1, 1)


def test_what_falls_sick_is_no_longer_counted_as_healthy() -> None:
    state = with_deployment()
    place(state)
    say(state, True)

    say(state, False)

    assert health(state) == (0, 1)


def test_what_was_sick_is_not_counted_back() -> None:
    state = with_deployment()
    place(state)
    say(state, False)

    say(state, True)

    assert health(state) == (0, 1)


def test_the_first_placement_starts_the_time_and_later_ones_leave_it() -> None:
    state = with_deployment()
    begun_ns = state.now_ns

    place(state, "a1")
    state.now_ns += SECOND_NS
    place(state, "a2")

    assert the_group(state).require_progress_by == to_datetime(begun_ns + DEADLINE_NS)


def test_each_that_becomes_healthy_moves_the_time_on_and_never_back() -> None:
    state = with_deployment()
    place(state, "a1")
    place(state, "a2")
    state.now_ns += 10 * SECOND_NS
    later_ns = state.now_ns

    say(state, True, "a1", at_ns=later_ns)
    say(state, True, "a2", at_ns=later_ns - 5 * SECOND_NS)

    assert the_group(state).require_progress_by == to_datetime(later_ns + DEADLINE_NS)


def test_without_a_deadline_there_is_no_time() -> None:
    state = with_deployment(progress_deadline=0)

    place(state)
    say(state, True, at_ns=state.now_ns)

    assert the_group(state).require_progress_by is None


def test_many_in_one_write_are_all_counted() -> None:
    state = with_deployment()
    many = [an_allocation(state.job(), f"a{number}", deployment_id="d1") for number in range(5)]

    state.put_led(*(ALLOCATIONS.build_put(each) for each in many))

    assert the_group(state).placed_allocs == 5


def test_a_group_that_the_deployment_does_not_have_counts_nowhere() -> None:
    state = with_deployment()
    stranger = an_allocation(state.job(), "a1", deployment_id="d1", task_group="gone")
    deployment = state.replica.get(DEPLOYMENTS, "d1")
    assert deployment is not None

    assert update_deployment_counts(deployment, [(None, stranger)]) is deployment


def report(state: AState, healthy: bool | None, **fields: Any) -> None:
    """The node says how the allocation is."""
    status = AllocDeploymentStatus(healthy=healthy, **fields)
    told = AllocationReport(id="a1", client_status=ClientStatus.RUNNING, deployment_status=status)
    state.lead(
        reports.apply_reports(state.replica, "node-1", [told], state.moment, is_complete=False, max_evaluations=10)
    )


def test_the_health_that_a_node_reports_is_taken_over_and_counted() -> None:
    state = with_deployment()
    state.with_node()
    place(state, canary=True)

    report(state, True, timestamp=to_datetime(state.now_ns), canary=False)

    status = state.allocation("a1").deployment_status
    assert status is not None
    assert (status.healthy, status.canary, status.modify_index) == (True, True, state.replica.index)
    assert health(state) == (1, 0)


def test_a_health_that_a_node_reports_again_or_has_not_decided_changes_nothing() -> None:
    state = with_deployment()
    state.with_node()
    place(state)
    report(state, True)
    before = state.allocation("a1")

    state.now_ns += SECOND_NS
    report(state, True)
    report(state, None)

    assert state.allocation("a1") == before


def test_the_health_of_what_belongs_to_no_deployment_is_kept_and_counted_nowhere() -> None:
    state = with_deployment()
    state.with_node()
    state.put_led(ALLOCATIONS.build_put(an_allocation(state.job(), "a1")))

    report(state, False)

    status = state.allocation("a1").deployment_status
    assert (status is not None and status.healthy, health(state)) == (False, (0, 0))


def test_the_deadline_of_what_is_updated_in_place_begins_with_the_update() -> None:
    group = DeploymentGroup(progress_deadline=40 * SECOND_NS, desired_total=1)
    deployment = Deployment(id="d1", status=DeploymentStatus.RUNNING, task_groups={"web": group})
    old = an_allocation(a_job(), create_time=1 * SECOND_NS, modify_time=1 * SECOND_NS)
    new = replace(old, deployment_id=deployment.id, modify_time=1_000 * SECOND_NS)

    (counted_in,) = (update_deployment_counts(deployment, [(old, new)]).task_groups or {}).values()

    assert counted_in.require_progress_by == to_datetime(1_040 * SECOND_NS)
