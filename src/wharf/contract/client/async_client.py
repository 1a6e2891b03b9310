"""The asyncio client, and clients for the same servers with other tokens."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Protocol, Self

import msgspec

from wharf.contract.client.flow import ClientDefaults, RetryPolicy
from wharf.contract.client.flow_runners import AsyncFlowRunner
from wharf.contract.client.nouns import ClientMethods
from wharf.contract.client.transport import ClientReply, ClientRequest, StreamedReply, Transport
from wharf.world import World
from wharf.world.failover import FailoverAddresses

TOKEN_HEADER: Final = "x-cluster-token"
FORBIDDEN_STATUS: Final = 403


class AsyncClient(AsyncFlowRunner, ClientMethods[AsyncFlowRunner]):
    """An asyncio client of the HTTP API, such as `await client.jobs.read("web")`. Fails over between servers."""

    def __init__(
        self,
        world: World,
        transports: Sequence[Transport],
        *,
        defaults: ClientDefaults | None = None,
        retry_policy: RetryPolicy | None = None,
        servers: FailoverAddresses | None = None,
        sends_probes: bool = False,
    ) -> None:
        """`servers`: which servers failed, if other clients or connections use the same ones. `sends_probes`: whether a
        frozen server is found by probes while a blocking query or a stream waits for it. Node agents send none, because
        their heartbeats find it.
        """
        AsyncFlowRunner.__init__(
            self,
            world,
            transports,
            defaults=defaults,
            retry_policy=retry_policy,
            servers=servers,
            sends_probes=sends_probes,
        )
        ClientMethods.__init__(self, self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def with_token_source(self, token_source: "TokenSource") -> "AsyncClient":
        """Return a client that shares the connections of this one and authenticates with tokens of `token_source`.

        It need not be closed.
        """
        return self.with_transports(lambda transport: _TokenTransport(transport, token_source))

    def with_transports(self, wrap: Callable[[Transport], Transport]) -> "AsyncClient":
        """Return a client for the same servers, with `wrap(transport)` in place of each transport of this client.

        It need not be closed if the new transports share the connections of this client.
        """
        state, transports = self._state, [wrap(transport) for transport in self._transports]
        return AsyncClient(
            state.world,
            transports,
            defaults=state.defaults,
            retry_policy=state.retry_policy,
            servers=state.servers,
            sends_probes=self._sends_probes,
        )


class TokenSource(Protocol):
    """A provider of the tokens with which a client authenticates its requests."""

    async def get_token(self) -> str:
        """Return the token for the next request. Raises `Unreachable` if no token is available at the moment."""
        ...

    def on_rejected(self, token: str) -> None:
        """Handle a reply with status 403 to a request with this token: it is invalid or lacks the permission."""
        ...


class _TokenTransport:
    """A transport that wraps another one and adds a token from a token source to each request."""

    def __init__(self, transport: Transport, token_source: TokenSource) -> None:
        self._transport = transport
        self._token_source = token_source

    async def send(self, request: ClientRequest) -> ClientReply:
        """Send the request with a token and return the reply.

        Reports the token to its source if the reply has status 403.
        """
        authenticated, token = await self._add_token(request)
        reply = await self._transport.send(authenticated)
        if reply.status == FORBIDDEN_STATUS:
            self._token_source.on_rejected(token)
        return reply

    async def open(self, request: ClientRequest) -> StreamedReply:
        """Send the request with a token and return its streamed reply."""
        authenticated, _ = await self._add_token(request)
        return await self._transport.open(authenticated)

    async def close(self) -> None:
        """Do nothing: the wrapped transport belongs to another client."""

    async def _add_token(self, request: ClientRequest) -> tuple[ClientRequest, str]:
        """Return the request with a token header, and the token itself."""
        token = await self._token_source.get_token()
        return msgspec.structs.replace(request, headers={**request.headers, TOKEN_HEADER: token}), token
