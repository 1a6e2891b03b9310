"""The definition of linearizability, written out: try every order of every choice. For small histories only."""

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, permutations
from typing import Any

from simulation.history import CallOutcome, RecordedCall
from simulation.linearizability import Model


def is_linearizable(calls: Sequence[RecordedCall[Any, Any]], model: Model[Any, Any, Any]) -> bool:
    answered = [call for call in calls if call.outcome is CallOutcome.OK]
    unknown = [call for call in calls if call.outcome in (CallOutcome.UNKNOWN, CallOutcome.OPEN)]
    return any(
        _keeps_time(order) and _is_possible(order, model)
        for chosen in _choices(unknown)
        for order in permutations([*answered, *chosen])
    )


def _choices(calls: Sequence[RecordedCall[Any, Any]]) -> Iterator[tuple[RecordedCall[Any, Any], ...]]:
    return chain.from_iterable(combinations(calls, count) for count in range(len(calls) + 1))


def _keeps_time(order: Sequence[RecordedCall[Any, Any]]) -> bool:
    """Whatever was answered before another was asked comes before it."""
    return not any(
        later.end_position < earlier.begin_position
        for place, earlier in enumerate(order)
        for later in order[place + 1 :]
    )


def _is_possible(order: Sequence[RecordedCall[Any, Any]], model: Model[Any, Any, Any]) -> bool:
    state = model.initial
    for call in order:
        state = model.apply(state, call.request, call.response if call.outcome is CallOutcome.OK else None)
        if state is None:
            return False
    return True
