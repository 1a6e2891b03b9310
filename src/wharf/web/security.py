"""Protection of the pages in browsers: headers of every page, and the check that a change comes from one of our own pages."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

POLICY_RULES: Final = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "worker-src 'self'",
    "manifest-src 'self'",
    "form-action 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
)
CONTENT_SECURITY_POLICY: Final = "; ".join(POLICY_RULES)
"""Browsers run only our own script files: text of a job or a log that becomes part of a page can run nothing."""
INLINE_STYLE_POLICY: Final = "; ".join(
    f"{rule} 'unsafe-inline'" if rule.startswith("style-src") else rule for rule in POLICY_RULES
)
"""The policy of the terminal page, whose library makes its styles while it runs."""
PAGE_HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)
"""The headers of everything below `/ui/`."""

SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
SAME_SITE_VALUES: Final = frozenset((b"same-origin", b"none"))
"""Values of `Sec-Fetch-Site` of a request by one of our pages, or by the person (an address that was typed)."""


def is_own_page(headers: Mapping[bytes, bytes], scheme: str) -> bool:
    """Return whether a websocket is opened by one of our pages.

    Browsers always say the page in `Origin`, and do not limit which pages open websockets. A handshake without it is refused:
    pages are the only clients of these websockets.
    """
    if headers.get(b"sec-fetch-site", b"same-origin") != b"same-origin":
        return False
    return _is_same_origin(headers.get(b"origin", b""), headers, scheme)


def find_foreign_sender(method: str, headers: Mapping[bytes, bytes], scheme: str) -> str:
    """Return why a request that changes something does not come from one of our pages; empty if it does.

    Browsers say the sender in `Sec-Fetch-Site`, but only over TLS and to the own machine. Otherwise they say it in `Origin`. A
    request with neither does not come from a browser, and has no cookie that a foreign page could misuse.
    """
    if method in SAFE_METHODS:
        return ""
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return (
            "" if site in SAME_SITE_VALUES else f"it was sent by a page of another site ({site.decode('latin-1')[:40]})"
        )
    origin = headers.get(b"origin")
    if origin is None:
        return ""
    return "" if _is_same_origin(origin, headers, scheme) else "it was sent by a page of another address"


def is_link_of_foreign_page(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a page of another site leads here. Browsers say so over TLS and to the own machine."""
    return headers.get(b"sec-fetch-site", b"none") not in SAME_SITE_VALUES


def _is_same_origin(origin: bytes, headers: Mapping[bytes, bytes], scheme: str) -> bool:
    """Return whether the `Origin` of a request is the address at which it has arrived."""
    host = headers.get(b"host", b"").decode("latin-1").lower()
    try:
        sender = urlsplit(origin.decode("latin-1").lower())
    except ValueError:  # Such as an address of version 6 without its end.
        return False
    return sender.scheme == scheme and bool(sender.netloc) and sender.netloc == host
