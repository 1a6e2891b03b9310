"""The port to identity providers over HTTP. `security.logins` knows what to send and what replies mean."""

from collections.abc import Mapping
from typing import Protocol

import msgspec


class ProviderUnreachable(Exception):
    """No reply arrived. The message names the address and the reason."""


class ProviderRequest(msgspec.Struct, frozen=True):
    """An HTTP request to an identity provider: a GET, or a POST if there is a form."""

    url: str
    form: Mapping[str, str] | None = None
    headers: Mapping[str, str] = {}
    ca_pem: tuple[str, ...] = ()
    """The only trusted CA certificates; empty means those of the system."""


class ProviderReply(msgspec.Struct, frozen=True):
    """The reply of an identity provider."""

    status: int
    body: bytes


class LoginProviders(Protocol):
    """Sends requests to identity providers."""

    async def send(self, request: ProviderRequest) -> ProviderReply:
        """Send a request and return the reply. Raises `ProviderUnreachable`."""
        ...


class NoLoginProviders:
    """A `LoginProviders` for servers without outgoing connections: every provider is unreachable."""

    async def send(self, request: ProviderRequest) -> ProviderReply:
        raise ProviderUnreachable(f"this server cannot reach identity providers: {request.url}")
