"""Counts the open connections of each address, so that one address cannot occupy all connections of the gateway."""

from wharf.limits.core.callers.addresses import build_address_scope, parse_address


class ConnectionCounts:
    """The number of open connections by address. `max_per_address` of 0 means no maximum.

    The table has an entry for each address with an open connection, so the maximum number of connections limits it. An IPv6
    caller is counted by its /64 network, as in the rules.
    """

    def __init__(self, max_per_address: int) -> None:
        self._max_per_address = max_per_address
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, peer: str) -> bool:
        """Count a new connection of the address `peer`. Return false, and count nothing, if the address has the maximum."""
        if not self._max_per_address:
            return True
        key = _build_key(peer)
        count = self._counts.get(key, 0)
        if count >= self._max_per_address:
            return False
        self._counts[key] = count + 1
        return True

    def remove(self, peer: str) -> None:
        """Count a closed connection of the address `peer` no longer."""
        if not self._max_per_address:
            return
        key = _build_key(peer)
        count = self._counts[key] - 1
        if count:
            self._counts[key] = count
        else:
            del self._counts[key]


def _build_key(peer: str) -> str:
    """Return the text under which the connections of an address are counted."""
    address = parse_address(peer)
    return peer if address is None else build_address_scope(address)
