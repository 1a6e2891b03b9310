"""Deletion of evaluations by operators (jobs.md 1.6)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job
from tests.kit.state import SECOND_NS, AState, an_allocation, an_evaluation
from wharf.cluster.engines.port import WriteConflict
from wharf.cluster.operations import evaluations
from wharf.cluster.operations.evaluations import MAX_EVALUATION_IDS, EvaluationDeletionResult
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, JOB_SUMMARIES, JOBS, SCHEDULER_CONFIGURATION
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus, RescheduleEvent, RescheduleTracker
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.group_policies import ReschedulePolicy
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.refusal import Refusal, RefusalCode

MANY = 100
NEVER = ReschedulePolicy(attempts=0, unlimited=False)
ONCE_IN_A_MINUTE = ReschedulePolicy(attempts=1, interval=60 * SECOND_NS, delay=5 * SECOND_NS, unlimited=False)


def set_broker_paused(state: AState, *, is_paused: bool = True) -> None:
    configuration = state.replica.get(SCHEDULER_CONFIGURATION)
    assert configuration is not None
    state.put(SCHEDULER_CONFIGURATION.build_put(replace(configuration, pause_eval_broker=is_paused)))


def make_state(*ids: str, job: Job | None = None) -> AState:
    """Return a state with a running job and complete evaluations of it. The broker is paused."""
    state = AState()
    state.register(job or a_job())
    state.end_evaluations()
    state.put(*(EVALUATIONS.build_delete(each.id) for each in state.evaluations()))
    state.put(JOBS.build_put(replace(state.job(), status=JobStatus.RUNNING)))
    state.put(*(EVALUATIONS.build_put(an_evaluation(state.job(), id, status=EvaluationStatus.COMPLETE)) for id in ids))
    set_broker_paused(state)
    return state


def place_allocation(state: AState, status: ClientStatus, **fields: Any) -> None:
    """Store an allocation that evaluation e1 placed."""
    state.put(ALLOCATIONS.build_put(an_allocation(state.job(), eval_id="e1", client_status=status, **fields)))


def delete(state: AState, *ids: str, changes_max: int = MANY, passes_over: bool = False) -> EvaluationDeletionResult:
    return state.lead(
        evaluations.delete_evaluations(
            state.replica, ids, state.moment, max_changes=changes_max, should_skip_undeletable=passes_over
        )
    )


def expect_refusal(state: AState, *ids: str) -> Refusal:
    """Return the refusal of the deletion, and check that nothing changed."""
    before = state.replica.index
    with pytest.raises(Refusal) as refusal:
        delete(state, *ids)
    assert state.replica.index == before
    return refusal.value


def list_evaluation_ids(state: AState) -> list[str]:
    return [evaluation.id for evaluation in state.replica.iter_all(EVALUATIONS)]


def test_evaluations_are_deleted_by_id() -> None:
    state = make_state("e1", "e2", "e3")

    deleted = delete(state, "e1", "e3", "e3")

    assert (deleted, list_evaluation_ids(state)) == (EvaluationDeletionResult(state.replica.index, 2), ["e2"])


def test_an_empty_request_deletes_nothing() -> None:
    assert delete(make_state("e1")) == EvaluationDeletionResult(0, 0)


def test_evaluations_are_deleted_only_while_the_broker_is_paused() -> None:
    state = make_state("e1")
    set_broker_paused(state, is_paused=False)

    refusal = expect_refusal(state, "e1")

    assert (refusal.code, refusal.text) == (
        RefusalCode.INVALID,
        "eval broker is enabled; eval broker must be paused to delete evals",
    )


def test_the_deletion_conflicts_if_the_broker_is_resumed_meanwhile() -> None:
    state = make_state("e1")
    decision = evaluations.delete_evaluations(state.replica, ["e1"], state.moment, max_changes=MANY)
    set_broker_paused(state, is_paused=False)

    assert decision.write is not None
    assert isinstance(state.try_commit(decision.write), WriteConflict)


def test_too_many_ids_are_refused() -> None:
    state = make_state("e1")

    refusal = expect_refusal(state, *(str(number) for number in range(MAX_EVALUATION_IDS + 1)))

    assert refusal.text == "request includes 7282 evaluation IDs, must be 7281 or fewer"


def test_an_unknown_evaluation_refuses_the_whole_request() -> None:
    state = make_state("e1")

    refusal = expect_refusal(state, "e1", "e9")

    assert (refusal.code, refusal.text, list_evaluation_ids(state)) == (RefusalCode.NOT_FOUND, "eval not found", ["e1"])


@pytest.mark.parametrize("status", [ClientStatus.RUNNING, ClientStatus.UNKNOWN])
def test_an_evaluation_with_running_allocations_refuses_the_whole_request(status: ClientStatus) -> None:
    state = make_state("e1", "e2")
    place_allocation(state, status)

    refusal = expect_refusal(state, "e2", "e1")

    assert refusal.text == "eval e1 is not safe to delete: its allocations run, or may be rescheduled"
    assert list_evaluation_ids(state) == ["e1", "e2"]


def test_deletion_by_filter_keeps_the_evaluations_that_are_needed() -> None:
    state = make_state("e1", "e2")
    place_allocation(state, ClientStatus.RUNNING)

    assert (delete(state, "e1", "e2", "e9", passes_over=True).count, list_evaluation_ids(state)) == (1, ["e1"])


@pytest.mark.parametrize("status", [ClientStatus.COMPLETE, ClientStatus.LOST, ClientStatus.PENDING])
def test_an_evaluation_is_not_needed_by_ended_allocations(status: ClientStatus) -> None:
    state = make_state("e1")
    place_allocation(state, status)

    assert delete(state, "e1").count == 1


@pytest.mark.parametrize("change", [{"stop": True}, {"status": JobStatus.DEAD}], ids=["stopped", "dead"])
def test_every_evaluation_of_a_dead_job_can_be_deleted(change: dict[str, Any]) -> None:
    state = make_state("e1")
    place_allocation(state, ClientStatus.RUNNING)
    state.put(JOBS.build_put(replace(state.job(), **change)))

    assert delete(state, "e1").count == 1


def test_every_evaluation_of_a_deleted_job_can_be_deleted() -> None:
    state = make_state("e1")
    place_allocation(state, ClientStatus.RUNNING)
    state.put(JOBS.build_delete("default", "shop"), JOB_SUMMARIES.build_delete("default", "shop"))

    assert delete(state, "e1").count == 1


def make_failed_state(policy: ReschedulePolicy | None, **fields: Any) -> AState:
    state = make_state("e1", job=a_batch_job("shop", a_group("web", reschedule_policy=policy)))
    place_allocation(state, ClientStatus.FAILED, **fields)
    return state


def make_reschedule_tracker(ago_ns: int, state: AState) -> RescheduleTracker:
    return RescheduleTracker(events=(RescheduleEvent(reschedule_time=state.now_ns - ago_ns),))


def test_an_evaluation_is_needed_by_a_failed_allocation_that_may_be_rescheduled() -> None:
    state = make_failed_state(ReschedulePolicy())

    assert expect_refusal(state, "e1").code is RefusalCode.INVALID


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        (NEVER, {}),
        (ReschedulePolicy(), {"next_allocation": "a2"}),
        (ReschedulePolicy(), {"desired_status": DesiredStatus.STOP}),
    ],
    ids=["never", "replaced", "stopped"],
)
def test_an_evaluation_is_not_needed_by_a_failed_allocation_that_is_never_rescheduled(
    policy: ReschedulePolicy, fields: dict[str, Any]
) -> None:
    assert delete(make_failed_state(policy, **fields), "e1").count == 1


@pytest.mark.parametrize(("ago_s", "deleted"), [(None, 0), (59, 0), (61, 1)])
def test_with_limited_attempts_an_evaluation_is_needed_until_the_interval_ends(ago_s: int | None, deleted: int) -> None:
    state = make_state("e1", job=a_batch_job("shop", a_group("web", reschedule_policy=ONCE_IN_A_MINUTE)))
    tracker = None if ago_s is None else make_reschedule_tracker(ago_s * SECOND_NS, state)
    place_allocation(state, ClientStatus.FAILED, reschedule_tracker=tracker)

    assert delete(state, "e1", passes_over=True).count == deleted


def test_a_job_without_evaluations_and_allocations_becomes_dead_in_the_same_write() -> None:
    state = make_state("e1")

    delete(state, "e1")

    assert state.job().status is JobStatus.DEAD


def test_evaluations_that_do_not_fit_in_a_write_are_left_for_the_next() -> None:
    ids = tuple(f"e{number:02}" for number in range(30))
    state = make_state(*ids)

    deleted = delete(state, *ids, changes_max=20)

    assert (deleted.count, deleted.left) == (16, ids[16:])
    assert list_evaluation_ids(state) == list(ids[16:])
