"""Records the calls of clients with their replies, for the check of linearizability.

Times are virtual. A call with an unknown outcome has no end.
"""

import enum
from typing import Final, Generic, TypeVar

import msgspec

from simulation.loop import SimulatedLoop

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

NOT_ENDED: Final = float("inf")


class CallOutcome(enum.Enum):
    """What is known about the effect of a call."""

    OPEN = "open"
    OK = "ok"
    FAILED = "failed"  # The call had no effect.
    UNKNOWN = "unknown"  # The call may have had an effect, or may have one later.


class RecordedCall(msgspec.Struct, Generic[RequestT, ResponseT], eq=False):
    """One operation of a client on a key. No two begins and ends of calls have the same position."""

    number: int
    client: str
    key: str
    request: RequestT
    started_s: float
    begin_position: int
    ended_s: float = NOT_ENDED
    end_position: float = NOT_ENDED
    outcome: CallOutcome = CallOutcome.OPEN
    response: ResponseT | None = None

    def describe(self) -> str:
        end = "" if self.ended_s == NOT_ENDED else f" at {self.ended_s:.4f} s"
        response = f": {self.response}" if self.outcome is CallOutcome.OK else ""
        return f"{self.started_s:.4f} s {self.client} sent {self.request} for {self.key}: {self.outcome.value}{end}{response}"


class CallHistory(Generic[RequestT, ResponseT]):
    """The calls of all clients, in the order of their begin."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.calls: list[RecordedCall[RequestT, ResponseT]] = []
        self._loop = loop
        self._last_position = 0

    def begin_call(self, client: str, key: str, request: RequestT) -> RecordedCall[RequestT, ResponseT]:
        call: RecordedCall[RequestT, ResponseT] = RecordedCall(
            len(self.calls), client, key, request, self._loop.time(), self._next_position()
        )
        self.calls.append(call)
        return call

    def complete_call(self, call: RecordedCall[RequestT, ResponseT], response: ResponseT) -> None:
        call.response = response
        self._end(call, CallOutcome.OK)

    def fail_call(self, call: RecordedCall[RequestT, ResponseT]) -> None:
        self._end(call, CallOutcome.FAILED)

    def leave_call_undecided(self, call: RecordedCall[RequestT, ResponseT]) -> None:
        """Record an unknown outcome: the caller stopped waiting, and the operation may take effect now, later or never."""
        call.outcome = CallOutcome.UNKNOWN

    def _end(self, call: RecordedCall[RequestT, ResponseT], outcome: CallOutcome) -> None:
        assert call.outcome is CallOutcome.OPEN, f"this call has already ended: {call.describe()}"
        call.outcome = outcome
        call.ended_s = self._loop.time()
        call.end_position = self._next_position()

    def _next_position(self) -> int:
        self._last_position += 1
        return self._last_position
