"""The deciding part of a limiter: request facts to a store's call, and the store's answer to a decision.

Stores that wait and stores that do not are driven by the same two steps: `call_for`, then `decide`. Between them lies
the only thing that a store does.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision, Verdict, build_decision
from wharf.limits.core.plans import Charge, ChargePlan
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.rule import UNLIMITED, RuleSet
from wharf.limits.core.rulebook import Rulebook
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """More for one owner of one resource, for a time. It ends by itself."""

    owner: str
    resource: str
    amount: int
    until_ms: int
    by: str
    """Who gave it."""
    reason: str


class Limiter:
    def __init__(self, rules: RuleSet, grants: Iterable[Grant] = ()) -> None:
        self.rulebook: Final = Rulebook(rules)
        self._grants: Mapping[tuple[str, str], Sequence[Grant]] = {}
        self.set_grants(grants)

    def copy_with_rules(self, rules: RuleSet) -> "Limiter":
        """Another limiter with these rules and the same grants."""
        return Limiter(rules, (grant for grants in self._grants.values() for grant in grants))

    def set_grants(self, grants: Iterable[Grant]) -> None:
        by_bucket: dict[tuple[str, str], list[Grant]] = {}
        for grant in grants:
            by_bucket.setdefault((grant.owner, grant.resource), []).append(grant)
        self._grants = by_bucket

    def build_call(self, request: RequestFacts, now_ms: int) -> StoreCall:
        """What to ask the store about this request. The moment decides about grants; counters have the store's own."""
        plan = self.rulebook.get_plan(request)
        charges = plan.charges
        if self._grants and not plan.is_free:
            charges = self._granted(charges, now_ms)
        return StoreCall(request.id, plan, charges, self.rulebook.rules.ban)

    def build_failed_login_call(self, request_id: str, caller: Caller) -> StoreCall:
        """What to ask the store when a credential was wrong. `caller` is the address."""
        plan = self.rulebook.build_failed_login_plan(caller)
        return StoreCall(request_id, plan, plan.charges, self.rulebook.rules.ban)

    def _granted(self, charges: tuple[Charge, ...], now_ms: int) -> tuple[Charge, ...]:
        shown = self.apply_grants(charges[0], now_ms)
        return charges if shown is charges[0] else (shown, *charges[1:])

    def apply_grants(self, charge: Charge, now_ms: int) -> Charge:
        """The charge with the ceiling that grants give now."""
        grants = self._grants.get((charge.owner, charge.rule.resource or ""), ())
        amount = sum(grant.amount for grant in grants if now_ms < grant.until_ms)
        if not amount or charge.ceiling >= UNLIMITED:
            return charge
        return msgspec.structs.replace(charge, ceiling=charge.ceiling + amount)

    def decide(self, call: StoreCall, result: TakeResult) -> LimitDecision:
        return build_decision(call.id, call.plan, call.charges, result)

    def build_unread_refusal(
        self, call: StoreCall, bucket_reading: CounterReading, now_ms: int, *, verdict: Verdict, problem: str
    ) -> LimitDecision:
        """A refusal for what a request asks for, not for its caller's use. Nothing is charged; `shown` was looked at."""
        taken = TakeResult(False, now_ms, (), (), (), (), bucket_reading.used, bucket_reading.end_ms)
        return LimitDecision(call.id, verdict, call.plan, call.charges, taken, problem=problem)


def find_objects_problem(plan: ChargePlan, objects: int | None) -> str:
    """What is wrong with the number of objects in a batch; empty if nothing is."""
    if objects is None or plan.max_objects is None or objects <= plan.max_objects:
        return ""
    return (
        f"The batch names {objects} objects; at most {plan.max_objects} can be asked for in one request. "
        "Send it in several."
    )
