"""The process that counts, for its neighbours on the machine: a Unix socket in front of the store in memory.

Nobody is told an answer before what it changed would outlive this process. It decides nothing that the counters do not.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from wharf.limits.core.call import Call
from wharf.limits.core.leases import Leases
from wharf.limits.core.plan import Charge, Plan
from wharf.limits.core.rule import BanRules, Interface
from wharf.limits.stores.changes import NotedCounters
from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.neighbours import messages
from wharf.limits.stores.neighbours.places import name_below
from wharf.limits.stores.port import StoreRefused

log = logging.getLogger(__name__)

PLANS_REMEMBERED: Final = 16_384
BOARD_MOST: Final = 200_000


class OtherRules(Exception):
    """A neighbour counts by rules that are not in force here; it will not for long."""


class CountingPlace:
    def __init__(self, store: MemoryStore, path: Path) -> None:
        self.connections: Final[set[asyncio.Transport]] = set()
        self._store = store
        self._counters = store.counters
        self._path = path
        self._server: asyncio.Server | None = None
        self._plans: dict[bytes, tuple[Plan, BanRules]] = {}
        self._plans_of = -1
        self._board: dict[str, bytes] = {}
        self._board_version = 0

    async def open(self) -> None:
        """Listen. Raises StoreRefused where somebody counts already."""
        with name_below(self._path) as name:
            if self._path.exists():
                with socket.socket(socket.AF_UNIX) as probe:
                    try:
                        probe.connect(name)
                    except OSError:
                        self._path.unlink()  # Of a process that was killed.
                    else:
                        raise StoreRefused(f"another process counts at {self._path} already")
            before = os.umask(0o177)
            try:
                self._server = await asyncio.get_running_loop().create_unix_server(lambda: _Neighbour(self), name)
            finally:
                os.umask(before)
        if isinstance(self._counters, NotedCounters):
            self._counters.on_change = lambda: asyncio.get_running_loop().call_soon(self._store.write_changes)

    async def close(self) -> None:
        if isinstance(self._counters, NotedCounters):
            self._counters.on_change = None
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        for transport in list(self.connections):
            transport.close()

    # -- the board of this process ---------------------------------------------------------------------------------

    async def read_board(self, known: int) -> tuple[int, Mapping[str, bytes]] | None:
        return None if self._board_version == known else (self._board_version, dict(self._board))

    async def write_board(self, name: str, value: bytes | None) -> None:
        self._put_on_board(name, value)

    def _put_on_board(self, name: str, value: bytes | None) -> None:
        if value is None:
            self._board.pop(name, None)
        elif len(self._board) < BOARD_MOST or name in self._board:
            self._board[name] = value
        self._board_version += 1

    # -- answering -------------------------------------------------------------------------------------------------

    def answers(self, frames: list[bytes]) -> bytes:
        parts = [messages.frame_of(self._answer(messages.read_message(frame))) for frame in frames]
        self._store.write_changes()
        return b"".join(parts)

    def _answer(self, message: messages.Message) -> messages.Answer:
        try:
            return messages.Answer(message.number, self._value(message))
        except OtherRules as problem:
            return messages.Answer(message.number, None, str(problem))

    def _value(self, message: messages.Message) -> Any:  # The value of an answer is known by its question.
        counters, now_ms = self._counters, self._store.now_ms()
        match message:
            case messages.Take():
                plan, ban = self._plan(message.plan)
                return messages.taken_told(counters.take(Call(message.id, plan, plan.charges, ban), now_ms))
            case messages.Release():
                if not counters.release(message.id, now_ms):
                    for table, key in self._slots(message.slots):
                        table.release(key, message.id)
                return None
            case messages.Renew():
                return sum(self._renew(request_id, slots, now_ms) for request_id, slots in message.held)
            case messages.GiveBackAsked():
                return counters.give_back(message.id, now_ms, is_fault=message.is_fault)
            case messages.Undo():
                # What secondary limits were charged stays: a caller may be refused for it, and never gets more.
                counters.give_back(message.id, now_ms, is_fault=False)
                counters.release(message.id, now_ms)
                return None
            case messages.Spend():
                counters.spend(self._charges(message.charges), message.amount, now_ms)
                return None
            case messages.Peek():
                charges = self._charges(message.charges)
                return [[reading.used, reading.end_ms] for reading in counters.peek(charges, now_ms)]
            case messages.Reset():
                counters.reset(self._charges(message.charges))
                return None
            case messages.Ban():
                counters.ban(message.subject, message.until_ms)
                return None
            case messages.BannedUntil():
                record = counters.bans.get(message.subject)
                return record.banned_until_ms if record is not None and record.is_banned(now_ms) else 0
            case messages.ReadBoard():
                is_known = message.known == self._board_version
                return None if is_known else [self._board_version, self._board]
            case messages.WriteBoard():
                self._put_on_board(message.name, message.value)
                return None
            case messages.Hello():
                return None

    def _renew(self, request_id: str, slots: list[tuple[str, str]], now_ms: int) -> int:
        if self._counters.knows(request_id):
            return self._counters.renew([request_id], now_ms)
        return sum(table.renew(key, request_id, now_ms) for table, key in self._slots(slots))

    def _slots(self, slots: list[tuple[str, str]]) -> list[tuple[Leases, str]]:
        tables = self._counters.tables
        return [(table, key) for name, key in slots if isinstance(table := tables.get(name), Leases)]

    def _plan(self, packed: bytes) -> tuple[Plan, BanRules]:
        if self._plans_of != self._counters.adopted or len(self._plans) >= PLANS_REMEMBERED:
            self._plans_of, self._plans = self._counters.adopted, {}
        found = self._plans.get(packed)
        if found is None:
            told = messages.read_plan(packed)
            charges = self._charges(told.charges)
            plan = Plan(
                endpoint="",
                interface=Interface.REST,
                resource="",
                shown=charges[0] if told.shown is None else self._charge(told.shown),
                charges=charges,
                meters=(),
                leases=told.leases,
                ban_subject=told.ban_subject,
                ban_is_shadow=told.ban_is_shadow,
                is_free=told.shown is not None,
                bounded=told.bounded,
                objects_most=None,
                hides_cost=False,
            )
            found = self._plans[packed] = (plan, told.ban)
        return found

    def _charges(self, told: tuple[messages.Told, ...] | list[messages.Told]) -> tuple[Charge, ...]:
        return tuple(map(self._charge, told))

    def _charge(self, told: messages.Told) -> Charge:
        rule = self._counters.rule(told.name)
        if rule is None:
            raise OtherRules(f"there is no rule {told.name} where counters are: rules are being changed")
        return Charge(
            rule,
            rule.name,  # One text for all keys of it.
            told.key,
            told.ceiling,
            told.cost,
            told.needs,
            told.is_enforced,
            told.spare_key,
            told.owner,
        )


class _Neighbour(asyncio.Protocol):
    def __init__(self, place: CountingPlace) -> None:
        self._place = place
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # A stream's transport is one.
        self._place.connections.add(self._transport)

    def connection_lost(self, _problem: Exception | None) -> None:
        if self._transport is not None:
            self._place.connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._buffer += data
        try:
            frames = list(messages.take_frames(self._buffer))
            if frames:
                self._transport.write(self._place.answers(frames))
        except (messages.FrameTooLong, msgspec.DecodeError) as problem:
            log.warning("a neighbour sent what is not understood, and is cut off: %s", problem)
            self._transport.close()
