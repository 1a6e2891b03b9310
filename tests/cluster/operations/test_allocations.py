"""Stopping single allocations on request (nodes-allocations.md 2.1)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_job
from tests.kit.state import AState
from wharf.cluster.operations import allocations
from wharf.cluster.operations.allocations import AllocationStopResult
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, JOBS
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus, DesiredTransition
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.refusal import Refusal, RefusalCode


def with_work() -> AState:
    state = AState()
    state.register(a_job(priority=70))
    state.end_evaluations()
    state.with_allocation(state.job(), client_status=ClientStatus.RUNNING)
    return state


def stop(state: AState, **options: Any) -> AllocationStopResult:
    return state.lead(allocations.stop_allocation(state.replica, "a1", state.moment, **options))


def the_evaluation(state: AState, stopped: AllocationStopResult) -> Evaluation:
    evaluation = state.replica.get(EVALUATIONS, stopped.eval_id)
    assert evaluation is not None
    return evaluation


def test_a_stop_marks_the_allocation_to_be_moved_and_leaves_its_statuses() -> None:
    state = with_work()

    stopped = stop(state)

    allocation = state.allocation("a1")
    assert allocation.desired_transition == DesiredTransition(migrate=True, reschedule=False, no_shutdown_delay=False)
    assert (allocation.desired_status, allocation.client_status) == (DesiredStatus.RUN, ClientStatus.RUNNING)
    assert (allocation.modify_index, allocation.alloc_modify_index) == (stopped.index, stopped.index)


def test_a_stop_makes_an_evaluation_of_the_job() -> None:
    state = with_work()

    evaluation = the_evaluation(state, stop(state))

    assert (evaluation.triggered_by, evaluation.job_id, evaluation.priority, evaluation.type, evaluation.status) == (
        "alloc-stop",
        "shop",
        70,
        "service",
        "pending",
    )


def test_the_evaluation_of_a_batch_job_is_of_its_own_scheduler() -> None:
    state = AState()
    state.register(a_batch_job("shop"))
    state.with_allocation(state.job())

    assert the_evaluation(state, stop(state)).type == "batch"


def test_what_is_asked_of_the_stop_becomes_an_explicit_mark() -> None:
    state = with_work()

    stop(state, should_skip_shutdown_delay=True, should_reschedule=True)

    assert state.allocation("a1").desired_transition == DesiredTransition(
        migrate=True, reschedule=True, no_shutdown_delay=True
    )


def test_a_stop_that_asks_for_rescheduling_says_so_in_its_evaluation() -> None:
    state = with_work()

    assert the_evaluation(state, stop(state, should_reschedule=True)).triggered_by == "alloc-reschedule"


def test_other_marks_stay() -> None:
    state = with_work()
    marked = replace(state.allocation("a1"), desired_transition=DesiredTransition(force_reschedule=True))
    state.put(ALLOCATIONS.build_put(marked))

    stop(state)

    transition = state.allocation("a1").desired_transition
    assert transition is not None
    assert (transition.force_reschedule, transition.migrate) == (True, True)


def test_what_is_left_of_a_job_that_is_gone_is_marked_without_an_evaluation() -> None:
    state = with_work()
    state.put(JOBS.build_delete("default", "shop"))

    stopped = stop(state)

    assert stopped.eval_id == ""
    assert state.allocation("a1").should_migrate


def test_an_allocation_that_nobody_knows_is_not_found() -> None:
    state = AState()

    with pytest.raises(Refusal) as refusal:
        stop(state)

    assert (refusal.value.code, refusal.value.text) == (RefusalCode.NOT_FOUND, "allocation not found")
