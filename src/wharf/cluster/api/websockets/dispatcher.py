"""Dispatch of websocket requests to their handlers: routing, parameters and refusals."""

import asyncio
import logging
from urllib.parse import quote

from wharf.cluster.api.access_control import TOKEN_CONFLICT_TEXT, RequestAuthorizer, has_conflicting_tokens
from wharf.cluster.api.asgi import App, Receive, Scope, Send
from wharf.cluster.api.continued_access import AccessWatcher
from wharf.cluster.api.handlers.allocations import exec
from wharf.cluster.api.handlers.nodes import channel
from wharf.cluster.api.replies.sender import ReplySender
from wharf.cluster.api.requests.parameters import parse_endpoint_parameters, parse_query_strict
from wharf.cluster.api.requests.request import create_request
from wharf.cluster.api.routing.router import Router
from wharf.cluster.api.websockets.sockets import CallerSocket, WebSocketHandlers, reply_as_request
from wharf.cluster.server.server import Server
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.world.request_id import RequestIdScope

log = logging.getLogger(__name__)


class WebSocketDispatcher:
    """Runs the handler of a websocket.

    If the path has no handler, rejects the handshake with the reply of `app` to a GET.
    """

    def __init__(
        self,
        app: App,
        server: Server,
        router: Router,
        replies: ReplySender,
        authorizer: RequestAuthorizer,
        access: AccessWatcher,
    ) -> None:
        self._app = app
        self._server = server
        self._router = router
        self._replies = replies
        self._closing = asyncio.Event()
        self._handlers: WebSocketHandlers = {
            **exec.build_websocket_handlers(server, authorizer.add_checked_caller, access),
            **channel.build_websocket_handlers(server),
        }

    def close(self) -> None:
        """End all websockets because this server stops."""
        self._closing.set()

    async def dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the handler of a websocket and run it until the websocket closes. A refusal closes the websocket."""
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        match = self._router.find_route(raw_path.partition(b"?")[0].decode("latin-1"))
        endpoint = match.methods.get("GET")
        handler = self._handlers.get(endpoint.name) if endpoint is not None else None
        if endpoint is None or handler is None:
            await reply_as_request(self._app, scope, receive, send)
            return
        socket = CallerSocket(scope, receive, send, self._closing)
        headers = self._replies.parse_headers(scope["headers"])
        try:
            if has_conflicting_tokens(scope["headers"], is_nomad_compatible=self._replies.is_nomad_compatible):
                raise invalid_request(TOKEN_CONFLICT_TEXT)
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
