"""Evaluates requests against the limits: builds the store call, sends it to the store, and derives the decision from the result.

Holds the rules in force. It waits only for the store. The logic of decisions is in `wharf.limits.core`.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.counting.bans import OperatorBan
from wharf.limits.core.decision import LimitDecision, Verdict
from wharf.limits.core.graphql import QueryCostCalculator
from wharf.limits.core.limiter import Grant, Limiter, find_objects_problem
from wharf.limits.core.plans import Charge, EndpointCost
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.responses import Headers, build_bucket_headers, build_status_body
from wharf.limits.core.rule import CountedUnit, RuleSet
from wharf.limits.rules import read_rules
from wharf.limits.stores.port import RefundReason, Store


def add_user_ban(decision: LimitDecision, ban: OperatorBan) -> LimitDecision:
    """Return a decision with the ban of its user, which no store reports."""
    result = msgspec.structs.replace(decision.result, banned_until_ms=ban.until_ms)
    return msgspec.structs.replace(decision, result=result, operator_ban=ban)


class LimitEvaluator:
    """Decides requests by the rules in force, with the counts of a store.

    `clock` returns milliseconds and decides which grants are valid; counters use the time of the store.
    """

    def __init__(self, rules: RuleSet, store: Store, clock: Callable[[], int], grants: Iterable[Grant] = ()) -> None:
        self.store: Final = store
        self.limiter = Limiter(rules, grants)
        self.query_costs = QueryCostCalculator(rules.graphql)
        self._clock = clock
        self.local_counters: Final = store.local_counters
        """The counters, if they are in this process and need no await; `None` otherwise."""

    @property
    def rules(self) -> RuleSet:
        return self.limiter.rulebook.rules

    async def reload_rules(self, text: str, file: str) -> None:
        """Replace the rules by those in `text`, the content of the file `file`, in this process and in the store.

        If the text is invalid, `read_rules` raises an error and the rules in force stay the same.
        """
        rules = read_rules(text, file)
        limiter = self.limiter.copy_with_rules(rules)
        await self.store.set_rules(rules)
        self.limiter = limiter
        self.query_costs = QueryCostCalculator(rules.graphql)

    async def evaluate(self, request: RequestFacts) -> LimitDecision:
        """Check and charge a request by the counters of the store, and return the decision.

        A large-file batch with too many objects is refused without a charge.
        """
        limiter = self.limiter
        now_ms = self._clock()
        call = limiter.build_call(request, now_ms)
        problem = find_objects_problem(call.plan, request.object_count)
        if problem and call.charges[0].is_enforced:
            return await self._refuse_unevaluated(limiter, request, Verdict.TOO_MANY_OBJECTS, problem)
        decision = limiter.decide(call, await self.store.take(call))
        return msgspec.structs.replace(decision, problem=problem) if problem and decision.is_admitted else decision

    def evaluate_locally(self, request: RequestFacts, now_ms: int) -> LimitDecision:
        """Check and charge a request by the counters of this process, and return the decision, without awaiting.

        The number of objects in a large-file batch is not checked.
        """
        assert self.local_counters is not None, "evaluate_locally needs counters in this process"
        limiter = self.limiter
        call = limiter.build_call(request, now_ms)
        return limiter.decide(call, self.local_counters.take(call, now_ms))

    async def refuse_unreadable_body(self, request: RequestFacts, problem: str) -> LimitDecision:
        """Return a refusal of a request whose body is too complex or cannot be read. Nothing is charged.

        If the rules are in shadow mode, the request is evaluated without its body instead.
        """
        if self.rules.shadow:
            decision = await self.evaluate(request)
            return msgspec.structs.replace(decision, problem=problem)
        return await self._refuse_unevaluated(self.limiter, request, Verdict.TOO_COMPLEX, problem)

    async def refuse_banned(self, request: RequestFacts, ban: OperatorBan) -> LimitDecision:
        """Return a refusal of a request because an operator has banned its user. Nothing is charged."""
        decision = await self._refuse_unevaluated(self.limiter, request, Verdict.BANNED, "")
        return add_user_ban(decision, ban)

    async def _refuse_unevaluated(
        self, limiter: Limiter, request: RequestFacts, verdict: Verdict, problem: str
    ) -> LimitDecision:
        """Return a refusal that charges nothing and reports the primary bucket as it is."""
        now_ms = self._clock()
        call = limiter.build_call(request, now_ms)
        charge = call.plan.bucket_charge if call.plan.is_free else call.charges[0]
        (reading,) = await self.store.peek([charge])
        return limiter.build_unread_refusal(call, reading, now_ms, verdict=verdict, problem=problem)

    async def charge_failed_login(self, request_id: str, caller: Caller) -> LimitDecision:
        """Charge a wrong credential to the caller's address.

        If the decision is an admission, reply with status 401; otherwise with the refusal. The request ends here, so it
        occupies no concurrency slot.
        """
        call = self.limiter.build_failed_login_call(request_id, caller, self._clock())
        result = await self.store.take(call)
        await self.store.release(request_id)
        return self.limiter.decide(call, result)

    async def is_login_refused(self, caller: Caller) -> bool:
        """Return whether the address of this caller has used up a limit on failed logins. Nothing is charged."""
        charges = self._list_login_charges(caller)
        readings = await self.store.peek(charges) if charges else ()
        return any(
            charge.is_enforced and reading.used >= charge.ceiling
            for charge, reading in zip(charges, readings, strict=True)
        )

    async def add_failed_login(self, caller: Caller) -> None:
        """Charge a credential that the service has rejected to the address of this caller."""
        charges = self._list_login_charges(caller)
        if charges:
            await self.store.add_usage(charges, 1)

    def _list_login_charges(self, caller: Caller) -> tuple[Charge, ...]:
        """Return the charges of the limits on failed logins. `caller` is the anonymous caller of an address."""
        return self.limiter.rulebook.build_failed_login_plan(caller).charges

    async def release(self, request_id: str) -> None:
        """Free the concurrency slots of a request that has ended."""
        await self.store.release(request_id)

    async def refund(self, decision: LimitDecision, reason: RefundReason) -> LimitDecision:
        """Return the primary charge of a request to its window, and return the decision with the count after the refund.

        Call this before the headers are rendered. If the store refunds nothing, the decision is returned unchanged.
        """
        if not await self.store.refund(decision.request_id, reason):
            return decision
        (reading,) = await self.store.peek([decision.bucket_charge])
        # `LimitDecision.used` adds the cost to the count before; subtract it here so that the headers show the counter.
        before = reading.used - decision.bucket_charge.cost
        result = msgspec.structs.replace(decision.result, bucket_count_before=before)
        return msgspec.structs.replace(decision, result=result)

    async def charge_cpu(self, decision: LimitDecision, cpu_ms: int) -> None:
        """Add CPU time to the limits on CPU time of an admitted request."""
        await self.store.add_usage(decision.plan.meter_charges, cpu_ms)

    async def take_back_cpu(self, charges: Iterable[Charge], cpu_ms: int) -> None:
        """Subtract CPU time from limits that were charged too much."""
        await self.store.add_usage(charges, -cpu_ms)

    async def charge_content(
        self, decision: LimitDecision, caller: Caller, endpoint: EndpointCost | None = None
    ) -> None:
        """Charge created content that the service reported, unless the request was already charged as content.

        With `endpoint`, only the limits that match its requests are charged.
        """
        is_charged = any(charge.rule.counts is CountedUnit.CONTENT and charge.cost for charge in decision.charges)
        if not is_charged:
            await self.store.add_usage(self.limiter.rulebook.list_content_charges(caller, endpoint), 1)

    async def is_content_exceeded(self, caller: Caller, endpoint: EndpointCost) -> bool:
        """Return whether more content was created than an enforced limit admits, of those that match the endpoint."""
        charges = self.limiter.rulebook.list_content_charges(caller, endpoint)
        readings = await self.store.peek(charges) if charges else ()
        return any(
            charge.is_enforced and reading.used > charge.ceiling
            for charge, reading in zip(charges, readings, strict=True)
        )

    async def render_status(self, caller: Caller) -> bytes | None:
        """Return the JSON body of the rate limit status page for a caller. Nothing is charged.

        Limits in shadow mode are left out. Return `None` if the bucket of all other requests is in shadow mode.
        """
        book, now_ms = self.limiter.rulebook, self._clock()
        primaries = [
            self.limiter.apply_grants(charge, now_ms)
            for charge in book.list_primary_charges(caller)
            if charge.is_enforced
        ]
        if all(charge.rule.match for charge in primaries):
            return None
        secondaries: list[Charge] = []
        if self.rules.disclose_secondary:
            secondaries = [charge for charge in book.list_secondary_charges(caller) if charge.is_enforced]
        readings = await self.store.peek([*primaries, *secondaries])
        primary_readings = list(zip(primaries, readings, strict=False))
        secondary_readings = list(zip(secondaries, readings[len(primary_readings) :], strict=True))
        return build_status_body(self.rules, primary_readings, secondary_readings)

    async def render_address_headers(self, caller: Caller) -> Headers:
        """Return the rate limit headers of a reply without a decision: the `core` bucket of the caller, with nothing charged."""
        now_ms = self._clock()
        charge = self.limiter.apply_grants(self.limiter.rulebook.build_core_charge(caller), now_ms)
        (reading,) = await self.store.peek([charge])
        return build_bucket_headers(charge, reading, now_ms)
