"""Encodes calls for the Redis script, decodes its results, and names the keys of the counters.

All keys of one owner carry the owner as hash tag, so they are on one node of a cluster. Keys hold no ceiling and no
window. Encoded charge plans are cached, because the same plan is used many times.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from wharf.limits.core.caches import BoundedCache
from wharf.limits.core.plans import Charge, ChargePlan, build_shared_key
from wharf.limits.core.route import OTHER_NAME
from wharf.limits.core.rule import Algorithm, BanRules, Rule
from wharf.limits.core.store_calls import StoreCall, TakeResult

MAX_CACHED_PLANS: Final = 16_384
"""Limits the memory for encoded charge plans; the oldest entries of a full cache are removed."""

_FORMAT_CODES: Final[Mapping[Algorithm, str]] = {
    Algorithm.WINDOW: "W",
    Algorithm.SLICES: "S",
    Algorithm.METER: "M",
    Algorithm.LEASES: "L",
}
_pack: Final = msgspec.msgpack.Encoder().encode


class CallPart(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The part of a store call that one Redis node executes, encoded for the Lua script."""

    owner: str
    """The owner of the counters, whose hash tag selects the node."""
    indexes: tuple[int, ...]
    """The indexes of its charges in the call."""
    plan: msgspec.Raw
    """The encoded charges with the ban rules, for charging."""
    charges: msgspec.Raw
    """The encoded charges alone, for undoing."""
    has_bucket: bool
    """Whether the bucket that the headers report is on this node."""


