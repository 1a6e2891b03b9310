"""What the HTTP port may offer beside ASGI, so that short answers and long waits cost less. Without it all works the same."""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final, Protocol

EXTENSION: Final = "wharf.connection"

Headers = Sequence[tuple[bytes, bytes]]


class Connection(Protocol):
    """The connection that a request came by, for as long as that request is not answered."""

    def write_whole(self, status: int, headers: Headers, body: bytes) -> bool:
        """The whole reply in one step. False: nothing was written; send it the long way."""
        ...

    def on_gone(self, call: Callable[[], None] | None) -> bool:
        """Call this when the caller hangs up; None: call nothing. False: that cannot be told; receive, and see."""
        ...


def connection_of(scope: MutableMapping[str, Any]) -> Connection | None:
    """Taken out of the scope, which would otherwise hold on to itself through it."""
    extensions = scope.pop("extensions", None)
    connection: Connection | None = extensions.get(EXTENSION) if extensions else None
    return connection
