"""The form in which charges go to the script, and under which keys they are counted there.

All keys of one owner carry the owner as hash tag, so that they lie on one node of a cluster. A key holds no ceiling and
no window. What a plan comes to is packed once and remembered, for the same plan is met again and again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from wharf.limits.core.plans import Charge, ChargePlan, build_shared_key
from wharf.limits.core.route import OTHER
from wharf.limits.core.rule import Algorithm, BanRules, Rule
from wharf.limits.core.store_calls import StoreCall, TakeResult

MAX_CACHED_PLANS: Final = 16_384

_FORMS: Final[Mapping[Algorithm, str]] = {
    Algorithm.WINDOW: "W",
    Algorithm.SLICES: "S",
    Algorithm.METER: "M",
    Algorithm.LEASES: "L",
}
_pack: Final = msgspec.msgpack.Encoder().encode


class CallPart(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What of a call lies on one node: which of its charges, and the packed plan for the script."""

    owner: str
    indexes: tuple[int, ...]
    plan: msgspec.Raw
    charges: msgspec.Raw
    has_bucket: bool
    """The bucket that headers show is here."""


class CallEncoder:
    """`is_cluster`: owners lie apart; else all of a call is one part."""

    def __init__(self, prefix: str, *, is_cluster: bool) -> None:
        self._prefix = prefix
        self.is_cluster: Final = is_cluster
        self._parts: dict[ChargePlan, tuple[CallPart, ...]] = {}

    def clear_cache(self) -> None:
        self._parts.clear()

    # -- keys ------------------------------------------------------------------------------------------------------

    def build_answer_key(self, owner: str, request_id: str) -> str:
        return f"{self._prefix}{{{owner}}}?{request_id}"

    def build_mark_key(self, owner: str, request_id: str) -> str:
        return f"{self._prefix}{{{owner}}}<{request_id}"

    def build_ban_key(self, subject: str) -> str:
        return f"{self._prefix}{{{subject}}}!"

    def build_rules_key(self) -> str:
        return f"{self._prefix}{{rules}}"

    def build_overrides_key(self) -> str:
        return f"{self._prefix}{{operators}}"

    def build_counter_key(self, rule: Rule, key: str, owner: str) -> tuple[str, str]:
        """Redis' key and the field in it."""
        rest = key[len(owner) + 1 :]
        if rule.algorithm is Algorithm.LEASES:
            return f"{self._prefix}{{{owner}}}#{rule.name} {rest}", ""
        if rule.is_partitioned:
            return f"{self._prefix}{{{owner}}}/{rule.name}", rest
        return f"{self._prefix}{{{owner}}}", rule.name

    def list_lease_keys(self, call: StoreCall) -> Sequence[str]:
        charges = (call.charges[index] for index in call.plan.lease_indexes)
        return [self.build_counter_key(charge.rule, charge.key, charge.owner)[0] for charge in charges]

    # -- what the script is told -----------------------------------------------------------------------------------

    def encode_charge(self, charge: Charge) -> list[Any]:
        rule = charge.rule
        key, field = self.build_counter_key(rule, charge.key, charge.owner)
        width_ms = -(-rule.window_ms // rule.slices)
        kept_ms = width_ms * (rule.slices if rule.algorithm is Algorithm.METER else rule.slices + 1)
        is_bounded = rule.is_partitioned and bool(rule.keys_most) and rule.algorithm is not Algorithm.LEASES
        is_renamed = rule.was is not None and not rule.is_partitioned
        return [
            _FORMS[rule.algorithm],
            key,
            field,
            rule.window_ms,
            width_ms,
            kept_ms,
            charge.ceiling,
            charge.cost,
            charge.required,
            charge.is_enforced,
            rule.keys_most if is_bounded else 0,
            OTHER if is_bounded else "",
            rule.was if is_renamed else "",
        ]

    def encode_charges(self, charges: Iterable[Charge]) -> list[list[Any]]:
        return [self.encode_charge(charge) for charge in charges]

    @staticmethod
    def encode_ban_rules(ban: BanRules) -> list[int]:
        return [
            *(ban.refusals_least, ban.percent, ban.minutes, ban.grace_ms),
            *(ban.first_ms, ban.most_ms, ban.forget_ms),
        ]

    def split_call(self, call: StoreCall) -> tuple[CallPart, ...]:
        plan = call.plan
        if call.charges is not plan.charges:
            return self._make_parts(call)  # A grant changes a ceiling, and ends by itself.
        parts = self._parts.get(plan)
        if parts is None:
            if len(self._parts) >= MAX_CACHED_PLANS:
                self._parts.clear()
            parts = self._parts[plan] = self._make_parts(call)
        return parts

    def _make_parts(self, call: StoreCall) -> tuple[CallPart, ...]:
        plan = call.plan
        shown = call.charges[0] if not plan.is_free else plan.bucket_charge
        by_owner: dict[str, list[int]] = {}
        for index, charge in enumerate(call.charges):
            by_owner.setdefault(charge.owner if self.is_cluster else shown.owner, []).append(index)
        by_owner.setdefault(shown.owner, [])
        return tuple(self._make_part(call, owner, indexes, shown) for owner, indexes in by_owner.items())

    def _make_part(self, call: StoreCall, owner: str, indexes: list[int], shown: Charge) -> CallPart:
        plan = call.plan
        charges = self.encode_charges(call.charges[index] for index in indexes)
        shows = owner == shown.owner
        told: Any = 0
        if shows:
            told = self.encode_charge(shown) if plan.is_free else indexes.index(0) + 1
        ban_key = "" if self.is_cluster else self.build_ban_key(plan.ban_subject)
        packed = _pack(
            [charges, ban_key, not plan.is_ban_shadow, self.encode_ban_rules(call.ban_rules), told, not plan.is_free],
        )
        return CallPart(owner, tuple(indexes), msgspec.Raw(packed), msgspec.Raw(_pack(charges)), shows)


# -- what the script answers -----------------------------------------------------------------------------------------


def decode_result(call: StoreCall, answer: Sequence[Any], *, is_repeated: bool) -> TakeResult:
    """The answer to a call that was one part."""
    admitted, now_ms, befores, hits, frees, spilled, shown_before, shown_end_ms, banned_until_ms = answer
    return TakeResult(
        admitted,
        now_ms,
        tuple(befores),
        tuple(hits),
        tuple(frees),
        _keys(call, spilled) if spilled else (),
        shown_before,
        shown_end_ms,
        banned_until_ms,
        is_repeated,
    )


def _keys(call: StoreCall, spilled: Sequence[int]) -> tuple[str, ...]:
    return tuple(
        build_shared_key(charge.owner) if index in spilled else charge.key for index, charge in enumerate(call.charges)
    )


def merge_results(call: StoreCall, answers: Sequence[tuple[CallPart, Sequence[Any]]]) -> TakeResult:
    """The answer to a call whose owners lie apart."""
    befores = [0] * len(call.charges)
    hits: list[tuple[int, int]] = []
    spilled: list[int] = []
    shown_before = shown_end_ms = 0
    for part, answer in answers:
        for index, before in zip(part.indexes, answer[2], strict=True):
            befores[index] = before
        hits += [(part.indexes[at], free_ms) for at, free_ms in zip(answer[3], answer[4], strict=True)]
        spilled += [part.indexes[at] for at in answer[5]]
        if part.has_bucket:
            shown_before, shown_end_ms = answer[6], answer[7]
    hits.sort()
    return TakeResult(
        all(answer[0] for _, answer in answers),
        max(answer[1] for _, answer in answers),
        tuple(befores),
        tuple(index for index, _ in hits),
        tuple(free_ms for _, free_ms in hits),
        _keys(call, spilled) if spilled else (),
        shown_before,
        shown_end_ms,
        max(answer[8] for _, answer in answers),
    )
