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


def make_state() -> AState:
    state = AState()
    state.register(a_job(priority=70))
    state.end_evaluations()
    state.with_allocation(state.job(), client_status=ClientStatus.RUNNING)
    return state


def stop(state: AState, **options: Any) -> AllocationStopResult:
    return state.lead(allocations.stop_allocation(state.replica, "a1", state.moment, **options))


def get_evaluation(state: AState, stopped: AllocationStopResult) -> Evaluation:
    evaluation = state.replica.get(EVALUATIONS, stopped.eval_id)
    assert evaluation is not None
    return evaluation


def test_a_stop_requests_migration_and_does_not_change_the_statuses() -> None:
    state = make_state()

    stopped = stop(state)

    allocation = state.allocation("a1")
    assert allocation.desired_transition == DesiredTransition(migrate=True, reschedule=False, no_shutdown_delay=False)
    assert (allocation.desired_status, allocation.client_status) == (DesiredStatus.RUN, ClientStatus.RUNNING)
    assert (allocation.modify_index, allocation.alloc_modify_index) == (stopped.index, stopped.index)


def test_a_stop_evaluates_the_job() -> None:
    state = make_state()

    evaluation = get_evaluation(state, stop(state))

    assert (evaluation.triggered_by, evaluation.job_id, evaluation.priority, evaluation.type, evaluation.status) == (
        "alloc-stop",
        "shop",
        70,
        "service",
        "pending",
    )


def test_the_evaluation_of_a_batch_job_has_its_scheduler_type() -> None:
    state = AState()
    state.register(a_batch_job("shop"))
    state.with_allocation(state.job())

    assert get_evaluation(state, stop(state)).type == "batch"


def test_options_of_a_stop_become_fields_of_the_desired_transition() -> None:
    state = make_state()

    stop(state, should_skip_shutdown_delay=True, should_reschedule=True)

    assert state.allocation("a1").desired_transition == DesiredTransition(
        migrate=True, reschedule=True, no_shutdown_delay=True
    )


def test_a_stop_with_rescheduling_is_named_in_its_evaluation() -> None:
    state = make_state()

    assert get_evaluation(state, stop(state, should_reschedule=True)).triggered_by == "alloc-reschedule"


def test_other_fields_of_the_desired_transition_are_kept() -> None:
    state = make_state()
    marked = replace(state.allocation("a1"), desired_transition=DesiredTransition(force_reschedule=True))
    state.put(ALLOCATIONS.build_put(marked))

    stop(state)

    transition = state.allocation("a1").desired_transition
    assert transition is not None
    assert (transition.force_reschedule, transition.migrate) == (True, True)


def test_an_allocation_of_a_deleted_job_is_stopped_without_an_evaluation() -> None:
    state = make_state()
    state.put(JOBS.build_delete("default", "shop"))

    stopped = stop(state)

    assert stopped.eval_id == ""
    assert state.allocation("a1").should_migrate


def test_an_unknown_allocation_is_not_found() -> None:
    state = AState()

    with pytest.raises(Refusal) as refusal:
        stop(state)

    assert (refusal.value.code, refusal.value.text) == (RefusalCode.NOT_FOUND, "allocation not found")
