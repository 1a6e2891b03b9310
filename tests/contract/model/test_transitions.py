"""The state tables: all of their transitions are allowed, and no others."""

import enum
from collections.abc import Iterator

import pytest

from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.deployments import DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.state_machines.machine import InvalidTransition, advance_state
from wharf.contract.model.state_machines.transitions import (
    ALLOCATION_STATES,
    DEPLOYMENT_STATES,
    EVALUATION_STATES,
    NODE_STATES,
    STATE_MACHINES,
    AnyStateMachine,
)


def every_pair(machine: AnyStateMachine) -> Iterator[tuple[enum.StrEnum | None, enum.StrEnum]]:
    for source in (None, *machine.states):
        for target in machine.states:
            yield source, target


each_machine = pytest.mark.parametrize("machine", STATE_MACHINES, ids=lambda machine: machine.name)


@each_machine
def test_every_state_is_reachable_from_the_creation_of_a_record(machine: AnyStateMachine) -> None:
    reached: set[enum.StrEnum] = {step.target for step in machine.transitions if step.source is None}
    for _ in machine.states:
        reached |= {step.target for step in machine.transitions if step.source in reached}

    assert set(machine.states) == reached


@each_machine
def test_every_state_leads_to_a_terminal_state(machine: AnyStateMachine) -> None:
    ending: set[enum.StrEnum] = set(machine.terminal_states)
    for _ in machine.states:
        ending |= {step.source for step in machine.transitions if step.source is not None and step.target in ending}

    assert set(machine.states) == ending


@each_machine
def test_every_state_that_is_not_terminal_has_an_owner_and_a_deadline(machine: AnyStateMachine) -> None:
    ownership_by_state = {state: machine.find_ownership(state) for state in machine.states}

    assert {state for state in machine.states if state not in machine.terminal_states} == {
        state
        for state, ownership in ownership_by_state.items()
        if ownership is not None and ownership.owner and ownership.deadline
    }


@each_machine
def test_every_transition_is_unique_and_has_a_cause(machine: AnyStateMachine) -> None:
    pairs = [(step.source, step.target) for step in machine.transitions]

    assert len(set(pairs)) == len(pairs)
    assert [step for step in machine.transitions if not step.cause] == []
    assert [step for step in machine.transitions if step.source is step.target] == []


@each_machine
def test_exactly_the_transitions_of_the_table_are_allowed(machine: AnyStateMachine) -> None:
    steps = {(step.source, step.target) for step in machine.transitions}

    for source, target in every_pair(machine):
        assert (source is target or (source, target) in steps) == machine.allows(source, target)


@pytest.mark.parametrize("ended", [EvaluationStatus.COMPLETE, EvaluationStatus.FAILED, EvaluationStatus.CANCELED])
def test_a_terminal_evaluation_never_changes_its_status(ended: EvaluationStatus) -> None:
    assert EVALUATION_STATES.list_targets(ended) == []


@pytest.mark.parametrize("ended", [DeploymentStatus.SUCCESSFUL, DeploymentStatus.FAILED, DeploymentStatus.CANCELLED])
def test_a_terminal_deployment_never_changes_its_status(ended: DeploymentStatus) -> None:
    assert DEPLOYMENT_STATES.list_targets(ended) == []


@pytest.mark.parametrize("active", [status for status in DeploymentStatus if not status.is_terminal])
def test_every_active_deployment_may_fail_and_may_be_cancelled(active: DeploymentStatus) -> None:
    assert {DeploymentStatus.FAILED, DeploymentStatus.CANCELLED} <= set(DEPLOYMENT_STATES.list_targets(active))


def test_terminal_states_of_a_table_match_is_terminal() -> None:
    assert {status for status in EvaluationStatus if status.is_terminal} == EVALUATION_STATES.terminal_states
    assert {status for status in ClientStatus if status.is_terminal} == ALLOCATION_STATES.terminal_states
    assert {status for status in DeploymentStatus if status.is_terminal} == DEPLOYMENT_STATES.terminal_states


def test_a_lost_allocation_may_become_complete_when_its_node_reconnects() -> None:
    assert ClientStatus.COMPLETE is advance_state(
        ALLOCATION_STATES, ClientStatus.LOST, ClientStatus.COMPLETE, record_id="a1"
    )


def test_a_disconnected_node_does_not_become_ready_directly() -> None:
    assert NODE_STATES.list_targets(NODE_STATES.states.DISCONNECTED) == ["initializing", "down"]


def test_staying_in_a_state_is_always_allowed() -> None:
    assert ClientStatus.RUNNING is advance_state(
        ALLOCATION_STATES, ClientStatus.RUNNING, ClientStatus.RUNNING, record_id="a1"
    )


def test_an_invalid_transition_reports_both_states_and_the_history() -> None:
    history = ["placed by evaluation e1", "reported complete by n1"]

    with pytest.raises(InvalidTransition) as caught:
        advance_state(ALLOCATION_STATES, ClientStatus.COMPLETE, ClientStatus.RUNNING, record_id="a1", history=history)

    assert (
        caught.value.machine,
        caught.value.record_id,
        caught.value.source,
        caught.value.target,
        caught.value.allowed_targets,
    ) == ("allocation", "a1", "complete", "running", ())
    assert str(caught.value) == (
        "allocation a1 cannot go from complete to running; allowed from complete: none; "
        "history: placed by evaluation e1; reported complete by n1"
    )


def test_an_invalid_transition_reports_the_allowed_states() -> None:
    with pytest.raises(InvalidTransition, match="allowed from blocked: pending, canceled"):
        advance_state(EVALUATION_STATES, EvaluationStatus.BLOCKED, EvaluationStatus.COMPLETE, record_id="e1")


def test_a_record_is_created_only_in_states_of_its_table() -> None:
    with pytest.raises(InvalidTransition, match="cannot be created as running"):
        advance_state(ALLOCATION_STATES, None, ClientStatus.RUNNING, record_id="a1")
