"""What the secrets of a request prove about the sender of its connection. What the sender may do does not belong here."""

from collections.abc import Callable, Mapping
from hmac import compare_digest
from typing import Final, NamedTuple

from wharf.cluster.api.node_callers import find_node_by_secret
from wharf.cluster.state import Replica
from wharf.contract.wire.credentials import NODE_SECRET_HEADER, RELAY_SECRET_HEADER, SERVER_SECRET_HEADER

MAX_NODE_CONNECTIONS: Final = 100
"""Connections of one registered node to this process. An agent leaves as many open when they are idle."""
MAX_SERVER_CONNECTIONS: Final = 4_096
"""Connections of the servers at one address to this process. Each of their processes relays up to 512 streams and 512 commands, and
a server has up to four processes on common machines."""
MAX_SECRET_BYTES: Final = 1_024
"""Limits the work of hashing a secret before authentication. Secrets of nodes and servers have less than 100 bytes."""


class ProvenSender(NamedTuple):
    """A sender that proved who it is by a secret."""

    key: str
    """What its connections count for, such as `node 6f2a`. Different from every address."""
    max_connections: int
    """How many of its connections count for it. Others count for their address."""


FindSender = Callable[[Mapping[bytes, bytes], str], ProvenSender | None]
"""Returns the sender of a request with these secrets (by header name) from this address, or `None` without a valid one."""


class SenderFinder:
    """Finds the registered node or the server of this region that sent a request, by the secret in its headers."""

    def __init__(self, replica: Replica, server_secret: str) -> None:
        """`server_secret`: the secret of this server, which its other members know; empty if it has none."""
        self._replica = replica
        self._server_secret = server_secret.encode()

    def find_sender(self, secrets: Mapping[bytes, bytes], address: str) -> ProvenSender | None:
        """Return the sender of a request with these secrets from this address, or `None` without a valid one."""
        if self._server_secret and any(
            compare_digest(secrets.get(name, b""), self._server_secret)
            for name in (SERVER_SECRET_HEADER, RELAY_SECRET_HEADER)
        ):
            return ProvenSender(f"servers at {address}", MAX_SERVER_CONNECTIONS)
        secret = secrets.get(NODE_SECRET_HEADER, b"")
        if not secret or len(secret) > MAX_SECRET_BYTES:
            return None
        node = find_node_by_secret(self._replica, secret)
        return ProvenSender(f"node {node.id}", MAX_NODE_CONNECTIONS) if node is not None else None
