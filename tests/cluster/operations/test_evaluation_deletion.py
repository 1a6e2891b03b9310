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


def paused(state: AState, *, is_paused: bool = True) -> None:
    configuration = state.replica.get(SCHEDULER_CONFIGURATION)
    assert configuration is not None
    state.put(SCHEDULER_CONFIGURATION.build_put(replace(configuration, pause_eval_broker=is_paused)))


def with_evaluations(*ids: str, job: Job | None = None) -> AState:
    """A job that runs, with these evaluations of it, all complete. The broker rests."""
    state = AState()
    state.register(job or a_job())
    state.end_evaluations()
    state.put(*(EVALUATIONS.build_delete(each.id) for each in state.evaluations()))
    state.put(JOBS.build_put(replace(state.job(), status=JobStatus.RUNNING)))
    state.put(*(EVALUATIONS.build_put(an_evaluation(state.job(), id, status=EvaluationStatus.COMPLETE)) for id in ids))
    paused(state)
    return state


def placed(state: AState, status: ClientStatus, **fields: Any) -> None:
    """An allocation that evaluation e1 placed."""
    state.put(ALLOCATIONS.build_put(an_allocation(state.job(), eval_id="e1", client_status=status, **fields)))


def delete(state: AState, *ids: str, changes_max: int = MANY, passes_over: bool = False) -> EvaluationDeletionResult:
    return state.lead(
        evaluations.delete_evaluations(
            state.replica, ids, state.moment, max_changes=changes_max, should_skip_undeletable=passes_over
        )
    )


def refused(state: AState, *ids: str) -> Refusal:
    """How the deletion was refused; it changed nothing."""
    before = state.replica.index
    with pytest.raises(Refusal) as refusal:
        delete(state, *ids)
    assert state.replica.index == before
    return refusal.value


def left(state: AState) -> list[str]:
    return [evaluation.id for evaluation in state.replica.iter_all(EVALUATIONS)]


def test_evaluations_are_deleted_by_id() -> None:
    state = with_evaluations("e1", "e2", "e3")

    deleted = delete(state, "e1", "e3", "e3")

    assert (deleted, left(state)) == (EvaluationDeletionResult(state.replica.index, 2), ["e2"])


def test_nothing_to_delete_is_nothing_deleted() -> None:
    assert delete(with_evaluations("e1")) == EvaluationDeletionResult(0, 0)


def test_the_broker_must_rest() -> None:
    state = with_evaluations("e1")
    paused(state, is_paused=False)

    refusal = refused(state, "e1")

    assert (refusal.code, refusal.text) == (
        RefusalCode.INVALID,
        "eval broker is enabled; eval broker must be paused to delete evals",
    )


def test_a_broker_that_goes_on_meanwhile_is_in_conflict() -> None:
    state = with_evaluations("e1")
    decision = evaluations.delete_evaluations(state.replica, ["e1"], state.moment, max_changes=MANY)
    paused(state, is_paused=False)

    assert decision.write is not None
    assert isinstance(state.try_commit(decision.write), WriteConflict)


def test_more_ids_than_the_bound_are_refused() -> None:
    state = with_evaluations("e1")

    refusal = refused(state, *(str(number) for number in range(MAX_EVALUATION_IDS + 1)))

    assert refusal.text == "request includes 7282 evaluation IDs, must be 7281 or fewer"


def test_one_that_nobody_knows_refuses_them_all() -> None:
    state = with_evaluations("e1")

    refusal = refused(state, "e1", "e9")

    assert (refusal.code, refusal.text, left(state)) == (RefusalCode.NOT_FOUND, "eval not found", ["e1"])


@pytest.mark.parametrize("status", [ClientStatus.RUNNING, ClientStatus.UNKNOWN])
def test_one_whose_allocations_run_refuses_them_all(status: ClientStatus) -> None:
    state = with_evaluations("e1", "e2")
    placed(state, status)

    refusal = refused(state, "e2", "e1")

    assert refusal.text == "eval e1 is not safe to delete: its allocations run, or may be rescheduled"
    assert left(state) == ["e1", "e2"]


