"""The port of a store whose counters live in another process of this machine.

Every question is a future; what is asked in one turn of the loop is one write. When the other is gone all of them are lost
at once, and it is looked for again until it is back. Whoever waits with a bound stands in front of it (`guard`).
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from wharf.limits.core.plans import Charge, ChargePlan
from wharf.limits.core.rule import RuleSet
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult
from wharf.limits.stores.neighbours import messages
from wharf.limits.stores.neighbours.messages import open_socket_path
from wharf.limits.stores.port import RefundReason, StoreUnavailable
from wharf.world import World

MAX_CACHED_PLANS: Final = 16_384
MAX_PENDING_REQUESTS: Final = 100_000
RECONNECT_INTERVAL_S: Final = 0.1
ResultParser = Callable[[Any], Any]


class NeighbourStore:
    def __init__(self, world: World, path: Path) -> None:
        self._world = world
        self._path = path
        self._number = 0
        self._asked: dict[int, tuple[asyncio.Future[Any], ResultParser | None]] = {}
        self._to_send: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._looking: asyncio.Task[None] | None = None
        self._running: dict[str, StoreCall] = {}
        self._keys: dict[str, tuple[str, ...]] = {}
        self._plans: dict[ChargePlan, bytes] = {}

    async def open(self) -> bool:
        """Connect, and go on looking for who counts. Whether it is there."""
        is_there = await self._connect()
        self._looking = self._world.start_task(self._keep_looking(), name="limits: look for who counts")
        return is_there

    @property
    def is_connected(self) -> bool:
        return self._transport is not None

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self._send()
        if self._transport is not None:
            self._transport.close()
        self.on_connection_lost()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(RECONNECT_INTERVAL_S)
            if self._transport is None:
                await self._connect()

    async def _connect(self) -> bool:
        with contextlib.suppress(OSError), open_socket_path(self._path) as name:
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_unix_connection(lambda: _Connection(self), name)
            self._transport = transport
        return self._transport is not None

    # -- asking ----------------------------------------------------------------------------------------------------

    def _ask(
        self, make: Callable[[int], messages.CounterRequest], finish: ResultParser | None = None
    ) -> "asyncio.Future[Any]":
        asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._transport is None or len(self._asked) >= MAX_PENDING_REQUESTS:
            asked.set_exception(StoreUnavailable(f"nobody counts at {self._path}"))
            asked.exception()  # Looked at, so that nobody need wait for it.
            return asked
        self._number += 1
        self._asked[self._number] = (asked, finish)
        if not self._to_send:
            asyncio.get_running_loop().call_soon(self._send)
        self._to_send.append(messages.encode_frame(make(self._number)))
        return asked

    def _send(self) -> None:
        frames, self._to_send = self._to_send, []
        if self._transport is not None and frames:
            self._transport.write(b"".join(frames))

    def on_reply(self, frame: bytes) -> None:
        answer = messages.decode_reply(frame)
        asked, finish = self._asked.pop(answer.number)
        if asked.done():
            return
        if answer.error:
            asked.set_exception(StoreUnavailable(answer.error))
            asked.exception()
        else:
            asked.set_result(answer.value if finish is None else finish(answer.value))

    def on_connection_lost(self) -> None:
        self._transport = None
        lost, self._asked = self._asked, {}
        self._to_send = []
        for asked, _ in lost.values():
            if not asked.done():
                asked.set_exception(StoreUnavailable("the process that counts has ended"))
                asked.exception()

    # -- deciding --------------------------------------------------------------------------------------------------

    def take_now(self, _call: StoreCall) -> TakeResult | None:
        """Nothing is decided without the other."""
        return None

    async def take(self, call: StoreCall) -> TakeResult:
        return await asyncio.shield(self.start_take(call))

    def start_take(self, call: StoreCall) -> "asyncio.Future[TakeResult]":
        packed = self._packed(call)

        def finish(value: list[Any]) -> TakeResult:
            taken = messages.decode_result(value)
            if taken.is_admitted and call.plan.lease_indexes:
                self._running[call.id] = call
                if taken.keys:
                    self._keys[call.id] = taken.keys
            return taken

        return self._ask(lambda number: messages.TakeRequest(number, call.id, packed), finish)

    def _packed(self, call: StoreCall) -> bytes:
        plan = call.plan
        if call.charges is not plan.charges:
            return messages.encode_plan(call)  # A grant changes a ceiling, and ends by itself.
        packed = self._plans.get(plan)
        if packed is None:
            if len(self._plans) >= MAX_CACHED_PLANS:
                self._plans.clear()
            packed = self._plans[plan] = messages.encode_plan(call)
        return packed

    async def undo(self, call: StoreCall) -> None:
        self._running.pop(call.id, None)
        self._keys.pop(call.id, None)
        await asyncio.shield(self._ask(lambda number: messages.UndoRequest(number, call.id)))

    # -- the end of requests ---------------------------------------------------------------------------------------

    def _slots(self, request_id: str, call: StoreCall) -> list[tuple[str, str]]:
        keys = self._keys.get(request_id)
        charges = call.charges
        return [(charges[index].name, keys[index] if keys else charges[index].key) for index in call.plan.lease_indexes]

    def start_release(self, request_id: str) -> "list[asyncio.Future[Any]]":
        call = self._running.pop(request_id, None)
        slots = [] if call is None else self._slots(request_id, call)
        self._keys.pop(request_id, None)
        return [self._ask(lambda number: messages.ReleaseRequest(number, request_id, slots))]

    async def release(self, request_id: str) -> None:
        for asked in self.start_release(request_id):
            await asyncio.shield(asked)

    async def renew(self, request_ids: Iterable[str]) -> int:
        held = [(of, self._slots(of, call)) for of in request_ids if (call := self._running.get(of)) is not None]
        revived: int = await asyncio.shield(self._ask(lambda number: messages.RenewRequest(number, held)))
        return revived

    async def refund(self, request_id: str, reason: RefundReason) -> bool:
        is_fault = reason is RefundReason.FAULT
        return bool(
            await asyncio.shield(self._ask(lambda number: messages.RefundRequest(number, request_id, is_fault)))
        )

    # -- beside requests -------------------------------------------------------------------------------------------

    async def add_usage(self, charges: Iterable[Charge], amount: int) -> None:
        told = messages.encode_charges(charges)
        await asyncio.shield(self._ask(lambda number: messages.AddUsageRequest(number, told, amount)))

    async def peek(self, charges: Iterable[Charge]) -> tuple[CounterReading, ...]:
        told = messages.encode_charges(charges)
        found: list[list[int]] = await asyncio.shield(self._ask(lambda number: messages.PeekRequest(number, told)))
        return tuple(CounterReading(used, end_ms) for used, end_ms in found)

    async def reset(self, charges: Iterable[Charge]) -> None:
        told = messages.encode_charges(charges)
        await asyncio.shield(self._ask(lambda number: messages.ResetRequest(number, told)))

    async def ban(self, subject: str, until_ms: int) -> None:
        await asyncio.shield(self._ask(lambda number: messages.BanRequest(number, subject, until_ms)))

    async def get_ban_end_ms(self, subject: str) -> int:
        return int(await asyncio.shield(self._ask(lambda number: messages.BanEndRequest(number, subject))))

    async def read_overrides(self, known_version: int) -> tuple[int, Mapping[str, bytes]] | None:
        found: tuple[int, Mapping[str, bytes]] | None = await asyncio.shield(
            self._ask(lambda number: messages.ReadOverridesRequest(number, known_version))
        )
        return found

    async def write_override(self, name: str, value: bytes | None) -> None:
        await asyncio.shield(self._ask(lambda number: messages.WriteOverrideRequest(number, name, value)))

    async def check(self) -> None:
        await asyncio.shield(self._ask(messages.HelloRequest))

    async def set_rules(self, _rules: RuleSet) -> None:
        """The other reads the rules from the same file."""
        self._plans.clear()

    # -- quota for later, which is not taken here ------------------------------------------------------------------

    def record_admission(self, call: StoreCall, taken: TakeResult) -> None:
        raise AssertionError(f"{call.id} was admitted by quota that is not taken here: {taken.now_ms}")

    async def return_quota(self, charge: Charge, _amount: int, _end_ms: int, _lease_id: str) -> bool:
        raise AssertionError(f"quota of {charge.key} is not taken here")


class _Connection(asyncio.Protocol):
    def __init__(self, store: NeighbourStore) -> None:
        self._store = store
        self._buffer = bytearray()
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, _problem: Exception | None) -> None:
        self._store.on_connection_lost()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            for frame in messages.split_frames(self._buffer):
                self._store.on_reply(frame)
        except messages.FrameTooLong:
            assert self._transport is not None
            self._transport.close()
