"""Endpoints of nodes, for those who look after them."""

from typing import Final

from wharf.model import need
from wharf.model.allocation import Allocation
from wharf.model.node import Node
from wharf.wire import shapes
from wharf.wire.endpoints.endpoint import Endpoint, Lists, asks, reads

LISTED: Final = Lists(record=Node, hidden=frozenset({"SecretDigest"}), reverses=False)

ROWS: Final[tuple[Endpoint, ...]] = (
    reads("node.list", "/v1/nodes", need=need.READ_NODE, summary="List nodes.", lists=LISTED, returns=list[Node]),
    reads("node.read", "/v1/node/{node_id}", need=need.READ_NODE, summary="Read a node.", returns=Node),
    reads(
        "node.allocations", "/v1/node/{node_id}/allocations", need=need.READ_NODE,
        summary="List the allocations on a node, of the namespaces that the caller may read.", returns=list[Allocation],
    ),
    asks(
        "node.eligibility", "/v1/node/{node_id}/eligibility", need=need.WRITE_NODE,
        summary="Say whether new work may be put on a node.",
        body=shapes.EligibilityRequest, returns=shapes.NodeUpdateResponse,
    ),
)  # fmt: skip
