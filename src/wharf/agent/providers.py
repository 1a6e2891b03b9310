"""Asks providers of logins over HTTP: within bounds of time and size, and following nobody elsewhere."""

import ssl
from typing import TYPE_CHECKING, Final

from wharf.server.providers import ProviderAway, ProviderReply, ProviderRequest

if TYPE_CHECKING:
    import httpx2

WITHIN_S: Final = 10.0
BODY_MAX_BYTES: Final = 1_000_000


class HttpProviders:
    """Implements the port. A connection serves one question: logins are rare, and authorities differ by method."""

    async def ask(self, request: ProviderRequest) -> ProviderReply:
        import httpx2  # It is slow to load, and most servers have no provider.

        try:
            async with httpx2.AsyncClient(
                trust_env=False, verify=_believing(request.ca_pem), timeout=WITHIN_S, follow_redirects=False
            ) as http:
                method = "GET" if request.form is None else "POST"
                data = dict(request.form) if request.form is not None else None
                async with http.stream(method, request.url, data=data, headers=dict(request.headers)) as reply:
                    return ProviderReply(reply.status_code, await _bounded(reply))
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ProviderAway(f"{request.url} does not answer: {error}".strip()) from error
        except ssl.SSLError as error:
            raise ProviderAway(f"the certificates to check {request.url} with cannot be read: {error}") from error


def _believing(ca_pem: tuple[str, ...]) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata="\n".join(ca_pem)) if ca_pem else ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


async def _bounded(reply: "httpx2.Response") -> bytes:
    parts, size = [], 0
    async for part in reply.aiter_bytes():
        size += len(part)
        if size > BODY_MAX_BYTES:
            raise ProviderAway(f"{reply.url} answers with more than {BODY_MAX_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)
