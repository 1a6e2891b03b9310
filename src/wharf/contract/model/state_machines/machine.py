"""State machines as data: the allowed transitions between the states of a record, and who moves it to the next state.

`advance_state` is the only way to change a state. It rejects a transition that is not in the table, and its error lists the
record's history. The tables read no clock and no record.
"""

import enum
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

State = TypeVar("State", bound=enum.StrEnum)


class StateTransition(NamedTuple, Generic[State]):
    """An allowed transition of a record from one state to another."""

    source: State | None  # `None`: the record is created.
    target: State
    cause: str  # Why it occurs, for the documentation.
    feature: str = ""
    """The feature that this transition needs; empty if none. Coverage checks skip transitions of features that are off."""


class StateOwnership(NamedTuple):
    """What moves a record out of a state, and until when. Both are texts for the documentation."""

    owner: str  # The component or person.
    deadline: str


class StateMachine(Generic[State]):
    """The states of one type of record and the allowed transitions between them.

    `ownership` states for each state that is not terminal what moves a record on.
    """

    def __init__(
        self,
        name: str,
        states: type[State],
        *,
        transitions: Sequence[StateTransition[State]],
        ownership: dict[State, StateOwnership],
        terminal_states: frozenset[State],
    ) -> None:
        self.name = name
        self.states = states
        self.transitions = tuple(transitions)
        self._ownership: dict[str, StateOwnership] = {state.value: owner for state, owner in ownership.items()}
        self.terminal_states = terminal_states
        self._allowed = {(transition.source, transition.target) for transition in transitions}

    def allows(self, source: enum.StrEnum | None, target: enum.StrEnum) -> bool:
        """Return whether a record may go from `source` to `target`.

        A record may always stay in its state; `None` stands for a new record.
        """
        return source is target or (source, target) in self._allowed

    def find_ownership(self, state: enum.StrEnum) -> StateOwnership | None:
        """Return what moves a record out of this state and until when, or `None` for a terminal state."""
        return self._ownership.get(state.value)

    def list_targets(self, source: State | None) -> list[State]:
        """Return the states that can follow this one. `None` stands for a new record."""
        return [transition.target for transition in self.transitions if transition.source is source]


class InvalidTransition(Exception):
    """The error that a requested state change is not allowed. The record was not changed."""

    def __init__(
        self,
        *,
        machine: str,
        record_id: str,
        source: str | None,
        target: str,
        allowed_targets: Sequence[str],
        history: Sequence[str],
    ) -> None:
        self.machine = machine
        self.record_id = record_id
        self.source = source
        self.target = target
        self.allowed_targets = tuple(allowed_targets)
        self.history = tuple(history)
        super().__init__(self._format_message())

    def _format_message(self) -> str:
        """Return the error message: the requested and the allowed states, and the record's history."""
        history = "; ".join(self.history) if self.history else "none"
        if self.source is None:
            return f"{self.machine} {self.record_id} cannot be created as {self.target}; history: {history}"
        allowed = ", ".join(self.allowed_targets) if self.allowed_targets else "none"
        return (
            f"{self.machine} {self.record_id} cannot go from {self.source} to {self.target}; "
            f"allowed from {self.source}: {allowed}; history: {history}"
        )


def advance_state(
    machine: StateMachine[State], source: State | None, target: State, *, record_id: str, history: Sequence[str] = ()
) -> State:
    """Return the target state if the state machine allows it.

    Otherwise raise `InvalidTransition` with the record's history. A `source` of `None` means that the record is
    created.
    """
    if machine.allows(source, target):
        return target
    raise InvalidTransition(
        machine=machine.name,
        record_id=record_id,
        source=source,
        target=target,
        allowed_targets=machine.list_targets(source),
        history=history,
    )
