"""Descriptions of a record's current state, for log lines about refused state changes."""

import pytest
from msgspec.structs import replace

from tests.builders import a_job
from tests.cluster.operations.test_nodes import MANY, make_state
from tests.kit.state import AState
from wharf.cluster.operations.nodes import reports, status
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.operations.record_history import (
    HISTORY_BUILDERS,
    add_record_history,
    describe_allocation,
    describe_evaluation,
    describe_node,
)
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.task_states import TaskEvent, TaskState, TaskStatus
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.state_machines.machine import InvalidTransition
from wharf.contract.model.state_machines.transitions import DEPLOYMENT_STATES, JOB_STATES


def test_an_allocation_is_described_with_its_statuses_evaluation_and_task_events() -> None:
    state, allocation = make_state()
    evaluation = state.evaluations()[0]
    events = (TaskEvent(type="Started", time=2_000_000_000, message="it began"), TaskEvent(type="Killed"))
    result = replace(
        allocation,
        eval_id=evaluation.id,
        client_description="ended",
        task_states={"web": TaskState(state=TaskStatus.DEAD, failed=True, restarts=2, events=events)},
    )
    state.put(ALLOCATIONS.build_put(result))
    stored = state.allocation("a1")

    assert describe_allocation(state.replica, stored) == [
        f"created at index {stored.create_index}, last changed at index {stored.modify_index}",
        "desired status run, client status running (ended)",
        f"placed by evaluation {evaluation.id} ({evaluation.triggered_by}, {evaluation.status})",
        "task web is dead, failed, after 2 restarts",
        "task web: Started at 1970-01-01T00:00:02+00:00 (it began)",
        "task web: Killed",
        "its node node-1 is ready",
    ]


def test_a_deleted_evaluation_or_node_is_described_as_such() -> None:
    state, allocation = make_state()
    orphan = replace(allocation, eval_id="e9", node_id="node-9")

    history = describe_allocation(state.replica, orphan)

    assert history[2:] == ["placed by evaluation e9, which no longer exists", "its node node-9 is deleted"]


def test_only_the_last_events_of_a_task_are_described() -> None:
    state, allocation = make_state()
    events = tuple(TaskEvent(type=f"Event {number}") for number in range(30))
    result = replace(allocation, task_states={"web": TaskState(state=TaskStatus.RUNNING, events=events)})

    lines = [line for line in describe_allocation(state.replica, result) if "Event" in line]

    assert lines == [f"task web: Event {number}" for number in range(25, 30)]


def test_a_node_is_described_with_its_statuses_and_events() -> None:
    state = AState()
    node = state.with_node()
    state.lead(status.mark_heartbeat_missed(state.replica, node.id, state.moment, max_evaluations=MANY))
    stored = state.node()

    history = describe_node(stored)

    assert history[:2] == [
        f"created at index {stored.create_index}, last changed at index {stored.modify_index}",
        f"it is down and eligible; it missed its heartbeat at index {stored.last_missed_heartbeat_index}",
    ]
    assert history[-1].startswith("Node heartbeat missed at ")


def test_an_evaluation_is_described_with_its_trigger_and_outcome() -> None:
    state, _ = make_state()
    evaluation = replace(
        state.evaluations()[0],
        status=EvaluationStatus.FAILED,
        status_description="no luck",
        previous_eval="e1",
        blocked_eval="e2",
    )

    assert describe_evaluation(evaluation) == [
        f"created at index {evaluation.create_index}, last changed at index {evaluation.modify_index}",
        f"of job shop, triggered by {evaluation.triggered_by}",
        "it is failed (no luck)",
        "it follows evaluation e1",
        "unplaced allocations wait in evaluation e2",
    ]


def test_an_invalid_report_is_in_the_decision_with_the_history_of_the_allocation() -> None:
    state, _ = make_state(client_status=ClientStatus.COMPLETE)
    result = AllocationReport(id="a1", client_status=ClientStatus.RUNNING)

    decision = reports.apply_reports(
        state.replica, "node-1", [result], state.moment, is_complete=False, max_evaluations=MANY
    )

    (invalid_transition,) = decision.invalid_transitions
    assert decision.write is None
    assert (invalid_transition.record_id, invalid_transition.source, invalid_transition.target) == (
        "a1",
        "complete",
        "running",
    )
    assert list(invalid_transition.history) == describe_allocation(state.replica, state.allocation("a1"))


def test_an_invalid_report_does_not_prevent_the_others_from_being_applied() -> None:
    state, _ = make_state(client_status=ClientStatus.COMPLETE)
    state.with_allocation(state.job(), "a2", client_status=ClientStatus.PENDING)
    result = [AllocationReport(id=each, client_status=ClientStatus.RUNNING) for each in ("a1", "a2")]

    decision = reports.apply_reports(
        state.replica, "node-1", result, state.moment, is_complete=False, max_evaluations=MANY
    )

    assert [transition.record_id for transition in decision.invalid_transitions] == ["a1"]
    assert decision.write is not None
    assert [change.key for change in decision.write.changes if change.table == ALLOCATIONS.name] == ["a2"]


@pytest.mark.parametrize("table_name", sorted(HISTORY_BUILDERS))
def test_a_refused_change_of_a_record_that_does_not_exist_has_no_history(table_name: str) -> None:
    assert HISTORY_BUILDERS[table_name](AState().replica, "default/unknown") == []


def test_the_history_of_a_deployment_and_of_a_job_describes_their_status() -> None:
    state = AState()
    state.register(a_job())
    deployment = Deployment(
        id="d1", status=DeploymentStatus.FAILED, status_description="too slow", create_index=WRITE_INDEX
    )
    state.put(DEPLOYMENTS.build_put(deployment))

    of_deployment = HISTORY_BUILDERS[DEPLOYMENT_STATES.name](state.replica, "d1")
    of_job = HISTORY_BUILDERS[JOB_STATES.name](state.replica, "default/shop")

    assert (of_deployment[-1], of_job[-1]) == ("it is failed (too slow)", "it is pending")


def test_a_refused_change_of_an_unknown_machine_or_with_a_history_stays_as_it_is() -> None:
    state = AState()
    unknown = InvalidTransition(
        machine="unknown", record_id="x", source="a", target="b", allowed_targets=(), history=()
    )
    described = InvalidTransition(
        machine=JOB_STATES.name, record_id="x", source="a", target="b", allowed_targets=(), history=["known"]
    )

    assert add_record_history(state.replica, unknown) is unknown
    assert add_record_history(state.replica, described) is described
