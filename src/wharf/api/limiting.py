"""What a limiter is told of each request before it decides: who proved to be a machine, whose token it is, what waits.

It stands before the limiter and refuses nobody. A token that is not known here counts as none: it may have been made on
another server just now, and whether it is good is for the gate to say.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from hmac import compare_digest
from typing import Any, Final, Protocol

from wharf.api.connection import EXTENSION
from wharf.api.gate import token_of
from wharf.api.parameters import parse_query
from wharf.api.router import Router
from wharf.model.secret import secret_digest
from wharf.server.peers import SECRET_HEADER
from wharf.server.server import Server
from wharf.state.tables import NODES_BY_SECRET
from wharf.wire.endpoints import ENDPOINTS, Kind

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MARK: Final = "wharf.limits"
"""Where in the scope it is told: `kind` is `machine` or `caller`, `class` is `plain` or `waiting`, `authorization` a
bearer's line or None."""
STREAMS: Final = frozenset(("event.stream", "agent.monitor", "client.fs_logs", "client.fs_stream"))
"""Replies that go on until somebody ends them."""


class Known(Protocol):
    """Whose tokens are known."""

    def knows(self, sha256: str) -> bool: ...


class Marking:
    """Around a limiter, which is around the application. `known` is None while access control is off."""

    def __init__(self, app: App, server: Server, known: Known | None, *, compat: bool = False) -> None:
        self._app = app
        self._server = server
        self._known = known
        self._compat = compat
        self._router = Router(ENDPOINTS)
        self._door_secret = server.identity.door_secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            scope[MARK] = self.mark_of(scope)
            # By the short way a reply would pass the limiter by: it would have no headers, and its slot no end.
            (scope.get("extensions") or {}).pop(EXTENSION, None)
        await self._app(scope, receive, send)

    def mark_of(self, scope: Scope) -> dict[str, str | None]:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if self._is_machine(scope, headers):
            return {"kind": "machine", "class": "plain", "authorization": None}
        waits = scope["type"] == "websocket" or self._waits(scope)
        return {
            "kind": "caller",
            "class": "waiting" if waits else "plain",
            "authorization": self._authorization(headers),
        }

    def _is_machine(self, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        if not (scope.get("client") or ("",))[0]:
            return True  # From another process of this server, by a socket that only it can open.
        given = headers.get(SECRET_HEADER.encode())
        if given is not None:
            return bool(self._door_secret) and compare_digest(given, self._door_secret)
        secret = headers.get(b"x-cluster-node-secret")
        if not secret:
            return False
        return bool(self._server.replica.those(NODES_BY_SECRET, secret_digest(secret.decode("latin-1"))))

    def _waits(self, scope: Scope) -> bool:
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        endpoint = self._router.find(path.partition(b"?")[0].decode("latin-1")).methods.get(scope["method"])
        if endpoint is None:
            return False
        if endpoint.name in STREAMS:
            return True
        is_blocking = endpoint.kind is Kind.READ and endpoint.blocks and b"index=" in scope["query_string"]
        return is_blocking and parse_query(scope["query_string"]).get("index", "0") not in ("", "0")

    def _authorization(self, headers: dict[bytes, bytes]) -> str | None:
        if self._known is None:
            return None
        token = token_of(headers)
        if not token and self._compat:
            token = headers.get(b"x-nomad-token", b"").decode("latin-1").strip()
        if not token or not self._known.knows(secret_digest(token)):
            return None
        return f"Bearer {token}"
