"""What a request costs and counts against, seen from its method, address and body."""

import hashlib
import re
from typing import Final
from urllib.parse import urlsplit

from wharf.limits.client.limit_state import RequestCost

READ_METHODS: Final = ("GET", "HEAD", "OPTIONS")
READ_POINTS: Final = 1
WRITE_POINTS: Final = 5
# Of a path, what names one thing of many. The endpoint is what is left.
_NUMBER: Final = re.compile(r"/(?:\d+|[0-9a-f]{7,64}|[0-9a-f]{8}-[0-9a-f-]{27})(?=/|$)", re.IGNORECASE)
_OWNED: Final = re.compile(r"/(repos|networks)/[^/]+/[^/]+")
_NAMED: Final = re.compile(r"/(users|orgs|enterprises|gists|teams|projects|app-manifests|advisories|licenses)/[^/]+")
# What is posted and makes nothing that others see: tokens, batches of large files, looks at locks, texts that are drawn.
_NOTHING_NEW: Final = re.compile(r"/(?:access_tokens|token|token/scoped|objects/batch|locks/verify|markdown(?:/raw)?)$")
_MUTATION: Final = re.compile(rb"(?:^|[}\s\"\\n])mutation(?=[\s({@]|\\n)")


def estimate_cost(method: str, url: str, body: bytes) -> RequestCost:
    parts = urlsplit(url)
    path = _NUMBER.sub("/{id}", parts.path)
    path = _NAMED.sub(r"/\1/{name}", _OWNED.sub(r"/\1/{owner}/{name}", path)) or "/"
    is_graphql = parts.path.rstrip("/").endswith("/graphql")
    writes = bool(_MUTATION.search(body)) if is_graphql else method.upper() not in READ_METHODS
    # Each method of a path is an endpoint of its own; GraphQL has one.
    endpoint = "graphql" if is_graphql else f"{method.upper()} {path[:200]}"
    # A thing is made by POST: what changes, replaces or takes away a thing that is there makes none. Which mutations make
    # one only their host knows.
    makes = writes if is_graphql else method.upper() == "POST" and not _NOTHING_NEW.search(parts.path.rstrip("/"))
    return RequestCost(endpoint, WRITE_POINTS if writes else READ_POINTS, is_graphql, is_content=makes)


def build_account_key(url: str, authorization: str) -> str:
    """Who is counted: the host and the credential, of which only a digest is kept."""
    parts = urlsplit(url)
    credential = hashlib.sha256(authorization.encode()).hexdigest()[:16] if authorization else "none"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()} {credential}"
