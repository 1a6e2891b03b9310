"""The facts of a request that a decision depends on. Gateway and middleware build them; nothing here parses HTTP."""

import msgspec

from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.rule import ConnectionClass


class QueryFacts(msgspec.Struct, frozen=True, gc=False):
    """The cost of a GraphQL body, computed before the query runs."""

    cost: int
    """Points that the primary limit charges."""
    points: int
    """Points that the secondary limit charges."""
    content: int = 0
    """The number of its mutations that create content."""
    has_mutations: bool = False
    """Whether it can change anything. Only such a query can create content that the rules do not name."""


class RequestFacts(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One request, with everything that a decision depends on."""

    id: str
    """The server generates it and never accepts one from the caller, because each id is charged only once."""
    method: str
    """Several methods, joined by `join_methods`, if a service may serve it as any of them."""
    path: str
    caller: Caller
    query: QueryFacts | None = None
    object_count: int | None = None
    """The number of objects in a large-file batch; `None` for other requests."""
    connection: ConnectionClass = ConnectionClass.PLAIN
    may_create_content: bool = False
    """Whether the service has marked an earlier request to this endpoint as one that created content."""
