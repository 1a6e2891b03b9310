"""Changes of a node's capacity and placements on it conflict, decided by the capacity versions.

Each race runs in both orders. In one, a part of a plan is checked, another change is committed, and the part conflicts. In
the other, the change is decided, the part is committed, and the change conflicts and is decided again.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.state import AState
from wharf.cluster.engines.port import Committed, WriteConflict
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.derived_state import add_derived_changes
from wharf.cluster.operations.nodes import drains, registration, reports, status
from wharf.cluster.operations.nodes.drains import DrainOptions, DrainRequest
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.scheduling.plans.capacity_versions import CLUSTER_KEY
from wharf.cluster.scheduling.plans.check import check_plan
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, NODE_PLACEMENTS, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import Write
from wharf.contract.model.nodes.resources import NodeCpu, NodeDisk, NodeMemory, NodeResources
from wharf.contract.model.resource_usage import Usage, get_allocation_usage, get_node_capacity

MAX_CHANGES = 100
NODE_CHANGED = (NODE_PLACEMENTS.name, "node-1")
CLUSTER_CHANGED = (NODE_PLACEMENTS.name, CLUSTER_KEY)


def make_job(name: str = "shop", count: int = 2) -> Job:
    resources = some_resources(cpu=400, memory_mb=10)
    return a_job(name, a_group("web", a_task(driver="mock", resources=resources), count=count))


def make_state() -> AState:
    """Return a state with one empty node that has capacity for two allocations."""
    state = AState()
    state.with_node(cpu=1_000)
    state.register(make_job())
    return state


def make_plan(state: AState, job_id: str = "shop") -> Plan:
    return state.plan(state.open_evaluations(job_id)[-1])


def make_part(state: AState, plan: Plan) -> Write:
    """Return the next part of the plan, checked, but not committed."""
    checked = check_plan(plan, state.replica, max_changes=MAX_CHANGES)
    assert checked.write is not None, "the plan fits"
    return add_derived_changes(state.replica, checked.write)


def lower_capacity(state: AState) -> Decision[Any]:
    """Register the node with less capacity."""
    reported = replace(
        state.node(),
        node_resources=NodeResources(
            cpu=NodeCpu(cpu_shares=300), memory=NodeMemory(memory_mb=1_000), disk=NodeDisk(disk_mb=100_000)
        ),
    )
    return registration.register_node(state.replica, reported, state.moment, max_evaluations=MAX_CHANGES)


def drain_node(state: AState) -> Decision[Any]:
    request = DrainRequest(node_id="node-1", order=DrainOptions(deadline_ns=0))
    return drains.update_drain(state.replica, request, state.moment, max_evaluations=MAX_CHANGES)


def make_ineligible(state: AState) -> Decision[Any]:
    return status.set_node_eligibility(state.replica, "node-1", False, state.moment, max_evaluations=MAX_CHANGES)


def miss_heartbeat(state: AState) -> Decision[Any]:
    return status.mark_heartbeat_missed(state.replica, "node-1", state.moment, max_evaluations=MAX_CHANGES)


RACES = {
    "capacity lowered": lower_capacity,
    "drain": drain_node,
    "eligibility": make_ineligible,
    "missed heartbeat": miss_heartbeat,
}


def get_write(decision: Decision[Any]) -> Write:
    assert decision.write is not None, "there is something to write"
    return decision.write


def list_conflicting_keys(outcome: object) -> list[tuple[str, str]]:
    return list(outcome.keys) if isinstance(outcome, WriteConflict) else []


def count_occupying(state: AState) -> int:
    return sum(allocation.is_occupying for allocation in state.replica.list_by_index(ALLOCATIONS_ON_NODE, "node-1"))


def assert_nothing_over_committed(state: AState) -> None:
    """Assert that the allocations of the node fit on it."""
    for node in state.replica.iter_all(NODES):
        allocations = [
            allocation
            for allocation in state.replica.list_by_index(ALLOCATIONS_ON_NODE, node.id)
            if allocation.is_occupying
        ]
        assert Usage.sum_usages(map(get_allocation_usage, allocations)).fits_in(get_node_capacity(node)), (
            f"{node.name} is over-committed"
        )


@pytest.mark.parametrize("race", RACES)
def test_a_part_that_was_checked_before_a_node_changed_conflicts(race: str) -> None:
    state = make_state()
    plan = make_plan(state)
    part = make_part(state, plan)

    state.lead(RACES[race](state))
    outcome = state.try_commit(part)

    assert NODE_CHANGED in list_conflicting_keys(outcome)
    assert check_plan(plan, state.replica, max_changes=MAX_CHANGES).dropped_nodes == ["node-1"]
    assert count_occupying(state) == 0
    assert_nothing_over_committed(state)


@pytest.mark.parametrize("race", RACES)
def test_a_node_change_decided_before_a_placement_is_decided_again(race: str) -> None:
    state = make_state()
    node_write = get_write(RACES[race](state))

    state.commit(make_part(state, make_plan(state)))
    outcome = state.try_commit(node_write)

    assert CLUSTER_CHANGED in list_conflicting_keys(outcome)
    retried = state.try_commit(add_derived_changes(state.replica, get_write(RACES[race](state))))
    assert isinstance(retried, Committed)


def test_of_two_plans_for_the_same_capacity_one_is_committed() -> None:
    state = make_state()
    state.register(make_job("other"))
    plans = [make_plan(state, "shop"), make_plan(state, "other")]
    parts = [make_part(state, plan) for plan in plans]

    outcomes = [state.try_commit(part) for part in parts]

    assert [isinstance(outcome, Committed) for outcome in outcomes] == [True, False]
    assert CLUSTER_CHANGED in list_conflicting_keys(outcomes[1])
    assert check_plan(plans[1], state.replica, max_changes=MAX_CHANGES).dropped_nodes == ["node-1"]
    assert_nothing_over_committed(state)


def test_two_plans_that_fit_on_one_node_are_committed_one_after_the_other() -> None:
    state = make_state()
    state.register(make_job("other", count=1))
    state.register(make_job("third", count=1))
    plans = [make_plan(state, "other"), make_plan(state, "third")]
    parts = [make_part(state, plan) for plan in plans]

    outcomes = [state.try_commit(part) for part in parts]
    state.commit(make_part(state, plans[1]))

    assert [isinstance(outcome, Committed) for outcome in outcomes] == [True, False]
    assert count_occupying(state) == 2
    assert_nothing_over_committed(state)


def test_a_part_that_was_checked_before_a_node_reconnected_conflicts() -> None:
    state = make_state()
    make_report = lose_allocations(state)
    plan = make_plan(state)
    part = make_part(state, plan)

    state.lead(make_report())
    outcome = state.try_commit(part)

    assert NODE_CHANGED in list_conflicting_keys(outcome)
    assert check_plan(plan, state.replica, max_changes=MAX_CHANGES).dropped_nodes == ["node-1"]
    assert_nothing_over_committed(state)


def test_a_reconnect_decided_before_a_placement_is_decided_again() -> None:
    state = make_state()
    make_report = lose_allocations(state)
    node_write = get_write(make_report())

    state.commit(make_part(state, make_plan(state)))
    outcome = state.try_commit(node_write)

    assert CLUSTER_CHANGED in list_conflicting_keys(outcome)


@pytest.mark.parametrize("first", ["the node returns", "the plan is checked"])
def test_a_plan_that_was_made_while_a_node_was_down_takes_nothing_from_the_node_after_its_return(first: str) -> None:
    state = make_state()
    state.commit(make_part(state, make_plan(state)))
    allocations = list(state.replica.list_by_index(ALLOCATIONS_ON_NODE, "node-1"))
    state.lead(report_running(state, allocations))
    state.lead(miss_heartbeat(state))
    plan = make_plan(state)
    part = make_part(state, plan) if first == "the plan is checked" else None

    state.lead(status.mark_node_reachable(state.replica, "node-1", state.moment, max_evaluations=MAX_CHANGES))
    state.lead(report_running(state, allocations, is_complete=True))
    if part is not None:
        assert NODE_CHANGED in list_conflicting_keys(state.try_commit(part))
    state.commit(make_part(state, plan))

    stored = [state.allocation(allocation.id) for allocation in allocations]
    assert [(each.client_status, each.desired_status) for each in stored] == [("running", "stop")] * 2
    assert count_occupying(state) == 2


def report_running(state: AState, allocations: Iterable[Allocation], *, is_complete: bool = False) -> Decision[Any]:
    """Build the report of the node that it runs these allocations."""
    reported = [AllocationReport(id=allocation.id, client_status=ClientStatus.RUNNING) for allocation in allocations]
    return reports.apply_reports(
        state.replica, "node-1", reported, state.moment, is_complete=is_complete, max_evaluations=MAX_CHANGES
    )


def lose_allocations(state: AState) -> Callable[[], Decision[Any]]:
    """Mark the node's allocations as lost, and return a function that builds the report of the node that they run."""
    state.register(make_job("old"))
    placed = make_plan(state, "old").placements["node-1"]
    state.put_led(
        *(ALLOCATIONS.build_put(replace(allocation, client_status=ClientStatus.UNKNOWN)) for allocation in placed)
    )
    state.put_led(
        *(
            ALLOCATIONS.build_put(replace(state.allocation(allocation.id), client_status=ClientStatus.LOST))
            for allocation in placed
        )
    )
    state.end_evaluations("old")
    reported = [AllocationReport(id=allocation.id, client_status=ClientStatus.RUNNING) for allocation in placed]
    return lambda: reports.apply_reports(
        state.replica, "node-1", reported, state.moment, is_complete=False, max_evaluations=MAX_CHANGES
    )
