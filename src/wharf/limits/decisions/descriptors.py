"""Decides requests of proxies that consist of descriptors, and records the decisions like those about HTTP requests."""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.limits.core.decision import LimitDecision, build_decision, is_unlimited
from wharf.limits.core.descriptors import Descriptor, DescriptorBook, DescriptorPlan
from wharf.limits.core.plans import Charge, ChargePlan
from wharf.limits.core.responses import JSON_TYPE, Headers, build_descriptor_body, format_ratelimit_values
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult
from wharf.limits.decisions.decision_log import LoggedDecision
from wharf.limits.decisions.service import DecisionService

METHOD: Final = "ShouldRateLimit"
"""Stands for the method of the request in the decision log."""


class DescriptorStatus(msgspec.Struct, frozen=True, gc=False):
    """The state of the limit on one descriptor, after the decision."""

    charge: Charge
    is_exceeded: bool
    """Whether this limit is a reason for which the request is refused."""
    is_reported: bool
    """Whether callers may see the state of this limit: not if it is hidden, or in shadow mode and refuses nothing."""
    remaining: int
    left_ms: int
    """The time until its window ends."""


class DescriptorReply(msgspec.Struct, frozen=True, gc=False):
    """The decision about a request: for each descriptor its status, and what the reply to the caller contains."""

    is_admitted: bool
    statuses: tuple[DescriptorStatus | None, ...]
    """In the order of the descriptors; `None` for one without a limit."""
    headers: Headers = ()
    body: bytes = b""


class DescriptorDecisions:
    """Decides requests that consist of descriptors, by the rules and counters of a decision service."""

    def __init__(self, decision_service: DecisionService) -> None:
        self._service = decision_service

    @property
    def book(self) -> DescriptorBook:
        """The rules in force. A plan is valid for the book that built it."""
        return self._service.evaluator.limiter.descriptor_book

    def build_plan(self, domain: str, descriptors: Sequence[Descriptor]) -> DescriptorPlan:
        return self.book.build_plan(domain, descriptors)

    async def decide(self, plan: DescriptorPlan) -> DescriptorReply:
        """Check and charge all limits of a request, all or none, and return the decision.

        Hits that a meter counts are charged also if the request is refused. Refunds do not depend on the decision.
        """
        service = self._service
        charge_plan = plan.plan
        if charge_plan is None or (service.overrides.off_until_ms and service.overrides.is_off):
            return DescriptorReply(True, (None,) * len(plan.charge_indexes))
        now_ms = service.now_ms()
        request_id = service.make_request_id(now_ms)
        decision, ends_ms = await self._take(request_id, charge_plan, now_ms)
        if decision.is_admitted:
            service.decision_log.record_admission(request_id, now_ms, METHOD, plan.text, decision, plan.caller)
            service.activity.record_admission(decision, plan.caller)
        else:
            service.decision_log.record(LoggedDecision(request_id, now_ms, METHOD, plan.text, decision, plan.caller))
            service.activity.record_refusal(decision, plan.caller, now_ms)
            for charge in plan.meter_charges:
                await service.evaluator.store.add_usage([charge], charge.cost)
        for index, hits in plan.refunds.items():
            await service.evaluator.store.add_usage([decision.charges[index]], -hits)
        return self._build_reply(plan, decision, ends_ms)

    async def _take(self, request_id: str, plan: ChargePlan, now_ms: int) -> tuple[LimitDecision, Sequence[int]]:
        """Check and charge the limits of a plan. Return the decision, and when the window of each charge ends."""
        evaluator = self._service.evaluator
        charges = plan.charges
        call = StoreCall(request_id, plan, charges, evaluator.rules.ban)
        readings: Sequence[CounterReading] = ()
        if evaluator.local_counters is not None:
            # Nothing is refunded or repeated, and no slot is held: nothing needs to be remembered about the request.
            result = evaluator.local_counters.take_once(call, now_ms)
            if len(charges) > 1:
                readings = evaluator.local_counters.peek(_apply_overflow(charges, result), now_ms)
        else:
            if len(charges) > 1:
                # Both are sent together. A window that the call opens ends as an idle counter reports it.
                result, readings = await asyncio.gather(evaluator.store.take(call), evaluator.store.peek(charges))
            else:
                result = await evaluator.store.take(call)
            await evaluator.store.release(request_id)
        # The result of the store has the end of the first window only.
        ends_ms = [reading.end_ms for reading in readings] if len(charges) > 1 else [result.bucket_end_ms]
        return build_decision(request_id, plan, charges, result), ends_ms

    def _build_reply(self, plan: DescriptorPlan, decision: LimitDecision, ends_ms: Sequence[int]) -> DescriptorReply:
        """Return the reply with the status of each descriptor, and the headers for the caller."""
        result, is_admitted = decision.result, decision.is_admitted
        now_ms = result.now_ms
        statuses: list[DescriptorStatus] = []
        policies: list[str] = []
        values: list[str] = []
        for index, (charge, before) in enumerate(zip(decision.charges, result.counts_before, strict=True)):
            used = before + charge.cost if is_admitted else before
            if index in plan.refunds:
                used = max(0, used - plan.refunds[index])
            remaining = charge.ceiling - used if used < charge.ceiling else 0
            is_exceeded = not is_admitted and charge.is_enforced and index in result.hit_indexes
            left_ms = ends_ms[index] - now_ms
            # The charge of a refund is not enforced, but its limit may be.
            is_active = charge.is_enforced or (index in plan.refunds and not charge.rule.shadow)
            is_reported = is_active and not charge.rule.hidden
            statuses.append(
                DescriptorStatus(charge, is_exceeded, is_reported, remaining, left_ms if left_ms > 0 else 0)
            )
            if is_reported and not is_unlimited(charge):
                policy, value = format_ratelimit_values(charge, charge.ceiling - remaining, ends_ms[index], now_ms)
                policies.append(policy)
                values.append(value)
        headers: list[tuple[str, str]] = []
        if policies:
            headers += [("ratelimit-policy", ", ".join(policies)), ("ratelimit", ", ".join(values))]
        if (retry_after_s := decision.retry_after_s) is not None:
            headers.append(("retry-after", str(retry_after_s)))
        if not is_admitted:
            headers.append(("content-type", JSON_TYPE))
        headers.append((self._service.settings.request_id_header, decision.request_id))
        return DescriptorReply(
            is_admitted,
            tuple([None if index is None else statuses[index] for index in plan.charge_indexes]),
            tuple(headers),
            b"" if is_admitted else build_descriptor_body(decision, self._service.evaluator.rules),
        )


def _apply_overflow(charges: tuple[Charge, ...], result: TakeResult) -> tuple[Charge, ...]:
    """Return the charges with the keys under which they were counted."""
    if not result.keys:
        return charges
    return tuple(msgspec.structs.replace(charge, key=key) for charge, key in zip(charges, result.keys, strict=True))
