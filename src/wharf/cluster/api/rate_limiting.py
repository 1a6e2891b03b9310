"""Classification of requests for the rate limiter: machine or caller, known token, waiting or plain.

It runs before the limiter and refuses nothing. A token that this replica does not know counts as no token; access
control decides later whether it is valid.
"""

from collections.abc import Mapping
from hmac import compare_digest
from typing import Final, Protocol

from wharf.cluster.api.asgi import App, Receive, Scope, Send
from wharf.cluster.api.connection import CONNECTION_EXTENSION
from wharf.cluster.api.node_callers import find_node_by_secret
from wharf.cluster.api.requests.parameters import parse_query
from wharf.cluster.api.routing.router import get_api_router
from wharf.cluster.server.server import Server
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.secrets import hash_secret
from wharf.contract.wire.credentials import NODE_SECRET_HEADER, SERVER_SECRET_HEADER, read_credentials, read_token
from wharf.contract.wire.endpoint_table import EndpointKind

LIMITS_SCOPE_KEY: Final = "wharf.limits"
"""The key of the classification in the ASGI scope, read by the limiter.

`kind` is `machine` or `caller`, `class` is `plain` or `waiting`, `authorization` is `Bearer <token>` or `None`.
"""


class KnownTokens(Protocol):
    """Reports whether a token is known, by the digest of its secret."""

    def is_known_token(self, sha256: str) -> bool: ...


class RequestClassifier:
    """ASGI middleware in front of the rate limiter: adds to each request how the limiter must treat it.

    `tokens` is `None` while access control is off.
    """

    def __init__(
        self, app: App, server: Server, tokens: KnownTokens | None, *, is_nomad_compatible: bool = False
    ) -> None:
        self._app = app
        self._server = server
        self._tokens = tokens
        self._is_nomad_compatible = is_nomad_compatible
        self._router = get_api_router()
        self._server_secret = server.identity.door_secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            scope[LIMITS_SCOPE_KEY] = self.classify_request(scope)
            # Replies written directly to the connection would bypass the limiter: no headers, and its slot never released.
            (scope.get("extensions") or {}).pop(CONNECTION_EXTENSION, None)
        await self._app(scope, receive, send)

    def classify_request(self, scope: Scope) -> dict[str, str | None]:
        """Return how the rate limiter must treat the request: the keys and values that `LIMITS_SCOPE_KEY` describes."""
        try:
            credentials = read_credentials(scope["headers"], is_nomad_compatible=self._is_nomad_compatible)
        except Refusal:
            credentials = {}  # The API refuses the request, so it counts as one without a credential.
        if self._is_machine(scope, credentials):
            return {"kind": "machine", "class": "plain", "authorization": None}
        is_waiting = scope["type"] == "websocket" or self._is_waiting(scope)
        return {
            "kind": "caller",
            "class": "waiting" if is_waiting else "plain",
            "authorization": self._get_authorization(credentials),
        }

    def _is_machine(self, scope: Scope, credentials: Mapping[bytes, bytes]) -> bool:
        """Return whether a process of this server, another server or a node sent the request."""
        if not (scope.get("client") or ("",))[0]:
            return True  # Sent by another process of this server, over its private socket.
        server_secret = credentials.get(SERVER_SECRET_HEADER)
        if server_secret is not None:
            return bool(self._server_secret) and compare_digest(server_secret, self._server_secret)
        secret = credentials.get(NODE_SECRET_HEADER)
        if not secret:
            return False
        return find_node_by_secret(self._server.replica, secret) is not None

    def _is_waiting(self, scope: Scope) -> bool:
        """Return whether the reply may take long by design: a stream or a blocking query."""
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        endpoint = self._router.find_route(path.partition(b"?")[0].decode("latin-1")).methods.get(scope["method"])
        if endpoint is None:
            return False
        if endpoint.has_endless_reply:
            return True
        is_blocking = endpoint.kind is EndpointKind.READ and endpoint.can_block and b"index=" in scope["query_string"]
        return is_blocking and parse_query(scope["query_string"]).get("index", "0") not in ("", "0")

    def _get_authorization(self, credentials: Mapping[bytes, bytes]) -> str | None:
        """Return the token as the value `Bearer <token>` if the replica knows it, else `None`."""
        if self._tokens is None:
            return None
        token = read_token(credentials)
        if not token or not self._tokens.is_known_token(hash_secret(token)):
            return None
        return f"Bearer {token}"
