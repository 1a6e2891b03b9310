"""A limiter at work over a store: asks it, decides, and holds the rules in force.

This is the seam for everything in front of a service. It waits for the store and for nothing else, and it takes no
decision that `core` does not take.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision, Verdict
from wharf.limits.core.graphql import QueryCostCalculator
from wharf.limits.core.limiter import Grant, Limiter, find_objects_problem
from wharf.limits.core.plans import Charge
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.responses import Headers, build_bucket_headers, build_status_body
from wharf.limits.core.rule import CountedUnit, RuleSet
from wharf.limits.rules import read_rules
from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.port import RefundReason, Store


class LimitEvaluator:
    """`clock` gives milliseconds, for grants; counters have the store's own moments."""

    def __init__(self, rules: RuleSet, store: Store, clock: Callable[[], int], grants: Iterable[Grant] = ()) -> None:
        self.store: Final = store
        self.limiter = Limiter(rules, grants)
        self.query_costs = QueryCostCalculator(rules.graphql)
        self._clock = clock
        self.local_counters: Final = store.counters if isinstance(store, MemoryStore) else None
        """The counters, where they are in this process and nobody need wait for them."""

    @property
    def rules(self) -> RuleSet:
        return self.limiter.rulebook.rules

    async def reload_rules(self, text: str, file: str) -> None:
        """Take other rules, all or nothing: after FileRefused those in force are the same as before."""
        rules = read_rules(text, file)
        limiter = self.limiter.copy_with_rules(rules)
        await self.store.set_rules(rules)
        self.limiter = limiter
        self.query_costs = QueryCostCalculator(rules.graphql)

    async def evaluate(self, request: RequestFacts) -> LimitDecision:
        limiter = self.limiter
        now_ms = self._clock()
        call = limiter.build_call(request, now_ms)
        problem = find_objects_problem(call.plan, request.object_count)
        if problem:
            return await self._refuse_unread(limiter, request, Verdict.TOO_MANY_OBJECTS, problem)
        return limiter.decide(call, await self.store.take(call))

    def evaluate_locally(self, request: RequestFacts, now_ms: int) -> LimitDecision:
        """`decide` by counters in this process, without waiting. Not for batches, whose objects are looked at first."""
        assert self.local_counters is not None, "counters elsewhere are asked by `decide`"
        limiter = self.limiter
        call = limiter.build_call(request, now_ms)
        return limiter.decide(call, self.local_counters.take(call, now_ms))

    async def refuse_unreadable_body(self, request: RequestFacts, problem: str) -> LimitDecision:
        """A query beyond the bounds: refused before anything is charged."""
        return await self._refuse_unread(self.limiter, request, Verdict.TOO_COMPLEX, problem)

    async def _refuse_unread(
        self, limiter: Limiter, request: RequestFacts, verdict: Verdict, problem: str
    ) -> LimitDecision:
        now_ms = self._clock()
        call = limiter.build_call(request, now_ms)
        shown = call.plan.bucket_charge if call.plan.is_free else call.charges[0]
        (reading,) = await self.store.peek([shown])
        return limiter.build_unread_refusal(call, reading, now_ms, verdict=verdict, problem=problem)

    async def charge_failed_login(self, request_id: str, caller: Caller) -> LimitDecision:
        """A wrong credential from this address. Admitted means: answer 401. It holds no slot."""
        call = self.limiter.build_failed_login_call(request_id, caller)
        taken = await self.store.take(call)
        await self.store.release(request_id)
        return self.limiter.decide(call, taken)

    async def release(self, request_id: str) -> None:
        """The last byte is out, or the caller is gone."""
        await self.store.release(request_id)

    async def refund(self, decision: LimitDecision, reason: RefundReason) -> LimitDecision:
        """Give the primary charge back, before headers go out. Returns the decision as it is to be told."""
        if not await self.store.refund(decision.request_id, reason):
            return decision
        (reading,) = await self.store.peek([decision.bucket_charge])
        # `used` adds the cost to what was before: so that what is told is what is counted now.
        before = reading.used - decision.bucket_charge.cost
        taken = msgspec.structs.replace(decision.result, bucket_count_before=before)
        return msgspec.structs.replace(decision, result=taken)

    async def charge_cpu(self, decision: LimitDecision, cpu_ms: int) -> None:
        await self.store.add_usage(decision.plan.meter_charges, cpu_ms)

    async def charge_content(self, decision: LimitDecision, caller: Caller) -> None:
        """The service says that this request made content, though its route does not tell."""
        already = any(charge.rule.counts is CountedUnit.CONTENT for charge in decision.charges)
        if not already:
            await self.store.add_usage(self.limiter.rulebook.list_content_charges(caller), 1)

    async def render_status(self, caller: Caller) -> bytes:
        """The body of the status endpoint for this caller."""
        book, now_ms = self.limiter.rulebook, self._clock()
        primaries = [self.limiter.apply_grants(charge, now_ms) for charge in book.list_primary_charges(caller)]
        secondaries: tuple[Charge, ...] = book.list_secondary_charges(caller) if self.rules.disclose_secondary else ()
        readings = await self.store.peek([*primaries, *secondaries])
        shown = list(zip(primaries, readings, strict=False))
        return build_status_body(self.rules, shown, list(zip(secondaries, readings[len(shown) :], strict=True)))

    async def render_address_headers(self, caller: Caller) -> Headers:
        """The headers of a reply that was decided before a caller was known: the address's bucket, not charged."""
        charge = self.limiter.rulebook.build_core_charge(caller)
        (reading,) = await self.store.peek([charge])
        return build_bucket_headers(charge, reading, self._clock())
