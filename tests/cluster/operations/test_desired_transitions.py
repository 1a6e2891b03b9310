"""Desired transitions of a job's allocations, and requested evaluations (jobs.md 1.3)."""

from typing import Any

import pytest

from tests.builders import a_group, a_job, a_parameterized_job, a_periodic_job
from tests.kit.state import AState
from wharf.cluster.operations.jobs import desired_transitions, registration
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredTransition
from wharf.contract.model.jobs.group_policies import ReschedulePolicy
from wharf.contract.model.refusal import Refusal, RefusalCode


def make_state(count: int, **fields: Any) -> AState:
    state = AState()
    state.register(a_job("shop", a_group(count=count)))
    for number in range(count):
        state.with_allocation(state.job(), f"a{number}", **fields)
    return state


def mark_no_shutdown_delay(state: AState, *, at_most: int = 100) -> desired_transitions.MarkingProgress:
    return state.lead(
        desired_transitions.skip_shutdown_delays(
            state.replica, "default", "shop", state.moment, max_allocations=at_most
        )
    )


def mark_force_reschedule(state: AState, *, at_most: int = 100) -> desired_transitions.MarkingProgress:
    return state.lead(
        desired_transitions.force_reschedule_allocations(
            state.replica, "default", "shop", state.moment, max_allocations=at_most
        )
    )


def get_transition(allocation: Allocation) -> DesiredTransition:
    return allocation.desired_transition or DesiredTransition()


def test_running_allocations_are_marked_to_stop_without_delay_for_their_node() -> None:
    state = make_state(2)
    state.with_client_status("a1", ClientStatus.COMPLETE)

    result = mark_no_shutdown_delay(state)

    assert [get_transition(state.allocation(a)).no_shutdown_delay for a in ("a0", "a1")] == [True, None]
    assert (result.remaining_count, state.allocation("a0").alloc_modify_index) == (0, result.index)


def test_marking_in_steps_marks_each_allocation_once() -> None:
    state = make_state(5)

    left = [mark_no_shutdown_delay(state, at_most=2).remaining_count for _ in range(3)]
    index = state.replica.index

    assert (left, mark_no_shutdown_delay(state).remaining_count, state.replica.index) == ([3, 1, 0], 0, index)


def test_failed_allocations_without_a_replacement_are_marked_to_be_rescheduled() -> None:
    state = make_state(1, client_status=ClientStatus.FAILED)
    state.with_allocation(state.job(), "replaced", client_status=ClientStatus.FAILED, next_allocation="a9")
    state.with_allocation(state.job(), "running", client_status=ClientStatus.RUNNING)

    mark_force_reschedule(state)

    marked = {a: get_transition(state.allocation(a)).force_reschedule for a in ("a0", "replaced", "running")}
    assert marked == {"a0": True, "replaced": None, "running": None}


def test_marked_allocations_are_not_marked_again() -> None:
    state = make_state(1, client_status=ClientStatus.FAILED)
    mark_force_reschedule(state)
    index = state.replica.index

    mark_force_reschedule(state)

    assert state.replica.index == index


def test_a_group_without_rescheduling_is_not_marked() -> None:
    state = AState()
    never = ReschedulePolicy(attempts=0, unlimited=False)
    state.register(a_job("shop", a_group(reschedule_policy=never)))
    state.with_allocation(state.job(), client_status=ClientStatus.FAILED)

    mark_force_reschedule(state)

    assert get_transition(state.allocation("a1")).force_reschedule is None


def test_a_job_is_evaluated_at_its_own_priority_as_if_it_were_registered() -> None:
    state = AState()
    state.register(a_job(priority=70))
    job = state.job()

    result = state.lead(registration.evaluate_job(state.replica, "default", "shop", state.moment))

    evaluation = state.evaluations()[-1]
    assert (evaluation.id, evaluation.triggered_by, evaluation.priority) == (result.eval_id, "job-register", 70)
    assert (result.job_modify_index, state.job().version) == (job.modify_index, 0)


@pytest.mark.parametrize(
    ("job", "code", "text"),
    [
        (a_job("other"), RefusalCode.NOT_FOUND, "job not found"),
        (a_periodic_job("shop"), RefusalCode.INVALID, "can't evaluate periodic job"),
        (a_parameterized_job("shop"), RefusalCode.INVALID, "can't evaluate parameterized job"),
    ],
)
def test_jobs_that_cannot_be_evaluated_are_refused(job: Any, code: RefusalCode, text: str) -> None:
    state = AState()
    state.register(job)

    with pytest.raises(Refusal) as caught:
        registration.evaluate_job(state.replica, "default", "shop", state.moment)

    assert (caught.value.code, caught.value.text) == (code, text)
