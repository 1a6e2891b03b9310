"""A limiter at work over a store: asks it, decides, and holds the rules in force.

This is the seam for everything in front of a service. It waits for the store and for nothing else, and it takes no
decision that `core` does not take.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from wharf.limits.core.answer import Headers, headers_of_bucket
from wharf.limits.core.caller import Caller
from wharf.limits.core.decision import Decision, Verdict
from wharf.limits.core.graphql import QueryCosts
from wharf.limits.core.limiter import Grant, Limiter, objects_problem
from wharf.limits.core.plan import Charge
from wharf.limits.core.request import Request
from wharf.limits.core.rule import Counts, RuleSet
from wharf.limits.core.status import status_body
from wharf.limits.rules import read_rules
from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.port import GaveBack, Store


class LimitService:
    """`clock` gives milliseconds, for grants; counters have the store's own moments."""

    def __init__(self, rules: RuleSet, store: Store, clock: Callable[[], int], grants: Iterable[Grant] = ()) -> None:
        self.store: Final = store
        self.limiter = Limiter(rules, grants)
        self.queries = QueryCosts(rules.graphql)
        self._clock = clock
        self.here: Final = store.counters if isinstance(store, MemoryStore) else None
        """The counters, where they are in this process and nobody need wait for them."""

    @property
    def rules(self) -> RuleSet:
        return self.limiter.book.rules

    async def reload(self, text: str, file: str) -> None:
        """Take other rules, all or nothing: after FileRefused those in force are the same as before."""
        rules = read_rules(text, file)
        limiter = self.limiter.with_rules(rules)
        await self.store.adopt(rules)
        self.limiter = limiter
        self.queries = QueryCosts(rules.graphql)

    async def decide(self, request: Request) -> Decision:
        limiter = self.limiter
        now_ms = self._clock()
        call = limiter.call_for(request, now_ms)
        problem = objects_problem(call.plan, request.objects)
        if problem:
            return await self._refuse_unread(limiter, request, Verdict.TOO_MANY_OBJECTS, problem)
        return limiter.decide(call, await self.store.take(call))

    def decide_here(self, request: Request, now_ms: int) -> Decision:
        """`decide` by counters in this process, without waiting. Not for batches, whose objects are looked at first."""
        assert self.here is not None, "counters elsewhere are asked by `decide`"
        limiter = self.limiter
        call = limiter.call_for(request, now_ms)
        return limiter.decide(call, self.here.take(call, now_ms))

    async def refuse_complex(self, request: Request, problem: str) -> Decision:
        """A query beyond the bounds: refused before anything is charged."""
        return await self._refuse_unread(self.limiter, request, Verdict.TOO_COMPLEX, problem)

    async def _refuse_unread(self, limiter: Limiter, request: Request, verdict: Verdict, problem: str) -> Decision:
        now_ms = self._clock()
        call = limiter.call_for(request, now_ms)
        shown = call.plan.shown if call.plan.is_free else call.charges[0]
        (reading,) = await self.store.peek([shown])
        return limiter.refuse_unread(call, reading, now_ms, verdict=verdict, problem=problem)

    async def failed_login(self, request_id: str, caller: Caller) -> Decision:
        """A wrong credential from this address. Admitted means: answer 401. It holds no slot."""
        call = self.limiter.failed_login_call(request_id, caller)
        taken = await self.store.take(call)
        await self.store.release(request_id)
        return self.limiter.decide(call, taken)

    async def end(self, request_id: str) -> None:
        """The last byte is out, or the caller is gone."""
        await self.store.release(request_id)

    async def give_back(self, decision: Decision, why: GaveBack) -> Decision:
        """Give the primary charge back, before headers go out. Returns the decision as it is to be told."""
        if not await self.store.give_back(decision.request_id, why):
            return decision
        (reading,) = await self.store.peek([decision.shown])
        # `used` adds the cost to what was before: so that what is told is what is counted now.
        before = reading.used - decision.shown.cost
        taken = msgspec.structs.replace(decision.taken, shown_before=before)
        return msgspec.structs.replace(decision, taken=taken)

    async def spend_cpu(self, decision: Decision, cpu_ms: int) -> None:
        await self.store.spend(decision.plan.meters, cpu_ms)

    async def spend_content(self, decision: Decision, caller: Caller) -> None:
        """The service says that this request made content, though its route does not tell."""
        already = any(charge.rule.counts is Counts.CONTENT for charge in decision.charges)
        if not already:
            await self.store.spend(self.limiter.book.content_charges(caller), 1)

    async def status(self, caller: Caller) -> bytes:
        """The body of the status endpoint for this caller."""
        book, now_ms = self.limiter.book, self._clock()
        primaries = [self.limiter.with_grants(charge, now_ms) for charge in book.primary_charges(caller)]
        secondaries: tuple[Charge, ...] = book.secondary_charges(caller) if self.rules.disclose_secondary else ()
        readings = await self.store.peek([*primaries, *secondaries])
        shown = list(zip(primaries, readings, strict=False))
        return status_body(self.rules, shown, list(zip(secondaries, readings[len(shown) :], strict=True)))

    async def headers_for_unknown(self, caller: Caller) -> Headers:
        """The headers of a reply that was decided before a caller was known: the address's bucket, not charged."""
        charge = self.limiter.book.shown_charge(caller)
        (reading,) = await self.store.peek([charge])
        return headers_of_bucket(charge, reading, self._clock())
