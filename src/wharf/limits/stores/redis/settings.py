"""The address of Redis, and the timeouts and limits of its use."""

from enum import Enum

import msgspec


class RedisKind(Enum):
    """How Redis is deployed."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    """`addresses` are those of the sentinels, which report the master of `service`."""
    CLUSTER = "cluster"


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the Redis store, and the timeouts and limits of its use."""

    addresses: tuple[str, ...] = ("127.0.0.1:6379",)
    kind: RedisKind = RedisKind.SINGLE
    service: str = "wharf"
    """The name of the master at the sentinels."""
    database: int = 0
    user: str | None = None
    password: str | None = None
    tls: bool = False
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    prefix: str = "wharf:limits:"
    """The start of every key, so that several services can share one Redis."""
    socket_timeout_ms: int = 2_000
    """A connection without a reply for this time is closed; the outcome of its commands is unknown."""
    max_parallel_batches: int = 2
    """Batches that one process sends at the same time."""
    max_batch_size: int = 48
    """Operations in one batch. Redis serves no other client while it executes one."""
    result_ttl_ms: int = 60_000
    """How long results are stored for repeated ids. Redis measures this by its own clock, even if the store has another one."""
    wait_replicas: int = 0
    """Replicas that should confirm a batch. If fewer do, it is counted; nothing is refused."""
    wait_replicas_ms: int = 5
    """How long to wait for these replicas."""

    def list_endpoints(self) -> list[tuple[str, int]]:
        """Return the addresses as pairs of host and port."""
        return [_split_address(address) for address in self.addresses]


def _split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
