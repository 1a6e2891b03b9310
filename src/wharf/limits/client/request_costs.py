"""Estimates the cost of a request and the endpoint that it counts against, from its method, URL and body."""

import hashlib
import re
from typing import Final
from urllib.parse import urlsplit

from wharf.limits.client.limit_state import RequestCost

READ_METHODS: Final = ("GET", "HEAD", "OPTIONS")
READ_POINTS: Final = 1
WRITE_POINTS: Final = 5
# Parts of a path that identify one resource. They are replaced by placeholders to get the endpoint.
_ID: Final = re.compile(r"/(?:\d+|[0-9a-f]{7,64}|[0-9a-f]{8}-[0-9a-f-]{27})(?=/|$)", re.IGNORECASE)
_OWNED_PATH: Final = re.compile(r"/(repos|networks)/[^/]+/[^/]+")
_NAMED_PATH: Final = re.compile(
    r"/(users|orgs|enterprises|gists|teams|projects|app-manifests|advisories|licenses)/[^/]+"
)
# POST requests that create no content: access tokens, batches of large files, checks of locks, rendering of Markdown.
_NO_CONTENT: Final = re.compile(r"/(?:access_tokens|token|token/scoped|objects/batch|locks/verify|markdown(?:/raw)?)$")
_MUTATION: Final = re.compile(rb"(?:^|[}\s\"\\n])mutation(?=[\s({@]|\\n)")


def estimate_cost(method: str, url: str, body: bytes) -> RequestCost:
    """Return the endpoint and the points of a request, and whether it creates content.

    The endpoint is method and path, with ids and names replaced: `GET /repos/{owner}/{name}/issues/{id}`.
    """
    parts = urlsplit(url)
    path = _ID.sub("/{id}", parts.path)
    path = _NAMED_PATH.sub(r"/\1/{name}", _OWNED_PATH.sub(r"/\1/{owner}/{name}", path)) or "/"
    is_graphql = parts.path.rstrip("/").endswith("/graphql")
    is_write = bool(_MUTATION.search(body)) if is_graphql else method.upper() not in READ_METHODS
    # Each method of a path is an endpoint of its own; GraphQL has one.
    endpoint = "graphql" if is_graphql else f"{method.upper()} {path[:200]}"
    # POST creates content; PUT, PATCH and DELETE do not. Any GraphQL mutation may, so all of them count.
    is_content = is_write if is_graphql else method.upper() == "POST" and not _NO_CONTENT.search(parts.path.rstrip("/"))
    return RequestCost(endpoint, WRITE_POINTS if is_write else READ_POINTS, is_graphql, is_content=is_content)


def build_account_key(url: str, authorization: str) -> str:
    """Return the key under which the limit state is stored: the host, and a hash of the credential."""
    parts = urlsplit(url)
    credential = hashlib.sha256(authorization.encode()).hexdigest()[:16] if authorization else "none"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()} {credential}"
