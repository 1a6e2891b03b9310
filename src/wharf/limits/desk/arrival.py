"""What a request shows when it arrives, and what is answered when the service is not asked."""

import msgspec

from wharf.limits.core.answer import Headers
from wharf.limits.core.rule import Connection


class Arrival(msgspec.Struct, frozen=True, eq=False, gc=False):
    method: str
    path: str
    """Without its query, as it was sent."""
    query: str
    peer: str
    """The address of the socket."""
    authorization: str | None = None
    is_conditional: bool = False
    """Whether it asks for what changed only."""
    connection: Connection = Connection.PLAIN
    forwarded_for: tuple[str, ...] = ()
    forwarded: tuple[str, ...] = ()
    has_origin: bool = False
    """Whether a page of another origin asks, in a browser."""


class Reply(msgspec.Struct, frozen=True, gc=False):
    """An answer that is not the service's: a refusal, a wrong credential, a page of ours."""

    status: int
    headers: Headers
    body: bytes
    is_refusal: bool = False
    """Whether a limit or a wrong credential answers, and not a page."""
