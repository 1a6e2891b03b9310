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
    """The reason for which a primary charge is refunded."""

    UNCHANGED = "unchanged"
    """The reply to a conditional request with a valid credential is 304."""
    FAULT = "fault"
    """The reply of the service is a 5xx."""
    GONE = "gone"
    """The caller disconnected before the request was sent to the service."""


class Store(Protocol):
    """The counters of the limiter, in this process or shared by several processes.

    A store uses its own clock unless one was passed to it. It checks all limits of a call, then charges all or none.
    The same request id is never charged twice.
    """

    @property
    def local_counters(self) -> Counters | None:
        """The counters, if they are in this process and can be used without awaiting; else `None`."""
        ...

    async def take(self, call: StoreCall) -> TakeResult:
        """Check all limits of a request, charge all of them or none, and return the result.

        Raises `StoreUnavailable` if the outcome is unknown; a repeated call with the same id is safe.
        """
        ...

    async def release(self, request_id: str) -> None:
        """End a request and free its concurrency slots. A second call does nothing."""
        ...

    async def renew(self, request_ids: Iterable[str]) -> int:
        """Extend the concurrency leases of running requests. Return the number of expired ones that are active again."""
        ...

    async def refund(self, request_id: str, reason: RefundReason) -> bool:
        """Return the primary charge of a request to the window that it was charged to, once.

        Return whether it was refunded.
        """
        ...

    async def add_usage(self, charges: Iterable[Charge], amount: int) -> None:
        """Charge, at the current time, an amount that is known only after the request. It may exceed the ceiling.

        A negative amount takes back usage; no count falls below 0.
        """
        ...

    async def peek(self, charges: Iterable[Charge]) -> tuple[CounterReading, ...]:
        """Return the current values of these counters without charging them."""
        ...

    async def reset(self, charges: Iterable[Charge]) -> None:
        """Set these counters to 0. For operators."""
        ...

    async def ban(self, subject: str, until_ms: int) -> None:
        """Ban a subject until this time; a time in the past ends a ban. For operators."""
        ...

    async def get_ban_end_ms(self, subject: str) -> int:
        """Return when the ban of a subject ends, in Unix milliseconds; 0 if it is not banned."""
        ...

    async def set_rules(self, rules: RuleSet) -> None:
        """Replace the rules. The counters of rules that keep their name continue."""
        ...


class RemoteStore(Store, Protocol):
    """A store that is called over a network or socket. `GuardedStore` limits how long requests wait for it."""

    def take_now(self, call: StoreCall) -> TakeResult | None:
        """Return the result without a remote call, from quota that was taken in advance; `None` if that is not possible."""
        ...

    def start_take(self, call: StoreCall) -> "asyncio.Future[TakeResult]":
        """Start to check and charge a request, and return a future for the result.

        The call continues even if the task that awaits it is cancelled. The future can fail with `StoreUnavailable`.
        """
        ...

    def get_longest_wait_s(self) -> float:
        """Return for how long the oldest call that was sent waits for its reply; 0 if none waits.

        The time that a call spends in a queue of this process does not count.
        """
        ...

    def start_release(self, request_id: str) -> "list[asyncio.Future[Any]]":
        """Start to release the slots of a request, and return the futures of the calls that this needs."""
        ...

    async def undo(self, call: StoreCall) -> None:
        """Undo all charges of a call, whose outcome may be unknown. Raises `StoreUnavailable`."""
        ...

    async def check(self) -> None:
        """Check that the store replies. Raises `StoreUnavailable` or `UnsuitableStore`."""
        ...


class OverrideStore(Protocol):
    """A store of the changes that operators make for all processes: grants, and all limits off for a time."""

    async def read_overrides(self, known_version: int) -> tuple[int, Mapping[str, bytes]] | None:
        """Return all overrides with their version, or `None` if the version is `known_version`.

        Raises `StoreUnavailable`.
        """
        ...

    async def write_override(self, name: str, value: bytes | None) -> None:
        """Store an override under a name; the value `None` deletes it. Raises `StoreUnavailable`."""
        ...


class SharedCredentials(Protocol):
    """The accepted credentials that several gateways share, as keyed hashes. Each method raises `StoreUnavailable`."""

    async def find(self, key: str) -> int | None:
        """Return until when a credential is accepted, in Unix milliseconds; `None` if it is not."""
        ...

    async def store(self, key: str, until_ms: int, lifetime_ms: int) -> None:
        """Store until when a credential is accepted. The entry expires after `lifetime_ms`."""
        ...

    async def remove(self, key: str) -> None:
        """Make a credential unknown again."""
        ...

    async def add_new(self, group: str, key: str, *, most: int, lifetime_ms: int) -> bool:
        """Add a credential to a group, such as the new ones of an address in this hour. Return false if the group is full."""
        ...

    async def count_new(self, group: str) -> int:
        """Return how many credentials are in a group."""
        ...


class RecordStore(Protocol):
    """Decisions and activity that the processes of one store share, for operators who query one of the processes.

    The records are limited by number and age. No decision waits for them.
    """

    async def write_decisions(self, entries: Sequence[tuple[str, bytes]]) -> None:
        """Store decisions, each as a pair of request id and JSON. Raises `StoreUnavailable`."""
        ...

    async def find_decision(self, request_id: str, since_ms: int) -> bytes | None:
        """Return the decision about a request as JSON, or `None` if there is none from `since_ms` (Unix time) on.

        Raises `StoreUnavailable`.
        """
        ...

    async def write_activity(self, minute: int, process: str, rows: bytes) -> None:
        """Store the activity rows of one process for one minute since the Unix epoch, and replace earlier ones.

        `rows` are encoded: the number of requests of each caller at each endpoint. Raises `StoreUnavailable`.
        """
        ...

    async def read_activity(self, minutes: Iterable[int]) -> Mapping[str, Sequence[bytes]]:
        """Return by process id the encoded activity rows of these minutes since the Unix epoch. Raises `StoreUnavailable`."""
        ...
