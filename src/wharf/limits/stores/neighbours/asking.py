"""The port of a store whose counters live in another process of this machine.

Every question is a future; what is asked in one turn of the loop is one write. When the other is gone all of them are lost
at once, and it is looked for again until it is back. Whoever waits with a bound stands in front of it (`guard`).
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from wharf.limits.core.call import Call, Reading, Taken
from wharf.limits.core.plan import Charge, Plan
from wharf.limits.core.rule import RuleSet
from wharf.limits.stores.neighbours import messages
from wharf.limits.stores.neighbours.places import name_below
from wharf.limits.stores.port import GaveBack, StoreLost
from wharf.world import World

PLANS_REMEMBERED: Final = 16_384
ASKED_MOST: Final = 100_000
LOOKED_FOR_EVERY_S: Final = 0.1
Finish = Callable[[Any], Any]


class NeighbourStore:
    def __init__(self, world: World, path: Path) -> None:
        self._world = world
        self._path = path
        self._number = 0
        self._asked: dict[int, tuple[asyncio.Future[Any], Finish | None]] = {}
        self._to_send: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._looking: asyncio.Task[None] | None = None
        self._running: dict[str, Call] = {}
        self._keys: dict[str, tuple[str, ...]] = {}
        self._plans: dict[Plan, bytes] = {}

    async def open(self) -> bool:
        """Connect, and go on looking for who counts. Whether it is there."""
        is_there = await self._connect()
        self._looking = self._world.start(self._keep_looking(), name="limits: look for who counts")
        return is_there

    @property
    def is_there(self) -> bool:
        return self._transport is not None

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self._send()
        if self._transport is not None:
            self._transport.close()
        self.on_lost()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOKED_FOR_EVERY_S)
            if self._transport is None:
                await self._connect()

    async def _connect(self) -> bool:
        with contextlib.suppress(OSError), name_below(self._path) as name:
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_unix_connection(lambda: _Connection(self), name)
            self._transport = transport
        return self._transport is not None

    # -- asking ----------------------------------------------------------------------------------------------------

    def _ask(self, make: Callable[[int], messages.Message], finish: Finish | None = None) -> "asyncio.Future[Any]":
        asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._transport is None or len(self._asked) >= ASKED_MOST:
            asked.set_exception(StoreLost(f"nobody counts at {self._path}"))
            asked.exception()  # Looked at, so that nobody need wait for it.
            return asked
        self._number += 1
        self._asked[self._number] = (asked, finish)
        if not self._to_send:
            asyncio.get_running_loop().call_soon(self._send)
        self._to_send.append(messages.frame_of(make(self._number)))
        return asked

    def _send(self) -> None:
        frames, self._to_send = self._to_send, []
        if self._transport is not None and frames:
            self._transport.write(b"".join(frames))

    def on_answer(self, frame: bytes) -> None:
        answer = messages.read_answer(frame)
        asked, finish = self._asked.pop(answer.number)
        if asked.done():
            return
        if answer.problem:
            asked.set_exception(StoreLost(answer.problem))
            asked.exception()
        else:
            asked.set_result(answer.value if finish is None else finish(answer.value))

    def on_lost(self) -> None:
        self._transport = None
        lost, self._asked = self._asked, {}
        self._to_send = []
        for asked, _ in lost.values():
            if not asked.done():
                asked.set_exception(StoreLost("the process that counts has ended"))
                asked.exception()

    # -- deciding --------------------------------------------------------------------------------------------------

    def take_now(self, _call: Call) -> Taken | None:
        """Nothing is decided without the other."""
        return None

    async def take(self, call: Call) -> Taken:
        return await asyncio.shield(self.begin(call))

    def begin(self, call: Call) -> "asyncio.Future[Taken]":
        packed = self._packed(call)

        def finish(value: list[Any]) -> Taken:
            taken = messages.taken_of(value)
            if taken.admitted and call.plan.leases:
                self._running[call.id] = call
                if taken.keys:
                    self._keys[call.id] = taken.keys
            return taken

        return self._ask(lambda number: messages.Take(number, call.id, packed), finish)

    def _packed(self, call: Call) -> bytes:
        plan = call.plan
        if call.charges is not plan.charges:
            return messages.pack_plan(call)  # A grant changes a ceiling, and ends by itself.
        packed = self._plans.get(plan)
        if packed is None:
            if len(self._plans) >= PLANS_REMEMBERED:
                self._plans.clear()
            packed = self._plans[plan] = messages.pack_plan(call)
        return packed

    async def undo(self, call: Call) -> None:
        self._running.pop(call.id, None)
        self._keys.pop(call.id, None)
        await asyncio.shield(self._ask(lambda number: messages.Undo(number, call.id)))

    # -- the end of requests ---------------------------------------------------------------------------------------

    def _slots(self, request_id: str, call: Call) -> list[tuple[str, str]]:
        keys = self._keys.get(request_id)
        charges = call.charges
        return [(charges[index].name, keys[index] if keys else charges[index].key) for index in call.plan.leases]

    def begin_release(self, request_id: str) -> "list[asyncio.Future[Any]]":
        call = self._running.pop(request_id, None)
        slots = [] if call is None else self._slots(request_id, call)
        self._keys.pop(request_id, None)
        return [self._ask(lambda number: messages.Release(number, request_id, slots))]

    async def release(self, request_id: str) -> None:
        for asked in self.begin_release(request_id):
            await asyncio.shield(asked)

    async def renew(self, request_ids: Iterable[str]) -> int:
        held = [(of, self._slots(of, call)) for of in request_ids if (call := self._running.get(of)) is not None]
        revived: int = await asyncio.shield(self._ask(lambda number: messages.Renew(number, held)))
        return revived

    async def give_back(self, request_id: str, why: GaveBack) -> bool:
        is_fault = why is GaveBack.FAULT
        return bool(
            await asyncio.shield(self._ask(lambda number: messages.GiveBackAsked(number, request_id, is_fault)))
        )

    # -- beside requests -------------------------------------------------------------------------------------------

    async def spend(self, charges: Iterable[Charge], amount: int) -> None:
        told = messages.told_all(charges)
        await asyncio.shield(self._ask(lambda number: messages.Spend(number, told, amount)))

    async def peek(self, charges: Iterable[Charge]) -> tuple[Reading, ...]:
        told = messages.told_all(charges)
        found: list[list[int]] = await asyncio.shield(self._ask(lambda number: messages.Peek(number, told)))
        return tuple(Reading(used, end_ms) for used, end_ms in found)

    async def reset(self, charges: Iterable[Charge]) -> None:
        told = messages.told_all(charges)
        await asyncio.shield(self._ask(lambda number: messages.Reset(number, told)))

    async def ban(self, subject: str, until_ms: int) -> None:
        await asyncio.shield(self._ask(lambda number: messages.Ban(number, subject, until_ms)))

    async def banned_until_ms(self, subject: str) -> int:
        return int(await asyncio.shield(self._ask(lambda number: messages.BannedUntil(number, subject))))

    async def read_board(self, known: int) -> tuple[int, Mapping[str, bytes]] | None:
        found: tuple[int, Mapping[str, bytes]] | None = await asyncio.shield(
            self._ask(lambda number: messages.ReadBoard(number, known))
        )
        return found

    async def write_board(self, name: str, value: bytes | None) -> None:
        await asyncio.shield(self._ask(lambda number: messages.WriteBoard(number, name, value)))

    async def check(self) -> None:
        await asyncio.shield(self._ask(messages.Hello))

    async def adopt(self, _rules: RuleSet) -> None:
        """The other reads the rules from the same file."""
        self._plans.clear()

    # -- quota for later, which is not taken here ------------------------------------------------------------------

    def remember(self, call: Call, taken: Taken) -> None:
        raise AssertionError(f"{call.id} was admitted by quota that is not taken here: {taken.now_ms}")

    async def hand_back(self, charge: Charge, _amount: int, _end_ms: int, _lease_id: str) -> bool:
        raise AssertionError(f"quota of {charge.key} is not taken here")


class _Connection(asyncio.Protocol):
    def __init__(self, store: NeighbourStore) -> None:
        self._store = store
        self._buffer = bytearray()
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, _problem: Exception | None) -> None:
        self._store.on_lost()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            for frame in messages.take_frames(self._buffer):
                self._store.on_answer(frame)
        except messages.FrameTooLong:
            assert self._transport is not None
            self._transport.close()
