"""The decision that a store's result means: admitted or refused, by which limit, until when.

A decision holds every limit that was evaluated. `responses` chooses what a caller sees of it.
"""

from collections.abc import Iterator
from enum import Enum

import msgspec

from wharf.limits.core.counting.bans import OperatorBan
from wharf.limits.core.plans import Charge, ChargePlan
from wharf.limits.core.rule import UNLIMITED, Algorithm
from wharf.limits.core.store_calls import TakeResult


class Verdict(Enum):
    """The outcome of a decision about a request: admitted, or why it was refused. The values appear in replies and logs."""

    ADMITTED = "admitted"
    BANNED = "banned"
    """The caller is banned: it continued to send requests while it was refused, or an operator banned it."""
    PRIMARY = "primary"
    """Refused: a primary limit is exceeded."""
    SECONDARY = "secondary"
    """Refused: a secondary limit is exceeded."""
    EXCEEDS_CEILING = "never"
    """Refused: the request costs more than the whole ceiling, so waiting does not help."""
    TOO_MANY_OBJECTS = "too_many_objects"
    """Refused: a large-file batch has more objects than a request may have."""
    TOO_COMPLEX = "too_complex"
    """Refused: a GraphQL query is larger than the limits on query size."""


class EvaluatedLimit(msgspec.Struct, frozen=True, gc=False):
    """One limit in a decision, with its count before the request and after it, as the decision log contains it."""

    rule: str
    """The name of the rule."""
    key: str
    """The key of the counter, such as `user:ada`."""
    before: int
    after: int
    ceiling: int
    cost: int
    is_hit: bool
    """Whether the request exceeded the ceiling."""
    is_enforced: bool
    """`False` in shadow mode: the limit is counted but refuses nothing."""
    free_at_ms: int | None
    """For a limit that was exceeded, when the request would fit again; else `None`."""
    file: str
    """The file and line of the rule."""
    line: int


