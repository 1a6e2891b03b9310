"""State machines as data: which states a record may take one after the other, and who must move it on.

A table says it once. `advance` is the only way to a new state; what the table lacks is refused, and the refusal tells
the record's story. Tables know no clock and no record; they hold states, causes, owners and deadlines.
"""

import enum
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

State = TypeVar("State", bound=enum.StrEnum)


class StateTransition(NamedTuple, Generic[State]):
    """One way from a state (None: the record is made) to the next, and what causes it."""

    source: State | None
    target: State
    cause: str
    feature: str = ""
    """The feature without which this step cannot happen, where there is one (so that coverage need not expect it)."""


class StateOwnership(NamedTuple):
    """Who moves a record on that is in this state, and until when."""

    owner: str
    deadline: str


class StateMachine(Generic[State]):
    """The states of one kind of record."""

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
        self._custody: dict[str, StateOwnership] = {state.value: kept for state, kept in ownership.items()}
        self.terminal_states = terminal_states
        self._allowed = {(step.source, step.target) for step in transitions}

    def allows(self, source: enum.StrEnum | None, target: enum.StrEnum) -> bool:
        """Staying is no step, and always allowed to a record that exists."""
        return source is target or (source, target) in self._allowed

    def find_ownership(self, state: enum.StrEnum) -> StateOwnership | None:
        """Who moves a record on that is in this state; None for an end."""
        return self._custody.get(state.value)

    def list_targets(self, source: State | None) -> list[State]:
        """Where a record may go from here."""
        return [step.target for step in self.transitions if step.source is source]


class InvalidTransition(Exception):
    """A record was to take a state that its table does not lead to. The record stays as it was."""

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
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        told = "; ".join(self.history) if self.history else "nothing is known"
        if self.source is None:
            return f"no {self.machine} begins as {self.target} ({self.record_id}); what happened before: {told}"
        onward = f"only to {', '.join(self.allowed_targets)}" if self.allowed_targets else "nowhere"
        return (
            f"{self.machine} {self.record_id} cannot go from {self.source} to {self.target}: from {self.source} it goes "
            f"{onward}; what happened before: {told}"
        )


def advance_state(
    machine: StateMachine[State], source: State | None, target: State, *, record_id: str, history: Sequence[str] = ()
) -> State:
    """The next state, if the table leads there; else `TransitionRefused` with the record's story."""
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
