"""Requested evaluations of nodes, and purged nodes (nodes-allocations.md 1.1, scheduling.md 9.2)."""

import pytest

from tests.builders import a_batch_job, a_job, a_system_job
from tests.kit.state import AState
from wharf.cluster.operations.nodes import evaluations, registration
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.state.tables import NODE_PLACEMENTS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.refusal import Refusal, RefusalCode

MANY = 100


def evaluate(state: AState, *done: tuple[str, str], max_evaluations: int = MANY) -> evaluations.NodeEvaluationResult:
    return state.lead(
        evaluations.evaluate_node(
            state.replica, "node-1", state.moment, evaluated_jobs=done, max_evaluations=max_evaluations
        )
    )


def purge(state: AState, *, max_evaluations: int = MANY) -> NodeWriteResult:
    return state.lead(registration.purge_node(state.replica, "node-1", state.moment, max_evaluations=max_evaluations))


def evaluate_remaining_jobs(state: AState) -> NodeWriteResult | None:
    decision = evaluations.evaluate_remaining_jobs(state.replica, "node-1", state.moment, max_evaluations=1)
    return None if decision is None else state.lead(decision)


def make_state(*job_ids: str) -> AState:
    state = AState()
    state.with_node()
    for number, job_id in enumerate(job_ids):
        state.register(a_job(job_id))
        state.end_evaluations(job_id)
        state.with_allocation(state.job(job_id), f"a{number}", client_status=ClientStatus.RUNNING)
    return state


def test_evaluating_a_node_evaluates_jobs_with_allocations_on_it_and_system_jobs_that_fit() -> None:
    state = make_state("shop")
    state.register(a_system_job())
    state.register(a_system_job("elsewhere", datacenters=("mars",)))
    state.register(a_batch_job("other"))
    for job in ("agent", "elsewhere", "other"):
        state.end_evaluations(job)

    evaluated = evaluate(state)

    triggers = {job: [each.triggered_by for each in state.open_evaluations(job)] for job in ("shop", "agent")}
    assert triggers == {"shop": ["node-update"], "agent": ["node-update"]}
    assert state.open_evaluations("elsewhere") == state.open_evaluations("other") == []
    assert (len(evaluated.eval_ids), evaluated.is_complete) == (2, True)


def test_evaluating_a_node_continues_after_a_full_write() -> None:
    state = make_state("one", "two")

    first = evaluate(state, max_evaluations=1)
    second = evaluate(state, *first.job_keys, max_evaluations=1)

    assert (first.is_complete, second.is_complete) == (False, True)
    assert sorted(first.job_keys + second.job_keys) == [("default", "one"), ("default", "two")]


def test_evaluating_a_node_without_allocations_writes_nothing() -> None:
    state = make_state()
    index = state.replica.index

    assert evaluate(state) == evaluations.NodeEvaluationResult(0)
    assert state.replica.index == index


def test_purging_a_node_deletes_it_and_its_capacity_version_and_evaluates_its_jobs() -> None:
    state = make_state("shop")

    written = purge(state)

    (evaluation,) = state.open_evaluations("shop")
    assert (state.replica.get(NODES, "node-1"), state.replica.get(NODE_PLACEMENTS, "node-1")) == (None, None)
    assert written == NodeWriteResult(state.replica.index, (evaluation.id,))
    assert (evaluation.triggered_by, evaluation.node_id) == ("node-update", "node-1")


def test_jobs_that_did_not_fit_in_a_purge_are_found_from_the_state() -> None:
    state = make_state("one", "two", "three")

    purge(state, max_evaluations=1)
    followed = [evaluate_remaining_jobs(state) is not None for _ in range(3)]

    assert followed == [True, True, False]
    assert all(len(state.open_evaluations(job)) == 1 for job in ("one", "two", "three"))


def test_purging_a_node_with_only_ended_allocations_evaluates_no_job() -> None:
    state = make_state("shop")
    state.with_client_status("a0", ClientStatus.COMPLETE)

    assert purge(state).eval_ids == ()
    assert evaluate_remaining_jobs(state) is None


@pytest.mark.parametrize("act", [evaluate, purge])
def test_an_unknown_node_is_refused(act: object) -> None:
    state = AState()
    index = state.replica.index

    with pytest.raises(Refusal) as caught:
        act(state)  # type: ignore[operator]  # one of two functions of a state

    assert (caught.value.code, caught.value.text, state.replica.index) == (
        RefusalCode.NOT_FOUND,
        "node not found",
        index,
    )


def test_a_purge_depends_on_placements_on_the_node_even_if_there_was_none() -> None:
    state = make_state("shop")
    assert state.replica.get(NODE_PLACEMENTS, "node-1") is None

    decision = registration.purge_node(state.replica, "node-1", state.moment, max_evaluations=MANY)

    assert decision.write is not None
    versions = {
        condition.key: condition.version
        for condition in decision.write.conditions
        if condition.table == NODE_PLACEMENTS.name
    }
    assert versions.get("node-1") == 0
