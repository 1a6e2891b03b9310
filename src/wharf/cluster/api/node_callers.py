"""What the sender of a node's request has proved, before its body is decoded.

A registered node proves itself by its secret. While access control is on, a new node needs an introduction token.
"""

import enum
from typing import Final

from wharf.cluster.api.requests.request import Request
from wharf.cluster.operations.nodes.introductions import WRONG_SECRET_TEXT, Introduction, require_introduction
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import NODES, NODES_BY_SECRET
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.refusal import Refusal, RefusalCode, not_found, permission_denied
from wharf.contract.model.secrets import hash_secret
from wharf.contract.wire.credentials import NODE_SECRET_HEADER, read_token

REGISTER_ENDPOINT: Final = "node.register"
HEARTBEAT_ENDPOINT: Final = "node.heartbeat"
NODE_ENDPOINTS: Final = frozenset((
    REGISTER_ENDPOINT, HEARTBEAT_ENDPOINT, "node.desired", "node.fetch", "node.former", "node.identities", "node.leave",
    "node.own_identity", "node.report",
))  # fmt: skip
"""Endpoints that node agents call. All but the registration need the secret of a registered node."""


class NodeProof(enum.Enum):
    """What the sender of a node's request has proved."""

    REGISTERED = enum.auto()
    """It has the secret of the node."""
    PERMITTED = enum.auto()
    """It may register a new node: it has an introduction token, or access control is off."""
    UNPROVED = enum.auto()


def classify_node_proof(server: Server, request: Request) -> NodeProof:
    """Return what the sender of a request of a node agent has proved, as far as this server's replica shows."""
    if has_node_secret(server.replica, request):
        return NodeProof.REGISTERED
    is_registration = request.endpoint.name == REGISTER_ENDPOINT
    if is_registration and (not server.access.settings.is_enabled or read_introduction(server, request) is not None):
        return NodeProof.PERMITTED
    return NodeProof.UNPROVED


def has_node_secret(replica: Replica, request: Request) -> bool:
    """Return whether the node of the path is registered and the request has its secret."""
    node = replica.get(NODES, request.get_path_value("node_id"))
    return node is not None and _has_secret_of(node, request)


def require_node(replica: Replica, request: Request) -> Node:
    """Return the node of the path from the replica.

    Raises `Refusal` unless it exists and the request carries its secret.
    """
    node = replica.get(NODES, request.get_path_value("node_id"))
    if node is None:
        raise not_found("node not found")
    if not _has_secret_of(node, request):
        raise permission_denied("the request needs the secret of this node, which only its agent has")
    return node


async def authenticate_node(server: Server, request: Request) -> Node:
    """Return the node of the path. Raises `Refusal` unless the node exists and the request carries its secret.

    The node may have registered on another server just now, so on failure the replica catches up with the log first.
    """
    try:
        return require_node(server.replica, request)
    except Refusal:
        await server.reader.catch_up()
        return require_node(server.replica, request)


async def require_node_rights(server: Server, request: Request) -> None:
    """Raise a `Refusal` if the request is one of a node agent that will be refused whatever its body contains.

    Checked before a large body is received or decoded, because anybody can send one.
    """
    name = request.endpoint.name
    if name == REGISTER_ENDPOINT:
        try:
            _require_registration_rights(server, request)
        except Refusal:
            await server.reader.catch_up()
            _require_registration_rights(server, request)
    elif name in NODE_ENDPOINTS:
        await authenticate_node(server, request)


def _require_registration_rights(server: Server, request: Request) -> None:
    """Raise a `Refusal` if the path and the headers of a registration show that its node may not register.

    A registered node may leave out the header with its secret: agents of older versions send it in the body alone.
    """
    if not server.access.settings.is_enabled:
        return
    if server.replica.get(NODES, request.get_path_value("node_id")) is None:
        require_introduction(read_introduction(server, request), has_token=bool(read_token(request.headers)))
    elif NODE_SECRET_HEADER in request.headers and not has_node_secret(server.replica, request):
        raise Refusal(RefusalCode.FORBIDDEN, WRONG_SECRET_TEXT)


def read_introduction(server: Server, request: Request) -> Introduction | None:
    """Return the introduction that the request's token contains; `None` without a valid one."""
    token = read_token(request.headers)
    if not token:
        return None
    return server.access.identity_signer.verify_introduction(server.replica, token, server.writer.read_clock())


def find_node_by_secret(replica: Replica, secret: bytes) -> Node | None:
    """Return the registered node with this secret, as the header of a request has it, or `None`."""
    found = next(replica.iter_by_index(NODES_BY_SECRET, hash_secret(secret.decode("latin-1"))), None)
    return found[1] if found is not None else None


def _has_secret_of(node: Node, request: Request) -> bool:
    secret = request.headers.get(NODE_SECRET_HEADER, b"").decode("latin-1")
    return hash_secret(secret) == node.secret_digest
