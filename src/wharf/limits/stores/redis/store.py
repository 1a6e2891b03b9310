"""The port of stores over Redis: which calls a request needs there, and what the answers come to.

On a cluster the owners of one request may lie apart: then each is asked in turn, and what was charged is taken back when
a later one refuses. A caller may meanwhile be refused wrongly, and is never admitted above a limit.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from wharf.limits.core.counting.counters import MAX_FAULT_REFUNDS_PERCENT
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

MAX_REMEMBERED_RESULTS: Final = 32_768
RULES_TTL_MS: Final = 15_000
_pack: Final = msgspec.msgpack.Encoder().encode


class RedisStore:
    """`clock` gives milliseconds to tests and simulations; by default the server's own time counts."""

    def __init__(
        self, world: World, rules: RuleSet, settings: RedisSettings, *, clock: Callable[[], int] | None = None
    ) -> None:
        self.link: Final = RedisLink(settings)
        self.batches: Final = OperationBatches(self.link, settings, world, clock)
        self.rule_hashes = 1
        """How many different rules count on this store; more than one is a fault of a deployment."""
        self._world = world
        self._packing = CallEncoder(settings.prefix, is_cluster=settings.kind is RedisKind.CLUSTER)
        self._ban_rules: BanRules = rules.ban
        self._rules_hash = hash_rules(rules)
        self._running: dict[str, tuple[StoreCall, TakeResult]] = {}
        self._ended: dict[str, tuple[StoreCall, TakeResult]] = {}
        self._ended_before: dict[str, tuple[StoreCall, TakeResult]] = {}

    async def open(self, *, can_be_away: bool = False) -> bool:
        """Connect. Raises StoreRefused when this Redis may not hold counters, and StoreLost unless it `may_be_away`: then
        whoever asks it must bear that. Whether it is there."""
        try:
            await self.link.open()
            await self.check()
        except StoreUnavailable:
            if can_be_away:
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
        """Look whether Redis answers, whether it is the same one, and who else counts there by which rules."""
        await self.link.check_server()
        now_ms = self._world.now_ns() // 1_000_000
        self.rule_hashes = await self.link.record_rules(
            self._packing.build_rules_key(), self._rules_hash, now_ms, RULES_TTL_MS
        )

    # -- deciding --------------------------------------------------------------------------------------------------

    async def take(self, call: StoreCall) -> TakeResult:
        return await asyncio.shield(self.start_take(call))

    def start_take(self, call: StoreCall) -> "asyncio.Future[TakeResult]":
        """`take` for those who may leave before it ends: it goes on without them."""
        known = self._find(call.id)
        if known is not None:
            repeated: asyncio.Future[TakeResult] = asyncio.get_running_loop().create_future()
            repeated.set_result(msgspec.structs.replace(known[1], is_repeated=True))
            return repeated
        parts = self._packing.split_call(call)
        if self._packing.is_cluster:
            return self._world.start_task(self._take_apart(call, parts), name="limits: ask several nodes")
        part = parts[0]

        def finish(answer: Sequence[Any]) -> TakeResult:
            is_repeated, told = answer
            if told == "undone":
                raise StoreUnavailable(f"request {call.id} was given up before")
            taken = decode_result(call, told, is_repeated=bool(is_repeated))
            if taken.is_admitted:
                self._running[call.id] = (call, taken)
            return taken

        op, key = self._take_op(call.id, part)
        return self.batches.send_operation(op, key, finish=finish)

    def _take_op(
        self, request_id: str, part: CallPart, *, only_look: bool = False, banned_ms: int = 0
    ) -> tuple[bytes, str]:
        key = self._packing.build_answer_key(part.owner, request_id)
        return _pack(["t", request_id, key, part.plan, only_look, banned_ms]), key

    async def _take_apart(self, call: StoreCall, parts: Sequence[CallPart]) -> TakeResult:
        plan = call.plan
        ban_key = self._packing.build_ban_key(plan.ban_subject)
        banned_ms = int(await self._ask(["i", ban_key], ban_key, plan.ban_subject))
        is_refused = banned_ms > 0 and not plan.is_ban_shadow
        answers: list[tuple[CallPart, Sequence[Any]]] = []
        charged: list[CallPart] = []
        repeats = 0
        for part in parts:
            op, key = self._take_op(call.id, part, only_look=is_refused, banned_ms=banned_ms)
            is_repeated, told = await self.batches.send_operation(op, key, node=part.owner)
            if told == "undone":
                raise StoreUnavailable(f"request {call.id} was given up before")
            repeats += bool(is_repeated)
            answers.append((part, told))
            if told[0]:
                charged.append(part)
            elif not is_refused:
                is_refused = True
        taken = merge_results(call, answers)
        if taken.is_admitted:
            self._running[call.id] = (call, taken)
        else:
            for part in charged:
                await self._undo_part(call.id, part)
            await self._note_refusal(call, taken, ban_key)
        return msgspec.structs.replace(taken, is_repeated=repeats == len(parts))

    async def _note_refusal(self, call: StoreCall, taken: TakeResult, ban_key: str) -> None:
        waits = [
            (free_ms, call.charges[index].ceiling)
            for index, free_ms in zip(taken.hit_indexes, taken.free_at_ms, strict=True)
            if call.charges[index].is_enforced and call.charges[index].required <= call.charges[index].ceiling
        ]
        if taken.banned_until_ms or call.plan.is_free or not waits:
            return
        wait_until_ms, ceiling = max(waits)
        rules = self._packing.encode_ban_rules(call.ban_rules)
        await self._ask(["o", ban_key, rules, wait_until_ms, ceiling], ban_key, call.plan.ban_subject)

    async def undo(self, call: StoreCall) -> None:
        """Take back all that this id was charged, if it was; it is never charged after this. Asking twice is safe."""
        self._running.pop(call.id, None)
        for part in self._packing.split_call(call):
            await self._undo_part(call.id, part)

    async def _undo_part(self, request_id: str, part: CallPart) -> None:
        key = self._packing.build_answer_key(part.owner, request_id)
        await self._ask(["u", request_id, key, part.charges], key, part.owner, settles=True)

    async def _ask(self, op: list[Any], key: str, owner: str, *, settles: bool = False) -> Any:
        """One question to the node of one owner, which is not cancelled with whoever asks."""
        node = owner if self._packing.is_cluster else ""
        return await asyncio.shield(self.batches.send_operation(_pack(op), key, node=node, is_settling=settles))

    # -- the end of requests ---------------------------------------------------------------------------------------

    def _find(self, request_id: str) -> tuple[StoreCall, TakeResult] | None:
        return self._running.get(request_id) or self._ended.get(request_id) or self._ended_before.get(request_id)

    async def release(self, request_id: str) -> None:
        for asked in self.start_release(request_id):
            await asyncio.shield(asked)

    def start_release(self, request_id: str) -> "list[asyncio.Future[Any]]":
        """`release` for those who do not wait until the slot is free."""
        found = self._running.pop(request_id, None)
        if found is None:
            return []
        if len(self._ended) >= MAX_REMEMBERED_RESULTS:
            self._ended_before, self._ended = self._ended, {}
        self._ended[request_id] = found
        call = found[0]
        if not call.plan.lease_indexes:
            return []
        if self._packing.is_cluster:
            by_owner = self._leases_by_owner(call).items()
            return [
                self.batches.send_operation(_pack(["r", call.id, keys]), keys[0], node=owner, is_settling=True)
                for owner, keys in by_owner
            ]
        keys = self._packing.list_lease_keys(call)
        return [self.batches.send_operation(_pack(["r", call.id, keys]), keys[0], is_settling=True)]

    def _leases_by_owner(self, call: StoreCall) -> dict[str, list[str]]:
        keys: dict[str, list[str]] = {}
        for index, key in zip(call.plan.lease_indexes, self._packing.list_lease_keys(call), strict=True):
            keys.setdefault(call.charges[index].owner if self._packing.is_cluster else "", []).append(key)
        return keys

    async def renew(self, request_ids: Iterable[str]) -> int:
        asked = []
        for request_id in request_ids:
            found = self._running.get(request_id)
            for owner, keys in self._leases_by_owner(found[0]).items() if found is not None else ():
                asked.append(self._ask(["n", request_id, keys], keys[0], owner))
        return sum(await asyncio.gather(*asked))

    async def refund(self, request_id: str, reason: RefundReason) -> bool:
        found = self._find(request_id)
        if found is None or not found[1].is_admitted or found[0].plan.is_free:
            return False
        call, taken = found
        charge = call.charges[0]
        key, field = self._packing.build_counter_key(
            charge.rule, taken.keys[0] if taken.keys else charge.key, charge.owner
        )
        most = charge.ceiling * MAX_FAULT_REFUNDS_PERCENT // 100 if reason is RefundReason.FAULT else -1
        mark = self._packing.build_mark_key(charge.owner, request_id)
        op = ["g", mark, key, field, charge.cost, taken.bucket_end_ms, most]
        return bool(await self._ask(op, key, charge.owner, settles=True))

    # -- quota taken for later -------------------------------------------------------------------------------------

    def take_now(self, _call: StoreCall) -> TakeResult | None:
        """Nothing is decided without Redis."""
        return None

    def record_admission(self, call: StoreCall, taken: TakeResult) -> None:
        """A request was admitted by quota that had been charged before: it may give back like any other."""
        self._running[call.id] = (call, taken)

    async def return_quota(self, charge: Charge, amount: int, end_ms: int, lease_id: str) -> bool:
        """Return quota that was not used, once, into the window that it came from."""
        key, field = self._packing.build_counter_key(charge.rule, charge.key, charge.owner)
        mark = f"{self._packing.build_mark_key(charge.owner, lease_id)} {charge.name}"
        return bool(await self._ask(["g", mark, key, field, amount, end_ms, -1], key, charge.owner, settles=True))

    # -- beside requests -------------------------------------------------------------------------------------------

    async def _ask_by_owner(self, name: str, charges: Sequence[Charge], *rest: int) -> list[tuple[Charge, Any]]:
        by_owner: dict[str, list[Charge]] = {}
        for charge in charges:
            by_owner.setdefault(charge.owner if self._packing.is_cluster else "", []).append(charge)
        told: list[tuple[Charge, Any]] = []
        for owner, some in by_owner.items():
            packed = self._packing.encode_charges(some)
            answer = await self._ask([name, packed, *rest], packed[0][1], owner)
            told += zip(some, answer if isinstance(answer, list) else [None] * len(some), strict=True)
        return told

    async def add_usage(self, charges: Iterable[Charge], amount: int) -> None:
        if amount:
            await self._ask_by_owner("s", tuple(charges), amount)

    async def peek(self, charges: Iterable[Charge]) -> tuple[CounterReading, ...]:
        charges = tuple(charges)
        readings = {id(charge): CounterReading(*told) for charge, told in await self._ask_by_owner("p", charges)}
        return tuple(readings[id(charge)] for charge in charges)

    async def reset(self, charges: Iterable[Charge]) -> None:
        await self._ask_by_owner("z", tuple(charges))

    async def ban(self, subject: str, until_ms: int) -> None:
        key = self._packing.build_ban_key(subject)
        await self._ask(["b", key, until_ms, self._packing.encode_ban_rules(self._ban_rules)], key, subject)

    async def get_ban_end_ms(self, subject: str) -> int:
        key = self._packing.build_ban_key(subject)
        return int(await self._ask(["i", key], key, subject))

    # -- what operators leave for all processes --------------------------------------------------------------------

    async def read_overrides(self, known_version: int) -> tuple[int, Mapping[str, bytes]] | None:
        return await self.link.read_overrides(self._packing.build_overrides_key(), known_version)

    async def write_override(self, name: str, value: bytes | None) -> None:
        await self.link.write_override(self._packing.build_overrides_key(), name, value)

    async def set_rules(self, rules: RuleSet) -> None:
        self._ban_rules = rules.ban
        self._rules_hash = hash_rules(rules)
        self._packing.clear_cache()
