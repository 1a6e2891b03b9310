"""Which nodes may join while access control is on: nodes with an introduction token, and nodes that are registered.

A registered node identifies itself by its secret and needs no introduction token again (architecture 9).
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
"""How long an introduction token is valid, unless the caller requests another time."""
MAX_INTRODUCTION_TTL_NS: Final = 30 * MINUTE
"""Limits how long a leaked token can admit nodes."""


class Introduction(msgspec.Struct, frozen=True):
    """The content of an introduction token: which new nodes it admits."""

    node_name: str = ""  # The only node that it admits; empty: any name.
    node_pool: str = DEFAULT_NODE_POOL  # The only pool whose nodes it admits; empty: any pool.


def resolve_introduction_ttl(ttl_ns: int) -> int:
    """Return the lifetime of an introduction token in nanoseconds; a `ttl_ns` of 0 selects the default.

    Raises if it is below one second or above `MAX_INTRODUCTION_TTL_NS`.
    """
    if not ttl_ns:
        return DEFAULT_INTRODUCTION_TTL_NS
    if not SECOND <= ttl_ns <= MAX_INTRODUCTION_TTL_NS:
        raise invalid_request(
            f"an introduction token is valid for {format_duration(SECOND)} to {format_duration(MAX_INTRODUCTION_TTL_NS)}; "
            f"{format_duration(ttl_ns)} requested"
        )
    return ttl_ns


def check_node_admission(
    snapshot: Replica, node: Node, introduction: Introduction | None, *, has_token: bool = False
) -> None:
    """Raise unless the node may register.

    A registered node must show the secret with which it registered. A new node needs an introduction that admits its
    name and pool. `has_token`: whether the node sent a token; `introduction` is `None` if that token is not valid.
    """
    stored = snapshot.get(NODES, node.id)
    if stored is not None:
        if stored.secret_digest and stored.secret_digest == node.secret_digest:
            return
        raise Refusal(RefusalCode.FORBIDDEN, "node secret ID does not match")
    if introduction is None:
        cause = (
            "the introduction token is invalid or has expired"
            if has_token
            else "a new node needs an introduction token"
        )
        raise Refusal(
            RefusalCode.FORBIDDEN,
            f"Permission denied: {cause}; make one with `wharf node intro create` "
            "(/v1/acl/identity/client-introduction-token) and set it as client.intro_token",
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
