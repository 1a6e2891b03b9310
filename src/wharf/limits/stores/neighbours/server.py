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

from wharf.limits.core.counting.leases import ConcurrencyLeases
from wharf.limits.core.plans import Charge, ChargePlan
from wharf.limits.core.rule import BanRules, Interface
from wharf.limits.core.store_calls import StoreCall
from wharf.limits.stores.change_log import TrackedCounters
from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.neighbours import messages
from wharf.limits.stores.neighbours.messages import open_socket_path
from wharf.limits.stores.port import UnsuitableStore

log = logging.getLogger(__name__)

MAX_CACHED_PLANS: Final = 16_384
MAX_OVERRIDES: Final = 200_000


class RulesMismatch(Exception):
    """A neighbour counts by rules that are not in force here; it will not for long."""


class CounterServer:
    def __init__(self, store: MemoryStore, path: Path) -> None:
        self.connections: Final[set[asyncio.Transport]] = set()
        self._store = store
        self._counters = store.counters
        self._path = path
        self._server: asyncio.Server | None = None
        self._plans: dict[bytes, tuple[ChargePlan, BanRules]] = {}
        self._plans_of = -1
        self._board: dict[str, bytes] = {}
        self._board_version = 0

    async def open(self) -> None:
        """Listen. Raises UnsuitableStore where somebody counts already."""
        with open_socket_path(self._path) as name:
            if self._path.exists():
                with socket.socket(socket.AF_UNIX) as probe:
                    try:
                        probe.connect(name)
                    except OSError:
                        self._path.unlink()  # Of a process that was killed.
                    else:
                        raise UnsuitableStore(f"another process counts at {self._path} already")
            before = os.umask(0o177)
            try:
                self._server = await asyncio.get_running_loop().create_unix_server(lambda: _Neighbour(self), name)
            finally:
                os.umask(before)
        if isinstance(self._counters, TrackedCounters):
            self._counters.on_change = lambda: asyncio.get_running_loop().call_soon(self._store.write_changes)

    async def close(self) -> None:
        if isinstance(self._counters, TrackedCounters):
            self._counters.on_change = None
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        for transport in list(self.connections):
            transport.close()

    # -- the board of this process ---------------------------------------------------------------------------------

    async def read_overrides(self, known_version: int) -> tuple[int, Mapping[str, bytes]] | None:
        return None if self._board_version == known_version else (self._board_version, dict(self._board))

    async def write_override(self, name: str, value: bytes | None) -> None:
        self._put_on_board(name, value)

    def _put_on_board(self, name: str, value: bytes | None) -> None:
        if value is None:
            self._board.pop(name, None)
        elif len(self._board) < MAX_OVERRIDES or name in self._board:
            self._board[name] = value
        self._board_version += 1

    # -- answering -------------------------------------------------------------------------------------------------

    def answer_frames(self, frames: list[bytes]) -> bytes:
        parts = [messages.encode_frame(self._answer(messages.decode_request(frame))) for frame in frames]
        self._store.write_changes()
        return b"".join(parts)

    def _answer(self, message: messages.CounterRequest) -> messages.CounterReply:
        try:
            return messages.CounterReply(message.number, self._value(message))
        except RulesMismatch as problem:
            return messages.CounterReply(message.number, None, str(problem))

    def _value(self, message: messages.CounterRequest) -> Any:  # The value of an answer is known by its question.
        counters, now_ms = self._counters, self._store.now_ms()
        match message:
            case messages.TakeRequest():
                plan, ban = self._plan(message.plan)
                return messages.encode_result(counters.take(StoreCall(message.id, plan, plan.charges, ban), now_ms))
            case messages.ReleaseRequest():
                if not counters.release(message.id, now_ms):
                    for table, key in self._slots(message.slots):
                        table.release(key, message.id)
                return None
            case messages.RenewRequest():
                return sum(self._renew(request_id, slots, now_ms) for request_id, slots in message.held)
            case messages.RefundRequest():
                return counters.refund(message.id, now_ms, is_fault=message.is_fault)
            case messages.UndoRequest():
                # What secondary limits were charged stays: a caller may be refused for it, and never gets more.
                counters.refund(message.id, now_ms, is_fault=False)
                counters.release(message.id, now_ms)
                return None
            case messages.AddUsageRequest():
                counters.add_usage(self._charges(message.charges), message.amount, now_ms)
                return None
            case messages.PeekRequest():
                charges = self._charges(message.charges)
                return [[reading.used, reading.end_ms] for reading in counters.peek(charges, now_ms)]
            case messages.ResetRequest():
                counters.reset(self._charges(message.charges))
                return None
            case messages.BanRequest():
                counters.ban(message.subject, message.until_ms)
                return None
            case messages.BanEndRequest():
                record = counters.bans.get(message.subject)
                return record.banned_until_ms if record is not None and record.is_banned(now_ms) else 0
            case messages.ReadOverridesRequest():
                is_known = message.known_version == self._board_version
                return None if is_known else [self._board_version, self._board]
            case messages.WriteOverrideRequest():
                self._put_on_board(message.name, message.value)
                return None
            case messages.HelloRequest():
                return None

    def _renew(self, request_id: str, slots: list[tuple[str, str]], now_ms: int) -> int:
        if self._counters.is_running(request_id):
            return self._counters.renew([request_id], now_ms)
        return sum(table.renew(key, request_id, now_ms) for table, key in self._slots(slots))

    def _slots(self, slots: list[tuple[str, str]]) -> list[tuple[ConcurrencyLeases, str]]:
        tables = self._counters.tables
        return [(table, key) for name, key in slots if isinstance(table := tables.get(name), ConcurrencyLeases)]

    def _plan(self, packed: bytes) -> tuple[ChargePlan, BanRules]:
        if self._plans_of != self._counters.rules_version or len(self._plans) >= MAX_CACHED_PLANS:
            self._plans_of, self._plans = self._counters.rules_version, {}
        found = self._plans.get(packed)
        if found is None:
            told = messages.decode_plan(packed)
            charges = self._charges(told.charges)
            plan = ChargePlan(
                endpoint="",
                interface=Interface.REST,
                resource="",
                bucket_charge=charges[0] if told.bucket_charge is None else self._charge(told.bucket_charge),
                charges=charges,
                meter_charges=(),
                lease_indexes=told.lease_indexes,
                ban_subject=told.ban_subject,
                is_ban_shadow=told.is_ban_shadow,
                is_free=told.bucket_charge is not None,
                bounded_indexes=told.bounded_indexes,
                max_objects=None,
                is_cost_hidden=False,
            )
            found = self._plans[packed] = (plan, told.ban_rules)
        return found

    def _charges(self, told: tuple[messages.WireCharge, ...] | list[messages.WireCharge]) -> tuple[Charge, ...]:
        return tuple(map(self._charge, told))

    def _charge(self, told: messages.WireCharge) -> Charge:
        rule = self._counters.get_rule(told.name)
        if rule is None:
            raise RulesMismatch(f"there is no rule {told.name} where counters are: rules are being changed")
        return Charge(
            rule,
            rule.name,  # One text for all keys of it.
            told.key,
            told.ceiling,
            told.cost,
            told.required,
            told.is_enforced,
            told.overflow_key,
            told.owner,
        )


class _Neighbour(asyncio.Protocol):
    def __init__(self, place: CounterServer) -> None:
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
            frames = list(messages.split_frames(self._buffer))
            if frames:
                self._transport.write(self._place.answer_frames(frames))
        except (messages.FrameTooLong, msgspec.DecodeError) as problem:
            log.warning("a neighbour sent what is not understood, and is cut off: %s", problem)
            self._transport.close()
