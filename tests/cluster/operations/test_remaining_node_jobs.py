"""Jobs of a node that did not fit in the write that changed the node: which of them still need an evaluation."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_job, a_system_job
from tests.kit.state import AState, an_allocation, an_evaluation
from wharf.cluster.operations.nodes.evaluations import evaluate_remaining_jobs
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, NODES, SERVICES
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import NodeStatus, SchedulingEligibility
from wharf.contract.model.services import ServiceRegistration

RUNNING, PENDING, COMPLETE = ClientStatus.RUNNING, ClientStatus.PENDING, ClientStatus.COMPLETE
UNKNOWN, LOST = ClientStatus.UNKNOWN, ClientStatus.LOST
STOP = DesiredStatus.STOP
READY, DOWN, DISCONNECTED = NodeStatus.READY, NodeStatus.DOWN, NodeStatus.DISCONNECTED


def make_state(*jobs: Job, **node: Any) -> AState:
    state = AState()
    state.with_node(node_pool="default", datacenter="dc1")
    state.put(NODES.build_put(replace(state.node(), **node)))
    for job in jobs:
        state.register(job)
        state.end_evaluations(job.id)
    return state


def run(state: AState, job_id: str, allocation_id: str = "a1", **fields: Any) -> None:
    state.put(ALLOCATIONS.build_put(an_allocation(state.job(job_id), allocation_id, **fields)))


def evaluate(state: AState, *, max_evaluations: int = 10) -> list[str] | None:
    """Evaluate the remaining jobs and return them. `None`: nothing was written."""
    decision = evaluate_remaining_jobs(state.replica, "node-1", state.moment, max_evaluations=max_evaluations)
    if decision is None:
        return None
    before = {each.id for each in state.replica.iter_all(EVALUATIONS)}
    state.do(decision)
    new = [each for each in state.replica.iter_all(EVALUATIONS) if each.id not in before]
    assert all((each.triggered_by, each.status) == ("node-update", EvaluationStatus.PENDING) for each in new)
    return sorted(each.job_id for each in new)


@pytest.mark.parametrize(
    ("status", "fields", "is_evaluated"),
    [
        (DOWN, {"client_status": RUNNING}, True),
        (DOWN, {"client_status": RUNNING, "desired_status": STOP}, True),
        (DOWN, {"client_status": UNKNOWN}, True),
        (DOWN, {"client_status": LOST}, False),
        (DOWN, {"client_status": COMPLETE}, False),
        (DISCONNECTED, {"client_status": RUNNING}, True),
        (DISCONNECTED, {"client_status": PENDING}, True),
        (DISCONNECTED, {"client_status": UNKNOWN}, False),
        (DISCONNECTED, {"client_status": RUNNING, "desired_status": STOP}, False),
        (READY, {"client_status": RUNNING}, False),
        (DOWN, {"client_status": RUNNING, "node_id": "node-2"}, False),
    ],
)
@pytest.mark.parametrize("job", [a_job(), a_batch_job("shop")], ids=lambda job: job.type)
def test_a_job_is_evaluated_if_the_node_cannot_run_its_allocations(
    job: Job, status: NodeStatus, fields: dict[str, Any], is_evaluated: bool
) -> None:
    state = make_state(job, status=status)
    run(state, "shop", "ended", client_status=COMPLETE)
    run(state, "shop", **fields)

    assert evaluate(state) == (["shop"] if is_evaluated else None)


@pytest.mark.parametrize(
    ("node", "fields", "is_evaluated"),
    [
        pytest.param({}, None, True, id="without an allocation"),
        pytest.param({}, {"client_status": RUNNING}, False, id="running"),
        pytest.param({}, {"client_status": COMPLETE}, True, id="ended"),
        pytest.param({}, {"client_status": RUNNING, "desired_status": STOP}, True, id="stopping"),
        pytest.param({"scheduling_eligibility": SchedulingEligibility.INELIGIBLE}, None, False, id="ineligible"),
        pytest.param({"status": NodeStatus.INITIALIZING}, None, False, id="initializing"),
    ],
)
def test_a_system_job_is_evaluated_if_a_ready_node_lacks_an_allocation_of_it(
    node: dict[str, Any], fields: dict[str, Any] | None, is_evaluated: bool
) -> None:
    state = make_state(a_system_job("agent"), **{"status": READY, **node})
    if fields is not None:
        run(state, "agent", **fields)

    assert evaluate(state) == (["agent"] if is_evaluated else None)


def test_a_job_with_an_open_evaluation_is_not_evaluated_again() -> None:
    state = make_state(a_job(), status=DOWN)
    run(state, "shop", client_status=RUNNING)
    for status in (EvaluationStatus.COMPLETE, EvaluationStatus.BLOCKED):
        state.put(EVALUATIONS.build_put(an_evaluation(state.job(), status.value, status=status)))

    assert evaluate(state) is None


def test_at_most_so_many_jobs_are_evaluated_and_the_next_call_continues() -> None:
    jobs = [f"job-{number}" for number in range(3)]
    state = make_state(*map(a_job, jobs), status=DOWN)
    for job_id in jobs:
        run(state, job_id, f"a-{job_id}", client_status=RUNNING)

    found = [evaluate(state, max_evaluations=2) for _ in range(3)]

    assert [len(each or ()) for each in found] == [2, 1, 0]
    assert sorted(job_id for each in found for job_id in each or ()) == jobs


@pytest.mark.parametrize(("status", "is_deleted"), [(DOWN, True), (DISCONNECTED, False), (READY, False), (None, True)])
def test_the_services_of_a_node_are_deleted_once_it_is_down_or_purged_and_all_jobs_are_evaluated(
    status: NodeStatus | None, is_deleted: bool
) -> None:
    state = make_state(a_job(), status=status or DOWN)
    service = ServiceRegistration(
        id="s1", namespace="default", service_name="web", node_id="node-1", create_index=WRITE_INDEX
    )
    state.put(SERVICES.build_put(service))
    if status is None:
        state.put(NODES.build_delete("node-1"))

    evaluated = evaluate(state)

    assert evaluated == ([] if is_deleted else None)
    assert state.replica.count_records(SERVICES) == (0 if is_deleted else 1)
