"""Cross-origin requests (CORS): allowed for task files, statistics and variables (conventions 1.9).

Other endpoints send no CORS headers, unless the configuration adds them to every reply.
"""

from collections.abc import Mapping
from typing import Final

from wharf.cluster.api.asgi import HeaderList

READ_METHODS: Final = ("HEAD", "GET")
READ_AND_WRITE_METHODS: Final = ("HEAD", "GET", "PUT", "DELETE")

CORS_METHODS_BY_PATH: Final = (
    ("/v1/client/fs/", READ_METHODS),
    ("/v1/client/stats", READ_METHODS),
    ("/v1/client/allocation/", READ_METHODS),
    ("/v1/client/metadata", READ_METHODS),
    ("/v1/client/identity", READ_METHODS),
    ("/v1/vars", READ_METHODS),
    ("/v1/var/", READ_AND_WRITE_METHODS),
)

CORS_PATH_PREFIXES: Final = tuple(prefix for prefix, _ in CORS_METHODS_BY_PATH)


def list_cors_methods(path: str) -> tuple[str, ...]:
    """Return the methods allowed for cross-origin requests to the path; empty if none are."""
    if not path.startswith(CORS_PATH_PREFIXES):
        return ()
    return next((methods for prefix, methods in CORS_METHODS_BY_PATH if path.startswith(prefix)), ())


def build_cors_headers(headers: Mapping[bytes, bytes]) -> HeaderList:
    """Return the CORS headers of a reply. Without an `Origin` header in the request, this is only `Vary`."""
    vary = (b"vary", b"Origin")
    if b"origin" not in headers:
        return [vary]
    return [vary, (b"access-control-allow-origin", b"*"), (b"access-control-allow-credentials", b"true")]


def build_preflight_headers(headers: Mapping[bytes, bytes], methods: tuple[str, ...]) -> HeaderList:
    """Return the headers of the reply to a CORS preflight request.

    `methods`: the methods that are allowed for the path. If the requested method is not one of them, only `Vary`
    headers are returned.
    """
    requested_method = headers.get(b"access-control-request-method", b"").decode("latin-1")
    vary = [
        (b"vary", b"Origin"),
        (b"vary", b"Access-Control-Request-Method"),
        (b"vary", b"Access-Control-Request-Headers"),
    ]
    if b"origin" not in headers or requested_method not in methods:
        return vary
    allowed = [
        (b"access-control-allow-origin", b"*"),
        (b"access-control-allow-methods", requested_method.encode()),
        (b"access-control-allow-credentials", b"true"),
    ]
    requested_headers = headers.get(b"access-control-request-headers")
    if requested_headers:
        allowed.append((b"access-control-allow-headers", requested_headers))
    return vary + allowed
