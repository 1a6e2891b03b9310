"""Dispatch of websocket requests to their handlers: routing, parameters and refusals.

A handshake at a path without a websocket is refused after routing. Its request is never executed as a GET, because a
blocking query or a stream would wait for a caller who has no way to end it.
"""

import asyncio
import logging
from typing import Final
from urllib.parse import quote

from wharf.cluster.api.access_control import RequestAuthorizer
from wharf.cluster.api.asgi import Receive, Scope, Send
from wharf.cluster.api.audit import AuditWriter
from wharf.cluster.api.continued_access import AccessWatcher
from wharf.cluster.api.handlers.allocations import exec
from wharf.cluster.api.handlers.nodes import channel
from wharf.cluster.api.replies.encoding import ReplyBody
from wharf.cluster.api.replies.sender import HttpReply, ReplySender, build_text_reply
from wharf.cluster.api.requests.parameters import parse_endpoint_parameters, parse_query_strict
from wharf.cluster.api.requests.request import create_request
from wharf.cluster.api.routing.router import RouteMatch, Router
from wharf.cluster.api.routing.unrouted import build_redirect, build_unrouted_reply, clean_path
from wharf.cluster.api.websockets.sockets import CallerSocket, WebSocketHandlers, refuse_handshake
from wharf.cluster.server.server import Server
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.credentials import read_credentials
from wharf.world.request_id import RequestIdScope

log = logging.getLogger(__name__)

NO_WEBSOCKET_TEXT: Final = "this endpoint has no websocket: send the request without an upgrade"


class WebSocketDispatcher:
    """Runs the handler of a websocket. Rejects the handshake if the path has no handler."""

    def __init__(
        self,
        server: Server,
        router: Router,
        replies: ReplySender,
        authorizer: RequestAuthorizer,
        access: AccessWatcher,
        audit: AuditWriter,
    ) -> None:
        self._server = server
        self._router = router
        self._replies = replies
        self._closing = asyncio.Event()
        self._handlers: WebSocketHandlers = {
            **exec.build_websocket_handlers(server, authorizer, access, audit),
            **channel.build_websocket_handlers(server),
        }

    def close(self) -> None:
        """End all websockets because this server stops."""
        self._closing.set()

    async def dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the handler of a websocket and run it until the websocket closes. A refusal closes the websocket."""
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        path = raw_path.partition(b"?")[0].decode("latin-1")
        match = self._router.find_route(path)
        endpoint = match.methods.get("GET")
        handler = self._handlers.get(endpoint.name) if endpoint is not None else None
        if endpoint is None or handler is None:
            await receive()  # The `websocket.connect` message.
            await self._refuse(scope, send, _build_no_websocket_reply(path, match, scope["query_string"]))
            return
        socket = CallerSocket(scope, receive, send, self._closing)
        headers = self._replies.parse_headers(scope["headers"])
        try:
            headers |= read_credentials(scope["headers"], is_nomad_compatible=self._replies.is_nomad_compatible)
            query = parse_query_strict(scope["query_string"], endpoint)
            parameters = parse_endpoint_parameters(endpoint, query, scope["query_string"])
            request = create_request(self._server.world, endpoint, match.path_values, query, headers, parameters)
            with RequestIdScope(request.id):
                request.require_region(self._server.identity.region)
                await handler(request, socket)
        except Refusal as refusal:
            await socket.refuse(refusal)
        except Exception:  # Last resort: the caller must get an error, not a silent disconnect.
            log.exception("websocket handler failed path=%s", scope["path"])
            await socket.refuse(Refusal(RefusalCode.OUTCOME_UNKNOWN, "internal error: the server log has the details"))

    async def _refuse(self, scope: Scope, send: Send, reply: HttpReply) -> None:
        """Reject the handshake with this reply and the headers that all replies have."""
        assert isinstance(reply.body, ReplyBody), "the reply to a handshake is not a stream"
        headers = [*reply.headers, *self._replies.extra_headers]
        await refuse_handshake(send, scope, reply.status, headers, b"".join(reply.body.chunks))


def _build_no_websocket_reply(path: str, match: RouteMatch, query: bytes) -> HttpReply:
    """Return the reply to a handshake at a path without a websocket: a redirect, 404, or 400 for an endpoint or a page."""
    clean = clean_path(path)
    if clean != path:
        return build_redirect(clean, "GET", query)
    if not match.methods:
        reply = build_unrouted_reply(path, match, "GET", query)
        if reply.status >= 300:
            return reply
    return build_text_reply(400, NO_WEBSOCKET_TEXT)
