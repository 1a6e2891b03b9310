"""Requests and replies of Envoy's rate limit protocol for tests, in the messages that Envoy's authors publish."""

from typing import Any

from envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor  # type: ignore[import-untyped]
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse  # type: ignore[import-untyped]
from google.protobuf.wrappers_pb2 import UInt64Value  # type: ignore[import-untyped]

from wharf.limits.decisions import DecisionService
from wharf.limits.decisions.descriptors import DescriptorDecisions
from wharf.limits.serving.envoy import RateLimitService

OK = RateLimitResponse.OK
OVER_LIMIT = RateLimitResponse.OVER_LIMIT


def describe(text: str, *, hits: int | None = None, limit: tuple[int, str] | None = None) -> Any:
    """Return a descriptor message from a text such as `path=/x, user=ada`. `limit` is a number and a unit, such as HOUR."""
    entries = [part.partition("=")[::2] for part in text.split(", ")]
    descriptor = RateLimitDescriptor(
        entries=[RateLimitDescriptor.Entry(key=key, value=value) for key, value in entries],
        hits_addend=None if hits is None else UInt64Value(value=hits),
    )
    if limit is not None:
        number, unit = limit
        descriptor.limit.requests_per_unit = number
        descriptor.limit.unit = unit
    return descriptor


def make_refund(text: str, *, hits: int) -> Any:
    """Return a descriptor message with `is_negative_hits`, a newer field that the published messages do not have yet."""
    return RateLimitDescriptor.FromString(describe(text, hits=hits).SerializeToString() + b"\x20\x01")


def make_request(*descriptors: Any, domain: str = "shop", hits: int = 0) -> Any:
    """Return a request message. Each descriptor is a message, or a text for `describe`."""
    messages = [describe(item) if isinstance(item, str) else item for item in descriptors]
    return RateLimitRequest(domain=domain, descriptors=messages, hits_addend=hits)


class Proxy:
    """Sends requests to a decision service, as Envoy does, without a network."""

    def __init__(self, service: DecisionService) -> None:
        self._service = RateLimitService(DescriptorDecisions(service))

    async def ask(self, *descriptors: Any, **fields: Any) -> Any:
        """Return the reply message to a request with these descriptors."""
        message = make_request(*descriptors, **fields).SerializeToString()
        return RateLimitResponse.FromString(await self._service.answer(message))

    async def ask_code(self, *descriptors: Any, **fields: Any) -> int:
        """Return only whether the reply admits the request."""
        code: int = (await self.ask(*descriptors, **fields)).overall_code
        return code