def test_by_filter_those_that_are_needed_stay() -> None:
    state = with_evaluations("e1", "e2")
    placed(state, ClientStatus.RUNNING)

    assert (delete(state, "e1", "e2", "e9", passes_over=True).count, left(state)) == (1, ["e1"])


@pytest.mark.parametrize("status", [ClientStatus.COMPLETE, ClientStatus.LOST, ClientStatus.PENDING])
def test_allocations_that_do_not_run_need_it_no_longer(status: ClientStatus) -> None:
    state = with_evaluations("e1")
    placed(state, status)

    assert delete(state, "e1").count == 1


@pytest.mark.parametrize("change", [{"stop": True}, {"status": JobStatus.DEAD}], ids=["stopped", "dead"])
def test_of_a_job_that_is_over_every_evaluation_may_go(change: dict[str, Any]) -> None:
    state = with_evaluations("e1")
    placed(state, ClientStatus.RUNNING)
    state.put(JOBS.build_put(replace(state.job(), **change)))

    assert delete(state, "e1").count == 1


def test_of_a_job_that_is_gone_every_evaluation_may_go() -> None:
    state = with_evaluations("e1")
    placed(state, ClientStatus.RUNNING)
    state.put(JOBS.build_delete("default", "shop"), JOB_SUMMARIES.build_delete("default", "shop"))

    assert delete(state, "e1").count == 1


def failed_with(policy: ReschedulePolicy | None, **fields: Any) -> AState:
    state = with_evaluations("e1", job=a_batch_job("shop", a_group("web", reschedule_policy=policy)))
    placed(state, ClientStatus.FAILED, **fields)
    return state


def tried(ago_ns: int, state: AState) -> RescheduleTracker:
    return RescheduleTracker(events=(RescheduleEvent(reschedule_time=state.now_ns - ago_ns),))


def test_a_failed_allocation_that_may_be_placed_again_needs_it() -> None:
    state = failed_with(ReschedulePolicy())

    assert refused(state, "e1").code is RefusalCode.INVALID


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        (NEVER, {}),
        (ReschedulePolicy(), {"next_allocation": "a2"}),
        (ReschedulePolicy(), {"desired_status": DesiredStatus.STOP}),
    ],
    ids=["never", "replaced", "stopped"],
)
def test_a_failed_allocation_that_is_not_placed_again_does_not_need_it(
    policy: ReschedulePolicy, fields: dict[str, Any]
) -> None:
    assert delete(failed_with(policy, **fields), "e1").count == 1


@pytest.mark.parametrize(("ago_s", "deleted"), [(None, 0), (59, 0), (61, 1)])
def test_with_limited_attempts_it_is_needed_until_the_interval_is_over(ago_s: int | None, deleted: int) -> None:
    state = with_evaluations("e1", job=a_batch_job("shop", a_group("web", reschedule_policy=ONCE_IN_A_MINUTE)))
    tracker = None if ago_s is None else tried(ago_s * SECOND_NS, state)
    placed(state, ClientStatus.FAILED, reschedule_tracker=tracker)

    assert delete(state, "e1", passes_over=True).count == deleted


def test_a_job_that_lost_its_last_evaluation_and_runs_nothing_is_dead_by_the_same_write() -> None:
    state = with_evaluations("e1")

    delete(state, "e1")

    assert state.job().status is JobStatus.DEAD


def test_more_than_a_write_takes_are_left_for_the_next() -> None:
    ids = tuple(f"e{number:02}" for number in range(30))
    state = with_evaluations(*ids)

    deleted = delete(state, *ids, changes_max=20)

    assert (deleted.count, deleted.left) == (16, ids[16:])
    assert left(state) == list(ids[16:])
