"""The description of a call that is not sent yet: the values for the path, the query and the body of an endpoint.

Descriptions do no I/O. The synchronous and the asyncio client send the same descriptions.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Generic, TypedDict, TypeVar
from urllib.parse import quote

import msgspec

from wharf.contract.wire.endpoint_table import REPEATABLE_WRITES, Endpoint, EndpointKind

T = TypeVar("T")

QueryValue = str | int | bool | tuple[str, ...] | None
"""The value of a query parameter that an endpoint declares. None, "", () and False are not sent."""


class CallOptions(TypedDict, total=False):
    """Options of every call. The client's defaults replace options that are not set."""

    namespace: str  # Lists also accept `*` for all namespaces.
    region: str  # The region to which servers forward the request.
    timeout_s: float
    """Seconds for the call in all its attempts, divided among the servers. Blocking queries and streams have their own."""


class WriteOptions(CallOptions, total=False):
    """Options of writes."""

    idempotency_key: str
    """Servers perform requests with the same key only once. A client that retries generates a key if none is set."""


class ReadOptions(CallOptions, total=False):
    """Options of reads. With `index`, the reply is sent when the result has changed since that log index."""

    stale: bool  # Whether the server may reply without waiting for the newest writes.
    index: int  # Log index of an earlier reply.
    wait_s: float | None  # Longest wait with `index`, in seconds; None: the server's default.


class ListOptions(ReadOptions, total=False):
    """Options of lists, in addition to those of reads."""

    filter: str  # An expression such as `Status == "running"`.
    prefix: str  # Only records whose ID or name begins with this text.
    per_page: int  # Maximum number of records in the reply.
    next_token: str  # The token of the page, from the reply with the previous page.
    reverse: bool  # Whether to reverse the order.


class AllCallOptions(ListOptions, WriteOptions, total=False):
    """The options of all kinds of calls together; each may be missing."""


AnyCallOptions = CallOptions | WriteOptions | ReadOptions | ListOptions


class Response(msgspec.Struct, Generic[T], frozen=True):
    """The reply to a read: its decoded value and the data of its headers."""

    value: T
    index: int  # Log index of the value; a read with this `index` waits for a change.
    is_leader_known: bool = True  # Whether the server knows a leader.
    last_contact_ms: int = 0  # Time since the server's last contact with the log.
    next_token: str = ""  # Selects the next page of a list; empty on the last page.

    @property
    def known_leader(self) -> bool:
        """The former name of `is_leader_known`."""
        return self.is_leader_known


class RequestSpec:
    """The description of a call of one endpoint, before it is sent.

    `path_values` replace the path parameters, in order. `body` is a struct or a JSON document; bytes are sent
    unchanged. `query` holds the query parameters that the endpoint declares; `extra_query` holds those whose names are
    not Python identifiers.
    """

    def __init__(
        self,
        options: AnyCallOptions,
        *path_values: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        extra_query: Mapping[str, QueryValue] | None = None,
        **query: QueryValue,
    ) -> None:
        self.options: AllCallOptions = {**options}
        self.path_values = path_values
        self.body = body
        self.headers = headers or {}
        self.query = {**query, **(extra_query or {})}


class ReadSpec(RequestSpec, Generic[T]):
    """The description of a read. The client returns `Response[T]`, or follows the changes of the value."""


class ListSpec(RequestSpec, Generic[T]):
    """The description of a list. The client returns `Response[list[T]]`, follows its changes, or yields all records."""


class CallSpec(RequestSpec, Generic[T]):
    """The description of a single call. The client returns the decoded reply of type T."""


class StreamSpec(RequestSpec, Generic[T]):
    """The description of a call with a streamed reply. The client yields values of type T."""


def is_repeatable(endpoint: Endpoint) -> bool:
    """Return whether a second call of the endpoint has no further effect."""
    return endpoint.method == "GET" or endpoint.kind is EndpointKind.READ or endpoint.name in REPEATABLE_WRITES


READ_ONLY_POSTS: Final = frozenset({"job.parse", "job.validate", "job.plan", "search.prefix", "search.fuzzy"})
"""Endpoints other than GET that change nothing."""


def is_read_only(endpoint: Endpoint) -> bool:
    """Return whether a call of the endpoint changes nothing in the cluster."""
    return endpoint.method == "GET" or endpoint.kind is EndpointKind.READ or endpoint.name in READ_ONLY_POSTS


def build_path(endpoint: Endpoint, values: tuple[str, ...]) -> str:
    """Return the endpoint's path with `values` in place of its parameters, in order.

    Each value is percent-encoded, also its slashes, so that it is one path segment.
    """
    remaining_values = iter(values)
    path = "/".join(
        quote(next(remaining_values), safe="") if segment.startswith("{") else segment
        for segment in endpoint.path.split("/")
    )
    assert next(remaining_values, None) is None, f"too many path values for endpoint {endpoint.name}"
    return path


def build_query(endpoint: Endpoint, values: Mapping[str, QueryValue]) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the query parameters of a call.

    Unset values are skipped, True becomes `true`, and a tuple yields one pair for each item.
    """
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
