"""Checks of replies from other regions, before they are relayed to a client of this region.

The servers of another region belong to other operators. Their replies reach clients, browsers and proxies as replies of
this region, so only known headers with valid values are relayed.
"""

import re
from typing import Final

from wharf.contract.client.relay.port import RawHeaders
from wharf.contract.model.refusal import Refusal, RefusalCode

MIN_STATUS: Final = 200
MAX_STATUS: Final = 599
MAX_VALUE_BYTES: Final = 8_192
"""Longer header values are invalid. Protects clients and proxies, which have such limits."""
MAX_INDEX_DIGITS: Final = 19
"""Digits of a log index or of another number; an index has 63 bits."""

_NUMBER: Final = re.compile(rb"[0-9]{1,%d}" % MAX_INDEX_DIGITS)
_TEXT: Final = re.compile(rb"[\x20-\x7e\x80-\xff]*")
_WORD: Final = re.compile(rb"[A-Za-z0-9_.-]*")
_FLAG: Final = re.compile(rb"true|false")
_OWN_PATH: Final = re.compile(rb"/(?![/\\])[\x21-\x7e]*")
"""A path on the same server. After two slashes, or a slash and a backslash, browsers expect the name of a host."""

_CLUSTER_HEADERS: Final = {
    b"index": _NUMBER,
    b"knownleader": _FLAG,
    b"lastcontact": _NUMBER,
    b"nexttoken": _TEXT,
}
RELAYED_HEADERS: Final = {
    b"allow": _TEXT,
    b"cache-control": _TEXT,
    b"content-encoding": _WORD,
    b"content-length": _NUMBER,
    b"content-type": _TEXT,
    b"digest": _TEXT,
    b"location": _OWN_PATH,
    b"retry-after": _NUMBER,
    b"x-cluster-error": _WORD,
    b"x-cluster-error-reason": _WORD,
    b"x-cluster-error-detail": _TEXT,
    b"x-request-id": _TEXT,
    **{b"x-cluster-" + name: pattern for name, pattern in _CLUSTER_HEADERS.items()},
    **{b"x-nomad-" + name: pattern for name, pattern in _CLUSTER_HEADERS.items()},
}
"""The headers that are relayed, with the values that they may have. Others are dropped, such as cookies and permissions
for pages of other origins (CORS)."""
SAFETY_HEADERS: Final = (
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; sandbox"),
    (b"x-content-type-options", b"nosniff"),
)
"""Headers that relayed replies have: a browser runs no script of another region with the rights of this one."""


class InvalidRegionReply(Refusal):
    """The refusal of a request whose reply from another region must not be relayed."""


def select_region_headers(region: str, status: int, headers: RawHeaders, *, is_write: bool) -> RawHeaders:
    """Return the headers of a region's reply that are relayed, each once, with names in lower case.

    Raises `InvalidRegionReply` if the status or a value is invalid. `is_write`: whether the request may have changed
    something.
    """
    if not MIN_STATUS <= status <= MAX_STATUS:
        raise _build_refusal(region, f"has the status {status}", is_write=is_write)
    selected: dict[bytes, bytes] = {}
    for raw_name, value in headers:
        name = raw_name.lower()
        pattern = RELAYED_HEADERS.get(name)
        if pattern is None:
            continue
        if len(value) > MAX_VALUE_BYTES or pattern.fullmatch(value) is None:
            raise _build_refusal(region, f"has an invalid value of the header {name.decode()}", is_write=is_write)
        selected.setdefault(name, value)
    return [*selected.items(), *SAFETY_HEADERS]


def _build_refusal(region: str, problem: str, *, is_write: bool) -> InvalidRegionReply:
    code = RefusalCode.OUTCOME_UNKNOWN if is_write else RefusalCode.UNAVAILABLE
    advice = "; the request may have been executed: check the current state before you retry" if is_write else ""
    return InvalidRegionReply(code, f"invalid reply from region {region}: it {problem}{advice}")
