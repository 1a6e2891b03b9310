"""Faults that the memory engine can be told to have.

A `Faults` belongs to one door. It decides nothing itself: a callable given from outside says which fault strikes an
operation, so that a simulation may draw them from its seed. It counts by name every fault that struck.
"""

import enum
from collections.abc import Callable

import msgspec


class Operation(enum.StrEnum):
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


class Delay(msgspec.Struct, frozen=True, tag="delay"):
    """The request or the reply travels slowly; of a batch of the feed, both."""

    request_s: float = 0.0
    reply_s: float = 0.0


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """The log says no and does nothing."""

    why: str = "the log was told to refuse"


class LoseRequest(msgspec.Struct, frozen=True, tag="lose-request"):
    """The request never arrives; the door waits for its reply in vain."""


class LoseReply(msgspec.Struct, frozen=True, tag="lose-reply"):
    """The log does what was asked, and its reply never arrives."""


class CancelWatch(msgspec.Struct, frozen=True, tag="cancel-watch"):
    """The log ends the feed; the follower has to ask for another."""


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """The door and its log cannot reach each other for so long."""

    for_s: float


class Crash(msgspec.Struct, frozen=True, tag="crash"):
    """The door dies, before or after the log did what was asked. It is dead until it is opened again."""

    after: bool = False


class CompactAll(msgspec.Struct, frozen=True, tag="compact"):
    """Somebody compacts the whole log just before this operation."""


Fault = Delay | Refuse | LoseRequest | LoseReply | CancelWatch | Cut | Crash | CompactAll


def no_fault(_operation: Operation) -> Fault | None:
    return None


def name_of(fault: Fault) -> str:
    """The name under which a fault is counted."""
    tag = fault.__struct_config__.tag
    assert isinstance(tag, str), "every fault above declares its name as its tag"
    return tag


class Faults:
    """The faults of one door: which strike, whether it is cut off just now, how many there were of each name."""

    def __init__(self, decide: Callable[[Operation], Fault | None] = no_fault) -> None:
        self.decide = decide
        self.counts: dict[str, int] = {}
        self._cut = False
        self._cut_until_s = float("-inf")

    def strike(self, operation: Operation, *, now_s: float) -> Fault | None:
        """The fault that strikes this operation, counted; None: all goes well."""
        fault = self.decide(operation)
        if fault is None:
            return None
        name = name_of(fault)
        self.counts[name] = self.counts.get(name, 0) + 1
        if isinstance(fault, Cut):
            self._cut_until_s = max(self._cut_until_s, now_s + fault.for_s)
        return fault

    def cut(self) -> None:
        """Cut the door off from its log until `mend`."""
        self.counts["cut"] = self.counts.get("cut", 0) + 1
        self._cut = True

    def mend(self) -> None:
        self._cut = False
        self._cut_until_s = float("-inf")

    def is_cut(self, *, now_s: float) -> bool:
        return self._cut or now_s < self._cut_until_s
