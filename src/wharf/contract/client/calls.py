"""What a call is, before anybody sends it: the values for the path, the query and the body of one row of the table.

A description knows nothing of sockets, of time or of waiting; the same one is sent by the client that waits and by the
one that is awaited.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Generic, TypedDict, TypeVar
from urllib.parse import quote

import msgspec

from wharf.contract.wire.endpoint_table import Endpoint, EndpointKind

T = TypeVar("T")

QueryValue = str | int | bool | tuple[str, ...] | None
"""A query parameter of a row's own. None, "" and () are not sent."""


class CallOptions(TypedDict, total=False):
    """What may be said with every call. Without it, what the client was made with counts."""

    namespace: str
    region: str


class WriteOptions(CallOptions, total=False):
    """`idempotency_key`: a write with the same key is made once, whoever repeats it; the client makes one by itself."""

    idempotency_key: str


class ReadOptions(CallOptions, total=False):
    """`index`: wait until there is something newer, for `wait_s` at most (or as the server likes)."""

    stale: bool
    index: int
    wait_s: float | None


class ListOptions(ReadOptions, total=False):
    filter: str
    prefix: str
    per_page: int
    next_token: str
    reverse: bool


class AllCallOptions(ListOptions, WriteOptions, total=False):
    """All of them."""


AnyCallOptions = CallOptions | WriteOptions | ReadOptions | ListOptions


class Response(msgspec.Struct, Generic[T], frozen=True):
    """A reply's value with its index, for the next blocking query, and the token of the next page if there is one."""

    value: T
    index: int
    is_leader_known: bool = True
    last_contact_ms: int = 0
    next_token: str = ""


class RequestSpec:
    """One call of one row. `parts`: what stands in the path, in order. `body`: a struct or a document; bytes go as they
    are. `own`: the row's own parameters; `more`: those whose names are no names here."""

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
    """Comes back as `Answer[T]`, may be followed."""


class ListSpec(RequestSpec, Generic[T]):
    """Comes back as `Answer[list[T]]`, may be followed, and walked page by page."""


class CallSpec(RequestSpec, Generic[T]):
    """Comes back as T."""


class StreamSpec(RequestSpec, Generic[T]):
    """Comes back piece by piece, without an end."""


IDEMPOTENT_ENDPOINTS: Final = frozenset({
    "job.parse", "job.validate", "job.plan", "search.prefix", "search.fuzzy",
    "node.register", "node.heartbeat", "node.report", "node.fetch", "node.leave", "node.identities", "node.own_identity",
})  # fmt: skip
"""Of what is no GET: may be said again, whatever became of the first time."""


def is_repeatable(row: Endpoint) -> bool:
    return row.method == "GET" or row.kind is EndpointKind.READ or row.name in IDEMPOTENT_ENDPOINTS


def has_idempotency_key(row: Endpoint) -> bool:
    """Whether an idempotency key makes it safe to repeat."""
    return row.kind in (EndpointKind.WRITE, EndpointKind.LEADER_WRITE) and row.name not in IDEMPOTENT_ENDPOINTS


def build_path(row: Endpoint, values: tuple[str, ...]) -> str:
    """The row's path with its values, each escaped as one part, whatever it holds."""
    given = iter(values)
    path = "/".join(quote(next(given), safe="") if piece.startswith("{") else piece for piece in row.path.split("/"))
    assert next(given, None) is None, f"{row.name} has fewer parts in its path than were given"
    return path


def build_query(row: Endpoint, values: Mapping[str, QueryValue]) -> Iterator[tuple[str, str]]:
    declared = {parameter.name for parameter in row.parameters}
    for name, value in values.items():
        assert name in declared, f"{row.name} has no parameter {name}"
        match value:
            case None | "" | () | False:
                continue
            case True:
                yield name, "true"
            case tuple():
                for one in value:
                    yield name, one
            case _:
                yield name, str(value)
