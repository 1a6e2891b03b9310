"""Paths that lead to no endpoint: which of them are sent on, which lack an id, and which are nowhere (conventions 1.4)."""

import posixpath
from html import escape
from types import MappingProxyType
from typing import Final

import msgspec

from wharf.api.router import Routed

PAGES: Final = "/ui/"
HTML: Final = "text/html; charset=utf-8"
TEXT: Final = "text/plain; charset=utf-8"
NO_PAGES: Final = (
    b"<!DOCTYPE html><title>Wharf</title><p>Wharf runs here. It has no pages yet: "
    b'<a href="/v1/docs">the HTTP API</a> tells all it can do, and so does the command <code>wharf</code>.</p>'
)

UUID_LENGTH_TEXT: Final = "index error: UUID must be 36 characters"

WITHOUT_ID: Final = MappingProxyType({
    "/v1/job/": (404, "job not found"),
    "/v1/node/pool/": (404, "node pool not found"),
    "/v1/node/": (400, "missing node ID"),
    "/v1/deployment/": (400, "missing deployment ID"),
    "/v1/allocation/": (400, f"alloc lookup failed: {UUID_LENGTH_TEXT}"),
    "/v1/evaluation/": (400, f"eval lookup failed: failed to lookup eval: {UUID_LENGTH_TEXT}"),
    "/v1/namespace/": (400, "Missing Namespace Name"),
    "/v1/acl/token/": (400, "Missing Token Accessor"),
    "/v1/acl/policy/": (400, "Missing Policy Name"),
    "/v1/var/": (400, "missing variable path"),
    "/v1/service/": (400, "missing service name"),
})  # fmt: skip
"""What is said where an id should stand and none does."""


class Astray(msgspec.Struct, frozen=True):
    """The whole reply. `location`: where to go instead, without the query."""

    status: int
    content_type: str = ""
    body: bytes = b""
    location: str = ""


NOWHERE: Final = Astray(404)


def cleaned(path: str) -> str:
    """The path without doubled slashes and steps up; a slash at its end stays."""
    if "//" not in path and "/." not in path:
        return path
    clean = posixpath.normpath("/" + path.lstrip("/"))
    return clean + "/" if path.endswith("/") and clean != "/" else clean


def sent_to(location: str, method: str) -> Astray:
    if method != "GET":
        return Astray(307, location=location)
    body = f'<a href="{escape(location)}">Temporary Redirect</a>.\n\n'.encode()
    return Astray(307, HTML, body, location)


def reply_astray(path: str, routed: Routed, method: str) -> Astray:
    """What to say of a path that has no endpoint."""
    if path == "/":
        return sent_to(PAGES, method)
    if path.startswith(PAGES):
        return Astray(200, HTML, NO_PAGES)
    if routed.is_above:
        return sent_to(path + "/", method)
    if routed.lacks_id and path in WITHOUT_ID:
        status, text = WITHOUT_ID[path]
        return Astray(status, TEXT, text.encode())
    return NOWHERE
