"""How an evaluation ends: its final record, delayed and blocked evaluations, and those that it cancels."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.state import SECOND_NS, AState, an_allocation, an_evaluation
from wharf.cluster.scheduling.plans.allocation_changes import AllocationChanges
from wharf.cluster.scheduling.plans.completion import EvaluationCompletion, EvaluationResult
from wharf.cluster.scheduling.reconcile.input import LOST_TEXT, NOT_NEEDED_TEXT
from wharf.cluster.scheduling.reconcile.outcome import AllocationStop, FollowUp
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, JOB_SUMMARIES, JOBS, NAMESPACES
from wharf.contract.model.allocations.allocation import (
    Allocation,
    AllocationState,
    ClientStatus,
    DesiredStatus,
    RescheduleOutcome,
    RescheduleTracker,
)
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger
from wharf.contract.model.jobs.job import GroupSummary, JobSummary
from wharf.contract.model.jobs.plan import DesiredUpdates
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.times import to_datetime

BLOCKED, PENDING, COMPLETE = EvaluationStatus.BLOCKED, EvaluationStatus.PENDING, EvaluationStatus.COMPLETE
CANCELED = EvaluationStatus.CANCELED
QUEUED, RETRY, TIMEOUT = (
    EvaluationTrigger.QUEUED_ALLOCS,
    EvaluationTrigger.ALLOC_RESCHEDULE,
    EvaluationTrigger.MAX_DISCONNECT_TIMEOUT,
)
FAILED_GROUP = {"web": AllocMetric(nodes_evaluated=1)}


def make_state(*evaluations: Evaluation, **job: Any) -> AState:
    """Return a state with the job `shop`, these evaluations, and the evaluation `e1` that is to end."""
    state = AState()
    state.put(JOBS.build_put(a_job(create_index=WRITE_INDEX, **job)))
    for evaluation in evaluations:
        state.put(EVALUATIONS.build_put(evaluation))
    return state


def make_evaluation(id: str, **fields: Any) -> Evaluation:
    return an_evaluation(a_job(), id, **{"create_time": SECOND_NS, **fields})


def complete(
    state: AState, result: EvaluationResult, changes: AllocationChanges | None = None, **fields: Any
) -> tuple[Evaluation, dict[str, Evaluation]]:
    """Return the evaluation `e1` as it ends, and the evaluations that are written with it by id or by trigger."""
    evaluation = make_evaluation("e1", **fields)
    completion = EvaluationCompletion(state.replica, evaluation, state.moment)
    finished, follow_ups = completion.complete_evaluation(result, changes or AllocationChanges(state.now_ns))
    known = {each.id for each in state.replica.iter_all(EVALUATIONS)}
    named = {each.id if each.id in known else each.triggered_by.value: each for each in follow_ups}
    assert len(named) == len(follow_ups), "each follow-up has a name of its own"
    return finished, named


def failed(**fields: Any) -> EvaluationResult:
    return EvaluationResult(failed_groups={**FAILED_GROUP}, **fields)


def test_an_evaluation_that_placed_everything_is_complete() -> None:
    state = make_state()
    victim = an_allocation(
        a_job("low"),
        "v",
        node_name="n",
        job_version=3,
        desired_status=DesiredStatus.EVICT,
        desired_description="x",
        preempted_by_allocation="p",
    )
    result = EvaluationResult(
        update_counts={"web": DesiredUpdates(place=1)}, queued_counts={"web": 0}, victims=[victim], deployment_id="d1"
    )

    finished, others = complete(state, result, deployment_id="d0", next_eval="n0", reserved_node_id="r")

    assert (finished.status, finished.failed_tg_allocs, finished.blocked_eval, others) == (COMPLETE, None, "", {})
    assert (finished.deployment_id, finished.next_eval, finished.reserved_node_id) == ("d1", "n0", "")
    assert (finished.snapshot_index, finished.modify_time) == (state.replica.index, state.now_ns)
    assert finished.queued_allocations == {"web": 0}
    annotations = finished.plan_annotations
    assert annotations is not None
    assert annotations.desired_tg_updates == {"web": DesiredUpdates(place=1)}
    (stub,) = annotations.preempted_allocs or ()
    names = ["id", "name", "namespace", "node_id", "node_name", "job_id", "job_version", "task_group", "client_status"]
    names += ["desired_status", "desired_description", "preempted_by_allocation"]
    assert [getattr(stub, name) for name in names] == [getattr(victim, name) for name in names]


def test_empty_results_are_stored_as_null() -> None:
    finished, _ = complete(make_state(), EvaluationResult(), deployment_id="d0")

    assert (finished.queued_allocations, finished.failed_tg_allocs, finished.deployment_id) == (None, None, "d0")
    assert finished.plan_annotations is not None
    assert finished.plan_annotations.desired_tg_updates is None
    assert finished.plan_annotations.preempted_allocs is None


def test_an_evaluation_never_ends_before_it_was_created() -> None:
    state = make_state()
    later = state.now_ns + 5

    assert complete(state, EvaluationResult(), create_time=later)[0].modify_time == later + 1


def test_missing_allocations_get_a_blocked_evaluation() -> None:
    state = make_state(modify_index=0)
    result = failed(class_eligibility={"v1:1": True}, has_unique_constraints=True)

    finished, others = complete(state, result, priority=70, job_modify_index=5)

    blocked = others["queued-allocs"]
    assert (finished.status, finished.blocked_eval, finished.failed_tg_allocs) == (COMPLETE, blocked.id, FAILED_GROUP)
    assert (blocked.status, blocked.previous_eval, blocked.failed_tg_allocs) == (BLOCKED, "e1", FAILED_GROUP)
    assert (blocked.namespace, blocked.priority, blocked.type) == ("default", 70, finished.type)
    assert (blocked.job_id, blocked.job_modify_index) == ("shop", 5)
    assert (blocked.waiting_since, blocked.create_time, blocked.modify_time) == (state.now_ns,) * 3
    for each in (finished, blocked):
        assert (each.class_eligibility, each.escaped_computed_class) == ({"v1:1": True}, True)
        assert (each.snapshot_index, each.waits_behind, each.quota_limit_reached) == (state.replica.index, "", "")
    assert (blocked.status_description, blocked.reserved_node_id) == ("created to place remaining allocations", "")


@pytest.mark.parametrize("trigger", [QUEUED, EvaluationTrigger.MAX_PLAN_ATTEMPTS])
def test_an_evaluation_that_was_blocked_is_blocked_again_while_something_is_missing(
    trigger: EvaluationTrigger,
) -> None:
    state = make_state()
    placed = an_allocation(a_job(), "p")
    with_placement = failed()
    with_placement.add_placement(placed)

    blocked, others = complete(state, failed(), triggered_by=trigger, reserved_node_id="r")
    partly, _ = complete(state, with_placement, triggered_by=trigger, reserved_node_id="r")
    done, _ = complete(state, EvaluationResult(), triggered_by=trigger, reserved_node_id="r")

    assert (blocked.status, blocked.blocked_eval, others) == (BLOCKED, "", {})
    assert [each.reserved_node_id for each in (blocked, partly, done)] == ["r", "", ""]
    assert [each.status for each in (partly, done)] == [BLOCKED, COMPLETE]


def test_an_evaluation_without_a_failure_has_no_reserved_node() -> None:
    assert (
        complete(make_state(), EvaluationResult(), triggered_by=QUEUED, reserved_node_id="r")[0].reserved_node_id == ""
    )


def test_the_quota_or_the_parent_job_that_refused_placements_is_named() -> None:
    state = make_state()
    state.put(NAMESPACES.build_put(Namespace(name="default", quota="tight")))
    by_quota = EvaluationResult(failed_groups={"db": AllocMetric(), "web": AllocMetric(quota_exhausted=("x",))})
    by_parent = replace_result(by_quota, waits_behind="parent")

    results = [complete(state, result)[0] for result in (failed(), by_quota, by_parent)]
    not_failed = complete(state, EvaluationResult(waits_behind="parent"))[0]
    elsewhere = complete(state, by_quota, namespace="gone")[0]

    assert [(each.quota_limit_reached, each.waits_behind) for each in (*results, not_failed, elsewhere)] == [
        ("", ""),
        ("tight", ""),
        ("", "parent"),
        ("", ""),
        ("", ""),
    ]


def replace_result(result: EvaluationResult, **fields: Any) -> EvaluationResult:
    return replace(result, **fields)


def test_a_new_blocked_evaluation_keeps_the_place_of_the_oldest_waiting_one() -> None:
    state = make_state(
        make_evaluation("b1", status=BLOCKED, waiting_since=50),
        make_evaluation("b2", status=BLOCKED, waiting_since=40),
        make_evaluation("p1", status=PENDING, triggered_by=QUEUED, waiting_since=30),
        make_evaluation("p2", status=PENDING, waiting_since=20),
        make_evaluation("c1", status=COMPLETE, triggered_by=QUEUED, waiting_since=10),
        replace(make_evaluation("x", status=BLOCKED, waiting_since=1), job_id="other"),
    )

    _, others = complete(state, failed())

    assert others["queued-allocs"].waiting_since == 30


def test_groups_of_the_summary_without_missing_allocations_have_a_count_of_zero() -> None:
    state = make_state()
    groups = {name: GroupSummary() for name in ("web", "deleted")}
    state.put(
        JOB_SUMMARIES.build_put(
            JobSummary(job_id="shop", namespace="default", summary=groups, create_index=WRITE_INDEX)
        )
    )

    finished, _ = complete(state, EvaluationResult(queued_counts={"web": 2, "new": 1}))

    assert finished.queued_allocations == {"web": 2, "deleted": 0, "new": 1}


# -- other evaluations of the job --------------------------------------------------------------------------------------


def list_canceled(others: dict[str, Evaluation]) -> dict[str, str]:
    return {key: each.status_description for key, each in others.items() if each.status is CANCELED}


def test_a_successful_evaluation_cancels_the_blocked_one_and_superseded_pending_ones() -> None:
    state = make_state(
        make_evaluation("blocked", status=BLOCKED, create_time=SECOND_NS),
        make_evaluation("pending"),
        make_evaluation("due", wait_until=to_datetime(AState().now_ns)),
        make_evaluation("later", wait_until=to_datetime(AState().now_ns + 10**9)),
        make_evaluation("done", status=COMPLETE),
        make_evaluation("e1"),
        replace(make_evaluation("other"), job_id="other"),
        replace(make_evaluation("elsewhere"), namespace="elsewhere"),
    )

    finished, others = complete(state, EvaluationResult())

    superseded = "canceled after more recent eval was processed"
    assert list_canceled(others) == {
        "blocked": 'evaluation "e1" successful',
        "pending": superseded,
        "due": superseded,
    }
    assert {each.modify_time for each in others.values()} == {state.now_ns}
    assert finished.id == "e1"


def test_an_evaluation_with_missing_allocations_cancels_the_older_blocked_one() -> None:
    state = make_state(make_evaluation("b1", status=BLOCKED))

    assert list_canceled(complete(state, failed())[1]) == {"b1": 'existing blocked evaluation exists for job "shop"'}
    assert list_canceled(complete(state, failed(), triggered_by=QUEUED)[1]) == {}


@pytest.mark.parametrize(("job", "is_canceled"), [({}, False), ({"stop": True}, True), (None, True)])
def test_an_evaluation_that_is_due_later_is_canceled_only_if_its_job_ends(
    job: dict[str, Any] | None, *, is_canceled: bool
) -> None:
    later = make_evaluation("later", wait_until=to_datetime(AState().now_ns + 10**9))
    state = make_state(later, **(job or {}))
    if job is None:
        state.put(JOBS.build_delete("default", "shop"))

    assert list(complete(state, EvaluationResult())[1]) == (["later"] if is_canceled else [])


def test_at_most_two_evaluations_of_a_kind_are_canceled() -> None:
    state = make_state(*(make_evaluation(f"p{number}") for number in range(4)))
    future = state.now_ns + 9 * SECOND_NS
    late = make_state(make_evaluation("p0", create_time=future))

    assert list(complete(state, EvaluationResult())[1]) == ["p0", "p1"]
    assert complete(late, EvaluationResult())[1]["p0"].modify_time == future + 1


def make_timeout(id: str, **fields: Any) -> Evaluation:
    wait_until = to_datetime(AState().now_ns + 10**10)
    return make_evaluation(id, **{"triggered_by": TIMEOUT, "wait_until": wait_until, **fields})


def test_a_disconnect_timeout_is_canceled_when_no_disconnected_allocation_waits_for_it() -> None:
    state = make_state(
        make_timeout("t1"),
        make_timeout("t2"),
        make_timeout("t3"),
        make_timeout("done", status=COMPLETE),
        make_timeout("e1"),
        make_timeout("retry", triggered_by=RETRY),
    )
    for number, (status, desired) in enumerate(
        [
            (ClientStatus.UNKNOWN, DesiredStatus.RUN),
            (ClientStatus.UNKNOWN, DesiredStatus.STOP),
            (ClientStatus.RUNNING, DesiredStatus.RUN),
        ],
        start=1,
    ):
        allocation = an_allocation(
            a_job(), f"a{number}", client_status=status, desired_status=desired, followup_eval_id=f"t{number}"
        )
        state.put(ALLOCATIONS.build_put(allocation))

    text = "canceled because the allocations that it waited for are no longer disconnected"
    assert list_canceled(complete(state, EvaluationResult())[1]) == {"t2": text, "t3": text}


def test_a_timeout_that_is_canceled_for_another_reason_is_canceled_once() -> None:
    state = make_state(make_timeout("t1", wait_until=None))

    assert list_canceled(complete(state, EvaluationResult())[1]) == {
        "t1": "canceled after more recent eval was processed"
    }


# -- delayed evaluations -----------------------------------------------------------------------------------------------


def make_follow_up(key: str, seconds: float, trigger: EvaluationTrigger = RETRY, **fields: Any) -> FollowUp:
    due_at_ns = AState().now_ns + round(seconds * SECOND_NS)
    return FollowUp(an_allocation(a_job(), key), due_at_ns, trigger, **fields)


def build_delayed(state: AState, *follow_ups: FollowUp) -> tuple[list[tuple[float, str]], dict[str, int]]:
    """Return the seconds until each new evaluation is due with its trigger, and by allocation the index of its own."""
    changes = AllocationChanges(state.now_ns)
    evaluation = make_evaluation("e1")
    completion = EvaluationCompletion(state.replica, evaluation, state.moment)
    result = EvaluationResult(follow_ups=list(follow_ups))
    finished, evaluations = completion.complete_evaluation(result, changes)
    delayed = [each for each in evaluations if each.wait_until is not None and each.status is PENDING]
    assert finished.next_eval == (delayed[0].id if delayed else "")
    for each in delayed:
        texts = {TIMEOUT: "created for delayed disconnect timeout"}
        assert each.status_description == texts.get(each.triggered_by, "created for delayed rescheduling")
    ids = [each.id for each in delayed]
    start = to_datetime(state.now_ns)
    return (
        [
            (round((each.wait_until - start).total_seconds(), 1), each.triggered_by.value)
            for each in delayed
            if each.wait_until
        ],
        {key: ids.index(change.allocation.followup_eval_id) for key, change in changes.changes.items()},
    )


def test_retries_that_are_due_within_five_seconds_share_an_evaluation() -> None:
    delayed, linked = build_delayed(
        make_state(),
        make_follow_up("c", 15.1),
        make_follow_up("a", 10),
        make_follow_up("b", 15),
        make_follow_up("d", 20),
    )

    assert delayed == [(10.0, "alloc-reschedule"), (15.1, "alloc-failure")]
    assert linked == {"a": 0, "b": 0, "c": 1, "d": 1}


def test_each_trigger_has_evaluations_of_its_own() -> None:
    delayed, linked = build_delayed(
        make_state(),
        make_follow_up("a", 10),
        make_follow_up("b", 11, TIMEOUT),
        make_follow_up("c", 17, TIMEOUT),
        make_follow_up("d", 12, EvaluationTrigger.ALLOC_FAILURE),
    )

    timeout = TIMEOUT.value
    assert delayed == [(10.0, "alloc-reschedule"), (11.0, timeout), (12.0, "alloc-failure"), (17.0, timeout)]
    assert linked == {"a": 0, "b": 1, "c": 3, "d": 2}


@pytest.mark.parametrize(
    ("existing", "is_covered"),
    [
        (make_evaluation("x", wait_until=to_datetime(AState().now_ns + 10 * SECOND_NS)), True),
        (make_evaluation("x", wait_until=to_datetime(AState().now_ns + 15 * SECOND_NS - 1_000)), True),
        (make_evaluation("x", wait_until=to_datetime(AState().now_ns + 15 * SECOND_NS)), False),
        (make_evaluation("x", wait_until=to_datetime(AState().now_ns + 10 * SECOND_NS - 1_000)), True),
        (make_evaluation("x", wait_until=to_datetime(AState().now_ns + 10 * SECOND_NS - 2_000)), False),
        (make_evaluation("x", status=COMPLETE, wait_until=to_datetime(AState().now_ns + 10 * SECOND_NS)), False),
        (make_evaluation("e1", wait_until=to_datetime(AState().now_ns + 10 * SECOND_NS)), False),
        (make_evaluation("x"), False),
    ],
)
def test_an_unlinked_follow_up_needs_no_evaluation_if_one_is_due_soon_after(
    existing: Evaluation, *, is_covered: bool
) -> None:
    unlinked, linked = make_follow_up("a", 10, is_linked=False), make_follow_up("a", 10)

    assert build_delayed(make_state(existing), unlinked) == ([] if is_covered else [(10.0, "alloc-reschedule")], {})
    assert build_delayed(make_state(existing), linked) == ([(10.0, "alloc-reschedule")], {"a": 0})


# -- changes of allocations --------------------------------------------------------------------------------------------


def make_changes() -> AllocationChanges:
    return AllocationChanges(7 * SECOND_NS)


def test_changes_of_one_allocation_are_merged_and_a_stop_remains_a_stop() -> None:
    changes, allocation = make_changes(), an_allocation(a_job(), alloc_modify_index=3)

    changes.stop_allocation(AllocationStop(allocation, NOT_NEEDED_TEXT))
    updated = changes.update_allocation(allocation, next_allocation="n")
    changes.link_replacement(an_allocation(a_job(), "a2"), next_allocation="m")

    first, second = changes.changes["a1"], changes.changes["a2"]
    assert first.allocation == updated
    assert (first.is_stop, second.is_stop) == (True, False)
    assert (updated.desired_status, updated.desired_description) == (DesiredStatus.STOP, NOT_NEEDED_TEXT)
    assert (updated.next_allocation, second.allocation.next_allocation) == ("n", "m")
    assert (updated.alloc_modify_index, updated.modify_time) == (WRITE_INDEX, 7 * SECOND_NS)


@pytest.mark.parametrize(
    ("status", "reason", "has_state"),
    [(ClientStatus.LOST, LOST_TEXT, True), (ClientStatus.LOST, "other", False), (None, LOST_TEXT, False)],
)
def test_a_lost_allocation_gets_its_client_status_and_a_state(
    status: ClientStatus | None, reason: str, *, has_state: bool
) -> None:
    changes, allocation = make_changes(), an_allocation(a_job())

    changes.stop_allocation(AllocationStop(allocation, reason, status))

    stopped = changes.changes["a1"].allocation
    assert stopped.client_status is (status or ClientStatus.PENDING)
    expected = (AllocationState(value="lost", time=to_datetime(7 * SECOND_NS)),) if has_state else None
    assert stopped.alloc_states == expected


def test_an_allocation_that_is_stopping_keeps_its_reason() -> None:
    changes = make_changes()
    allocation = an_allocation(a_job(), desired_status=DesiredStatus.EVICT, desired_description="preempted")

    changes.stop_allocation(AllocationStop(allocation, LOST_TEXT, ClientStatus.LOST))

    stopped = changes.changes["a1"].allocation
    assert (stopped.desired_status, stopped.desired_description) == (DesiredStatus.EVICT, "preempted")
    assert stopped.client_status is ClientStatus.LOST


@pytest.mark.parametrize(
    ("tracker", "is_changed"),
    [
        (None, True),
        (RescheduleTracker(last_reschedule=RescheduleOutcome.OK), True),
        (RescheduleTracker(last_reschedule=RescheduleOutcome.NO_PLACEMENT), False),
    ],
)
def test_the_outcome_of_a_retry_is_recorded_once(tracker: RescheduleTracker | None, *, is_changed: bool) -> None:
    changes = make_changes()
    allocation: Allocation = an_allocation(a_job(), reschedule_tracker=tracker)

    changes.link_replacement(allocation, outcome=RescheduleOutcome.NO_PLACEMENT)

    assert bool(changes.changes) == is_changed
    for change in changes.changes.values():
        assert change.allocation.reschedule_tracker is not None
        assert change.allocation.reschedule_tracker.last_reschedule is RescheduleOutcome.NO_PLACEMENT


def test_a_link_without_a_replacement_or_outcome_changes_nothing_and_a_base_is_the_start_of_later_changes() -> None:
    changes, allocation = make_changes(), an_allocation(a_job())
    changes.link_replacement(allocation)
    nothing = dict(changes.changes)
    changes.set_base(replace(allocation, client_description="base"))
    changes.update_allocation(allocation, next_allocation="n")

    assert nothing == {}
    change = changes.changes["a1"]
    assert (change.allocation.client_description, change.allocation.next_allocation) == ("base", "n")
    assert (change.is_stop, change.allocation.modify_time) == (False, 7 * SECOND_NS)
