"""The port to identity providers over HTTP. `security.logins` knows what to send and what replies mean."""

from collections.abc import Mapping
from typing import Protocol

import msgspec


class ProviderUnreachable(Exception):
    """No reply arrived. The message names the address and the reason."""


class ProviderRequest(msgspec.Struct, frozen=True):
    """A GET, or a POST if there is a form. `ca_pem`: the only trusted CA certificates, unless empty."""

    url: str
    form: Mapping[str, str] | None = None
    headers: Mapping[str, str] = {}
    ca_pem: tuple[str, ...] = ()


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
    """For servers without outgoing connections."""

    async def send(self, request: ProviderRequest) -> ProviderReply:
        raise ProviderUnreachable(f"this server cannot reach identity providers: {request.url}")
