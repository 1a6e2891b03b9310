"""Envoy's rate limit protocol: reads a request, has it decided, and builds the reply.

Does no input or output; `grpc_server` does. A request that cannot be decided is an `InvalidRateLimitRequest`.
"""

from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from wharf.limits.core.caches import BoundedCache
from wharf.limits.core.decision import is_unlimited
from wharf.limits.core.descriptors import Descriptor, DescriptorBook, DescriptorPlan, LimitOverride
from wharf.limits.core.rule import OVERRIDE_UNITS
from wharf.limits.decisions.descriptors import DescriptorDecisions, DescriptorReply, DescriptorStatus
from wharf.limits.serving.messages import (
    OK,
    OVER_LIMIT,
    OVERRIDE_UNIT_NAMES,
    UNIT_NUMBERS_MS,
    RateLimitRequest,
    RateLimitResponse,
)

MAX_DESCRIPTORS: Final = 64
"""More descriptors are an error. Limits the time of one request; a route of Envoy rarely has more than a few."""
MAX_ENTRIES: Final = 32
"""More entries in one descriptor are an error; limits the time of the search for its limit."""
MAX_UINT32: Final = (1 << 32) - 1
"""Larger numbers are sent as this one."""
MAX_CACHED_REQUESTS: Final = 16_384
"""Limits the memory for plans of earlier requests; the oldest entries of a full cache are removed."""
MAX_CACHED_BYTES: Final = 512
"""Longer requests are not cached, so that callers cannot fill the memory with them."""
_OVERRIDE_INDEXES: Final = {number: list(OVERRIDE_UNITS).index(name) for number, name in OVERRIDE_UNIT_NAMES.items()}


class InvalidRateLimitRequest(Exception):
    """A request of the proxy that cannot be decided. The text is the message for the proxy's operator."""


class _CachedPlans(msgspec.Struct):
    """The plans of earlier requests, by the bytes of the request, under one set of rules."""

    book: DescriptorBook
    plans: BoundedCache[bytes, DescriptorPlan]


class RateLimitService:
    """Answers the requests of proxies that use Envoy's rate limit protocol."""

    def __init__(self, decisions: DescriptorDecisions) -> None:
        self._decisions = decisions
        self._cached = self._make_cache()

    def _make_cache(self) -> _CachedPlans:
        return _CachedPlans(self._decisions.book, BoundedCache(MAX_CACHED_REQUESTS))

    async def answer(self, message: bytes) -> bytes:
        """Return the encoded reply to an encoded request. Raises `InvalidRateLimitRequest`."""
        reply = await self._decisions.decide(self._get_plan(message))
        encoded: bytes = build_response(reply).SerializeToString()
        return encoded

    def _get_plan(self, message: bytes) -> DescriptorPlan:
        """Return the plan of a request, from the cache if possible. Proxies send the same bytes for equal requests."""
        cached = self._cached
        if cached.book is not self._decisions.book:
            cached = self._cached = self._make_cache()
        plan = cached.plans.get(message)
        if plan is None:
            plan = self._decisions.build_plan(*read_request(message))
            if len(message) <= MAX_CACHED_BYTES:
                cached.plans.store(message, plan)
        return plan


def read_request(message: bytes) -> tuple[str, list[Descriptor]]:
    """Return the domain and the descriptors of an encoded request. Raises `InvalidRateLimitRequest`."""
    try:
        request = RateLimitRequest.FromString(message)
    except DecodeError:
        raise InvalidRateLimitRequest("the message is not a RateLimitRequest") from None
    if not request.domain:
        raise InvalidRateLimitRequest("the domain is empty: set `domain` in the filter's configuration")
    count = len(request.descriptors)
    if not count:
        raise InvalidRateLimitRequest("the request has no descriptors: add rate limit actions to the route")
    if count > MAX_DESCRIPTORS:
        raise InvalidRateLimitRequest(f"the request has {count} descriptors: at most {MAX_DESCRIPTORS} are allowed")
    hits = request.hits_addend or 1
    return request.domain, [_read_descriptor(descriptor, hits) for descriptor in request.descriptors]


def _read_descriptor(descriptor: Any, hits: int) -> Descriptor:
    """Return one descriptor of a request. `hits` is the number for those that set none. Raises `InvalidRateLimitRequest`."""
    entries = tuple((entry.key, entry.value) for entry in descriptor.entries)
    if not entries:
        raise InvalidRateLimitRequest("a descriptor has no entries: each needs at least one key")
    if len(entries) > MAX_ENTRIES:
        raise InvalidRateLimitRequest(f"a descriptor has {len(entries)} entries: at most {MAX_ENTRIES} are allowed")
    if not all(key for key, _ in entries):
        raise InvalidRateLimitRequest("an entry of a descriptor has an empty key")
    if descriptor.HasField("hits_addend"):
        hits = descriptor.hits_addend.value
    override = None
    if descriptor.HasField("limit"):
        unit_index = _OVERRIDE_INDEXES.get(descriptor.limit.unit)
        if unit_index is None:
            raise InvalidRateLimitRequest(f"the unit {descriptor.limit.unit} of a limit is unknown")
        override = LimitOverride(descriptor.limit.requests_per_unit, unit_index)
    return Descriptor(entries, hits, override, descriptor.is_negative_hits)


def build_response(reply: DescriptorReply) -> Any:
    """Return the reply message of a decision."""
    response = RateLimitResponse(overall_code=OK if reply.is_admitted else OVER_LIMIT)
    for status in reply.statuses:
        _fill_status(response.statuses.add(), status)
    for name, value in reply.headers:
        response.response_headers_to_add.add(key=name, value=value)
    if reply.body:
        response.raw_body = reply.body
    return response


def _fill_status(message: Any, status: DescriptorStatus | None) -> None:
    """Write the status of a descriptor to its message. `None` means that the descriptor has no limit."""
    message.code = OK if status is None or not status.is_exceeded else OVER_LIMIT
    if status is None or not status.is_reported:
        return  # Envoy would show the caller the state of the limit.
    message.limit_remaining = min(status.remaining, MAX_UINT32)
    if is_unlimited(status.charge):
        return
    limit, rule = message.current_limit, status.charge.rule
    limit.name = rule.name
    limit.requests_per_unit = min(status.charge.ceiling, MAX_UINT32)
    limit.unit = UNIT_NUMBERS_MS.get(rule.window_ms, 0)
    message.duration_until_reset.seconds, milliseconds = divmod(status.left_ms, 1_000)
    message.duration_until_reset.nanos = milliseconds * 1_000_000
