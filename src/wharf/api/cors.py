"""What pages from elsewhere may ask: the files and figures of tasks, and variables (conventions 1.9).

Nothing else sends these headers, unless the configuration adds them to every reply.
"""

from collections.abc import Mapping
from typing import Final

Headers = list[tuple[bytes, bytes]]

READING: Final = ("HEAD", "GET")
ANY_CHANGE: Final = ("HEAD", "GET", "PUT", "DELETE")

OPEN: Final = (
    ("/v1/client/fs/", READING),
    ("/v1/client/stats", READING),
    ("/v1/client/allocation/", READING),
    ("/v1/client/metadata", READING),
    ("/v1/client/identity", READING),
    ("/v1/vars", READING),
    ("/v1/var/", ANY_CHANGE),
)

BEGINNINGS: Final = tuple(beginning for beginning, _ in OPEN)


def methods_for_pages(path: str) -> tuple[str, ...]:
    """The methods that pages from elsewhere may use here; none where they may not come at all."""
    if not path.startswith(BEGINNINGS):
        return ()
    return next((methods for beginning, methods in OPEN if path.startswith(beginning)), ())


def headers_for_pages(headers: Mapping[bytes, bytes]) -> Headers:
    """What a reply tells the browser of a page from elsewhere."""
    vary = (b"vary", b"Origin")
    if b"origin" not in headers:
        return [vary]
    return [vary, (b"access-control-allow-origin", b"*"), (b"access-control-allow-credentials", b"true")]


def preflight(headers: Mapping[bytes, bytes], methods: tuple[str, ...]) -> Headers:
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