class CallEncoder:
    """Encodes store calls for the Lua script, and names Redis keys. On a cluster (`is_cluster`) a call has one part per owner; otherwise it has one part."""

    def __init__(self, prefix: str, *, is_cluster: bool) -> None:
        self._prefix = prefix
        self.is_cluster: Final = is_cluster
        self._parts_by_plan: BoundedCache[ChargePlan, tuple[CallPart, ...]] = BoundedCache(MAX_CACHED_PLANS)

    def clear_cache(self) -> None:
        self._parts_by_plan.clear()

    # -- keys ------------------------------------------------------------------------------------------------------

    def build_result_key(self, owner: str, request_id: str) -> str:
        """Return the Redis key under which the result of a request is stored for repeated calls."""
        return f"{self._prefix}{{{owner}}}?{request_id}"

    def build_refund_mark_key(self, owner: str, request_id: str) -> str:
        """Return the Redis key that exists once a request is refunded, so that it is not refunded twice."""
        return f"{self._prefix}{{{owner}}}<{request_id}"

    def build_ban_key(self, subject: str) -> str:
        return f"{self._prefix}{{{subject}}}!"

    def build_rules_key(self) -> str:
        return f"{self._prefix}{{rules}}"

    def build_overrides_key(self) -> str:
        return f"{self._prefix}{{operators}}"

    def build_counter_key(self, rule: Rule, key: str, owner: str) -> tuple[str, str]:
        """Return the Redis key of a counter, and its field in the hash at that key; concurrency leases have no field.

        `key` is the counter key, which starts with the owner.
        """
        suffix = key[len(owner) + 1 :]
        if rule.algorithm is Algorithm.LEASES:
            return f"{self._prefix}{{{owner}}}#{rule.name} {suffix}", ""
        if rule.is_partitioned:
            return f"{self._prefix}{{{owner}}}/{rule.name}", suffix
        return f"{self._prefix}{{{owner}}}", rule.name

    def list_lease_keys(self, call: StoreCall) -> Sequence[str]:
        """Return the Redis key of each concurrency lease of a call."""
        charges = (call.charges[index] for index in call.plan.lease_indexes)
        return [self.build_counter_key(charge.rule, charge.key, charge.owner)[0] for charge in charges]

    # -- encoding calls -----------------------------------------------------------------------------------

    def encode_charge(self, charge: Charge) -> list[Any]:
        """Return a charge as the list that the Lua script reads."""
        rule = charge.rule
        key, field = self.build_counter_key(rule, charge.key, charge.owner)
        width_ms = -(-rule.window_ms // rule.slices)
        retention_ms = width_ms * (rule.slices if rule.algorithm is Algorithm.METER else rule.slices + 1)
        has_max_keys = rule.is_partitioned and bool(rule.keys_most) and rule.algorithm is not Algorithm.LEASES
        is_renamed = rule.was is not None and not rule.is_partitioned
        return [
            _FORMAT_CODES[rule.algorithm],
            key,
            field,
            rule.window_ms,
            width_ms,
            retention_ms,
            charge.ceiling,
            charge.cost,
            charge.required,
            charge.is_enforced,
            rule.keys_most if has_max_keys else 0,
            OTHER_NAME if has_max_keys else "",
            rule.was if is_renamed else "",
        ]

    def encode_charges(self, charges: Iterable[Charge]) -> list[list[Any]]:
        return [self.encode_charge(charge) for charge in charges]

    @staticmethod
    def encode_ban_rules(ban: BanRules) -> list[int]:
        """Return the ban rules as the list that the Lua script reads."""
        return [
            *(ban.refusals_least, ban.percent, ban.minutes, ban.grace_ms),
            *(ban.first_ms, ban.most_ms, ban.forget_ms),
        ]

    def split_call(self, call: StoreCall) -> tuple[CallPart, ...]:
        """Return the parts of a call, one for each Redis node that must execute it.

        They come from the cache unless a grant changes a ceiling.
        """
        plan = call.plan
        if call.charges is not plan.charges:
            return self._make_parts(call)  # A grant changes a ceiling temporarily.
        parts = self._parts_by_plan.get(plan)
        if parts is None:
            parts = self._parts_by_plan.store(plan, self._make_parts(call))
        return parts

    def _make_parts(self, call: StoreCall) -> tuple[CallPart, ...]:
        """Return the encoded parts of a call: one for each owner on a cluster, otherwise one.

        The owner of the primary bucket always has a part, because the bucket is read even if nothing is charged to it.
        """
        plan = call.plan
        bucket_charge = call.charges[0] if not plan.is_free else plan.bucket_charge
        by_owner: dict[str, list[int]] = {}
        for index, charge in enumerate(call.charges):
            by_owner.setdefault(charge.owner if self.is_cluster else bucket_charge.owner, []).append(index)
        by_owner.setdefault(bucket_charge.owner, [])
        return tuple(self._make_part(call, owner, indexes, bucket_charge) for owner, indexes in by_owner.items())

    def _make_part(self, call: StoreCall, owner: str, indexes: list[int], bucket_charge: Charge) -> CallPart:
        """Return the encoded part of a call with the charges at these indexes.

        The part of the bucket's owner also says which charge is the bucket: its position from 1, or the charge itself if
        the request is free of charge.
        """
        plan = call.plan
        charges = self.encode_charges(call.charges[index] for index in indexes)
        has_bucket = owner == bucket_charge.owner
        bucket: Any = 0
        if has_bucket:
            bucket = self.encode_charge(bucket_charge) if plan.is_free else indexes.index(0) + 1
        ban_key = "" if self.is_cluster else self.build_ban_key(plan.ban_subject)
        packed = _pack(
            [charges, ban_key, not plan.is_ban_shadow, self.encode_ban_rules(call.ban_rules), bucket, not plan.is_free],
        )
        return CallPart(owner, tuple(indexes), msgspec.Raw(packed), msgspec.Raw(_pack(charges)), has_bucket)


# -- decoding results -----------------------------------------------------------------------------------------


def decode_result(call: StoreCall, value: Sequence[Any], *, is_repeated: bool) -> TakeResult:
    """Return the result of a call from the reply of the Lua script, for a call that one node executed."""
    (
        is_admitted,
        now_ms,
        counts_before,
        hits,
        free_at_ms,
        overflow_indexes,
        bucket_count_before,
        bucket_end_ms,
        banned_until_ms,
    ) = value
    return TakeResult(
        is_admitted,
        now_ms,
        tuple(counts_before),
        tuple(hits),
        tuple(free_at_ms),
        _list_keys(call, overflow_indexes) if overflow_indexes else (),
        bucket_count_before,
        bucket_end_ms,
        banned_until_ms,
        is_repeated,
    )


def _list_keys(call: StoreCall, overflow_indexes: Sequence[int]) -> tuple[str, ...]:
    """Return the counter key of each charge; at `overflow_indexes` it is the key that the owner's further counters share."""
    return tuple(
        build_shared_key(charge.owner) if index in overflow_indexes else charge.key
        for index, charge in enumerate(call.charges)
    )


def merge_results(call: StoreCall, results: Sequence[tuple[CallPart, Sequence[Any]]]) -> TakeResult:
    """Return the result of a call from the replies of the nodes that executed its parts.

    It is admitted if all parts are. Positions in a reply are those in its part, so they are mapped to the whole call.
    """
    counts_before = [0] * len(call.charges)
    hits: list[tuple[int, int]] = []
    overflow_indexes: list[int] = []
    for part, result in results:
        for index, before in zip(part.indexes, result[2], strict=True):
            counts_before[index] = before
        hits += [(part.indexes[position], free_ms) for position, free_ms in zip(result[3], result[4], strict=True)]
        overflow_indexes += [part.indexes[position] for position in result[5]]
    hits.sort()
    (bucket_result,) = [result for part, result in results if part.has_bucket]
    return TakeResult(
        all(result[0] for _, result in results),
        max(result[1] for _, result in results),
        tuple(counts_before),
        tuple(index for index, _ in hits),
        tuple(free_ms for _, free_ms in hits),
        _list_keys(call, overflow_indexes) if overflow_indexes else (),
        bucket_result[6],
        bucket_result[7],
        max(result[8] for _, result in results),
    )
