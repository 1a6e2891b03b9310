"""Deployment counts follow from allocations, in the write that changes them (scheduling.md 7.3)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.state import SECOND_NS, AState, an_allocation
from wharf.cluster.operations.derived_state import update_deployment_counts
from wharf.cluster.operations.nodes import reports
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS
from wharf.contract.model.allocations.allocation import AllocDeploymentStatus, ClientStatus, DesiredStatus
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.times import to_datetime

DEADLINE_NS = 60 * SECOND_NS


def make_state(**group: Any) -> AState:
    """Return a state with the deployment d1 of one group with these fields."""
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


def get_group(state: AState) -> DeploymentGroup:
    deployment = state.replica.get(DEPLOYMENTS, "d1")
    assert deployment is not None
    return (deployment.task_groups or {})["web"]


def place_allocation(state: AState, id: str = "a1", *, canary: bool = False, **fields: Any) -> None:
    """Store an allocation that belongs to the deployment."""
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


def set_health(state: AState, healthy: bool | None, id: str = "a1", *, at_ns: int = 0) -> None:
    allocation = state.allocation(id)
    status = replace(
        allocation.deployment_status or AllocDeploymentStatus(), healthy=healthy, timestamp=to_datetime(at_ns)
    )
    result = replace(allocation, deployment_status=status, modify_time=state.now_ns)
    state.put_led(ALLOCATIONS.build_put(result))


def count_health(state: AState) -> tuple[int, int]:
    return get_group(state).healthy_allocs, get_group(state).unhealthy_allocs


def test_an_allocation_counts_as_placed_once() -> None:
    state = make_state()

    place_allocation(state)
    state.put_led(ALLOCATIONS.build_put(replace(state.allocation("a1"), client_description="again")))

    assert (get_group(state).placed_allocs, get_group(state).placed_canaries) == (1, None)


def test_an_allocation_updated_in_place_counts_for_the_new_deployment() -> None:
    state = make_state()
    state.put_led(ALLOCATIONS.build_put(an_allocation(state.job(), "a1", deployment_id="d0")))

    state.put_led(ALLOCATIONS.build_put(replace(state.allocation("a1"), deployment_id="d1")))

    assert get_group(state).placed_allocs == 1


def test_canaries_are_listed_in_the_order_in_which_they_were_placed() -> None:
    state = make_state(desired_canaries=2)

    place_allocation(state, "c2", canary=True)
    place_allocation(state, "c1", canary=True)

    assert get_group(state).placed_canaries == ("c2", "c1")


@pytest.mark.parametrize(
    ("group", "status", "expected"),
    [
        pytest.param({}, ClientStatus.RUNNING, ("c1", "c2"), id="it still stops"),
        pytest.param({}, ClientStatus.COMPLETE, ("c2",), id="it has ended"),
        pytest.param({"promoted": True}, ClientStatus.COMPLETE, ("c1", "c2"), id="the group is promoted"),
    ],
)
def test_a_canary_that_was_stopped_and_has_ended_is_not_listed_before_the_promotion(
    group: dict[str, Any], status: ClientStatus, expected: tuple[str, ...]
) -> None:
    state = make_state(desired_canaries=1, **group)
    place_allocation(state, "c1", canary=True)
    place_allocation(state, "c2", canary=True)

    stopped = replace(state.allocation("c1"), desired_status=DesiredStatus.STOP, client_status=status)
    state.put_led(ALLOCATIONS.build_put(stopped))

    assert get_group(state).placed_canaries == expected


def test_health_counts_when_it_is_decided() -> None:
    state = make_state()
    place_allocation(state, "a1")
    place_allocation(state, "a2")

    set_health(state, True, "a1")
    set_health(state, False, "a2")

    assert count_health(state) == (1, 1)


def test_an_allocation_that_becomes_unhealthy_is_no_longer_counted_as_healthy() -> None:
    state = make_state()
    place_allocation(state)
    set_health(state, True)

    set_health(state, False)

    assert count_health(state) == (0, 1)


def test_an_unhealthy_allocation_is_not_counted_back() -> None:
    state = make_state()
    place_allocation(state)
    set_health(state, False)

    set_health(state, True)

    assert count_health(state) == (0, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"client_status": ClientStatus.LOST},
        {"client_status": ClientStatus.FAILED},
        {"desired_status": DesiredStatus.STOP},
    ],
    ids=["lost", "failed", "stopped"],
)
def test_a_healthy_allocation_that_leaves_no_longer_counts_as_healthy(fields: dict[str, Any]) -> None:
    state = make_state()
    place_allocation(state)
    set_health(state, True)

    state.put_led(ALLOCATIONS.build_put(replace(state.allocation("a1"), **fields)))

    assert count_health(state) == (0, 0)


def test_an_allocation_that_leaves_and_returns_counts_once() -> None:
    state = make_state()
    place_allocation(state)
    set_health(state, True)
    healthy = state.allocation("a1")

    for status in (ClientStatus.LOST, ClientStatus.RUNNING, ClientStatus.LOST, ClientStatus.RUNNING):
        state.put_led(ALLOCATIONS.build_put(replace(healthy, client_status=status)))

    assert count_health(state) == (1, 0)


def test_a_lost_allocation_that_is_reported_unhealthy_counts_once() -> None:
    state = make_state()
    place_allocation(state)
    set_health(state, True)
    state.put_led(ALLOCATIONS.build_put(replace(state.allocation("a1"), client_status=ClientStatus.LOST)))

    set_health(state, False)

    assert count_health(state) == (0, 1)


def test_the_counts_of_an_ended_deployment_do_not_change_when_its_allocations_stop() -> None:
    state = make_state()
    place_allocation(state)
    set_health(state, True)
    deployment = state.replica.get(DEPLOYMENTS, "d1")
    assert deployment is not None
    state.put_led(DEPLOYMENTS.build_put(replace(deployment, status=DeploymentStatus.SUCCESSFUL)))

    state.put_led(ALLOCATIONS.build_put(replace(state.allocation("a1"), desired_status=DesiredStatus.STOP)))

    assert count_health(state) == (1, 0)


def test_the_health_of_an_earlier_deployment_does_not_count() -> None:
    state = make_state()
    healthy = AllocDeploymentStatus(healthy=True)
    state.put_led(
        ALLOCATIONS.build_put(an_allocation(state.job(), "a1", deployment_id="d0", deployment_status=healthy))
    )

    state.put_led(
        ALLOCATIONS.build_put(
            replace(state.allocation("a1"), deployment_id="d1", deployment_status=AllocDeploymentStatus())
        )
    )
    set_health(state, True)

    assert count_health(state) == (1, 0)


def test_only_the_first_placement_starts_the_progress_deadline() -> None:
    state = make_state()
    started_ns = state.now_ns

    place_allocation(state, "a1")
    state.now_ns += SECOND_NS
    place_allocation(state, "a2")

    assert get_group(state).require_progress_by == to_datetime(started_ns + DEADLINE_NS)


def test_each_healthy_allocation_extends_the_progress_deadline_and_never_shortens_it() -> None:
    state = make_state()
    place_allocation(state, "a1")
    place_allocation(state, "a2")
    state.now_ns += 10 * SECOND_NS
    later_ns = state.now_ns

    set_health(state, True, "a1", at_ns=later_ns)
    set_health(state, True, "a2", at_ns=later_ns - 5 * SECOND_NS)

    assert get_group(state).require_progress_by == to_datetime(later_ns + DEADLINE_NS)


def test_without_a_progress_deadline_no_time_is_set() -> None:
    state = make_state(progress_deadline=0)

    place_allocation(state)
    set_health(state, True, at_ns=state.now_ns)

    assert get_group(state).require_progress_by is None


def test_all_allocations_of_one_write_are_counted() -> None:
    state = make_state()
    many = [an_allocation(state.job(), f"a{number}", deployment_id="d1") for number in range(5)]

    state.put_led(*(ALLOCATIONS.build_put(each) for each in many))

    assert get_group(state).placed_allocs == 5


def test_allocations_of_groups_outside_the_deployment_are_not_counted() -> None:
    state = make_state()
    allocation = an_allocation(state.job(), "a1", deployment_id="d1", task_group="gone")
    deployment = state.replica.get(DEPLOYMENTS, "d1")
    assert deployment is not None

    assert update_deployment_counts(deployment, [(None, allocation)]) is deployment


def report_health(state: AState, healthy: bool | None, **fields: Any) -> None:
    """Apply a report of the node with this health."""
    status = AllocDeploymentStatus(healthy=healthy, **fields)
    result = AllocationReport(id="a1", client_status=ClientStatus.RUNNING, deployment_status=status)
    state.lead(
        reports.apply_reports(state.replica, "node-1", [result], state.moment, is_complete=False, max_evaluations=10)
    )


def test_reported_health_is_stored_and_counted() -> None:
    state = make_state()
    state.with_node()
    place_allocation(state, canary=True)

    report_health(state, True, timestamp=to_datetime(state.now_ns), canary=False)

    status = state.allocation("a1").deployment_status
    assert status is not None
    assert (status.healthy, status.canary, status.modify_index) == (True, True, state.replica.index)
    assert count_health(state) == (1, 0)


def test_repeated_or_undecided_health_changes_nothing() -> None:
    state = make_state()
    state.with_node()
    place_allocation(state)
    report_health(state, True)
    before = state.allocation("a1")

    state.now_ns += SECOND_NS
    report_health(state, True)
    report_health(state, None)

    assert state.allocation("a1") == before


def test_health_outside_a_deployment_is_stored_and_not_counted() -> None:
    state = make_state()
    state.with_node()
    state.put_led(ALLOCATIONS.build_put(an_allocation(state.job(), "a1")))

    report_health(state, False)

    status = state.allocation("a1").deployment_status
    assert (status is not None and status.healthy, count_health(state)) == (False, (0, 0))


def test_the_deadline_of_an_in_place_update_starts_with_the_update() -> None:
    group = DeploymentGroup(progress_deadline=40 * SECOND_NS, desired_total=1)
    deployment = Deployment(id="d1", status=DeploymentStatus.RUNNING, task_groups={"web": group})
    old = an_allocation(a_job(), create_time=1 * SECOND_NS, modify_time=1 * SECOND_NS)
    new = replace(old, deployment_id=deployment.id, modify_time=1_000 * SECOND_NS)

    (counted_in,) = (update_deployment_counts(deployment, [(old, new)]).task_groups or {}).values()

    assert counted_in.require_progress_by == to_datetime(1_040 * SECOND_NS)


def test_an_allocation_of_a_deleted_deployment_does_not_keep_others_from_being_counted() -> None:
    state = make_state()
    allocations = [
        an_allocation(state.job(), f"a{number}", deployment_id=deployment_id)
        for number, deployment_id in enumerate(("deleted before", "d1", "deleted behind"))
    ]

    state.put_led(*map(ALLOCATIONS.build_put, allocations))

    assert get_group(state).placed_allocs == 1
