"""The facts of a request that a decision rests on. Whoever reads the bytes makes them; nothing here parses HTTP."""

import msgspec

from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.rule import ConnectionClass


class QueryFacts(msgspec.Struct, frozen=True, gc=False):
    """What a GraphQL body asks for, known before it runs."""

    cost: int
    """Points of the primary limit."""
    points: int
    """Points of the secondary limit."""
    content: int = 0
    """How many mutations in it make content."""


class RequestFacts(msgspec.Struct, frozen=True, eq=False, gc=False):
    id: str
    """Made by whoever serves the request, never taken from its sender: an id is charged once."""
    method: str
    path: str
    caller: Caller
    query: QueryFacts | None = None
    object_count: int | None = None
    """How many objects a large-file batch names."""
    connection: ConnectionClass = ConnectionClass.PLAIN
