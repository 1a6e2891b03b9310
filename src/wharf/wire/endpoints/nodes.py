"""Endpoints of nodes, for those who look after them."""

from typing import Final

from wharf.model import need
from wharf.model.node import Node
from wharf.wire import shapes
from wharf.wire.endpoints.endpoint import Endpoint, Lists, Parameter, asks, flag, reads
from wharf.wire.node_shapes import NodeChangeResponse, NodeDrainRequest, NodeListStub, NodeShown
from wharf.wire.work_shapes import AllocationShown

LISTED: Final = Lists(record=Node, hidden=frozenset({"SecretDigest"}), reverses=False)

BAD_FIELDS: Final = "Failed to parse node list fields: "
SHOWN_MORE: Final[tuple[Parameter, ...]] = (
    flag("resources", "Show what each node has and what it keeps back.", refusal=BAD_FIELDS),
    flag("os", "Show the name of each node's operating system.", refusal=BAD_FIELDS),
)

ROWS: Final[tuple[Endpoint, ...]] = (
    reads(
        "node.list", "/v1/nodes", need=need.READ_NODE, summary="List nodes.",
        lists=LISTED, parameters=SHOWN_MORE, returns=list[NodeListStub],
    ),
    reads("node.read", "/v1/node/{node_id}", need=need.READ_NODE, summary="Read a node.", returns=NodeShown),
    reads(
        "node.allocations", "/v1/node/{node_id}/allocations", need=need.READ_NODE,
        summary="List the allocations on a node, of the namespaces that the caller may read.",
        returns=list[AllocationShown],
    ),
    asks(
        "node.drain", "/v1/node/{node_id}/drain", need=need.WRITE_NODE,
        summary="Empty a node, change how it is emptied, or call that off.",
        body=NodeDrainRequest, returns=NodeChangeResponse,
    ),
    asks(
        "node.eligibility", "/v1/node/{node_id}/eligibility", need=need.WRITE_NODE,
        summary="Say whether new work may be put on a node.",
        body=shapes.EligibilityRequest, returns=NodeChangeResponse,
    ),
    asks(
        "node.evaluate", "/v1/node/{node_id}/evaluate", need=need.WRITE_NODE,
        summary="Have every job looked at that has work on the node or could have.", returns=shapes.NodeUpdateResponse,
    ),
    asks(
        "node.purge", "/v1/node/{node_id}/purge", need=need.WRITE_NODE,
        summary="Forget a node; what ran there is lost.", returns=shapes.NodeUpdateResponse,
    ),
)  # fmt: skip
