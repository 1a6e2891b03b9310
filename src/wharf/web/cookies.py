"""Cookies of the pages."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

NOTICE_COOKIE: Final = "wharf-notice"
"""A sentence that the next page shows once, such as the result of a form."""
MAX_COOKIE_CHARS: Final = 1_000


def read_cookie(headers: Mapping[bytes, bytes], name: str) -> str:
    """Return the value of a cookie of a request; empty if there is none."""
    for part in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return unquote(value)[:MAX_COOKIE_CHARS]
    return ""


def build_cookie(
    name: str, value: str, *, max_age_s: int | None = None, is_secure: bool = False
) -> tuple[bytes, bytes]:
    """Return the header that sets a cookie, or deletes it if the value is empty. Scripts cannot read it."""
    age = 0 if not value else max_age_s
    attributes = ["Path=/ui" if not name.startswith("__Host-") else "Path=/", "HttpOnly", "SameSite=Lax"]
    if age is not None:
        attributes.append(f"Max-Age={age}")
    if is_secure:
        attributes.append("Secure")
    return b"set-cookie", "; ".join((f"{name}={quote(value[:MAX_COOKIE_CHARS])}", *attributes)).encode("ascii")
