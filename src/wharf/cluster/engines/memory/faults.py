"""Faults of the memory engine.

A `FaultInjector` belongs to one engine. It does not choose faults itself: a callable chooses the fault of each
operation, so that a simulation can draw it from its seed. The injector counts faults by name.
"""

import enum
from collections.abc import Callable

import msgspec


class EngineOperation(enum.StrEnum):
    """A request of an engine to its log. `FEED` happens once for every batch that a feed is about to return."""

    OPEN = "open"
    LOAD = "load"
    FEED = "feed"
    COMMIT = "commit"
    FIND = "find"
    BARRIER = "barrier"
    GRANT = "grant"
    KEEPALIVE = "keepalive"
    REVOKE = "revoke"
    COMPACT = "compact"
    RESTORE = "restore"
    HEALTH = "health"


class DelayFault(msgspec.Struct, frozen=True, tag="delay"):
    """The request or the reply is slow; for a batch of the feed, both delays apply."""

    request_s: float = 0.0
    reply_s: float = 0.0


class RefuseFault(msgspec.Struct, frozen=True, tag="refuse"):
    """The log refuses the request and changes nothing."""

    why: str = "the fault injector refused"


class LoseRequestFault(msgspec.Struct, frozen=True, tag="lose-request"):
    """The request never arrives; the engine waits for the reply until its timeout."""


class LoseReplyFault(msgspec.Struct, frozen=True, tag="lose-reply"):
    """The log executes the request, but its reply never arrives."""


class CancelWatchFault(msgspec.Struct, frozen=True, tag="cancel-watch"):
    """The log ends the feed; the follower must start another."""


class DisconnectFault(msgspec.Struct, frozen=True, tag="cut"):
    """The engine and its log cannot reach each other for this duration."""

    duration_s: float


class CrashFault(msgspec.Struct, frozen=True, tag="crash"):
    """The engine crashes before or after the log executed the request. It stays closed until it is opened again."""

    is_after_operation: bool = False


class CompactFault(msgspec.Struct, frozen=True, tag="compact"):
    """The whole log is compacted just before this operation."""


Fault = (
    DelayFault
    | RefuseFault
    | LoseRequestFault
    | LoseReplyFault
    | CancelWatchFault
    | DisconnectFault
    | CrashFault
    | CompactFault
)


def choose_no_fault(_operation: EngineOperation) -> Fault | None:
    return None


def end_feed_and_refuse(operation: EngineOperation) -> Fault:
    """Choose the faults of a log that refuses connections: requests fail at once."""
    return CancelWatchFault() if operation is EngineOperation.FEED else RefuseFault()


def get_fault_name(fault: Fault) -> str:
    """Return the name under which a fault is counted."""
    tag = fault.__struct_config__.tag
    assert isinstance(tag, str), "every fault above declares its name as its tag"
    return tag


class FaultInjector:
    """The faults of one engine: chooses them, counts them by name, and tracks disconnections."""

    def __init__(self, choose_fault: Callable[[EngineOperation], Fault | None] = choose_no_fault) -> None:
        self.choose_fault = choose_fault
        self.counts: dict[str, int] = {}
        self._is_cut_off = False
        self._disconnected_until_s = float("-inf")

    def draw_fault(self, operation: EngineOperation, *, now_s: float) -> Fault | None:
        """Choose the fault of this operation and count it; None if no fault occurs."""
        fault = self.choose_fault(operation)
        if fault is None:
            return None
        name = get_fault_name(fault)
        self.counts[name] = self.counts.get(name, 0) + 1
        if isinstance(fault, DisconnectFault):
            self._disconnected_until_s = max(self._disconnected_until_s, now_s + fault.duration_s)
        return fault

    def disconnect(self) -> None:
        """Disconnect the engine from its log until `reconnect`."""
        self.counts["cut"] = self.counts.get("cut", 0) + 1
        self._is_cut_off = True

    def reconnect(self) -> None:
        self._is_cut_off = False
        self._disconnected_until_s = float("-inf")

    def is_disconnected(self, *, now_s: float) -> bool:
        return self._is_cut_off or now_s < self._disconnected_until_s
