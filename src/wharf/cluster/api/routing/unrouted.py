"""Replies to paths without an endpoint: redirects, missing ids and not found (conventions 1.4)."""

import posixpath
from html import escape
from types import MappingProxyType
from typing import Final

import msgspec

from wharf.cluster.api.routing.router import RouteMatch

UI_PATH: Final = "/ui/"
HTML_CONTENT_TYPE: Final = "text/html; charset=utf-8"
TEXT_CONTENT_TYPE: Final = "text/plain; charset=utf-8"
UI_PLACEHOLDER_PAGE: Final = (
    b"<!DOCTYPE html><title>Wharf</title><p>Wharf runs here. It has no pages yet: "
    b'<a href="/v1/docs">the HTTP API</a> tells all it can do, and so does the command <code>wharf</code>.</p>'
)

UUID_LENGTH_TEXT: Final = "index error: UUID must be 36 characters"

MISSING_ID_REPLIES: Final = MappingProxyType({
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
"""Status and text of the reply to a path whose id is empty, by path."""


class UnroutedReply(msgspec.Struct, frozen=True):
    """The whole reply. `location` is the redirect target, without the query."""

    status: int
    content_type: str = ""
    body: bytes = b""
    location: str = ""


NOT_FOUND_REPLY: Final = UnroutedReply(404)


def clean_path(path: str) -> str:
    """Return the path without double slashes and `.` or `..` segments; a final slash is retained."""
    if "//" not in path and "/." not in path:
        return path
    clean = posixpath.normpath("/" + path.lstrip("/"))
    return clean + "/" if path.endswith("/") and clean != "/" else clean


def build_redirect(location: str, method: str) -> UnroutedReply:
    if method != "GET":
        return UnroutedReply(307, location=location)
    body = f'<a href="{escape(location)}">Temporary Redirect</a>.\n\n'.encode()
    return UnroutedReply(307, HTML_CONTENT_TYPE, body, location)


def build_unrouted_reply(path: str, match: RouteMatch, method: str) -> UnroutedReply:
    """Return the reply to a path that has no endpoint."""
    if path == "/":
        return build_redirect(UI_PATH, method)
    if path.startswith(UI_PATH):
        return UnroutedReply(200, HTML_CONTENT_TYPE, UI_PLACEHOLDER_PAGE)
    if match.is_id_prefix:
        return build_redirect(path + "/", method)
    if match.is_missing_id and path in MISSING_ID_REPLIES:
        status, text = MISSING_ID_REPLIES[path]
        return UnroutedReply(status, TEXT_CONTENT_TYPE, text.encode())
    return NOT_FOUND_REPLY
