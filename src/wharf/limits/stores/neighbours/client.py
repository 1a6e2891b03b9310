"""A store whose counters are in another process of this machine, called over a Unix socket.

All requests of one event loop iteration are sent in one write. When the connection is lost, every pending request fails, and
the store reconnects periodically. Timeouts are the task of `guard`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from wharf.limits.core.caches import BoundedCache
from wharf.limits.core.counting.counters import Counters
from wharf.limits.core.plans import Charge, ChargePlan
from wharf.limits.core.rule import RuleSet
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult
from wharf.limits.stores.neighbours import messages
from wharf.limits.stores.port import RefundReason, StoreUnavailable
from wharf.world import World
from wharf.world.backoff import Backoff
from wharf.world.framing import FrameDecoder, FrameTooLong, encode_frame
from wharf.world.tasks import cancel_tasks
from wharf.world.unix_sockets import shorten_socket_path

MAX_CACHED_PLANS: Final = 16_384
"""Limits the memory for encoded charge plans; the oldest entries of a full cache are removed."""
MAX_PENDING_REQUESTS: Final = 100_000
"""Limits the memory for requests without a reply; further requests fail at once."""
RECONNECT_INTERVAL_S: Final = 0.1
"""The longest interval of attempts to connect, as long as there is a connection or after it was lost."""
MAX_RECONNECT_INTERVAL_S: Final = 0.5
"""The longest interval while the counter server is away; the intervals grow up to it."""
ResultParser = Callable[[Any], Any]
"""Turns the value of a reply into the result of the call."""


class NeighbourStore:
    """A store whose counters are in a `CounterServer`, another process of this machine, called over a Unix socket."""

    def __init__(self, world: World, path: Path) -> None:
        self._world = world
        self.path: Final = path
        self._last_number = 0
        self._pending: dict[int, tuple[asyncio.Future[Any], ResultParser | None, float]] = {}
        """By number, the oldest first: the future, the parser of its reply, and when it was sent (monotonic clock)."""
        self._to_send: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        # Admitted requests that hold concurrency slots, and their counter keys if these differ from those of the call.
        self._running: dict[str, StoreCall] = {}
        self._keys: dict[str, tuple[str, ...]] = {}
        self._plans: BoundedCache[ChargePlan, bytes] = BoundedCache(MAX_CACHED_PLANS)

    @property
    def local_counters(self) -> Counters | None:
        return None

    async def open(self) -> bool:
        """Connect, and keep reconnecting in the background. Return whether the server was reached."""
        is_connected = await self._connect()
        self._reconnecting = self._world.start_task(
            self._keep_reconnecting(), name="limits: reconnect to the counter server"
        )
        return is_connected

    @property
    def is_connected(self) -> bool:
        return self._transport is not None

    async def close(self) -> None:
        """Send the queued requests, close the connection, and fail the requests that have no reply."""
        if self._reconnecting is not None:
            await cancel_tasks(self._reconnecting)
        self._flush()
        if self._transport is not None:
            self._transport.close()
        self.on_connection_lost()

    async def _keep_reconnecting(self) -> None:
        """Reconnect periodically while there is no connection."""
        backoff = Backoff(self._world.random, min_s=RECONNECT_INTERVAL_S, max_s=MAX_RECONNECT_INTERVAL_S)
        while True:
            await asyncio.sleep(backoff.next_delay_s())
            if self._transport is not None or await self._connect():
                backoff.reset()

    async def _connect(self) -> bool:
        """Try to connect to the counter server. Return whether there is a connection."""
        with contextlib.suppress(OSError), shorten_socket_path(self.path) as name:
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_unix_connection(lambda: _ConnectionToNeighbour(self), name)
            self._transport = transport
        return self._transport is not None

    # -- sending requests ----------------------------------------------------------------------------------------------------

    def _send_request(
        self, make_request: Callable[[int], messages.CounterRequest], parse_result: ResultParser | None = None
    ) -> "asyncio.Future[Any]":
        """Queue a request for the next write, and return a future for its result.

        `make_request` makes the message from its number. Without a connection, or with too many pending requests, the
        future fails with `StoreUnavailable`.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._transport is None or len(self._pending) >= MAX_PENDING_REQUESTS:
            future.set_exception(StoreUnavailable(f"no counter server at {self.path}"))
            future.exception()  # Mark it as retrieved: asyncio logs exceptions that nobody awaits.
            return future
        self._last_number += 1
        self._pending[self._last_number] = (future, parse_result, self._world.monotonic_s())
        if not self._to_send:
            asyncio.get_running_loop().call_soon(self._flush)
        self._to_send.append(encode_frame(make_request(self._last_number)))
        return future

    def _flush(self) -> None:
        """Send all queued requests in one write."""
        frames, self._to_send = self._to_send, []
        if self._transport is not None and frames:
            self._transport.write(b"".join(frames))

    def on_reply(self, frame: bytes) -> None:
        """Complete the future of the request that an encoded reply belongs to, with its result or `StoreUnavailable`."""
        reply = messages.decode_reply(frame)
        future, parse_result, _ = self._pending.pop(reply.number)
        if future.done():
            return
        if reply.error:
            future.set_exception(StoreUnavailable(reply.error))
            future.exception()
        else:
            future.set_result(reply.value if parse_result is None else parse_result(reply.value))

    def on_connection_lost(self) -> None:
        """Fail all pending requests with `StoreUnavailable`, because the connection is lost."""
        self._transport = None
        pending, self._pending = self._pending, {}
        self._to_send = []
        for future, _, _ in pending.values():
            if not future.done():
                future.set_exception(StoreUnavailable("the connection to the counter server was lost"))
                future.exception()

    def get_longest_wait_s(self) -> float:
        """Return for how long the oldest request without a reply waits for it; 0 if there is none."""
        for _, _, sent_at_s in self._pending.values():
            return self._world.monotonic_s() - sent_at_s
        return 0.0

    # -- deciding --------------------------------------------------------------------------------------------------

    def take_now(self, _call: StoreCall) -> TakeResult | None:
        """Return `None`: this store cannot decide without its server."""
        return None

    async def take(self, call: StoreCall) -> TakeResult:
        return await asyncio.shield(self.start_take(call))

    def start_take(self, call: StoreCall) -> "asyncio.Future[TakeResult]":
        """Send the request to check and charge, and return a future for the result.

        A call that is admitted and holds concurrency slots is stored, so that these can be renewed and released.
        """
        encoded_plan = self._encode_plan(call)

        def parse_result(value: list[Any]) -> TakeResult:
            """Return the decoded result; store the call if it was admitted and holds concurrency slots."""
            result = messages.decode_result(value)
            if result.is_admitted and call.plan.lease_indexes:
                self._running[call.id] = call
                if result.keys:
                    self._keys[call.id] = result.keys
            return result

        return self._send_request(lambda number: messages.TakeRequest(number, call.id, encoded_plan), parse_result)

    def _encode_plan(self, call: StoreCall) -> bytes:
        """Return the encoded charge plan of a call, from the cache unless a grant changes a ceiling."""
        plan = call.plan
        if call.charges is not plan.charges:
            return messages.encode_plan(call)  # A grant changes a ceiling temporarily.
        encoded_plan = self._plans.get(plan)
        if encoded_plan is None:
            encoded_plan = self._plans.store(plan, messages.encode_plan(call))
        return encoded_plan

    async def undo(self, call: StoreCall) -> None:
        """Refund the primary charge of a call and free its slots. Its outcome may be unknown."""
        self._running.pop(call.id, None)
        self._keys.pop(call.id, None)
        await asyncio.shield(self._send_request(lambda number: messages.UndoRequest(number, call.id)))

    # -- the end of requests ---------------------------------------------------------------------------------------

    def _list_slots(self, request_id: str, call: StoreCall) -> list[tuple[str, str]]:
        """Return the rule name and the counter key of each concurrency slot of a request."""
        keys = self._keys.get(request_id)
        charges = call.charges
        return [(charges[index].name, keys[index] if keys else charges[index].key) for index in call.plan.lease_indexes]

    def start_release(self, request_id: str) -> "list[asyncio.Future[Any]]":
        """Send the release of a request without waiting, and return a list with the future of the reply."""
        call = self._running.pop(request_id, None)
        slots = [] if call is None else self._list_slots(request_id, call)
        self._keys.pop(request_id, None)
        return [self._send_request(lambda number: messages.ReleaseRequest(number, request_id, slots))]

    async def release(self, request_id: str) -> None:
        for future in self.start_release(request_id):
            await asyncio.shield(future)

    async def renew(self, request_ids: Iterable[str]) -> int:
        """Extend the concurrency leases of running requests. Return the number of expired ones that are active again."""
        slots = [
            (request_id, self._list_slots(request_id, call))
            for request_id in request_ids
            if (call := self._running.get(request_id)) is not None
        ]
        revived: int = await asyncio.shield(self._send_request(lambda number: messages.RenewRequest(number, slots)))
        return revived

    async def refund(self, request_id: str, reason: RefundReason) -> bool:
        """Refund the primary charge of a request. Return whether it was refunded."""
        is_fault = reason is RefundReason.FAULT
        return bool(
            await asyncio.shield(
                self._send_request(lambda number: messages.RefundRequest(number, request_id, is_fault))
            )
        )

    # -- beside requests -------------------------------------------------------------------------------------------

    async def add_usage(self, charges: Iterable[Charge], amount: int) -> None:
        """Charge an amount that is known only after the request, such as CPU time."""
        encoded_charges = messages.encode_charges(charges)
        await asyncio.shield(
            self._send_request(lambda number: messages.AddUsageRequest(number, encoded_charges, amount))
        )

    async def peek(self, charges: Iterable[Charge]) -> tuple[CounterReading, ...]:
        """Return the current values of these counters without charging them."""
        encoded_charges = messages.encode_charges(charges)
        found: list[list[int]] = await asyncio.shield(
            self._send_request(lambda number: messages.PeekRequest(number, encoded_charges))
        )
        return tuple(CounterReading(used, end_ms) for used, end_ms in found)

    async def reset(self, charges: Iterable[Charge]) -> None:
        encoded_charges = messages.encode_charges(charges)
        await asyncio.shield(self._send_request(lambda number: messages.ResetRequest(number, encoded_charges)))

    async def ban(self, subject: str, until_ms: int) -> None:
        await asyncio.shield(self._send_request(lambda number: messages.BanRequest(number, subject, until_ms)))

    async def get_ban_end_ms(self, subject: str) -> int:
        return int(await asyncio.shield(self._send_request(lambda number: messages.BanEndRequest(number, subject))))

    async def read_overrides(self, known_version: int) -> tuple[int, Mapping[str, bytes]] | None:
        """Return the overrides and their version, or `None` if the version is `known_version`."""
        found: tuple[int, Mapping[str, bytes]] | None = await asyncio.shield(
            self._send_request(lambda number: messages.ReadOverridesRequest(number, known_version))
        )
        return found

    async def write_override(self, name: str, value: bytes | None) -> None:
        await asyncio.shield(self._send_request(lambda number: messages.WriteOverrideRequest(number, name, value)))

    async def check(self) -> None:
        await asyncio.shield(self._send_request(messages.HelloRequest))

    async def set_rules(self, _rules: RuleSet) -> None:
        """Clear the cache of encoded charge plans. The rules are not sent: the server reads them from its own rules file."""
        self._plans.clear()


class _ConnectionToNeighbour(asyncio.Protocol):
    """The connection of a `NeighbourStore` to the counter server."""

    def __init__(self, store: NeighbourStore) -> None:
        self._store = store
        self._frames = FrameDecoder(messages.MAX_FRAME_BYTES)
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, _problem: Exception | None) -> None:
        self._store.on_connection_lost()

    def data_received(self, data: bytes) -> None:
        """Pass complete replies to the store. Close the connection if a frame is too long."""
        try:
            for frame in self._frames.feed(data):
                self._store.on_reply(frame)
        except FrameTooLong:
            assert self._transport is not None
            self._transport.close()
