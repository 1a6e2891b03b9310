"""The deciding part of a limiter: request facts to a store's call, and the store's answer to a decision.

Stores that wait and stores that do not are driven by the same two steps: `call_for`, then `decide`. Between them lies
the only thing that a store does.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from wharf.limits.core.call import Call, Reading, Taken
from wharf.limits.core.caller import Caller
from wharf.limits.core.decision import Decision, Verdict, decide
from wharf.limits.core.plan import Charge, Plan
from wharf.limits.core.request import Request
from wharf.limits.core.rule import UNLIMITED, RuleSet
from wharf.limits.core.rulebook import Rulebook


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
        self.book: Final = Rulebook(rules)
        self._grants: Mapping[tuple[str, str], Sequence[Grant]] = {}
        self.set_grants(grants)

    def with_rules(self, rules: RuleSet) -> "Limiter":
        """Another limiter with these rules and the same grants."""
        return Limiter(rules, (grant for grants in self._grants.values() for grant in grants))

    def set_grants(self, grants: Iterable[Grant]) -> None:
        by_bucket: dict[tuple[str, str], list[Grant]] = {}
        for grant in grants:
            by_bucket.setdefault((grant.owner, grant.resource), []).append(grant)
        self._grants = by_bucket

    def call_for(self, request: Request, now_ms: int) -> Call:
        """What to ask the store about this request. The moment decides about grants; counters have the store's own."""
        plan = self.book.plan(request)
        charges = plan.charges
        if self._grants and not plan.is_free:
            charges = self._granted(charges, now_ms)
        return Call(request.id, plan, charges, self.book.rules.ban)

    def failed_login_call(self, request_id: str, caller: Caller) -> Call:
        """What to ask the store when a credential was wrong. `caller` is the address."""
        plan = self.book.failed_login_plan(caller)
        return Call(request_id, plan, plan.charges, self.book.rules.ban)

    def _granted(self, charges: tuple[Charge, ...], now_ms: int) -> tuple[Charge, ...]:
        shown = self.with_grants(charges[0], now_ms)
        return charges if shown is charges[0] else (shown, *charges[1:])

    def with_grants(self, charge: Charge, now_ms: int) -> Charge:
        """The charge with the ceiling that grants give now."""
        grants = self._grants.get((charge.owner, charge.rule.resource or ""), ())
        amount = sum(grant.amount for grant in grants if now_ms < grant.until_ms)
        if not amount or charge.ceiling >= UNLIMITED:
            return charge
        return msgspec.structs.replace(charge, ceiling=charge.ceiling + amount)

    def decide(self, call: Call, taken: Taken) -> Decision:
        return decide(call.id, call.plan, call.charges, taken)

    def refuse_unread(self, call: Call, shown: Reading, now_ms: int, *, verdict: Verdict, problem: str) -> Decision:
        """A refusal for what a request asks for, not for its caller's use. Nothing is charged; `shown` was looked at."""
        taken = Taken(False, now_ms, (), (), (), (), shown.used, shown.end_ms)
        return Decision(call.id, verdict, call.plan, call.charges, taken, problem=problem)


def objects_problem(plan: Plan, objects: int | None) -> str:
    """What is wrong with the number of objects in a batch; empty if nothing is."""
    if objects is None or plan.objects_most is None or objects <= plan.objects_most:
        return ""
    return (
        f"The batch names {objects} objects; at most {plan.objects_most} can be asked for in one request. "
        "Send it in several."
    )
