"""What clients asked and what they were told: the material of the checker, and of stories about failures.

A recorder only takes note. Times are virtual; a call whose outcome is unknown has no end.
"""

import enum
from typing import Final, Generic, TypeVar

import msgspec

from simulation.loop import SimulatedLoop

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

NOT_ENDED: Final = float("inf")


class CallOutcome(enum.Enum):
    OPEN = "open"
    OK = "ok"
    FAILED = "failed"  # Surely nothing happened.
    UNKNOWN = "unknown"  # It may have happened, or may still happen.


class RecordedCall(msgspec.Struct, Generic[RequestT, ResponseT], eq=False):
    """One operation of one client on one key. The orders are places in time: no two moments are the same."""

    number: int
    client: str
    key: str
    request: RequestT
    began_s: float
    begin_position: int
    ended_s: float = NOT_ENDED
    end_position: float = NOT_ENDED
    outcome: CallOutcome = CallOutcome.OPEN
    response: ResponseT | None = None

    def describe(self) -> str:
        end = "" if self.ended_s == NOT_ENDED else f" at {self.ended_s:.4f} s"
        answer = f": {self.response}" if self.outcome is CallOutcome.OK else ""
        return (
            f"{self.began_s:.4f} s {self.client} asked {self.request} of {self.key}; {self.outcome.value}{end}{answer}"
        )


class CallHistory(Generic[RequestT, ResponseT]):
    def __init__(self, loop: SimulatedLoop) -> None:
        self.calls: list[RecordedCall[RequestT, ResponseT]] = []
        self._loop = loop
        self._moments = 0

    def begin_call(self, client: str, key: str, request: RequestT) -> RecordedCall[RequestT, ResponseT]:
        call: RecordedCall[RequestT, ResponseT] = RecordedCall(
            len(self.calls), client, key, request, self._loop.time(), self._moment()
        )
        self.calls.append(call)
        return call

    def complete_call(self, call: RecordedCall[RequestT, ResponseT], response: ResponseT) -> None:
        call.response = response
        self._end(call, CallOutcome.OK)

    def fail_call(self, call: RecordedCall[RequestT, ResponseT]) -> None:
        self._end(call, CallOutcome.FAILED)

    def leave_call_undecided(self, call: RecordedCall[RequestT, ResponseT]) -> None:
        """The caller stopped waiting; the operation may take effect now, later or never."""
        call.outcome = CallOutcome.UNKNOWN

    def _end(self, call: RecordedCall[RequestT, ResponseT], outcome: CallOutcome) -> None:
        assert call.outcome is CallOutcome.OPEN, f"this call has ended before: {call.describe()}"
        call.outcome = outcome
        call.ended_s = self._loop.time()
        call.end_position = self._moment()

    def _moment(self) -> int:
        self._moments += 1
        return self._moments
