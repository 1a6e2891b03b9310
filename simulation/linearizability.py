"""Whether a history could have been told by one object that does one thing at a time.

Every operation must seem to happen at one moment between its call and its answer; one of unknown outcome at any moment
after its call, or never. The search is that of Wing and Gong, with memory: at each point any operation may be next that
was called before the first answer still outstanding; a combination of operations done and state reached is tried once.
Keys are independent and checked one by one.
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
    """What the object does, one operation at a time."""

    initial: State

    def apply(self, state: State, request: RequestT_contra, response: ResponseT_contra | None) -> State | None:
        """The state after this operation gave this answer; None where it cannot give it.

        Without an answer its outcome is unknown: the state after it, if it took effect.
        """
        ...

    def is_read_only(self, request: RequestT_contra, response: ResponseT_contra | None) -> bool:
        """Whether this operation, giving this answer, changes no state whatever."""
        ...


class Verdict(msgspec.Struct, frozen=True):
    """`stuck` are the calls of which none could be next, after the best attempt; empty when all is well."""

    is_linearizable: bool
    try_count: int
    order: Sequence[int] = ()  # Numbers of calls, as they may have happened; of the best attempt, if it failed.
    blocked_calls: Sequence[RecordedCall[Any, Any]] = ()


class SearchLimitExceeded(Exception):
    """Too many ways to try: the history has too many unknown outcomes at once."""


def check_calls(
    calls: Sequence[RecordedCall[RequestT, ResponseT]], model: Model[State, RequestT, ResponseT]
) -> Verdict:
    """Check the calls of one key. Those that surely did nothing are left out."""
    return _Search(calls, model).run()


def check_all_keys(
    calls: Sequence[RecordedCall[RequestT, ResponseT]], model: Model[State, RequestT, ResponseT]
) -> dict[str, Verdict]:
    """Check every key, in order of first use."""
    keys: dict[str, list[RecordedCall[RequestT, ResponseT]]] = {}
    for call in calls:
        keys.setdefault(call.key, []).append(call)
    return {key: check_calls(of_key, model) for key, of_key in keys.items()}


class _Search(Generic[State, RequestT, ResponseT]):
    """Positions count the answered calls in the order in which they began, and so do bits of the masks."""

    def __init__(
        self, calls: Sequence[RecordedCall[RequestT, ResponseT]], model: Model[State, RequestT, ResponseT]
    ) -> None:
        by_begin = sorted(calls, key=lambda call: call.begin_position)
        self.model = model
        self.answered = [call for call in by_begin if call.outcome is CallOutcome.OK]
        self.unanswered = [call for call in by_begin if call.outcome in (CallOutcome.UNKNOWN, CallOutcome.OPEN)]

    def run(self) -> Verdict:
        """Depth first, with a stack of our own: histories are longer than Python's stack."""
        # A configuration: the first position not yet done, the ones done after it, unanswered ones done, the state.
        start = (0, 0, 0, self.model.initial)
        seen = _Seen[State]()
        path: list[int] = []
        best: list[int] = []
        best_at = start
        stack = [(start, iter(self.next_ones(*start)))]
        while stack:
            configuration, following = stack[-1]
            if configuration[0] == len(self.answered):
                return Verdict(True, seen.count, path)
            way = next((way for way in following if seen.is_new(*way[1])), None)
            if way is None:
                stack.pop()
                if path:
                    path.pop()
                continue
            if seen.count > MAX_TRIES:
                raise SearchLimitExceeded(
                    f"gave up after {MAX_TRIES} tries; {len(self.unanswered)} outcomes are unknown"
                )
            number, reached = way
            path.append(number)
            if len(path) > len(best) or not best:
                best, best_at = list(path), reached
            stack.append((reached, iter(self.next_ones(*reached))))
        return Verdict(False, seen.count, best, self.candidates(best_at[0], best_at[1])[0])

    def candidates(self, base: int, done: int) -> tuple[list[RecordedCall[RequestT, ResponseT]], float]:
        """The answered calls of which one must be next, and the first answer among those not done."""
        first_end = float("inf")
        found: list[RecordedCall[RequestT, ResponseT]] = []
        for position in range(base, len(self.answered)):
            call = self.answered[position]
            if call.begin_position > first_end:
                break
            if not done >> (position - base) & 1:
                found.append(call)
                first_end = min(first_end, call.end_position)
        return [call for call in found if call.begin_position < first_end], first_end

    def next_ones(self, base: int, done: int, used: int, state: State) -> list[tuple[int, tuple[int, int, int, State]]]:
        """Every way to go on, the likeliest first: answered calls in the order of their answers, then unknown ones."""
        ways: list[tuple[float, int, tuple[int, int, int, State]]] = []
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
            way = (call.end_position, call.number, (*_with_done(base, done, position), used, reached))
            if reached == state and self.model.is_read_only(call.request, call.response):
                return [way[1:]]  # Whatever can follow without it can follow after it.
            ways.append(way)
        result = [way[1:] for way in sorted(ways, key=lambda way: way[0])]
        tried: list[RequestT] = []  # Of several equal ones the first is enough.
        for position, call in enumerate(self.unanswered):
            if call.begin_position > first_end:
                break
            if used >> position & 1 or call.request in tried:
                continue
            tried.append(call.request)
            after = self.model.apply(state, call.request, None)
            if after is not None and after != state:
                result.append((call.number, (base, done, used | 1 << position, after)))
        return result


class _Seen(Generic[State]):
    """The configurations tried. One that used up more unknown outcomes than another can do nothing that that cannot."""

    def __init__(self) -> None:
        self.count = 0
        self._used: dict[tuple[int, int, State], list[int]] = {}

    def is_new(self, base: int, done: int, used: int, state: State) -> bool:
        """Whether it is worth trying; it then counts as tried."""
        before = self._used.setdefault((base, done, state), [])
        if any(fewer & used == fewer for fewer in before):
            return False
        before[:] = [more for more in before if used & more != used]
        before.append(used)
        self.count += 1
        return True


def _with_done(base: int, done: int, position: int) -> tuple[int, int]:
    """Mark a position as done and move the base over all that are."""
    done |= 1 << (position - base)
    while done & 1:
        done >>= 1
        base += 1
    return base, done
