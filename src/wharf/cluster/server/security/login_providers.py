"""The port to those who prove who somebody is: providers of logins, asked over HTTP.

What is asked and what the answer means is `server.logins`' business.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec


class ProviderUnreachable(Exception):
    """No answer came. The message says from whom, and why."""


class ProviderRequest(msgspec.Struct, frozen=True):
    """A GET, or with a form a POST. `ca_pem`: whom alone to believe, where it is not empty."""

    url: str
    form: Mapping[str, str] | None = None
    headers: Mapping[str, str] = {}
    ca_pem: tuple[str, ...] = ()


class ProviderReply(msgspec.Struct, frozen=True):
    status: int
    body: bytes


class LoginProviders(Protocol):
    async def send(self, request: ProviderRequest) -> ProviderReply:
        """Raises ProviderUnreachable."""
        ...


class NoLoginProviders:
    """For a server without a way outside."""

    async def send(self, request: ProviderRequest) -> ProviderReply:
        raise ProviderUnreachable(f"this server has no way to {request.url}")
