"""Checks whether a history of calls is linearizable: whether one object that does one operation at a time explains it.

Each operation must take effect at one point in time between its call and its reply. An operation with an unknown outcome
takes effect at any time after its call, or never. The search is that of Wing and Gong, with a memory of the configurations
that it has tried: at each point, the next operation is one that was called before the earliest reply of all remaining
operations. Keys are independent, and are checked one by one.
"""

from collections.abc import Hashable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from simulation.history import CallOutcome, RecordedCall

State = TypeVar("State", bound=Hashable)
RequestT_contra = TypeVar("RequestT_contra", contravariant=True)
ResponseT_contra = TypeVar("ResponseT_contra", contravariant=True)
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

MAX_TRIES: Final = 2_000_000


class Model(Protocol[State, RequestT_contra, ResponseT_contra]):
    """The behavior of the object, one operation at a time."""

    initial: State

    def apply(self, state: State, request: RequestT_contra, response: ResponseT_contra | None) -> State | None:
        """Return the state after an operation with this response, or `None` if it cannot have this response.

        If `response` is `None`, the outcome is unknown. Then return the state after the operation took effect.
        """
        ...

    def is_read_only(self, request: RequestT_contra, response: ResponseT_contra | None) -> bool:
        """Return whether the operation with this response never changes the state."""
        ...


class Verdict(msgspec.Struct, frozen=True):
    """The result of a check. `blocked_calls` are the calls of which none could be next in the best attempt."""

    is_linearizable: bool
    try_count: int
    order: Sequence[int] = ()  # Numbers of calls in a possible order; if the check failed, that of the best attempt.
    blocked_calls: Sequence[RecordedCall[Any, Any]] = ()


class SearchLimitExceeded(Exception):
    """The search needs too many tries: the history has too many unknown outcomes at the same time."""


def check_calls(
    calls: Sequence[RecordedCall[RequestT, ResponseT]], model: Model[State, RequestT, ResponseT]
) -> Verdict:
    """Check the calls of one key. Failed calls are ignored.

    Raises `SearchLimitExceeded` after `MAX_TRIES` tries.
    """
    return _Search(calls, model).run()


def check_all_keys(
    calls: Sequence[RecordedCall[RequestT, ResponseT]], model: Model[State, RequestT, ResponseT]
) -> dict[str, Verdict]:
    """Check the calls of each key. The result is in the order in which the keys were used first."""
    keys: dict[str, list[RecordedCall[RequestT, ResponseT]]] = {}
    for call in calls:
        keys.setdefault(call.key, []).append(call)
    return {key: check_calls(calls_of_key, model) for key, calls_of_key in keys.items()}


class _Search(Generic[State, RequestT, ResponseT]):
    """The search. Positions, and the bits of the masks, number the calls with a reply in the order of their begin."""

    def __init__(
        self, calls: Sequence[RecordedCall[RequestT, ResponseT]], model: Model[State, RequestT, ResponseT]
    ) -> None:
        by_begin = sorted(calls, key=lambda call: call.begin_position)
        self.model = model
        self.answered = [call for call in by_begin if call.outcome is CallOutcome.OK]
        self.unanswered = [call for call in by_begin if call.outcome in (CallOutcome.UNKNOWN, CallOutcome.OPEN)]

    def run(self) -> Verdict:
        """Search depth first, without recursion, because histories are longer than Python's stack."""
        # A configuration: the first position that is not done, a mask of the later ones that are done, a mask of the
        # calls without a reply that are done, and the state.
        start = (0, 0, 0, self.model.initial)
        tried = _TriedConfigurations[State]()
        path: list[int] = []
        best: list[int] = []
        best_at = start
        stack = [(start, iter(self.list_next_configurations(*start)))]
        while stack:
            configuration, candidates = stack[-1]
            if configuration[0] == len(self.answered):
                return Verdict(True, tried.count, path)
            step = next((step for step in candidates if tried.is_new(*step[1])), None)
            if step is None:
                stack.pop()
                if path:
                    path.pop()
                continue
            if tried.count > MAX_TRIES:
                raise SearchLimitExceeded(
                    f"gave up after {MAX_TRIES} tries; {len(self.unanswered)} outcomes are unknown"
                )
            number, reached = step
            path.append(number)
            if len(path) > len(best) or not best:
                best, best_at = list(path), reached
            stack.append((reached, iter(self.list_next_configurations(*reached))))
        return Verdict(False, tried.count, best, self.find_candidates(best_at[0], best_at[1])[0])

    def find_candidates(self, base: int, done: int) -> tuple[list[RecordedCall[RequestT, ResponseT]], float]:
        """Return the calls with a reply of which one must be next, and the position of the earliest reply of those."""
        first_end = float("inf")
        remaining: list[RecordedCall[RequestT, ResponseT]] = []
        for position in range(base, len(self.answered)):
            call = self.answered[position]
            if call.begin_position > first_end:
                break
            if not done >> (position - base) & 1:
                remaining.append(call)
                first_end = min(first_end, call.end_position)
        return [call for call in remaining if call.begin_position < first_end], first_end

    def list_next_configurations(
        self, base: int, done: int, used: int, state: State
    ) -> list[tuple[int, tuple[int, int, int, State]]]:
        """Return the next steps as (call number, configuration), the likeliest first.

        Calls with a reply come first, in the order of their replies, then those with an unknown outcome.
        """
        steps: list[tuple[float, int, tuple[int, int, int, State]]] = []
        first_end = float("inf")
        for position in range(base, len(self.answered)):
            call = self.answered[position]
            if call.begin_position > first_end:
                break
            if done >> (position - base) & 1:
                continue
            first_end = min(first_end, call.end_position)
            reached = self.model.apply(state, call.request, call.response)
            if reached is None:
                continue
            step = (call.end_position, call.number, (*_mark_done(base, done, position), used, reached))
            if reached == state and self.model.is_read_only(call.request, call.response):
                return [step[1:]]  # All other orders stay possible after a call that changes nothing.
            steps.append(step)
        result = [step[1:] for step in sorted(steps, key=lambda step: step[0])]
        tried_requests: list[RequestT] = []  # Of several equal requests, one is enough.
        for position, call in enumerate(self.unanswered):
            if call.begin_position > first_end:
                break
            if used >> position & 1 or call.request in tried_requests:
                continue
            tried_requests.append(call.request)
            after = self.model.apply(state, call.request, None)
            if after is not None and after != state:
                result.append((call.number, (base, done, used | 1 << position, after)))
        return result


class _TriedConfigurations(Generic[State]):
    """The configurations that were tried.

    A configuration that differs from an earlier one only in more used unknown outcomes is not tried: it has fewer options.
    """

    def __init__(self) -> None:
        self.count = 0
        self._used: dict[tuple[int, int, State], list[int]] = {}

    def is_new(self, base: int, done: int, used: int, state: State) -> bool:
        """Return whether a configuration must be tried, and record it as tried."""
        earlier = self._used.setdefault((base, done, state), [])
        if any(fewer & used == fewer for fewer in earlier):
            return False
        earlier[:] = [more for more in earlier if used & more != used]
        earlier.append(used)
        self.count += 1
        return True


def _mark_done(base: int, done: int, position: int) -> tuple[int, int]:
    """Mark a position as done, and advance the base over all positions that are done."""
    done |= 1 << (position - base)
    while done & 1:
        done >>= 1
        base += 1
    return base, done
