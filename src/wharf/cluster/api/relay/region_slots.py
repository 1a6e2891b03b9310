"""Limits how many requests this process relays to each other region at the same time, in total and for each caller.

The other region accepts 100 connections from the address of this server, and each relayed request takes one. What a caller may
do there does not belong here: the other region decides that.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from wharf.cluster.access.authentication import find_token_by_secret
from wharf.cluster.api.asgi import Scope
from wharf.cluster.server.server import Server
from wharf.contract.model.refusal import Overloaded, Refusal
from wharf.contract.model.secrets import hash_secret
from wharf.contract.wire.credentials import read_credentials, read_token

MAX_RELAYS: Final = 60
"""Relayed requests and websockets to one region. The other region accepts 100 connections: the rest is for replication, for probes
of servers that reply late, and for requests of this server itself."""
MAX_UNKNOWN_RELAYS: Final = 30
"""Those of all callers without a token that this region knows. Half of the total, so that they cannot use up all."""
MAX_RELAYS_PER_CALLER: Final = 20
"""Those of one token, or of one address without a known token. More than a browser opens."""
RETRY_AFTER_S: Final = 5
UNKNOWN_PREFIX: Final = "address "


class RegionSlots:
    """Counts the relayed requests of one process by region and caller."""

    def __init__(self, server: Server, *, is_nomad_compatible: bool) -> None:
        self._server = server
        self._is_nomad_compatible = is_nomad_compatible
        self._counts: dict[str, Counter[str]] = {}
        """By region, the relayed requests of each caller."""

    @property
    def is_empty(self) -> bool:
        """Whether no request to another region is in progress."""
        return not any(self._counts.values())

    @contextmanager
    def hold(self, region: str, scope: Scope) -> Iterator[None]:
        """Count one request to the region until the end of the context. Raises `Overloaded` if there are too many.

        The credentials of the request must be clear.
        """
        counts = self._counts.setdefault(region, Counter())
        caller = self._find_caller(scope)
        refusal = self._find_refusal(region, counts, caller)
        if refusal is not None:
            raise refusal
        counts[caller] += 1
        try:
            yield
        finally:
            counts[caller] -= 1
            if not counts[caller]:
                del counts[caller]

    def _find_refusal(self, region: str, counts: Counter[str], caller: str) -> Refusal | None:
        """Return the refusal of another request of this caller, if any."""
        where = f"requests to region {region}"
        if counts.total() >= MAX_RELAYS:
            return Overloaded(f"this server process relays {MAX_RELAYS} {where}", RETRY_AFTER_S)
        if counts[caller] >= MAX_RELAYS_PER_CALLER:
            text = f"this server process relays {MAX_RELAYS_PER_CALLER} {where} of one caller"
            return Overloaded(text, RETRY_AFTER_S)
        if self._server.access.settings.is_enabled and caller.startswith(UNKNOWN_PREFIX):
            unknown = sum(count for name, count in counts.items() if name.startswith(UNKNOWN_PREFIX))
            if unknown >= MAX_UNKNOWN_RELAYS:
                text = f"this server process relays {MAX_UNKNOWN_RELAYS} {where} without a token of this region"
                return Overloaded(text, RETRY_AFTER_S)
        return None

    def _find_caller(self, scope: Scope) -> str:
        """Return what the request counts for: its token if this region knows it, else the address of its client."""
        credentials = read_credentials(scope["headers"], is_nomad_compatible=self._is_nomad_compatible)
        digest = hash_secret(read_token(credentials))
        token = find_token_by_secret(self._server.replica, digest)
        if token is not None:
            return f"token {token.accessor_id}"
        return UNKNOWN_PREFIX + (scope.get("client") or ("",))[0]
