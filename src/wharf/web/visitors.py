"""What is known of the browser that asks for a page: its session, and whether its connection is protected."""

import ipaddress
from collections.abc import Mapping
from typing import Any, Final

from wharf.web.cookies import build_cookie, read_cookie
from wharf.web.page import PageSessions, Visitor

SESSION_COOKIE: Final = "__Host-wharf"
"""Browsers accept a cookie with this prefix only over TLS, for this host alone."""
LOCAL_SESSION_COOKIE: Final = "wharf-session"
"""The cookie of a browser on the machine of the server, without TLS."""
PENDING_COOKIE: Final = "__Host-wharf-sign-in"
LOCAL_PENDING_COOKIE: Final = "wharf-sign-in"
"""The cookies of a browser whose person is at an identity provider."""
PENDING_AGE_S: Final = 600
"""How long a person may take there. The state of the API, which is checked too, expires after five minutes."""
LOCAL_NAMES: Final = frozenset(("localhost", "127.0.0.1", "[::1]"))
SIGN_IN_FIRST_TEXT: Final = "You are not signed in, or your session has ended. After signing in you return to the page."
"""The notice above the sign-in when a page led there."""
MAX_BROWSER_CHARS: Final = 200


def read_session(headers: Mapping[bytes, bytes], visitor: Visitor) -> str:
    """Return the secret of the session in the cookie of the request; empty if there is none."""
    return read_cookie(headers, _choose_cookie(visitor))


def build_session_cookie(secret: str, visitor: Visitor) -> tuple[bytes, bytes]:
    """Return the header that stores the secret of a session in the browser, or deletes it.

    The cookie ends with the browser; the session also ends by itself.
    """
    return build_cookie(_choose_cookie(visitor), secret, is_secure=visitor.is_secure)


def read_pending_sign_in(headers: Mapping[bytes, bytes], visitor: Visitor) -> str:
    """Return what the browser stored when its person went to an identity provider; empty if there is nothing."""
    return read_cookie(headers, _choose_pending_cookie(visitor))


def build_pending_cookie(value: str, visitor: Visitor) -> tuple[bytes, bytes]:
    """Return the header that stores in the browser that its person goes to an identity provider, or deletes this."""
    return build_cookie(_choose_pending_cookie(visitor), value, max_age_s=PENDING_AGE_S, is_secure=visitor.is_secure)


def _choose_pending_cookie(visitor: Visitor) -> str:
    return PENDING_COOKIE if visitor.is_secure else LOCAL_PENDING_COOKIE


def _choose_cookie(visitor: Visitor) -> str:
    return SESSION_COOKIE if visitor.is_secure else LOCAL_SESSION_COOKIE


def describe_visitor(scope: Mapping[str, Any], headers: Mapping[bytes, bytes], sessions: PageSessions) -> Visitor:
    """Return what is known of the browser, before its session is looked up.

    A proxy that ends TLS says so in `X-Forwarded-Proto`. Anybody can send this header: who does so without TLS gets a cookie
    that the browser refuses.
    """
    address = (scope.get("client") or ("", 0))[0]
    forwarded = headers.get(b"x-forwarded-proto", b"").split(b",")[0].strip().lower()
    is_secure = scope.get("scheme") in ("https", "wss") or forwarded == b"https"
    host = headers.get(b"host", b"").decode("latin-1").lower()
    is_local = _is_loopback(address) and (host in LOCAL_NAMES or host.rpartition(":")[0] in LOCAL_NAMES)
    return Visitor(
        can_sign_in=sessions.is_required,
        is_protected=is_secure or is_local,
        is_secure=is_secure,
        address=address,
        browser=headers.get(b"user-agent", b"").decode("latin-1")[:MAX_BROWSER_CHARS],
    )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
