"""Which nodes may register while access control is on: nodes with an introduction token, and registered nodes.

A registered node identifies itself by its secret. It needs an introduction again only to change its name or its node pool.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import NODES
from wharf.contract.model.body_limits import cut_echo
from wharf.contract.model.node_pools import DEFAULT_NODE_POOL
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.model.times import MINUTE, SECOND, format_duration

DEFAULT_INTRODUCTION_TTL_NS: Final = 5 * MINUTE
"""How long an introduction token is valid, unless the caller requests another time."""
MAX_INTRODUCTION_TTL_NS: Final = 30 * MINUTE
"""Limits how long a leaked token can admit nodes."""
WRONG_SECRET_TEXT: Final = "node secret ID does not match"
_INTRODUCTION_USE_TEXT: Final = "(/v1/acl/identity/client-introduction-token) and set it as client.intro_token"


class Introduction(msgspec.Struct, frozen=True):
    """The content of an introduction token: which new nodes it admits."""

    node_name: str = ""  # The only node that it admits; empty: any name.
    node_pool: str = DEFAULT_NODE_POOL  # The only pool whose nodes it admits; empty: any pool.


class NodeAdmission(msgspec.Struct, frozen=True):
    """What a server checked before it passed a registration to the leader. The leader checks it again on the newest state.

    Without the second check, a registration could pass the first one, and then register a node again that an operator
    has purged meanwhile.
    """

    introduction: Introduction | None = None  # That of a valid introduction token of the node.


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

    A registered node must show the secret with which it registered. A new node, and one that changes its name or its node
    pool, needs an introduction that admits its name and pool. `has_token`: whether the node sent a token; `introduction` is
    `None` if that token is not valid.
    """
    stored = snapshot.get(NODES, node.id)
    if stored is not None:
        if not stored.secret_digest or stored.secret_digest != node.secret_digest:
            raise Refusal(RefusalCode.FORBIDDEN, WRONG_SECRET_TEXT)
        changes = _list_changes(stored, node)
        if not changes:
            return
        if introduction is None:
            lack = _describe_lack_of_moved_node(node, changes, has_token=has_token)
            raise Refusal(RefusalCode.FORBIDDEN, f"Permission denied: {lack}")
    introduction = require_introduction(introduction, has_token=has_token)
    pool, name = _get_pool(node), cut_echo(node.name)
    if introduction.node_pool and introduction.node_pool != pool:
        problem = f'for the node pool "{introduction.node_pool}", and this node is in "{cut_echo(pool)}"'
    elif introduction.node_name and introduction.node_name != node.name:
        problem = f'for the node "{introduction.node_name}", and this node is named "{name}"'
    else:
        return
    options = f"--node-name {name}" if introduction.node_name else ""
    if pool != DEFAULT_NODE_POOL or not options:
        options = f"{options} --node-pool {cut_echo(pool)}".lstrip()
    raise Refusal(
        RefusalCode.FORBIDDEN,
        f"Permission denied: the introduction is {problem}; make one with `wharf node intro create {options}` "
        f"{_INTRODUCTION_USE_TEXT}",
    )


def require_introduction(introduction: Introduction | None, *, has_token: bool) -> Introduction:
    """Return the introduction of a new node. Raises if it has none; `has_token`: whether it sent a token."""
    if introduction is not None:
        return introduction
    lack = "the introduction token is invalid or has expired" if has_token else "a new node needs an introduction token"
    raise Refusal(
        RefusalCode.FORBIDDEN,
        f"Permission denied: {lack}; make one with `wharf node intro create` {_INTRODUCTION_USE_TEXT}",
    )


def _describe_lack_of_moved_node(node: Node, changes: Sequence[str], *, has_token: bool) -> str:
    """Return what a registered node lacks that has made these changes, and how to fix it."""
    lack = "its introduction token is invalid or has expired" if has_token else "that needs an introduction token"
    pool = cut_echo(_get_pool(node))
    return (
        f"this node changed {' and '.join(changes)}, and {lack}; make one with `wharf node intro create --node-pool {pool}` "
        f"{_INTRODUCTION_USE_TEXT}, or undo the change"
    )


def _list_changes(stored: Node, node: Node) -> list[str]:
    """Return a text for each change, by a registered node, of what an introduction admits."""
    values = (("its name", stored.name, node.name), ("client.node_pool", _get_pool(stored), _get_pool(node)))
    return [
        f'{subject} from "{cut_echo(before)}" to "{cut_echo(after)}"'
        for subject, before, after in values
        if before != after
    ]


def _get_pool(node: Node) -> str:
    """Return the name of the node's pool: an empty name means the default pool."""
    return node.node_pool or DEFAULT_NODE_POOL
