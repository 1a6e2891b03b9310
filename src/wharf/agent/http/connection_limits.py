"""Limits of open connections: for each client address, and for senders that have proved who they are.

A registered node counts for itself and not for its address, because its tasks share the address. A connection that its
address may not open counts as unproven until the head of its first request. What a secret proves does not belong here.
"""

from collections.abc import Callable, Mapping
from typing import Final

from wharf.cluster.api.connection_senders import FindSender, ProvenSender
from wharf.world import World
from wharf.world.addresses import is_loopback

REJECTION_REPLIES_PER_S: Final = 10.0
"""How many rejected connections per second get a reply. Others are closed without one, to save work in a flood."""
MAX_REJECTION_BURST: Final = 100.0
"""How many such replies may be sent at once."""
MAX_UNPROVEN_PER_ADDRESS: Final = 128
"""Unproven connections of one address. A task that opens 10,000 connections a second replaces each after 13 ms: long enough for
a node in the same building, whose request follows its connection at once."""
MAX_UNPROVEN: Final = 1_000
"""Unproven connections of a port. Limits the open files and the memory of callers who prove nothing: 16 KiB each."""


class ConnectionLimiter:
    """Counts the open connections of each client address and each proven sender in this process, and enforces their limits.

    Loopback addresses have no limit.
    """

    def __init__(self, world: World, *, max_per_client: int, find_sender: FindSender | None = None) -> None:
        """`max_per_client` 0 means no limit. Without `find_sender`, no sender is proven."""
        self._world = world
        self.max_per_client = max_per_client
        self._find_sender = find_sender
        self._open_counts: dict[str, int] = {}
        """The connections of each address and each proven sender."""
        self._unproven: dict[CountedConnection, None] = {}
        """The unproven connections, the oldest first."""
        self._unproven_by_address: dict[str, dict[CountedConnection, None]] = {}
        self._available_replies = MAX_REJECTION_BURST
        self._replenished_at_s = world.monotonic_s()

    def open(self, address: str, drop: Callable[[], None]) -> "CountedConnection":
        """Count a new connection, for its address or as unproven. `drop` ends an unproven connection that must make way.

        Connections from this machine are not limited. Those of Unix sockets have no address.
        """
        is_limited = bool(self.max_per_client and address) and not is_loopback(address)
        return CountedConnection(self, address, drop, is_limited=is_limited)

    @property
    def has_connections(self) -> bool:
        """Whether any connection counts for an address or a sender, or as unproven."""
        return bool(self._open_counts or self._unproven or self._unproven_by_address)

    def find_sender(self, secrets: Mapping[bytes, bytes], address: str) -> ProvenSender | None:
        """Return the sender that the secrets of a request prove, if any."""
        return self._find_sender(secrets, address) if secrets and self._find_sender is not None else None

    def try_count(self, key: str, maximum: int) -> bool:
        """Count a connection for the address or the sender, and return true, unless it has its maximum."""
        count = self._open_counts.get(key, 0)
        if count >= maximum:
            return False
        self._open_counts[key] = count + 1
        return True

    def stop_counting(self, key: str) -> None:
        """Stop counting one connection of the address or the sender."""
        count = self._open_counts.get(key, 0)
        if count > 1:
            self._open_counts[key] = count - 1
        else:
            self._open_counts.pop(key, None)

    def add_unproven(self, connection: "CountedConnection") -> None:
        """Add an unproven connection. If there are too many of its address or of all, the oldest of these is dropped."""
        of_address = self._unproven_by_address.get(connection.address, {})
        oldest = of_address if len(of_address) >= MAX_UNPROVEN_PER_ADDRESS else self._unproven
        if oldest is of_address or len(self._unproven) >= MAX_UNPROVEN:
            next(iter(oldest)).drop()
        self._unproven[connection] = None
        self._unproven_by_address.setdefault(connection.address, {})[connection] = None

    def remove_unproven(self, connection: "CountedConnection") -> None:
        """Remove a connection from the unproven ones."""
        del self._unproven[connection]
        of_address = self._unproven_by_address[connection.address]
        del of_address[connection]
        if not of_address:
            del self._unproven_by_address[connection.address]

    def should_explain_rejection(self) -> bool:
        """Return whether to send a reply to a rejected connection. The replies are rate limited, because of floods."""
        now_s = self._world.monotonic_s()
        new_replies = (now_s - self._replenished_at_s) * REJECTION_REPLIES_PER_S
        self._available_replies, self._replenished_at_s = (
            min(MAX_REJECTION_BURST, self._available_replies + new_replies),
            now_s,
        )
        if self._available_replies < 1:
            return False
        self._available_replies -= 1
        return True


class CountedConnection:
    """One open connection, which counts for its address, for a proven sender, or as unproven, until `release`."""

    __slots__ = ("_drop", "_is_limited", "_key", "_limiter", "address", "is_unproven")

    def __init__(self, limiter: ConnectionLimiter, address: str, drop: Callable[[], None], *, is_limited: bool) -> None:
        self._limiter = limiter
        self.address = address
        self._drop = drop
        self._is_limited = is_limited
        self._key = ""
        """The address or the sender that the connection counts for; empty if for none."""
        self.is_unproven = False
        """Whether it is open only until the head of its first request."""
        if is_limited and not self._count_for(address, limiter.max_per_client):
            limiter.add_unproven(self)
            self.is_unproven = True

    def check_request(self, secrets: Mapping[bytes, bytes]) -> bool:
        """Count the connection for the sender of the request that begins, and return whether it may be handled.

        `secrets` are those of the request, by header name. Checked for each request: a proxy may send those of others over
        the connection of a node. A connection without a proven sender counts for its address.
        """
        if not self._is_limited:
            return True
        sender = self._limiter.find_sender(secrets, self.address)
        if sender is not None and self._count_for(sender.key, sender.max_connections):
            return True
        return self._count_for(self.address, self._limiter.max_per_client)

    def _count_for(self, key: str, maximum: int) -> bool:
        """Count the connection for this address or sender instead of another, and return true, unless it has its maximum."""
        if self._key == key:
            return True
        if not self._limiter.try_count(key, maximum):
            return False
        self.release()
        self._key = key
        return True

    def drop(self) -> None:
        """End the connection, because it is unproven and must make way for a newer one."""
        self.release()
        self._drop()

    def release(self) -> None:
        """Stop counting the connection. Further calls do nothing."""
        if self.is_unproven:
            self.is_unproven = False
            self._limiter.remove_unproven(self)
        key, self._key = self._key, ""
        if key:
            self._limiter.stop_counting(key)
