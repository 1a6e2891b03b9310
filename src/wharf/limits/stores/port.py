"""What the limiter requires of a store. Every store passes the same tests (`tests/limits/stores/contract.py`)."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from wharf.limits.core.counting.counters import Counters
from wharf.limits.core.plans import Charge
from wharf.limits.core.rule import RuleSet
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult


class StoreUnavailable(Exception):
    """The store cannot be reached or did not reply in time. Whether a charge was made is unknown."""


class StoreFull(StoreUnavailable):
    """The store has no memory left. Nothing was charged."""


class UnsuitableStore(Exception):
    """This store cannot be used for counters. The text gives the reason and what to do."""


class RefundReason(Enum):
    """Why a primary charge is refunded."""

    UNCHANGED = "unchanged"
    """The reply to a conditional request with a valid credential is 304."""
    FAULT = "fault"
    """The reply of the service is a 5xx."""
    GONE = "gone"
    """The caller disconnected before the request was sent to the service."""


class Store(Protocol):
    """Counters that several processes can share.

    A store uses its own clock unless one was passed to it. It checks all limits of a call, then charges all or none.
    The same request id is never charged twice.
    """

    @property
    def local_counters(self) -> Counters | None:
        """The counters, if they are in this process and can be used without awaiting; else `None`."""
        ...

    async def take(self, call: StoreCall) -> TakeResult:
        """Check and charge.

        Raises `StoreUnavailable` if the outcome is unknown; a repeated call with the same id is safe.
        """
        ...

    async def release(self, request_id: str) -> None:
        """End a request and free its slots. A second call does nothing."""
        ...

    async def renew(self, request_ids: Iterable[str]) -> int:
        """Extend the leases of running requests. Return how many had expired."""
        ...

    async def refund(self, request_id: str, reason: RefundReason) -> bool:
        """Return the primary charge of a request to the window that it was charged to, once.

        Return whether it was refunded.
        """
        ...

    async def add_usage(self, charges: Iterable[Charge], amount: int) -> None:
        """Charge, at the current time, an amount that is known only after the request. It may exceed the ceiling."""
        ...

    async def peek(self, charges: Iterable[Charge]) -> tuple[CounterReading, ...]:
        """Read counters without opening or charging any."""
        ...

    async def reset(self, charges: Iterable[Charge]) -> None:
        """Set these counters to 0. For operators."""
        ...

    async def ban(self, subject: str, until_ms: int) -> None:
        """Ban a subject until this time; a time in the past ends a ban. For operators."""
        ...

    async def get_ban_end_ms(self, subject: str) -> int:
        """Return when the current ban ends; 0 if there is none."""
        ...

    async def set_rules(self, rules: RuleSet) -> None:
        """Count by these rules from now on. Counters of rules with the same name continue."""
        ...


class RemoteStore(Store, Protocol):
    """A store that is called over a network or socket. `GuardedStore` limits how long requests wait for it."""

    def take_now(self, call: StoreCall) -> TakeResult | None:
        """Decide without a call if possible; else return `None`. Only quota leases can decide."""
        ...

    def start_take(self, call: StoreCall) -> "asyncio.Future[TakeResult]":
        """Start a take that continues even if its caller is cancelled. The future fails with `StoreUnavailable`."""
        ...

    def start_release(self, request_id: str) -> "list[asyncio.Future[Any]]":
        """Start a release without waiting for it."""
        ...

    async def undo(self, call: StoreCall) -> None:
        """Undo all charges of a call, whose outcome may be unknown. Raises `StoreUnavailable`."""
        ...

    async def check(self) -> None:
        """Check that the store replies. Raises `StoreUnavailable` or `UnsuitableStore`."""
        ...


class OverrideStore(Protocol):
    """Where operators put overrides (grants, limits off) that apply to all processes of a store."""

    async def read_overrides(self, known_version: int) -> tuple[int, Mapping[str, bytes]] | None:
        """Return all overrides with their version, or `None` if the version is `known_version`.

        Raises `StoreUnavailable`.
        """
        ...

    async def write_override(self, name: str, value: bytes | None) -> None:
        """Store an override under a name; `None` deletes it. Raises `StoreUnavailable`."""
        ...


class RecordStore(Protocol):
    """Records that processes of one store share, for operators who query one of the processes.

    The records are limited by number and age. No decision waits for them.
    """

    async def write_decisions(self, entries: Sequence[tuple[str, bytes]]) -> None:
        """Append decisions with their request ids. Raises `StoreUnavailable`."""
        ...

    async def find_decision(self, request_id: str, since_ms: int) -> bytes | None:
        """Return the decision about a request not older than `since_ms`, or `None`. Raises `StoreUnavailable`."""
        ...

    async def write_activity(self, minute: int, process: str, rows: bytes) -> None:
        """Replace the activity that a process recorded for a minute. Raises `StoreUnavailable`."""
        ...

    async def read_activity(self, minutes: Iterable[int]) -> Mapping[str, Sequence[bytes]]:
        """Return the activity of these minutes by process. Raises `StoreUnavailable`."""
        ...
