"""Which nodes may join while access control is on: those that show an introduction, and those that are known.

Once a node is registered it is known by its own secret, and needs no introduction again (architecture 9).
"""

from typing import Final

import msgspec

from wharf.model.durations import MINUTE, SECOND, say_duration
from wharf.model.node import Node
from wharf.model.node_pool import DEFAULT
from wharf.model.refusal import Code, Refusal, invalid
from wharf.state import Replica
from wharf.state.tables import NODES

DEFAULT_TTL_NS: Final = 5 * MINUTE
MAX_TTL_NS: Final = 30 * MINUTE


class Introduction(msgspec.Struct, frozen=True):
    """Whom it lets in: any node of the pool, or the one of this name. Without a pool: of any."""

    node_name: str = ""
    node_pool: str = DEFAULT


def lifetime_of(ttl_ns: int) -> int:
    """How long an introduction holds for which so much was asked; 0: as usual."""
    if not ttl_ns:
        return DEFAULT_TTL_NS
    if not SECOND <= ttl_ns <= MAX_TTL_NS:
        raise invalid(
            f"an introduction holds for {say_duration(SECOND)} to {say_duration(MAX_TTL_NS)}; "
            f"asked for {say_duration(ttl_ns)}"
        )
    return ttl_ns


def admit(snapshot: Replica, node: Node, introduction: Introduction | None) -> None:
    """Raises unless the node is known by the secret that it shows, or is introduced."""
    known = snapshot.get(NODES, node.id)
    if known is not None:
        if known.secret_digest and known.secret_digest == node.secret_digest:
            return
        raise Refusal(Code.FORBIDDEN, "node secret ID does not match")
    if introduction is None:
        raise Refusal(
            Code.FORBIDDEN,
            "Permission denied: a new node needs an introduction token; make one with `wharf node intro create` "
            "(/v1/acl/identity/client-introduction-token) and give it as client.intro_token",
        )
    if introduction.node_pool and introduction.node_pool != (node.node_pool or DEFAULT):
        raise Refusal(
            Code.FORBIDDEN, f'Permission denied: the introduction is for the node pool "{introduction.node_pool}"'
        )
    if introduction.node_name and introduction.node_name != node.name:
        raise Refusal(Code.FORBIDDEN, f'Permission denied: the introduction is for the node "{introduction.node_name}"')
