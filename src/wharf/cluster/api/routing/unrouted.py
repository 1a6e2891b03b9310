"""Replies to paths without an endpoint: redirects, missing ids and not found (conventions 1.4)."""

import posixpath
from html import escape
from types import MappingProxyType
from typing import Final

from wharf.cluster.api.replies.encoding import EMPTY_REPLY_BODY, ReplyBody
from wharf.cluster.api.replies.sender import HttpReply, build_text_reply
from wharf.cluster.api.routing.router import RouteMatch
from wharf.contract.model.body_limits import cut_echo

UI_PATH: Final = "/ui/"
HTML_HEADER: Final = (b"content-type", b"text/html; charset=utf-8")
UI_PLACEHOLDER_PAGE: Final = (
    b"<!DOCTYPE html><title>Wharf</title><p>This server has no web pages yet. Use the command <code>wharf</code> or "
    b'<a href="/v1/docs">the HTTP API</a>.</p>'
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


def clean_path(path: str) -> str:
    """Return the path without double slashes and `.` or `..` segments; a final slash is retained."""
    if "//" not in path and "/." not in path:
        return path
    clean = posixpath.normpath("/" + path.lstrip("/"))
    return clean + "/" if path.endswith("/") and clean != "/" else clean


def build_redirect(path: str, method: str, query: bytes) -> HttpReply:
    """Return a redirect to the path with the query string `query`. A redirect of a GET has an HTML body."""
    location = (b"location", path.encode("latin-1") + (b"?" + query if query else b""))
    if method != "GET":
        return HttpReply(307, [location], EMPTY_REPLY_BODY)
    body = f'<a href="{escape(path)}">Temporary Redirect</a>.\n\n'.encode()
    return HttpReply(307, [HTML_HEADER, location], ReplyBody((body,)))


def build_unrouted_reply(path: str, match: RouteMatch, method: str, query: bytes) -> HttpReply:
    """Return the reply to a path without an endpoint: a redirect, a page, an error for an empty id, or 404."""
    if path == "/":
        return build_redirect(UI_PATH, method, query)
    if path.startswith(UI_PATH):
        return HttpReply(200, [HTML_HEADER], ReplyBody((UI_PLACEHOLDER_PAGE,)))
    if match.is_id_prefix:
        return build_redirect(path + "/", method, query)
    if match.is_missing_id and path in MISSING_ID_REPLIES:
        return build_text_reply(*MISSING_ID_REPLIES[path])
    return build_text_reply(404, f"no API endpoint at {cut_echo(path)}; /v1/docs lists the endpoints")
