"""Identities that nodes have signed. They prove who they are by their own secret, so no right of a token is needed."""

from typing import Final

from wharf.model import need
from wharf.wire.endpoints.endpoint import Endpoint, Kind
from wharf.wire.identity_shapes import IdentitiesReply, IdentitiesRequest, NodeIdentityReply

ROWS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        name="node.identities", method="POST", path="/v1/node/{node_id}/identities", kind=Kind.LOCAL, need=need.NOTHING,
        summary="A node has identities signed for a task that it runs.", body=IdentitiesRequest, returns=IdentitiesReply,
    ),
    Endpoint(
        name="node.own_identity", method="POST", path="/v1/node/{node_id}/identity", kind=Kind.LOCAL, need=need.NOTHING,
        summary="A node has its own identity signed.", returns=NodeIdentityReply,
    ),
)  # fmt: skip
