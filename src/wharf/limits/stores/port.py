"""What a limiter asks of a store. Every store passes the same suite (`tests/limits/stores/contract.py`)."""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Protocol

from wharf.limits.core.plans import Charge
from wharf.limits.core.rule import RuleSet
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult


class StoreUnavailable(Exception):
    """The store cannot be asked, or did not answer in time: whether a charge was made is unknown."""


class StoreFull(StoreUnavailable):
    """The store has no memory left. Nothing was charged."""


class UnsuitableStore(Exception):
    """This store may not hold counters. Its text says why, and what to do."""


class RefundReason(Enum):
    """Why a primary charge is given back."""

    UNCHANGED = "unchanged"
    """A 304 to a conditional request with a valid credential."""
    FAULT = "fault"
    """A 5xx of the service."""
    GONE = "gone"
    """The caller hung up before the request was handed on."""


class Store(Protocol):
    """Counters that may be shared. Moments are the store's own, unless it was made with a given clock.

    Of each call all limits are checked, then all charged or none. The same request id never charges twice.
    """

    async def take(self, call: StoreCall) -> TakeResult:
        """Check and charge. Raises StoreLost when the outcome is unknown; asking again with the same id is safe."""
        ...

    async def release(self, request_id: str) -> None:
        """The request is over: its slots are free. A second time does nothing."""
        ...

    async def renew(self, request_ids: Iterable[str]) -> int:
        """Hold on to the slots of requests that still run, in one call for all. Returns how many had run out."""
        ...

    async def refund(self, request_id: str, reason: RefundReason) -> bool:
        """Return the primary charge of a request, once, into the window that it came from. Whether it was returned."""
        ...

    async def add_usage(self, charges: Iterable[Charge], amount: int) -> None:
        """Charge to now what is known afterwards; it may go above the ceiling."""
        ...

    async def peek(self, charges: Iterable[Charge]) -> tuple[CounterReading, ...]:
        """Look at counters; nothing is opened or charged."""
        ...

    async def reset(self, charges: Iterable[Charge]) -> None:
        """Start these counters again. For operators."""
        ...

    async def ban(self, subject: str, until_ms: int) -> None:
        """Ban, or with a moment that is past, end a ban. For operators."""
        ...

    async def get_ban_end_ms(self, subject: str) -> int:
        """The end of a ban that holds now; 0 where none does."""
        ...

    async def set_rules(self, rules: RuleSet) -> None:
        """Count by these rules from now on; counters with the same rule name go on."""
        ...


class OverrideStore(Protocol):
    """Where operators leave what holds for all processes that share a store."""

    async def read_overrides(self, known_version: int) -> tuple[int, Mapping[str, bytes]] | None:
        """All that stands there, with its version; None while that is the known one. Raises StoreLost."""
        ...

    async def write_override(self, name: str, value: bytes | None) -> None:
        """Put something there under a name, or with None take it away. Raises StoreUnavailable."""
        ...


class RecordStore(Protocol):
    """What processes that share a store tell each other beside counters, for operators who ask one of them.

    It is bounded by count and by age, and whoever decides never waits for it.
    """

    async def write_decisions(self, entries: Sequence[tuple[str, bytes]]) -> None:
        """Put decisions there by their request ids, behind those that are there. Raises StoreUnavailable."""
        ...

    async def find_decision(self, request_id: str, since_ms: int) -> bytes | None:
        """The decision of a request that came then or later; None where nobody left it. Raises StoreLost."""
        ...

    async def write_activity(self, minute: int, process: str, rows: bytes) -> None:
        """What a process saw in a minute, in place of what it said of that minute before. Raises StoreUnavailable."""
        ...

    async def read_activity(self, minutes: Iterable[int]) -> Mapping[str, Sequence[bytes]]:
        """What each process said of these minutes. Raises StoreUnavailable."""
        ...
