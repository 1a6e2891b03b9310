"""Starting proposed moves of allocations: which ones, how many in one write, and what the write contains."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.kit.state import AState, Refused
from wharf.cluster.controllers.rebalancing import start_moves
from wharf.cluster.state.tables import ALLOCATIONS, JOBS
from wharf.contract.model.allocations.allocation import (
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
    DesiredTransition,
)
from wharf.contract.model.jobs.group_policies import MigratePolicy
from wharf.contract.model.operator.rebalancing import AllocationMove


def a_state(*job_ids: str, count: int = 3, max_parallel: int = 2) -> AState:
    """Return a state with jobs whose allocations, such as shop-1, are all healthy and on node-1."""
    state = AState()
    for job_id in job_ids or ("shop",):
        state.register(a_job(job_id, a_group("web", count=count, migrate=MigratePolicy(max_parallel=max_parallel))))
        state.end_evaluations(job_id)
        for number in range(1, count + 1):
            fields: dict[str, Any] = {"deployment_status": AllocDeploymentStatus(healthy=True)}
            state.with_allocation(state.job(job_id), f"{job_id}-{number}", **fields)
    return state


def a_move(allocation_id: str, **fields: Any) -> AllocationMove:
    arguments = {
        "alloc_id": allocation_id,
        "name": allocation_id,
        "namespace": "default",
        "job_id": allocation_id.partition("-")[0],
        "task_group": "web",
        "from_node_id": "node-1",
        "from_node": "node-1",
        "to_node_id": "node-2",
        "to_node": "node-2",
        "score_before": 0.1,
        "score_after": 0.9,
        **fields,
    }
    return AllocationMove(**arguments)


def start(state: AState, *moves: AllocationMove, max_changes: int = 100) -> list[str]:
    """Start the moves and return the ids of the allocations that are marked now."""
    started = state.lead(start_moves(state.replica, moves, state.moment, max_changes=max_changes))
    marked = [each.id for each in state.replica.iter_all(ALLOCATIONS) if each.should_migrate]
    assert (started.move_count, started.index) == (len(marked), state.replica.index)
    return marked


def test_a_moved_allocation_is_marked_with_its_new_node_and_its_job_is_evaluated() -> None:
    state = a_state()
    state.now_ns += 7

    assert start(state, a_move("shop-2")) == ["shop-2"]
    allocation = state.allocation("shop-2")
    assert allocation.desired_transition == DesiredTransition(migrate=True, move_to="node-2")
    assert (allocation.alloc_modify_index, allocation.modify_time) == (state.replica.index, state.now_ns)
    assert [each.triggered_by for each in state.open_evaluations()] == ["alloc-stop"]


def test_the_other_marks_of_a_moved_allocation_stay() -> None:
    state = a_state()
    marked = replace(state.allocation("shop-1"), desired_transition=DesiredTransition(reschedule=True))
    state.put(ALLOCATIONS.build_put(marked))

    start(state, a_move("shop-1"))

    assert state.allocation("shop-1").desired_transition == DesiredTransition(
        reschedule=True, migrate=True, move_to="node-2"
    )


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"client_status": ClientStatus.COMPLETE}, id="ended"),
        pytest.param({"desired_status": DesiredStatus.STOP}, id="stopping"),
        pytest.param({"desired_transition": DesiredTransition(migrate=True)}, id="marked already"),
        pytest.param({"node_id": "node-3"}, id="on another node by now"),
    ],
)
def test_an_allocation_that_changed_since_the_proposal_is_skipped(fields: dict[str, Any]) -> None:
    state = a_state()
    state.put(ALLOCATIONS.build_put(replace(state.allocation("shop-1"), **fields)))

    moved = start_moves(state.replica, [a_move("shop-1"), a_move("shop-2")], state.moment, max_changes=100)

    assert moved.write is not None
    assert [change.key for change in moved.write.changes if change.table == ALLOCATIONS.name] == ["shop-2"]


def test_moves_of_unknown_allocations_groups_and_jobs_are_skipped() -> None:
    state = a_state()

    moves = (a_move("shop-9"), a_move("shop-1", task_group="former"), a_move("other-1"), a_move("shop-3"))
    assert start(state, *moves) == ["shop-3"]


def test_moves_of_a_stopped_job_are_skipped_and_those_of_later_jobs_are_started() -> None:
    state = a_state("shop", "other")
    state.put(JOBS.build_put(replace(state.job("shop"), stop=True)))

    assert start(state, a_move("shop-1"), a_move("other-1")) == ["other-1"]


def test_a_job_none_of_whose_moves_may_start_is_not_evaluated() -> None:
    state = a_state("shop", "other", max_parallel=0)

    assert start(state, a_move("shop-1"), a_move("other-1")) == []
    assert (state.open_evaluations("shop"), state.open_evaluations("other")) == ([], [])


@pytest.mark.parametrize(("max_parallel", "moved"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_as_many_allocations_move_as_the_migrate_policy_allows(max_parallel: int, moved: int) -> None:
    state = a_state(max_parallel=max_parallel)

    assert len(start(state, *(a_move(f"shop-{number}") for number in (1, 2, 3)))) == moved


def test_a_move_needs_as_many_other_healthy_allocations_as_the_group_must_keep() -> None:
    state = a_state(max_parallel=1)
    state.put(ALLOCATIONS.build_put(replace(state.allocation("shop-3"), deployment_status=None)))

    assert start(state, a_move("shop-1")) == []


@pytest.mark.parametrize(
    ("max_changes", "moved"),
    [(2, []), (3, ["shop-1", "shop-2"]), (4, ["shop-1", "shop-2"]), (5, ["shop-1", "shop-2", "other-1"])],
)
def test_the_first_job_that_does_not_fit_in_the_write_and_those_after_it_are_left_out(
    max_changes: int, moved: list[str]
) -> None:
    state = a_state("shop", "other")

    moves = (a_move("shop-1"), a_move("other-1"), a_move("shop-2"))
    assert start(state, *moves, max_changes=max_changes) == moved


def test_smaller_jobs_after_one_that_does_not_fit_wait_too() -> None:
    state = a_state("shop", "other")

    assert start(state, a_move("shop-1"), a_move("shop-2"), a_move("other-1"), max_changes=2) == []


def test_a_move_that_was_decided_before_the_allocation_changed_conflicts() -> None:
    state = a_state()
    decision = start_moves(state.replica, [a_move("shop-1")], state.moment, max_changes=100)
    state.with_client_status("shop-1", ClientStatus.FAILED)

    with pytest.raises(Refused):
        state.lead(decision)
