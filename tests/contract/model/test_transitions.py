"""The tables of states: nothing is refused that they hold, nothing goes through that they lack."""

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
def test_every_state_is_reached_from_the_making_of_a_record(machine: AnyStateMachine) -> None:
    reached: set[enum.StrEnum] = {step.target for step in machine.transitions if step.source is None}
    for _ in machine.states:
        reached |= {step.target for step in machine.transitions if step.source in reached}

    assert set(machine.states) == reached


@each_machine
def test_every_state_that_is_not_an_end_leads_to_one(machine: AnyStateMachine) -> None:
    ending: set[enum.StrEnum] = set(machine.terminal_states)
    for _ in machine.states:
        ending |= {step.source for step in machine.transitions if step.source is not None and step.target in ending}

    assert set(machine.states) == ending


@each_machine
def test_every_state_that_is_not_an_end_has_an_owner_and_a_deadline(machine: AnyStateMachine) -> None:
    kept = {state: machine.find_ownership(state) for state in machine.states}

    assert {state for state in machine.states if state not in machine.terminal_states} == {
        state for state, custody in kept.items() if custody is not None and custody.owner and custody.deadline
    }


@each_machine
def test_no_step_stands_twice_and_each_says_why(machine: AnyStateMachine) -> None:
    pairs = [(step.source, step.target) for step in machine.transitions]

    assert len(set(pairs)) == len(pairs)
    assert [step for step in machine.transitions if not step.cause] == []
    assert [step for step in machine.transitions if step.source is step.target] == []


@each_machine
def test_exactly_the_steps_of_the_table_are_allowed(machine: AnyStateMachine) -> None:
    steps = {(step.source, step.target) for step in machine.transitions}

    for source, target in every_pair(machine):
        assert (source is target or (source, target) in steps) == machine.allows(source, target)


@pytest.mark.parametrize("ended", [EvaluationStatus.COMPLETE, EvaluationStatus.FAILED, EvaluationStatus.CANCELED])
def test_an_evaluation_that_ended_stays_so(ended: EvaluationStatus) -> None:
    assert EVALUATION_STATES.list_targets(ended) == []


@pytest.mark.parametrize("ended", [DeploymentStatus.SUCCESSFUL, DeploymentStatus.FAILED, DeploymentStatus.CANCELLED])
def test_a_deployment_that_ended_stays_so(ended: DeploymentStatus) -> None:
    assert DEPLOYMENT_STATES.list_targets(ended) == []


@pytest.mark.parametrize("active", [status for status in DeploymentStatus if not status.is_terminal])
def test_every_active_deployment_may_fail_and_may_be_cancelled(active: DeploymentStatus) -> None:
    assert {DeploymentStatus.FAILED, DeploymentStatus.CANCELLED} <= set(DEPLOYMENT_STATES.list_targets(active))


def test_the_ends_of_a_table_are_those_that_its_states_call_terminal() -> None:
    assert {status for status in EvaluationStatus if status.is_terminal} == EVALUATION_STATES.terminal_states
    assert {status for status in ClientStatus if status.is_terminal} == ALLOCATION_STATES.terminal_states
    assert {status for status in DeploymentStatus if status.is_terminal} == DEPLOYMENT_STATES.terminal_states


def test_a_lost_allocation_becomes_complete_when_its_node_comes_back() -> None:
    assert ClientStatus.COMPLETE is advance_state(
        ALLOCATION_STATES, ClientStatus.LOST, ClientStatus.COMPLETE, record_id="a1"
    )


def test_a_disconnected_node_is_never_ready_at_once() -> None:
    assert NODE_STATES.list_targets(NODE_STATES.states.DISCONNECTED) == ["initializing", "down"]


def test_staying_is_no_step() -> None:
    assert ClientStatus.RUNNING is advance_state(
        ALLOCATION_STATES, ClientStatus.RUNNING, ClientStatus.RUNNING, record_id="a1"
    )


def test_a_refusal_tells_from_where_to_where_and_the_story() -> None:
    story = ["placed by evaluation e1", "reported complete by n1"]

    with pytest.raises(InvalidTransition) as refused:
        advance_state(ALLOCATION_STATES, ClientStatus.COMPLETE, ClientStatus.RUNNING, record_id="a1", history=story)

    assert (
        refused.value.machine,
        refused.value.record_id,
        refused.value.source,
        refused.value.target,
        refused.value.allowed_targets,
    ) == ("allocation", "a1", "complete", "running", ())
    assert str(refused.value) == (
        "allocation a1 cannot go from complete to running: from complete it goes nowhere; what happened before: "
        "placed by evaluation e1; reported complete by n1"
    )


def test_a_refusal_names_where_the_record_may_go_instead() -> None:
    with pytest.raises(InvalidTransition, match="from blocked it goes only to pending, canceled"):
        advance_state(EVALUATION_STATES, EvaluationStatus.BLOCKED, EvaluationStatus.COMPLETE, record_id="e1")


def test_a_record_begins_only_as_its_table_says() -> None:
    with pytest.raises(InvalidTransition, match="no allocation begins as running"):
        advance_state(ALLOCATION_STATES, None, ClientStatus.RUNNING, record_id="a1")