class LimitDecision(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The decision about one request, with every limit that was evaluated."""

    request_id: str
    verdict: Verdict
    plan: ChargePlan
    charges: tuple[Charge, ...]
    result: TakeResult
    refusing_index: int | None = None
    """The index in `charges` of the limit that a refusal names; `None` if no single limit refused.

    It is a primary charge if one was hit, else a secondary one; of several, the one that ends last.
    """
    problem: str = ""
    """What is wrong with the content of a request that no limit refused, such as too many objects.

    Of an admitted request, it is what would refuse it without shadow mode.
    """

    operator_ban: OperatorBan | None = None
    """The ban because of which the request was refused, if an operator made it."""

    @property
    def is_admitted(self) -> bool:
        return self.verdict is Verdict.ADMITTED

    @property
    def is_shadow_refusal(self) -> bool:
        """Whether the request was admitted only because a limit or a ban that would refuse it is in shadow mode."""
        result = self.result
        if not (result.hit_indexes or result.banned_until_ms or self.problem) or not self.is_admitted:
            return False
        if self.problem:
            return True
        is_ban = bool(result.banned_until_ms) and self.plan.is_ban_shadow
        return is_ban or any(not self.charges[index].is_enforced for index in result.hit_indexes)

    @property
    def reports_bucket(self) -> bool:
        """Whether replies report the primary bucket in headers: not if it is in shadow mode for this caller."""
        return self.bucket_charge.is_enforced

    @property
    def bucket_charge(self) -> Charge:
        """The charge of the primary bucket, with the ceiling of this caller."""
        return self.plan.bucket_charge if self.plan.is_free else self.charges[0]

    @property
    def limit(self) -> int:
        """The ceiling of the primary bucket."""
        return self.bucket_charge.ceiling

    @property
    def used(self) -> int:
        """The count of the primary bucket after this request; never more than the limit."""
        if self.verdict is Verdict.PRIMARY:
            return self.limit  # A query can cost more than is left; report the bucket as used up.
        charged = self.bucket_charge.cost if self.is_admitted and not self.plan.is_free else 0
        return min(self.limit, self.result.bucket_count_before + charged)

    @property
    def remaining(self) -> int:
        """What is left of the primary bucket after this request."""
        return self.limit - self.used

    @property
    def reset_s(self) -> int:
        """When the window of the primary bucket ends, in Unix seconds, rounded up."""
        return -(-self.result.bucket_end_ms // 1_000)

    @property
    def refusing_charge(self) -> Charge | None:
        """The charge that a refusal names; `None` if no single limit refused."""
        return None if self.refusing_index is None else self.charges[self.refusing_index]

    @property
    def retry_after_s(self) -> int | None:
        """How many seconds a refused caller must wait, at least 1; `None` if admitted or if waiting does not help."""
        if self.verdict is Verdict.BANNED:
            until_ms = max(self.result.banned_until_ms, *self._list_enforced_ends_ms(), 0)
        elif self.verdict in (Verdict.PRIMARY, Verdict.SECONDARY):
            until_ms = max(self._list_enforced_ends_ms())
        else:
            return None
        return max(1, -(-(until_ms - self.result.now_ms) // 1_000))

    def _list_enforced_ends_ms(self) -> list[int]:
        """Return when each enforced limit that was exceeded would admit the request, in Unix milliseconds."""
        return [
            free_ms
            for index, free_ms in zip(self.result.hit_indexes, self.result.free_at_ms, strict=True)
            if self.charges[index].is_enforced
        ]

    def list_limits(self) -> Iterator[EvaluatedLimit]:
        """Yield every limit that was evaluated, in order."""
        free_at_ms = dict(zip(self.result.hit_indexes, self.result.free_at_ms, strict=True))
        for index, (charge, before) in enumerate(zip(self.charges, self.result.counts_before, strict=False)):
            yield EvaluatedLimit(
                rule=charge.name,
                key=self.result.keys[index] if self.result.keys else charge.key,
                before=before,
                after=before + charge.cost * self.is_admitted,
                ceiling=charge.ceiling,
                cost=charge.cost,
                is_hit=index in free_at_ms,
                is_enforced=charge.is_enforced,
                free_at_ms=free_at_ms.get(index),
                file=charge.rule.file,
                line=charge.rule.line,
            )

    def list_hit_rules(self, *, is_enforced: bool) -> list[str]:
        """Return the names of the rules whose ceiling was exceeded: the enforced ones, or those in shadow mode."""
        return [self.charges[i].name for i in self.result.hit_indexes if self.charges[i].is_enforced is is_enforced]


def build_decision(request_id: str, plan: ChargePlan, charges: tuple[Charge, ...], result: TakeResult) -> LimitDecision:
    """Return the decision that follows from the result of a store call.

    Of several reasons for a refusal, the decision names a ban first, then a limit that can never admit the request, then
    the primary limit, then a secondary one.
    """
    if result.is_admitted:
        return LimitDecision(request_id, Verdict.ADMITTED, plan, charges, result)
    hit = [
        (index, free_ms)
        for index, free_ms in zip(result.hit_indexes, result.free_at_ms, strict=True)
        if charges[index].is_enforced
    ]
    if result.banned_until_ms and not plan.is_ban_shadow:
        return LimitDecision(request_id, Verdict.BANNED, plan, charges, result)
    impossible = [index for index, _ in hit if charges[index].required > charges[index].ceiling]
    if impossible:
        return LimitDecision(request_id, Verdict.EXCEEDS_CEILING, plan, charges, result, refusing_index=impossible[0])
    primary = [(free_ms, index) for index, free_ms in hit if charges[index].rule.is_primary]
    verdict = Verdict.PRIMARY if primary else Verdict.SECONDARY
    candidates = primary or [(free_ms, index) for index, free_ms in hit]
    # If several end at the same time, the refusal names the first one in the rules.
    last_ms = max(free_ms for free_ms, _ in candidates)
    refusing_index = min(index for free_ms, index in candidates if free_ms == last_ms)
    return LimitDecision(request_id, verdict, plan, charges, result, refusing_index=refusing_index)


def is_unlimited(charge: Charge) -> bool:
    return charge.ceiling >= UNLIMITED


def is_concurrency_limit(charge: Charge) -> bool:
    return charge.rule.algorithm is Algorithm.LEASES
