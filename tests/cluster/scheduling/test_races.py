"""Changes of a node's capacity and placements on it conflict, decided by the capacity versions.

Each race is run both ways. Either a part of a plan is checked, something else is committed, and the part conflicts. Or
the other change is decided, the part is committed, and the change conflicts and is decided again.
"""

from collections.abc import Callable
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
from wharf.cluster.scheduling.plans.plan import Plan, check_plan
from wharf.cluster.scheduling.resources.usage import Usage, get_allocation_usage, get_node_capacity
from wharf.cluster.scheduling.scheduler import plan_evaluation_from_state
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, NODE_PLACEMENTS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import Write
from wharf.contract.model.nodes.resources import NodeCpu, NodeDisk, NodeMemory, NodeResources

MANY = 100
NODE_CHANGED = (NODE_PLACEMENTS.name, "node-1")
PLACED = (NODE_PLACEMENTS.name, CLUSTER_KEY)


def a_shop(name: str = "shop", count: int = 2) -> Job:
    resources = some_resources(cpu=400, memory_mb=10)
    return a_job(name, a_group("web", a_task(driver="mock", resources=resources), count=count))


def a_cluster() -> AState:
    """Return a state with one empty node that has capacity for two allocations."""
    state = AState()
    state.with_node(cpu=1_000)
    state.register(a_shop())
    return state


def plan_of(state: AState, job_id: str = "shop") -> Plan:
    return plan_evaluation_from_state(state.replica, state.open_evaluations(job_id)[-1], state.moment)


def part_of(state: AState, plan: Plan) -> Write:
    """Return the next part of the plan, checked, but not committed."""
    checked = check_plan(plan, state.replica, max_changes=MANY)
    assert checked.write is not None, "the plan fits"
    return add_derived_changes(state.replica, checked.write)


def smaller(state: AState) -> Decision[Any]:
    """Register the node with less capacity."""
    reported = replace(
        state.node(),
        node_resources=NodeResources(
            cpu=NodeCpu(cpu_shares=300), memory=NodeMemory(memory_mb=1_000), disk=NodeDisk(disk_mb=100_000)
        ),
    )
    return registration.register_node(state.replica, reported, state.moment, max_evaluations=MANY)


def drained(state: AState) -> Decision[Any]:
    wish = DrainRequest(node_id="node-1", order=DrainOptions(deadline_ns=0))
    return drains.update_drain(state.replica, wish, state.moment, max_evaluations=MANY)


def ineligible(state: AState) -> Decision[Any]:
    return status.set_node_eligibility(state.replica, "node-1", False, state.moment, max_evaluations=MANY)


def silent(state: AState) -> Decision[Any]:
    return status.mark_heartbeat_missed(state.replica, "node-1", state.moment, max_evaluations=MANY)


RACES = {"capacity lowered": smaller, "drain": drained, "eligibility": ineligible, "a node that is given up": silent}


def write_of(decision: Decision[Any]) -> Write:
    assert decision.write is not None, "there is something to write"
    return decision.write


def moved(outcome: object) -> list[tuple[str, str]]:
    return list(outcome.keys) if isinstance(outcome, WriteConflict) else []


def occupying(state: AState) -> int:
    return sum(allocation.is_occupying for allocation in state.replica.list_by_index(ALLOCATIONS_ON_NODE, "node-1"))


def assert_nothing_over_committed(state: AState) -> None:
    for node in state.replica.iter_all(NODES):
        here = [
            allocation
            for allocation in state.replica.list_by_index(ALLOCATIONS_ON_NODE, node.id)
            if allocation.is_occupying
        ]
        assert Usage.sum_usages(map(get_allocation_usage, here)).fits_in(get_node_capacity(node)), (
            f"{node.name} is over-committed"
        )


@pytest.mark.parametrize("race", RACES)
def test_a_part_that_was_checked_before_a_node_changed_conflicts(race: str) -> None:
    state = a_cluster()
    plan = plan_of(state)
    part = part_of(state, plan)

    state.lead(RACES[race](state))
    outcome = state.try_commit(part)

    assert NODE_CHANGED in moved(outcome)
    assert check_plan(plan, state.replica, max_changes=MANY).dropped_nodes == ["node-1"]
    assert occupying(state) == 0
    assert_nothing_over_committed(state)


@pytest.mark.parametrize("race", RACES)
def test_a_node_change_decided_before_a_placement_is_decided_again(race: str) -> None:
    state = a_cluster()
    too_late = write_of(RACES[race](state))

    state.commit(part_of(state, plan_of(state)))
    outcome = state.try_commit(too_late)

    assert PLACED in moved(outcome)
    again = state.try_commit(add_derived_changes(state.replica, write_of(RACES[race](state))))
    assert isinstance(again, Committed)


def test_of_two_plans_for_the_same_capacity_one_is_committed() -> None:
    state = a_cluster()
    state.register(a_shop("other"))
    plans = [plan_of(state, "shop"), plan_of(state, "other")]
    parts = [part_of(state, plan) for plan in plans]

    outcomes = [state.try_commit(part) for part in parts]

    assert [isinstance(outcome, Committed) for outcome in outcomes] == [True, False]
    assert PLACED in moved(outcomes[1])
    assert check_plan(plans[1], state.replica, max_changes=MANY).dropped_nodes == ["node-1"]
    assert_nothing_over_committed(state)


def test_two_plans_that_fit_on_one_node_are_committed_one_after_the_other() -> None:
    state = a_cluster()
    state.register(a_shop("other", count=1))
    state.register(a_shop("third", count=1))
    plans = [plan_of(state, "other"), plan_of(state, "third")]
    parts = [part_of(state, plan) for plan in plans]

    outcomes = [state.try_commit(part) for part in parts]
    state.commit(part_of(state, plans[1]))

    assert [isinstance(outcome, Committed) for outcome in outcomes] == [True, False]
    assert occupying(state) == 2
    assert_nothing_over_committed(state)


def test_a_part_that_was_checked_before_a_node_reconnected_conflicts() -> None:
    state = a_cluster()
    returned = lose_and_make_report(state)
    plan = plan_of(state)
    part = part_of(state, plan)

    state.lead(returned())
    outcome = state.try_commit(part)

    assert NODE_CHANGED in moved(outcome)
    assert check_plan(plan, state.replica, max_changes=MANY).dropped_nodes == ["node-1"]
    assert_nothing_over_committed(state)


def test_a_reconnect_decided_before_a_placement_is_decided_again() -> None:
    state = a_cluster()
    returned = lose_and_make_report(state)
    too_late = write_of(returned())

    state.commit(part_of(state, plan_of(state)))
    outcome = state.try_commit(too_late)

    assert PLACED in moved(outcome)


def lose_and_make_report(state: AState) -> Callable[[], Decision[Any]]:
    """Make the node's allocations lost, and return the report by which the node says that they run."""
    state.register(a_shop("old"))
    placed = plan_of(state, "old").placements["node-1"]
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
        state.replica, "node-1", reported, state.moment, is_complete=False, max_evaluations=MANY
    )
