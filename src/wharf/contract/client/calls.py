"""The description of a call that is not sent yet: the values for the path, the query and the body of an endpoint.

A description knows no sockets and no time. Both clients send the same descriptions.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Generic, TypedDict, TypeVar
from urllib.parse import quote

import msgspec

from wharf.contract.wire.endpoint_table import Endpoint, EndpointKind

T = TypeVar("T")

QueryValue = str | int | bool | tuple[str, ...] | None
"""The value of an endpoint's own query parameter. None, "", () and False are not sent."""


class CallOptions(TypedDict, total=False):
    """Options of every call. Missing ones are taken from the client's defaults."""

    namespace: str
    region: str


class WriteOptions(CallOptions, total=False):
    """Options of writes. A write with the same `idempotency_key` is made only once; without one, the client generates it."""

    idempotency_key: str


class ReadOptions(CallOptions, total=False):
    """Options of reads. `index`: wait until the result has changed since it, for at most `wait_s` (default: the server's)."""

    stale: bool
    index: int
    wait_s: float | None


class ListOptions(ReadOptions, total=False):
    """Options of lists."""

    filter: str
    prefix: str
    per_page: int
    next_token: str
    reverse: bool


class AllCallOptions(ListOptions, WriteOptions, total=False):
    """The options of all kinds of calls."""


AnyCallOptions = CallOptions | WriteOptions | ReadOptions | ListOptions


class Response(msgspec.Struct, Generic[T], frozen=True):
    """The decoded value of a reply, its index for the next blocking query, and the token of the next page, if any."""

    value: T
    index: int
    is_leader_known: bool = True
    last_contact_ms: int = 0
    next_token: str = ""


class RequestSpec:
    """A call of one endpoint.

    `path_values` replace the path parameters, in order. `body` is a struct or a JSON document; bytes are sent unchanged. `own` are the
    endpoint's own query parameters; `extra_query` holds those whose names are not Python identifiers.
    """

    def __init__(
        self,
        options: AnyCallOptions,
        *path_values: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        extra_query: Mapping[str, QueryValue] | None = None,
        **own: QueryValue,
    ) -> None:
        self.options: AllCallOptions = {**options}
        self.path_values = path_values
        self.body = body
        self.headers = headers or {}
        self.query = {**own, **(extra_query or {})}


class ReadSpec(RequestSpec, Generic[T]):
    """A read that returns `Response[T]` and can be followed."""


class ListSpec(RequestSpec, Generic[T]):
    """A read that returns `Response[list[T]]`, can be followed, and can be iterated page by page."""


class CallSpec(RequestSpec, Generic[T]):
    """A call that returns T."""


class StreamSpec(RequestSpec, Generic[T]):
    """A call that returns a stream of T."""


IDEMPOTENT_ENDPOINTS: Final = frozenset({
    "job.parse", "job.validate", "job.plan", "search.prefix", "search.fuzzy",
    "node.register", "node.heartbeat", "node.report", "node.fetch", "node.leave", "node.identities", "node.own_identity",
})  # fmt: skip
"""Endpoints other than GET that may be called twice, whatever the result of the first call."""


def is_repeatable(endpoint: Endpoint) -> bool:
    """Return whether a second call of the endpoint has no further effect."""
    return endpoint.method == "GET" or endpoint.kind is EndpointKind.READ or endpoint.name in IDEMPOTENT_ENDPOINTS


def has_idempotency_key(endpoint: Endpoint) -> bool:
    """Return whether the endpoint accepts an idempotency key, which makes a retry safe."""
    return (
        endpoint.kind in (EndpointKind.WRITE, EndpointKind.LEADER_WRITE) and endpoint.name not in IDEMPOTENT_ENDPOINTS
    )


def build_path(endpoint: Endpoint, values: tuple[str, ...]) -> str:
    """Return the endpoint's path with its values, each percent-encoded as a single segment."""
    remaining_values = iter(values)
    path = "/".join(
        quote(next(remaining_values), safe="") if segment.startswith("{") else segment
        for segment in endpoint.path.split("/")
    )
    assert next(remaining_values, None) is None, f"too many path values for endpoint {endpoint.name}"
    return path


def build_query(endpoint: Endpoint, values: Mapping[str, QueryValue]) -> Iterator[tuple[str, str]]:
    """Yield the query parameters of a call, without unset ones."""
    declared = {parameter.name for parameter in endpoint.parameters}
    for name, value in values.items():
        assert name in declared, f"endpoint {endpoint.name} has no parameter {name}"
        match value:
            case None | "" | () | False:
                continue
            case True:
                yield name, "true"
            case tuple():
                for item in value:
                    yield name, item
            case _:
                yield name, str(value)
