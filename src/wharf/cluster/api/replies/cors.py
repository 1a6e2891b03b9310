"""What pages from elsewhere may ask: the files and figures of tasks, and variables (conventions 1.9).

Nothing else sends these headers, unless the configuration adds them to every reply.
"""

from collections.abc import Mapping
from typing import Final

Headers = list[tuple[bytes, bytes]]

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

CORS_PATH_PREFIXES: Final = tuple(beginning for beginning, _ in CORS_METHODS_BY_PATH)


def list_cors_methods(path: str) -> tuple[str, ...]:
    """The methods that pages from elsewhere may use here; none where they may not come at all."""
    if not path.startswith(CORS_PATH_PREFIXES):
        return ()
    return next((methods for beginning, methods in CORS_METHODS_BY_PATH if path.startswith(beginning)), ())


def build_cors_headers(headers: Mapping[bytes, bytes]) -> Headers:
    """What a reply tells the browser of a page from elsewhere."""
    vary = (b"vary", b"Origin")
    if b"origin" not in headers:
        return [vary]
    return [vary, (b"access-control-allow-origin", b"*"), (b"access-control-allow-credentials", b"true")]


def build_preflight_headers(headers: Mapping[bytes, bytes], methods: tuple[str, ...]) -> Headers:
    """Whether a browser may send what it is about to; a method that is not allowed gets no word of allowance."""
    asked = headers.get(b"access-control-request-method", b"").decode("latin-1")
    vary = [
        (b"vary", b"Origin"),
        (b"vary", b"Access-Control-Request-Method"),
        (b"vary", b"Access-Control-Request-Headers"),
    ]
    if b"origin" not in headers or asked not in methods:
        return vary
    allowed = [
        (b"access-control-allow-origin", b"*"),
        (b"access-control-allow-methods", asked.encode()),
        (b"access-control-allow-credentials", b"true"),
    ]
    wanted = headers.get(b"access-control-request-headers")
    if wanted:
        allowed.append((b"access-control-allow-headers", wanted))
    return vary + allowed
