"""The process that holds the counters of a machine: a Unix socket in front of the store in memory.

A reply is sent only after the change that it reports is in the change log. `Counters` makes all decisions.
"""

import asyncio
import logging
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
from wharf.limits.stores.port import UnsuitableStore
from wharf.world.framing import FrameDecoder, FrameTooLong, encode_frame
from wharf.world.unix_sockets import bind_private_socket, is_listening

log = logging.getLogger(__name__)

MAX_CACHED_PLANS: Final = 16_384
"""Limits the memory for decoded charge plans; a full cache is cleared."""
MAX_OVERRIDES: Final = 200_000
"""Limits the memory for overrides; further ones are ignored."""


class RulesMismatch(Exception):
    """A neighbour uses a rule that the counter server does not have: one of the two has not reloaded its rules yet."""


class CounterServer:
    """Serves the counters of this process to other processes of the machine."""

    def __init__(self, store: MemoryStore, path: Path) -> None:
        self.connections: Final[set[asyncio.Transport]] = set()
        self._store = store
        self._counters = store.counters
        self._path = path
        self._server: asyncio.Server | None = None
        self._is_closed = False
        self._plans: dict[bytes, tuple[ChargePlan, BanRules]] = {}
        self._plans_version = -1
        self._overrides: dict[str, bytes] = {}
        self._overrides_version = 0

    async def open(self) -> None:
        """Start to listen on the socket. Raises `UnsuitableStore` if another process already listens there."""
        if is_listening(self._path):
            raise UnsuitableStore(f"another counter server already listens at {self._path}")
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: _NeighbourConnection(self), sock=bind_private_socket(self._path)
        )
        if isinstance(self._counters, TrackedCounters):
            self._counters.on_change = lambda: asyncio.get_running_loop().call_soon(self._store.write_changes)

    async def close(self) -> None:
        """Stop listening, remove the socket and close all connections."""
        self._is_closed = True
        if isinstance(self._counters, TrackedCounters):
            self._counters.on_change = None
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        for transport in list(self.connections):
            transport.close()

    def on_connected(self, transport: asyncio.Transport) -> None:
        """Track a new connection, or close it if the server was closed while the connection was accepted.

        Otherwise the neighbour would get replies for charges that are never saved.
        """
        if self._is_closed:
            transport.close()
            return
        self.connections.add(transport)

    # -- overrides of operators ---------------------------------------------------------------------------------

    async def read_overrides(self, known_version: int) -> tuple[int, Mapping[str, bytes]] | None:
        return None if self._overrides_version == known_version else (self._overrides_version, dict(self._overrides))

    async def write_override(self, name: str, value: bytes | None) -> None:
        self._set_override(name, value)

    def _set_override(self, name: str, value: bytes | None) -> None:
        """Store an override, or delete it if `value` is `None`, and increase the version.

        A new override beyond `MAX_OVERRIDES` is ignored.
        """
        if value is None:
            self._overrides.pop(name, None)
        elif len(self._overrides) < MAX_OVERRIDES or name in self._overrides:
            self._overrides[name] = value
        self._overrides_version += 1

    # -- replies -------------------------------------------------------------------------------------------------

    def execute_frames(self, frames: list[bytes]) -> bytes:
        """Execute the requests in these frames, write the changes to the change log, and return the encoded replies."""
        parts = [encode_frame(self._build_reply(messages.decode_request(frame))) for frame in frames]
        self._store.write_changes()
        return b"".join(parts)

    def _build_reply(self, message: messages.CounterRequest) -> messages.CounterReply:
        """Execute one request and return its reply, with an error if the rules of both processes differ."""
        try:
            return messages.CounterReply(message.number, self._execute(message))
        except RulesMismatch as problem:
            return messages.CounterReply(message.number, None, str(problem))

    def _execute(self, message: messages.CounterRequest) -> Any:  # The type of the value depends on the request.
        """Execute one request and return the value for its reply. Raises `RulesMismatch`."""
        counters, now_ms = self._counters, self._store.now_ms()
        match message:
            case messages.TakeRequest():
                plan, ban = self._get_plan(message.plan)
                return messages.encode_result(counters.take(StoreCall(message.id, plan, plan.charges, ban), now_ms))
            case messages.ReleaseRequest():
                if not counters.release(message.id, now_ms):
                    for table, key in self._find_leases(message.slots):
                        table.release(key, message.id)
                return None
            case messages.RenewRequest():
                return sum(self._renew(request_id, slots, now_ms) for request_id, slots in message.held)
            case messages.RefundRequest():
                return counters.refund(message.id, now_ms, is_fault=message.is_fault)
            case messages.UndoRequest():
                # Secondary charges stay: the caller may be refused earlier, but never exceeds a limit.
                counters.refund(message.id, now_ms, is_fault=False)
                counters.release(message.id, now_ms)
                return None
            case messages.AddUsageRequest():
                counters.add_usage(self._build_charges(message.charges), message.amount, now_ms)
                return None
            case messages.PeekRequest():
                charges = self._build_charges(message.charges)
                return [[reading.used, reading.end_ms] for reading in counters.peek(charges, now_ms)]
            case messages.ResetRequest():
                counters.reset(self._build_charges(message.charges))
                return None
            case messages.BanRequest():
                counters.ban(message.subject, message.until_ms)
                return None
            case messages.BanEndRequest():
                return counters.bans.get_end_ms(message.subject, now_ms)
            case messages.ReadOverridesRequest():
                is_known = message.known_version == self._overrides_version
                return None if is_known else [self._overrides_version, self._overrides]
            case messages.WriteOverrideRequest():
                self._set_override(message.name, message.value)
                return None
            case messages.HelloRequest():
                return None

    def _renew(self, request_id: str, slots: list[tuple[str, str]], now_ms: int) -> int:
        """Extend the concurrency leases of a request, even if it began before this process was restarted.

        `slots` are the rule name and counter key of each lease. Return the number of leases that became active again.
        """
        if self._counters.is_running(request_id):
            return self._counters.renew([request_id], now_ms)
        return sum(table.renew(key, request_id, now_ms) for table, key in self._find_leases(slots))

    def _find_leases(self, slots: list[tuple[str, str]]) -> list[tuple[ConcurrencyLeases, str]]:
        """Return the lease table and the key of each slot, which is given by rule name and key. Unknown rules are skipped."""
        tables = self._counters.tables
        return [(table, key) for name, key in slots if isinstance(table := tables.get(name), ConcurrencyLeases)]

    def _get_plan(self, encoded_plan: bytes) -> tuple[ChargePlan, BanRules]:
        """Return the charge plan and the ban rules of an encoded plan, from the cache unless the rules changed.

        Raises `RulesMismatch` if the plan names an unknown rule.
        """
        if self._plans_version != self._counters.rules_version or len(self._plans) >= MAX_CACHED_PLANS:
            self._plans_version, self._plans = self._counters.rules_version, {}
        cached = self._plans.get(encoded_plan)
        if cached is None:
            wire_plan = messages.decode_plan(encoded_plan)
            charges = self._build_charges(wire_plan.charges)
            plan = ChargePlan(
                endpoint="",
                interface=Interface.REST,
                resource="",
                bucket_charge=charges[0]
                if wire_plan.bucket_charge is None
                else self._build_charge(wire_plan.bucket_charge),
                charges=charges,
                meter_charges=(),
                lease_indexes=wire_plan.lease_indexes,
                ban_subject=wire_plan.ban_subject,
                is_ban_shadow=wire_plan.is_ban_shadow,
                is_free=wire_plan.bucket_charge is not None,
                overflow_key_indexes=wire_plan.overflow_key_indexes,
                max_objects=None,
                is_cost_hidden=False,
            )
            cached = self._plans[encoded_plan] = (plan, wire_plan.ban_rules)
        return cached

    def _build_charges(
        self, wire_charges: tuple[messages.WireCharge, ...] | list[messages.WireCharge]
    ) -> tuple[Charge, ...]:
        return tuple(map(self._build_charge, wire_charges))

    def _build_charge(self, wire_charge: messages.WireCharge) -> Charge:
        """Return a received charge with its rule. Raises `RulesMismatch` if this process has no rule with that name."""
        rule = self._counters.get_rule(wire_charge.name)
        if rule is None:
            raise RulesMismatch(f"the counter server has no rule {wire_charge.name}: it has not reloaded its rules yet")
        return Charge(
            rule,
            rule.name,  # Share one string object for all keys of the rule.
            wire_charge.key,
            wire_charge.ceiling,
            wire_charge.cost,
            wire_charge.required,
            wire_charge.is_enforced,
            wire_charge.overflow_key,
            wire_charge.owner,
        )


class _NeighbourConnection(asyncio.Protocol):
    """A connection from a neighbour process to the counter server."""

    def __init__(self, server: CounterServer) -> None:
        self._counter_server = server
        self._frames = FrameDecoder(messages.MAX_FRAME_BYTES)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # A stream's transport is one.
        self._counter_server.on_connected(self._transport)

    def connection_lost(self, _problem: Exception | None) -> None:
        if self._transport is not None:
            self._counter_server.connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        """Execute complete requests and send the replies. Close the connection if the data is invalid."""
        assert self._transport is not None
        try:
            frames = self._frames.feed(data)
            if frames:
                self._transport.write(self._counter_server.execute_frames(frames))
        except (FrameTooLong, msgspec.DecodeError) as problem:
            log.warning("closing neighbour connection: invalid message error=%s", problem)
            self._transport.close()
