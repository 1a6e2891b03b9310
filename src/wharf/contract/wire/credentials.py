"""The credentials that a request presents: the token of its caller, and the secrets of nodes and servers.

Everything that needs a credential reads it here: access control, the rate limiter around the API, relays, and the API
sockets of tasks. If each parsed headers on its own, one could check another token than the next one uses.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from wharf.contract.model.refusal import invalid_request

TOKEN_HEADER: Final = b"x-cluster-token"
NOMAD_TOKEN_HEADER: Final = b"x-nomad-token"
AUTHORIZATION_HEADER: Final = b"authorization"
NODE_SECRET_HEADER: Final = b"x-cluster-node-secret"
SERVER_SECRET_HEADER: Final = b"x-cluster-door-secret"
RELAY_SECRET_HEADER: Final = b"x-cluster-relay-secret"
"""The secret of a server in a request that another server of the region relays to it. It proves only the connection, not the
request, so the HTTP port removes it."""
CONNECTION_SECRET_HEADERS: Final = frozenset((NODE_SECRET_HEADER, SERVER_SECRET_HEADER, RELAY_SECRET_HEADER))
"""Headers whose secrets prove the sender of a connection."""
CREDENTIAL_HEADERS: Final = frozenset(
    (TOKEN_HEADER, NOMAD_TOKEN_HEADER, AUTHORIZATION_HEADER, NODE_SECRET_HEADER, SERVER_SECRET_HEADER)
)
TOKEN_CONFLICT_TEXT: Final = (
    "the request has two different tokens: send one token, in X-Cluster-Token or in Authorization"
)
_PRINTABLE: Final = re.compile(rb"[ -~]*")
_LATER_BEARER: Final = re.compile(rb"[ ,]bearer( |$)")
"""A bearer credential that follows another credential, as some proxies join two headers."""


def read_credentials(
    raw_headers: Iterable[tuple[bytes, bytes]], *, is_nomad_compatible: bool = False
) -> dict[bytes, bytes]:
    """Return the credentials of a request as headers. The token is always in `TOKEN_HEADER`, and "" if there is none.

    The token is the value of `X-Cluster-Token`, or the first word after `Bearer` in `Authorization`. Other schemes of
    `Authorization` are no credentials of this API. `X-Nomad-Token` counts only with `is_nomad_compatible`.

    Raises `Refusal` if two programs could read different credentials from the headers: two different tokens, a header
    that occurs twice with different values, or an `Authorization` header with a character that some parsers take for
    white space. In the other headers, such a character is part of the token or secret, which is then unknown.
    """
    values: dict[bytes, bytes] = {}
    for name, raw_value in raw_headers:
        if name not in CREDENTIAL_HEADERS or (name == NOMAD_TOKEN_HEADER and not is_nomad_compatible):
            continue
        value = raw_value.strip(b" \t")
        if values.setdefault(name, value) != value:
            if name in (NODE_SECRET_HEADER, SERVER_SECRET_HEADER):
                title = name.decode("ascii").title()  # Such as `X-Cluster-Node-Secret`.
                raise invalid_request(f"the request has two {title} headers with different values: send one")
            raise invalid_request(TOKEN_CONFLICT_TEXT)
        if name == AUTHORIZATION_HEADER and _PRINTABLE.fullmatch(value) is None:
            raise invalid_request(
                "the Authorization header contains a tab or a character that is not printable ASCII: "
                "send the token as it was issued"
            )
    if not values:
        return {TOKEN_HEADER: b""}
    secrets: dict[bytes, bytes] = {
        name: values[name] for name in (NODE_SECRET_HEADER, SERVER_SECRET_HEADER) if name in values
    }
    return {**secrets, TOKEN_HEADER: _select_token(values)}


def read_token(headers: Mapping[bytes, bytes]) -> str:
    """Return the token of a request whose headers contain the result of `read_credentials`; "" if it has none."""
    return headers.get(TOKEN_HEADER, b"").decode("latin-1")


def _select_token(values: Mapping[bytes, bytes]) -> bytes:
    """Return the only token among these headers. Raises `Refusal` if there are two."""
    bearer = _parse_bearer(values.get(AUTHORIZATION_HEADER, b""))
    tokens = {values.get(TOKEN_HEADER, b""), values.get(NOMAD_TOKEN_HEADER, b""), bearer} - {b""}
    if len(tokens) > 1:
        raise invalid_request(TOKEN_CONFLICT_TEXT)
    return next(iter(tokens), b"")


def _parse_bearer(authorization: bytes) -> bytes:
    """Return the bearer token of an `Authorization` header, or "" for another scheme. Raises `Refusal`."""
    scheme, _, rest = authorization.lower().partition(b" ")
    is_bearer = scheme == b"bearer"
    if _LATER_BEARER.search(rest if is_bearer else authorization.lower()) or (is_bearer and b"," in rest):
        raise invalid_request("the Authorization header holds several credentials: send one")
    words = authorization.split()
    return words[1] if is_bearer and len(words) > 1 else b""
