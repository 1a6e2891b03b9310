"""Evaluations that fail, are blocked after conflicts, or are unblocked (scheduling.md 1.4 and 1.5)."""

import pytest

from tests.builders import a_job
from tests.kit.state import SECOND_NS, AState, Refused, an_evaluation
from wharf.cluster.operations import evaluations
from wharf.cluster.state.tables import EVALUATIONS, JOBS
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import Node


def make_state(**fields: object) -> AState:
    """Return a state with a job and one pending evaluation of it, e1."""
    state = AState()
    state.register(a_job())
    state.end_evaluations()
    state.put(EVALUATIONS.build_put(an_evaluation(state.job(), **fields)))  # type: ignore[arg-type]
    return state


def get(state: AState, evaluation_id: str = "e1") -> Evaluation:
    found = state.replica.get(EVALUATIONS, evaluation_id)
    assert found is not None
    return found


def fail_at_limit(state: AState) -> None:
    write = evaluations.fail_at_delivery_limit(state.replica, get(state), "crash", state.moment, delay_ns=7)
    state.commit(write)


def test_an_evaluation_that_was_delivered_too_often_fails_and_is_followed_by_a_delayed_one() -> None:
    state = make_state(priority=70, type=SchedulerType.BATCH)

    fail_at_limit(state)

    failed = get(state)
    follow_up = get(state, failed.next_eval)
    assert (failed.status, failed.status_description) == (
        EvaluationStatus.FAILED,
        f"evaluation reached delivery limit ({evaluations.MAX_DELIVERIES}): crash",
    )
    assert (follow_up.status, follow_up.triggered_by, follow_up.previous_eval, follow_up.wait) == (
        EvaluationStatus.PENDING,
        EvaluationTrigger.FAILED_FOLLOW_UP,
        "e1",
        7,
    )
    assert (follow_up.priority, follow_up.type, follow_up.job_id) == (70, SchedulerType.BATCH, "shop")


def test_neither_an_evaluation_of_a_deleted_job_nor_one_without_a_job_is_followed_by_another_one() -> None:
    deleted, core = make_state(), make_state(type=SchedulerType.CORE)
    deleted.put(JOBS.build_delete("default", "shop"))

    for state in (deleted, core):
        before = state.replica.count_records(EVALUATIONS)
        fail_at_limit(state)

        assert (get(state).status, get(state).next_eval) == (EvaluationStatus.FAILED, "")
        assert state.replica.count_records(EVALUATIONS) == before


def test_an_evaluation_with_too_many_conflicts_is_replaced_by_a_blocked_one() -> None:
    state = make_state(priority=70, type=SchedulerType.BATCH, failed_tg_allocs={"web": AllocMetric()})
    index = state.replica.index

    state.commit(evaluations.block_after_conflicts(state.replica, get(state), 5, state.moment))

    failed = get(state)
    blocked = get(state, failed.blocked_eval)
    assert (failed.status, failed.status_description) == (EvaluationStatus.FAILED, "maximum attempts reached (5)")
    assert (blocked.status, blocked.triggered_by, blocked.previous_eval) == (
        EvaluationStatus.BLOCKED,
        EvaluationTrigger.MAX_PLAN_ATTEMPTS,
        "e1",
    )
    assert (blocked.priority, blocked.type, blocked.escaped_computed_class) == (70, SchedulerType.BATCH, True)
    assert (blocked.snapshot_index, blocked.failed_tg_allocs) == (index, failed.failed_tg_allocs)


def test_an_evaluation_of_a_deleted_job_is_not_blocked_after_conflicts() -> None:
    state = make_state()
    state.put(JOBS.build_delete("default", "shop"))

    state.commit(evaluations.block_after_conflicts(state.replica, get(state), 5, state.moment))

    assert (get(state).status, get(state).blocked_eval) == (EvaluationStatus.FAILED, "")


@pytest.mark.parametrize(("create_s", "modified_ns"), [(1, 5 * SECOND_NS), (9, 9 * SECOND_NS + 1)])
def test_a_changed_evaluation_is_newer_than_its_creation_although_the_clock_was_set_back(
    create_s: int, modified_ns: int
) -> None:
    state = make_state(create_time=create_s * SECOND_NS, status=EvaluationStatus.BLOCKED)
    state.now_ns = 5 * SECOND_NS

    state.commit(evaluations.unblock_evaluations(state.replica, [get(state)], state.moment))
    unblocked = get(state)
    state.commit(evaluations.fail_evaluation(state.replica, unblocked, "x", state.moment))

    assert (unblocked.status, unblocked.modify_time) == (EvaluationStatus.PENDING, modified_ns)
    assert (get(state).status, get(state).modify_time) == (EvaluationStatus.FAILED, modified_ns)


def test_a_node_is_reserved_for_an_evaluation_and_released_unless_it_changed_meanwhile() -> None:
    state = make_state(status=EvaluationStatus.BLOCKED)
    outdated = evaluations.reserve_node(state.replica, get(state), "node-2")
    state.commit(evaluations.reserve_node(state.replica, get(state), "node-1"))
    reserved = get(state).reserved_node_id

    with pytest.raises(Refused):
        state.commit(outdated)
    state.commit(evaluations.reserve_node(state.replica, get(state), ""))

    assert (reserved, get(state).reserved_node_id) == ("node-1", "")


def test_an_evaluation_records_the_node_that_caused_it_and_takes_its_priority_from_the_job() -> None:
    state = make_state()
    job = state.job()

    plain = evaluations.make_evaluation(job, state.moment, EvaluationTrigger.NODE_UPDATE)
    caused = evaluations.make_evaluation(
        job, state.moment, EvaluationTrigger.NODE_UPDATE, priority=0, node=Node(id="node-1")
    )

    assert (plain.priority, plain.node_id, plain.node_modify_index) == (job.priority, "", 0)
    assert (caused.priority, caused.node_id, caused.node_modify_index) == (0, "node-1", WRITE_INDEX)
