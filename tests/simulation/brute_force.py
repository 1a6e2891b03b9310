"""The definition of linearizability: try every order of every choice. Only for small histories."""

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, permutations
from typing import Any

from simulation.history import CallOutcome, RecordedCall
from simulation.linearizability import Model


def is_linearizable(calls: Sequence[RecordedCall[Any, Any]], model: Model[Any, Any, Any]) -> bool:
    """Return whether any possible order of the calls explains all responses."""
    completed = [call for call in calls if call.outcome is CallOutcome.OK]
    unknown = [call for call in calls if call.outcome in (CallOutcome.UNKNOWN, CallOutcome.OPEN)]
    return any(
        _respects_time(order) and _is_possible(order, model)
        for chosen in _list_choices(unknown)
        for order in permutations([*completed, *chosen])
    )


def _list_choices(calls: Sequence[RecordedCall[Any, Any]]) -> Iterator[tuple[RecordedCall[Any, Any], ...]]:
    return chain.from_iterable(combinations(calls, count) for count in range(len(calls) + 1))


def _respects_time(order: Sequence[RecordedCall[Any, Any]]) -> bool:
    """Return whether each call comes before all calls that began after its reply."""
    return not any(
        later.end_position < earlier.begin_position
        for position, earlier in enumerate(order)
        for later in order[position + 1 :]
    )


def _is_possible(order: Sequence[RecordedCall[Any, Any]], model: Model[Any, Any, Any]) -> bool:
    state = model.initial
    for call in order:
        state = model.apply(state, call.request, call.response if call.outcome is CallOutcome.OK else None)
        if state is None:
            return False
    return True
