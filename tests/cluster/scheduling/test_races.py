"""Whoever changes what a node can take, and whoever places on it, cannot both be right: the marks of room decide.

Each race is run both ways. A part of a plan is checked, something else is committed, and the part comes too late; or the
something else is decided, the part is committed, and that comes too late and is decided anew.
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
    """One node with room for two, on which nothing runs."""
    state = AState()
    state.with_node(cpu=1_000)
    state.register(a_shop())
    return state


def plan_of(state: AState, job_id: str = "shop") -> Plan:
    return plan_evaluation_from_state(state.replica, state.open_evaluations(job_id)[-1], state.moment)


def part_of(state: AState, plan: Plan) -> Write:
    """As the leader is about to commit it."""
    checked = check_plan(plan, state.replica, max_changes=MANY)
    assert checked.write is not None, "the plan fits"
    return add_derived_changes(state.replica, checked.write)


def smaller(state: AState) -> Decision[Any]:
    """The node registers with less than it had."""
    told = replace(
        state.node(),
        node_resources=NodeResources(
            cpu=NodeCpu(cpu_shares=300), memory=NodeMemory(memory_mb=1_000), disk=NodeDisk(disk_mb=100_000)
        ),
    )
    return registration.register_node(state.replica, told, state.moment, max_evaluations=MANY)


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
    return sum(each.is_occupying for each in state.replica.list_by_index(ALLOCATIONS_ON_NODE, "node-1"))


def assert_nothing_over_committed(state: AState) -> None:
    for node in state.replica.iter_all(NODES):
        here = [each for each in state.replica.list_by_index(ALLOCATIONS_ON_NODE, node.id) if each.is_occupying]
        assert Usage.sum_usages(map(get_allocation_usage, here)).fits_in(get_node_capacity(node)), (
            f"{node.name} is over-committed"
        )


@pytest.mark.parametrize("race", RACES)
def test_a_part_that_was_checked_before_a_node_changed_comes_too_late(race: str) -> None:
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
def test_what_was_decided_about_a_node_before_something_was_placed_there_is_decided_anew(race: str) -> None:
    state = a_cluster()
    too_late = write_of(RACES[race](state))

    state.commit(part_of(state, plan_of(state)))
    outcome = state.try_commit(too_late)

    assert PLACED in moved(outcome)
    again = state.try_commit(add_derived_changes(state.replica, write_of(RACES[race](state))))
    assert isinstance(again, Committed)


def test_of_two_plans_for_the_same_room_one_is_carried_out() -> None:
    state = a_cluster()
    state.register(a_shop("other"))
    plans = [plan_of(state, "shop"), plan_of(state, "other")]
    parts = [part_of(state, plan) for plan in plans]

    outcomes = [state.try_commit(part) for part in parts]

    assert [isinstance(outcome, Committed) for outcome in outcomes] == [True, False]
    assert PLACED in moved(outcomes[1])
    assert check_plan(plans[1], state.replica, max_changes=MANY).dropped_nodes == ["node-1"]
    assert_nothing_over_committed(state)


def test_two_plans_that_share_a_node_with_room_for_both_are_carried_out_one_after_the_other() -> None:
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


def test_a_part_that_was_checked_before_a_node_returned_with_its_work_comes_too_late() -> None:
    state = a_cluster()
    returned = state_with_work_out_of_contact(state)
    plan = plan_of(state)
    part = part_of(state, plan)

    state.lead(returned())
    outcome = state.try_commit(part)

    assert NODE_CHANGED in moved(outcome)
    assert check_plan(plan, state.replica, max_changes=MANY).dropped_nodes == ["node-1"]
    assert_nothing_over_committed(state)


def test_a_return_that_was_decided_before_something_was_placed_is_decided_anew() -> None:
    state = a_cluster()
    returned = state_with_work_out_of_contact(state)
    too_late = write_of(returned())

    state.commit(part_of(state, plan_of(state)))
    outcome = state.try_commit(too_late)

    assert PLACED in moved(outcome)


def state_with_work_out_of_contact(state: AState) -> Callable[[], Decision[Any]]:
    """What ran on the node counts as lost, and occupies nothing; answers how the node says that it runs all the same."""
    state.register(a_shop("old"))
    placed = plan_of(state, "old").placements["node-1"]
    state.put_led(*(ALLOCATIONS.build_put(replace(each, client_status=ClientStatus.UNKNOWN)) for each in placed))
    state.put_led(
        *(ALLOCATIONS.build_put(replace(state.allocation(each.id), client_status=ClientStatus.LOST)) for each in placed)
    )
    state.end_evaluations("old")
    told = [AllocationReport(id=each.id, client_status=ClientStatus.RUNNING) for each in placed]
    return lambda: reports.apply_reports(
        state.replica, "node-1", told, state.moment, is_complete=False, max_evaluations=MANY
    )
