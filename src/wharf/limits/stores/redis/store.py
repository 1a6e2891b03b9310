"""The store on Redis: which operations a call needs, and what their results mean.

On a cluster the counters of one request can be on several nodes. They are charged one after the other, and the charges
are undone if a later node refuses. Meanwhile another request of the caller may be refused wrongly, but no limit is
exceeded.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from wharf.limits.core.counting.bans import find_ban_wait
from wharf.limits.core.counting.counters import MAX_FAULT_REFUNDS_PERCENT, Counters
from wharf.limits.core.counting.recent_results import RecentCall, RecentResults
from wharf.limits.core.plans import Charge
from wharf.limits.core.rule import BanRules, RuleSet
from wharf.limits.core.rulebook import hash_rules
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult
from wharf.limits.stores.port import RefundReason, StoreUnavailable
from wharf.limits.stores.redis.batches import OperationBatches
from wharf.limits.stores.redis.link import RedisLink
from wharf.limits.stores.redis.packing import CallEncoder, CallPart, decode_result, merge_results
from wharf.limits.stores.redis.settings import RedisKind, RedisSettings
from wharf.world import World

RULES_TTL_MS: Final = 15_000
"""How long the rules hash of a process is shown after its last check."""
_pack: Final = msgspec.msgpack.Encoder().encode


class RedisStore:
    """The store whose counters are on Redis.

    `clock` returns Unix milliseconds in tests and simulations; the default is the clock of the server.
    """

    def __init__(
        self, world: World, rules: RuleSet, settings: RedisSettings, *, clock: Callable[[], int] | None = None
    ) -> None:
        self.link: Final = RedisLink(settings)
        self.batches: Final = OperationBatches(self.link, settings, world, clock)
        self.rule_hashes = 1
        """The number of different rule sets that processes of this store use; more than 1 is a deployment error."""
        self._world = world
        self._encoder = CallEncoder(settings.prefix, is_cluster=settings.kind is RedisKind.CLUSTER)
        self._ban_rules: BanRules = rules.ban
        self._rules_hash = hash_rules(rules)
        self._results: Final = RecentResults()
        self._running: Final = self._results.running

    @property
    def local_counters(self) -> Counters | None:
        return None

    async def open(self, *, can_be_unavailable: bool = False) -> bool:
        """Connect to Redis. Return whether the server was reached.

        Raises `UnsuitableStore` if this Redis cannot be used, and `StoreUnavailable` unless
        `can_be_unavailable` is set; the caller must then handle the outage.
        """
        try:
            await self.link.open()
            await self.check()
        except StoreUnavailable:
            if can_be_unavailable:
                return False
            await self.link.close()
            raise
        except BaseException:
            await self.link.close()
            raise
        return True

    async def close(self) -> None:
        await self.batches.close()
        await self.link.close()

    async def check(self) -> None:
        """Check that Redis replies and is still the same server, and update the number of rule sets in use.

        Raises `StoreUnavailable` or `UnsuitableStore`.
        """
        await self.link.check_server()
        now_ms = self._world.now_ns() // 1_000_000
        self.rule_hashes = await self.link.record_rules(
            self._encoder.build_rules_key(), self._rules_hash, now_ms, RULES_TTL_MS
        )

    # -- deciding --------------------------------------------------------------------------------------------------

    async def take(self, call: StoreCall) -> TakeResult:
        return await asyncio.shield(self.start_take(call))

    def start_take(self, call: StoreCall) -> "asyncio.Future[TakeResult]":
        """Start to charge a request, and return a future for the result.

        The call continues even if the task that awaits it is cancelled. A repeated id gets the result of its first call.
        """
        earlier = self._results.find(call.id)
        if earlier is not None:
            repeated: asyncio.Future[TakeResult] = asyncio.get_running_loop().create_future()
            repeated.set_result(msgspec.structs.replace(earlier.result, is_repeated=True))
            return repeated
        parts = self._encoder.split_call(call)
        if self._encoder.is_cluster:
            return self._world.start_task(self._take_on_several_nodes(call, parts), name="limits: call several nodes")
        part = parts[0]

        def parse_result(reply: Sequence[Any]) -> TakeResult:
            """Return the decoded result, and store the call if it was admitted. Raises `StoreUnavailable` if it was undone."""
            is_repeated, value = reply
            if value == "undone":
                raise StoreUnavailable(f"request {call.id} was already undone")
            result = decode_result(call, value, is_repeated=bool(is_repeated))
            if result.is_admitted:
                self._running[call.id] = RecentCall(call, result)
            return result

        op, key = self._encode_take(call.id, part)
        return self.batches.send_operation(op, key, parse_result=parse_result)

    def _encode_take(
        self, request_id: str, part: CallPart, *, is_check_only: bool = False, banned_ms: int = 0
    ) -> tuple[bytes, str]:
        """Return the encoded operation that charges one part of a call, and the Redis key of its result.

        With `is_check_only`, counters are read and nothing is charged. `banned_ms` is the end of the caller's ban.
        """
        key = self._encoder.build_result_key(part.owner, request_id)
        return _pack(["t", request_id, key, part.plan, is_check_only, banned_ms]), key

    async def _take_on_several_nodes(self, call: StoreCall, parts: Sequence[CallPart]) -> TakeResult:
        """Charge the parts of a call on their nodes, one after the other, and return the result.

        If a part is refused or the caller is banned, the other parts are only checked, the charged ones are undone, and
        the refusal is recorded for bans.
        """
        plan = call.plan
        ban_key = self._encoder.build_ban_key(plan.ban_subject)
        banned_ms = int(await self._send(["i", ban_key], ban_key, plan.ban_subject))
        is_refused = banned_ms > 0 and not plan.is_ban_shadow
        part_results: list[tuple[CallPart, Sequence[Any]]] = []
        charged: list[CallPart] = []
        repeats = 0
        for part in parts:
            op, key = self._encode_take(call.id, part, is_check_only=is_refused, banned_ms=banned_ms)
            is_repeated, value = await self.batches.send_operation(op, key, node=part.owner)
            if value == "undone":
                raise StoreUnavailable(f"request {call.id} was already undone")
            repeats += bool(is_repeated)
            part_results.append((part, value))
            if value[0]:
                charged.append(part)
            elif not is_refused:
                is_refused = True
        result = merge_results(call, part_results)
        if result.is_admitted:
            self._running[call.id] = RecentCall(call, result)
        else:
            for part in charged:
                await self._undo_part(call.id, part)
            await self._record_refusal(call, result, ban_key)
        return msgspec.structs.replace(result, is_repeated=repeats == len(parts))

    async def _record_refusal(self, call: StoreCall, result: TakeResult, ban_key: str) -> None:
        """Record a refusal in the ban record of the caller, which may be on another node than the limits."""
        wait = find_ban_wait(call, result.hit_indexes, result.free_at_ms)
        if result.banned_until_ms or wait is None:
            return
        wait_until_ms, ceiling = wait
        rules = self._encoder.encode_ban_rules(call.ban_rules)
        await self._send(["o", ban_key, rules, wait_until_ms, ceiling], ban_key, call.plan.ban_subject)

    async def undo(self, call: StoreCall) -> None:
        """Undo all charges of a call on all nodes. Its id is never charged again. A repeated undo does nothing."""
        self._running.pop(call.id, None)
        for part in self._encoder.split_call(call):
            await self._undo_part(call.id, part)

    async def _undo_part(self, request_id: str, part: CallPart) -> None:
        """Undo the charges of one part of a call on its node."""
        key = self._encoder.build_result_key(part.owner, request_id)
        await self._send(["u", request_id, key, part.charges], key, part.owner, is_settling=True)

    async def _send(self, op: list[Any], key: str, owner: str, *, is_settling: bool = False) -> Any:
        """Send one operation to the node of an owner and return its result. It is not cancelled with the calling task."""
        node = owner if self._encoder.is_cluster else ""
        return await asyncio.shield(self.batches.send_operation(_pack(op), key, node=node, is_settling=is_settling))

    # -- the end of requests ---------------------------------------------------------------------------------------

    async def release(self, request_id: str) -> None:
        for future in self.start_release(request_id):
            await asyncio.shield(future)

    def start_release(self, request_id: str) -> "list[asyncio.Future[Any]]":
        """Start to release the concurrency slots of a request, and return the futures of the operations that this needs."""
        entry = self._running.pop(request_id, None)
        if entry is None:
            return []
        self._results.remember_ended(entry)
        call = entry.call
        if not call.plan.lease_indexes:
            return []
        if self._encoder.is_cluster:
            by_owner = self._group_lease_keys(call).items()
            return [
                self.batches.send_operation(
                    _pack(["r", call.id, keys]), keys[0], node=owner, is_settling=True, can_wait=True
                )
                for owner, keys in by_owner
            ]
        keys = self._encoder.list_lease_keys(call)
        # The next request of this process is queued behind it, so a delay never refuses a caller whose slot is free.
        return [self.batches.send_operation(_pack(["r", call.id, keys]), keys[0], is_settling=True, can_wait=True)]

    def _group_lease_keys(self, call: StoreCall) -> dict[str, list[str]]:
        """Return the Redis keys of a call's concurrency leases by owner on a cluster, otherwise all under an empty text."""
        keys: dict[str, list[str]] = {}
        for index, key in zip(call.plan.lease_indexes, self._encoder.list_lease_keys(call), strict=True):
            keys.setdefault(call.charges[index].owner if self._encoder.is_cluster else "", []).append(key)
        return keys

    async def renew(self, request_ids: Iterable[str]) -> int:
        """Extend the concurrency leases of running requests. Return the number of expired ones that are active again."""
        renewals = []
        for request_id in request_ids:
            entry = self._running.get(request_id)
            for owner, keys in self._group_lease_keys(entry.call).items() if entry is not None else ():
                renewals.append(self._send(["n", request_id, keys], keys[0], owner))
        return sum(await asyncio.gather(*renewals))

    async def refund(self, request_id: str, reason: RefundReason) -> bool:
        """Refund the primary charge of a request to its window, once. Return whether it was refunded.

        Refunds because of 5xx replies are limited to a share of the ceiling.
        """
        entry = self._results.find(request_id)
        if entry is None or not entry.result.is_admitted or entry.call.plan.is_free:
            return False
        call, result = entry.call, entry.result
        charge = call.charges[0]
        key, field = self._encoder.build_counter_key(
            charge.rule, result.keys[0] if result.keys else charge.key, charge.owner
        )
        max_refunds = charge.ceiling * MAX_FAULT_REFUNDS_PERCENT // 100 if reason is RefundReason.FAULT else -1
        mark = self._encoder.build_refund_mark_key(charge.owner, request_id)
        op = ["g", mark, key, field, charge.cost, result.bucket_end_ms, max_refunds]
        return bool(await self._send(op, key, charge.owner, is_settling=True))

    def get_longest_wait_s(self) -> float:
        return self.batches.get_longest_wait_s()

    # -- quota leases -------------------------------------------------------------------------------------

    def take_now(self, _call: StoreCall) -> TakeResult | None:
        """Return `None`: this store cannot decide without Redis."""
        return None

    def record_admission(self, call: StoreCall, result: TakeResult) -> None:
        """Store a call that a quota lease admitted, so that it can be refunded and released."""
        self._running[call.id] = RecentCall(call, result)

    async def return_quota(self, charge: Charge, amount: int, end_ms: int, lease_id: str) -> bool:
        """Return the unused part of a quota lease to the window that it was charged to, once. Return whether it was returned.

        `end_ms` is the end of that window.
        """
        key, field = self._encoder.build_counter_key(charge.rule, charge.key, charge.owner)
        mark = f"{self._encoder.build_refund_mark_key(charge.owner, lease_id)} {charge.name}"
        return bool(await self._send(["g", mark, key, field, amount, end_ms, -1], key, charge.owner, is_settling=True))

    # -- beside requests -------------------------------------------------------------------------------------------

    async def _send_by_owner(self, name: str, charges: Sequence[Charge], *rest: int) -> list[tuple[Charge, Any]]:
        """Send the operation `name` for these charges, once to each node. Return each charge with its value in the reply.

        The value is `None` if the operation returns none. `rest` are further arguments of the operation.
        """
        by_owner: dict[str, list[Charge]] = {}
        for charge in charges:
            by_owner.setdefault(charge.owner if self._encoder.is_cluster else "", []).append(charge)
        replies: list[tuple[Charge, Any]] = []
        for owner, owner_charges in by_owner.items():
            encoded = self._encoder.encode_charges(owner_charges)
            reply = await self._send([name, encoded, *rest], encoded[0][1], owner)
            replies += zip(
                owner_charges, reply if isinstance(reply, list) else [None] * len(owner_charges), strict=True
            )
        return replies

    async def add_usage(self, charges: Iterable[Charge], amount: int) -> None:
        if amount:
            await self._send_by_owner("s", tuple(charges), amount)

    async def peek(self, charges: Iterable[Charge]) -> tuple[CounterReading, ...]:
        """Return the current values of these counters, in this order, without charging them."""
        charges = tuple(charges)
        readings = {id(charge): CounterReading(*counts) for charge, counts in await self._send_by_owner("p", charges)}
        return tuple(readings[id(charge)] for charge in charges)

    async def reset(self, charges: Iterable[Charge]) -> None:
        await self._send_by_owner("z", tuple(charges))

    async def ban(self, subject: str, until_ms: int) -> None:
        key = self._encoder.build_ban_key(subject)
        await self._send(["b", key, until_ms, self._encoder.encode_ban_rules(self._ban_rules)], key, subject)

    async def get_ban_end_ms(self, subject: str) -> int:
        key = self._encoder.build_ban_key(subject)
        return int(await self._send(["i", key], key, subject))

    # -- overrides of operators --------------------------------------------------------------------

    async def read_overrides(self, known_version: int) -> tuple[int, Mapping[str, bytes]] | None:
        return await self.link.read_overrides(self._encoder.build_overrides_key(), known_version)

    async def write_override(self, name: str, value: bytes | None) -> None:
        await self.link.write_override(self._encoder.build_overrides_key(), name, value)

    async def set_rules(self, rules: RuleSet) -> None:
        """Replace the ban rules and the hash of the rules, and clear the cache of encoded charge plans."""
        self._ban_rules = rules.ban
        self._rules_hash = hash_rules(rules)
        self._encoder.clear_cache()
