"""What clients asked and what they were told: the material of the checker, and of stories about failures.

A recorder only takes note. Times are virtual; a call whose outcome is unknown has no end.
"""

import enum
from typing import Final, Generic, TypeVar

import msgspec

from simulation.loop import SimulatedLoop

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

NEVER: Final = float("inf")


class Outcome(enum.Enum):
    OPEN = "open"
    OK = "ok"
    FAILED = "failed"  # Surely nothing happened.
    UNKNOWN = "unknown"  # It may have happened, or may still happen.


class Call(msgspec.Struct, Generic[Asked, Answer], eq=False):
    """One operation of one client on one key. The orders are places in time: no two moments are the same."""

    number: int
    client: str
    key: str
    asked: Asked
    began_s: float
    began: int
    ended_s: float = NEVER
    ended: float = NEVER
    outcome: Outcome = Outcome.OPEN
    answer: Answer | None = None

    def told(self) -> str:
        end = "" if self.ended_s == NEVER else f" at {self.ended_s:.4f} s"
        answer = f": {self.answer}" if self.outcome is Outcome.OK else ""
        return f"{self.began_s:.4f} s {self.client} asked {self.asked} of {self.key}; {self.outcome.value}{end}{answer}"


class History(Generic[Asked, Answer]):
    def __init__(self, loop: SimulatedLoop) -> None:
        self.calls: list[Call[Asked, Answer]] = []
        self._loop = loop
        self._moments = 0

    def begin(self, client: str, key: str, asked: Asked) -> Call[Asked, Answer]:
        call: Call[Asked, Answer] = Call(len(self.calls), client, key, asked, self._loop.time(), self._moment())
        self.calls.append(call)
        return call

    def ok(self, call: Call[Asked, Answer], answer: Answer) -> None:
        call.answer = answer
        self._end(call, Outcome.OK)

    def failed(self, call: Call[Asked, Answer]) -> None:
        self._end(call, Outcome.FAILED)

    def unknown(self, call: Call[Asked, Answer]) -> None:
        """The caller stopped waiting; the operation may take effect now, later or never."""
        call.outcome = Outcome.UNKNOWN

    def _end(self, call: Call[Asked, Answer], outcome: Outcome) -> None:
        assert call.outcome is Outcome.OPEN, f"this call has ended before: {call.told()}"
        call.outcome = outcome
        call.ended_s = self._loop.time()
        call.ended = self._moment()

    def _moment(self) -> int:
        self._moments += 1
        return self._moments
