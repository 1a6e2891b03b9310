"""Which nodes may join while access control is on: those that show an introduction, and those that are known.

Once a node is registered it is known by its own secret, and needs no introduction again (architecture 9).
"""

from typing import Final

import msgspec

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import NODES
from wharf.contract.model.node_pools import DEFAULT_NODE_POOL
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.model.times import MINUTE, SECOND, format_duration

DEFAULT_INTRODUCTION_TTL_NS: Final = 5 * MINUTE
MAX_INTRODUCTION_TTL_NS: Final = 30 * MINUTE


class Introduction(msgspec.Struct, frozen=True):
    """Whom it lets in: any node of the pool, or the one of this name. Without a pool: of any."""

    node_name: str = ""
    node_pool: str = DEFAULT_NODE_POOL


def resolve_introduction_ttl(ttl_ns: int) -> int:
    """How long an introduction holds for which so much was asked; 0: as usual."""
    if not ttl_ns:
        return DEFAULT_INTRODUCTION_TTL_NS
    if not SECOND <= ttl_ns <= MAX_INTRODUCTION_TTL_NS:
        raise invalid_request(
            f"an introduction holds for {format_duration(SECOND)} to {format_duration(MAX_INTRODUCTION_TTL_NS)}; "
            f"asked for {format_duration(ttl_ns)}"
        )
    return ttl_ns


def check_node_admission(snapshot: Replica, node: Node, introduction: Introduction | None) -> None:
    """Raises unless the node is known by the secret that it shows, or is introduced."""
    known = snapshot.get(NODES, node.id)
    if known is not None:
        if known.secret_digest and known.secret_digest == node.secret_digest:
            return
        raise Refusal(RefusalCode.FORBIDDEN, "node secret ID does not match")
    if introduction is None:
        raise Refusal(
            RefusalCode.FORBIDDEN,
            "Permission denied: a new node needs an introduction token; make one with `wharf node intro create` "
            "(/v1/acl/identity/client-introduction-token) and give it as client.intro_token",
        )
    if introduction.node_pool and introduction.node_pool != (node.node_pool or DEFAULT_NODE_POOL):
        raise Refusal(
            RefusalCode.FORBIDDEN,
            f'Permission denied: the introduction is for the node pool "{introduction.node_pool}"',
        )
    if introduction.node_name and introduction.node_name != node.name:
        raise Refusal(
            RefusalCode.FORBIDDEN, f'Permission denied: the introduction is for the node "{introduction.node_name}"'
        )
