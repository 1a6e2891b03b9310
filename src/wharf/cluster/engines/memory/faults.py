"""Faults that the memory engine can be told to have.

A `Faults` belongs to one door. It decides nothing itself: a callable given from outside says which fault strikes an
operation, so that a simulation may draw them from its seed. It counts by name every fault that struck.
"""

import enum
from collections.abc import Callable

import msgspec


class EngineOperation(enum.StrEnum):
    """What a door asks of its log. `FEED` strikes once for every batch that the feed is about to hand over."""

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
    """The request or the reply travels slowly; of a batch of the feed, both."""

    request_s: float = 0.0
    reply_s: float = 0.0


class RefuseFault(msgspec.Struct, frozen=True, tag="refuse"):
    """The log says no and does nothing."""

    why: str = "the log was told to refuse"


class LoseRequestFault(msgspec.Struct, frozen=True, tag="lose-request"):
    """The request never arrives; the door waits for its reply in vain."""


class LoseReplyFault(msgspec.Struct, frozen=True, tag="lose-reply"):
    """The log does what was asked, and its reply never arrives."""


class CancelWatchFault(msgspec.Struct, frozen=True, tag="cancel-watch"):
    """The log ends the feed; the follower has to ask for another."""


class DisconnectFault(msgspec.Struct, frozen=True, tag="cut"):
    """The door and its log cannot reach each other for so long."""

    duration_s: float


class CrashFault(msgspec.Struct, frozen=True, tag="crash"):
    """The door dies, before or after the log did what was asked. It is dead until it is opened again."""

    is_after_operation: bool = False


class CompactFault(msgspec.Struct, frozen=True, tag="compact"):
    """Somebody compacts the whole log just before this operation."""


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


def get_fault_name(fault: Fault) -> str:
    """The name under which a fault is counted."""
    tag = fault.__struct_config__.tag
    assert isinstance(tag, str), "every fault above declares its name as its tag"
    return tag


class FaultInjector:
    """The faults of one door: which strike, whether it is cut off just now, how many there were of each name."""

    def __init__(self, choose_fault: Callable[[EngineOperation], Fault | None] = choose_no_fault) -> None:
        self.choose_fault = choose_fault
        self.counts: dict[str, int] = {}
        self._cut = False
        self._cut_until_s = float("-inf")

    def draw_fault(self, operation: EngineOperation, *, now_s: float) -> Fault | None:
        """The fault that strikes this operation, counted; None: all goes well."""
        fault = self.choose_fault(operation)
        if fault is None:
            return None
        name = get_fault_name(fault)
        self.counts[name] = self.counts.get(name, 0) + 1
        if isinstance(fault, DisconnectFault):
            self._cut_until_s = max(self._cut_until_s, now_s + fault.duration_s)
        return fault

    def disconnect(self) -> None:
        """Cut the door off from its log until `mend`."""
        self.counts["cut"] = self.counts.get("cut", 0) + 1
        self._cut = True

    def reconnect(self) -> None:
        self._cut = False
        self._cut_until_s = float("-inf")

    def is_disconnected(self, *, now_s: float) -> bool:
        return self._cut or now_s < self._cut_until_s
