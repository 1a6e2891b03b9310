"""The decision steps around a store: `Limiter.build_call` before the store is called, `Limiter.decide` after it.

Both steps are without I/O, so local and remote stores share them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from wharf.limits.core.caches import BoundedCache
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision, Verdict, build_decision
from wharf.limits.core.descriptors import DescriptorBook
from wharf.limits.core.plans import Charge, ChargePlan
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.rule import UNLIMITED, RuleSet
from wharf.limits.core.rulebook import Rulebook
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult

MAX_GRANTED_PLANS: Final = 4_096
"""Cached charge plans of free requests whose bucket a grant raises; limits memory."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A temporary increase of the ceiling of one bucket of one owner, until `until_ms`."""

    owner: str
    """The owner of the counter, such as `user:ada`."""
    resource: str
    """The bucket, such as `core`."""
    amount: int
    """How much is added to the ceiling."""
    until_ms: int
    by: str
    """The operator who created it."""
    reason: str


class Limiter:
    """Builds the store call for a request, and the decision from the result of that call, by one set of rules."""

    def __init__(self, rules: RuleSet, grants: Iterable[Grant] = ()) -> None:
        self.rulebook: Final = Rulebook(rules)
        self.descriptor_book: Final = DescriptorBook(rules)
        self._grants: Mapping[tuple[str, str], Sequence[Grant]] = {}
        self._granted_plans: BoundedCache[tuple[ChargePlan, int], ChargePlan] = BoundedCache(MAX_GRANTED_PLANS)
        """Plans with a raised bucket, by plan and ceiling: stores cache what they compute from a plan."""
        self.set_grants(grants)

    def copy_with_rules(self, rules: RuleSet) -> "Limiter":
        """Return another limiter with these rules and the grants of this one."""
        return Limiter(rules, (grant for grants in self._grants.values() for grant in grants))

    def set_grants(self, grants: Iterable[Grant]) -> None:
        """Replace all grants."""
        by_bucket: dict[tuple[str, str], list[Grant]] = {}
        for grant in grants:
            by_bucket.setdefault((grant.owner, grant.resource), []).append(grant)
        self._grants = by_bucket
        self._granted_plans.clear()

    def build_call(self, request: RequestFacts, now_ms: int) -> StoreCall:
        """Return the store call for a request. `now_ms` decides which grants are active; stores use their own clock."""
        plan = self.rulebook.get_plan(request)
        charges = plan.charges
        if self._grants and plan.is_free:
            plan = self._apply_grant_to_reported_bucket(plan, now_ms)
        elif self._grants:
            charges = self._apply_grant_to_bucket(charges, now_ms)
        return StoreCall(request.id, plan, charges, self.rulebook.rules.ban)

    def build_failed_login_call(self, request_id: str, caller: Caller, now_ms: int) -> StoreCall:
        """Return the store call for a request with a wrong credential.

        `caller` is the anonymous caller of the address.
        """
        plan = self.rulebook.build_failed_login_plan(caller)
        bucket_charge = self.apply_grants(plan.bucket_charge, now_ms)
        if bucket_charge is not plan.bucket_charge:
            plan = msgspec.structs.replace(plan, bucket_charge=bucket_charge)
        return StoreCall(request_id, plan, plan.charges, self.rulebook.rules.ban)

    def _apply_grant_to_reported_bucket(self, plan: ChargePlan, now_ms: int) -> ChargePlan:
        """Return the plan of a free request with the ceiling of its bucket, which headers report, raised by active grants."""
        bucket_charge = self.apply_grants(plan.bucket_charge, now_ms)
        if bucket_charge is plan.bucket_charge:
            return plan
        key = (plan, bucket_charge.ceiling)
        granted = self._granted_plans.get(key)
        if granted is None:
            granted = self._granted_plans.store(key, msgspec.structs.replace(plan, bucket_charge=bucket_charge))
        return granted

    def _apply_grant_to_bucket(self, charges: tuple[Charge, ...], now_ms: int) -> tuple[Charge, ...]:
        """Return the charges with the ceiling of the primary bucket raised by active grants."""
        bucket_charge = self.apply_grants(charges[0], now_ms)
        return charges if bucket_charge is charges[0] else (bucket_charge, *charges[1:])

    def apply_grants(self, charge: Charge, now_ms: int) -> Charge:
        """Return the charge with its ceiling raised by the grants that are active at `now_ms`; the charge itself if none are."""
        grants = self._grants.get((charge.owner, charge.rule.resource or ""), ())
        amount = sum(grant.amount for grant in grants if now_ms < grant.until_ms)
        if not amount or charge.ceiling >= UNLIMITED:
            return charge
        return msgspec.structs.replace(charge, ceiling=charge.ceiling + amount)

    def decide(self, call: StoreCall, result: TakeResult) -> LimitDecision:
        """Return the decision that follows from the result of a store call."""
        if result.is_admitted:  # The usual case. This saves a call.
            return LimitDecision(call.id, Verdict.ADMITTED, call.plan, call.charges, result)
        return build_decision(call.id, call.plan, call.charges, result)

    def build_unread_refusal(
        self, call: StoreCall, bucket_reading: CounterReading, now_ms: int, *, verdict: Verdict, problem: str
    ) -> LimitDecision:
        """Return a refusal because of the content of a request, such as a query that is too complex.

        The store has charged nothing; `bucket_reading` is the primary bucket that the headers report. `problem` is the
        message for the caller.
        """
        result = TakeResult(False, now_ms, (), (), (), (), bucket_reading.used, bucket_reading.end_ms)
        return LimitDecision(call.id, verdict, call.plan, call.charges, result, problem=problem)


def find_objects_problem(plan: ChargePlan, objects: int | None) -> str:
    """Return the message for a large-file batch with too many objects; an empty text if the number is allowed or `None`."""
    if objects is None or plan.max_objects is None or objects <= plan.max_objects:
        return ""
    return (
        f"The batch has {objects} objects; one request can have at most {plan.max_objects}. "
        "Send several smaller batches."
    )
