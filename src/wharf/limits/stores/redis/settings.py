"""How Redis is reached, and how long anything there may take."""

from enum import Enum

import msgspec


class RedisKind(Enum):
    SINGLE = "single"
    SENTINEL = "sentinel"
    """`addresses` are those of the sentinels; they name the master of `service`."""
    CLUSTER = "cluster"


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    addresses: tuple[str, ...] = ("127.0.0.1:6379",)
    kind: RedisKind = RedisKind.SINGLE
    service: str = "wharf"
    database: int = 0
    user: str | None = None
    password: str | None = None
    tls: bool = False
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    prefix: str = "wharf:limits:"
    """Before every key, so that several services may share one Redis."""
    socket_timeout_ms: int = 2_000
    """After so long without a word a connection is dropped, and what was asked on it has an unknown outcome."""
    max_parallel_batches: int = 2
    """Batches under way at once."""
    max_batch_size: int = 48
    """Decisions in one batch. Redis serves nobody else meanwhile."""
    result_ttl_ms: int = 60_000
    """How long an id that was answered is known, in Redis' own time on any clock: messages are repeated in real time."""
    wait_replicas: int = 0
    """Copies that must have a batch before it is answered; fewer raise a count, and refuse nobody."""
    wait_replicas_ms: int = 5

    def list_endpoints(self) -> list[tuple[str, int]]:
        return [_split(address) for address in self.addresses]


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
