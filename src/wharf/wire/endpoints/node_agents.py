"""What nodes themselves say and ask. They prove who they are by their own secret, so no right of a token is needed."""

from typing import Final

from wharf.model import need
from wharf.wire import shapes
from wharf.wire.endpoints.endpoint import Endpoint, Kind, asks, reads, tells
from wharf.wire.node_shapes import NodeChangeResponse, NodeDrainRequest

ROWS: Final[tuple[Endpoint, ...]] = (
    asks(
        "node.register", "/v1/node/{node_id}/register", need=need.NOTHING, summary="A node says what it is.",
        body=shapes.NodeRegistration, returns=shapes.NodeUpdateResponse,
    ),
    asks(
        "node.heartbeat", "/v1/node/{node_id}/heartbeat", need=need.NOTHING, summary="A node says that it is alive.",
        returns=shapes.NodeUpdateResponse,
    ),
    reads(
        "node.desired", "/v1/node/{node_id}/desired", need=need.NOTHING,
        summary="The allocations that a node must know of, and where each was changed last.", returns=dict[str, int],
    ),
    Endpoint(
        name="node.fetch", method="POST", path="/v1/node/{node_id}/desired", kind=Kind.LOCAL, need=need.NOTHING,
        summary="Whole allocations, for the ids that a node asks for.",
        body=shapes.DesiredRequest, returns=list[shapes.DesiredAllocation],
    ),
    reads(
        "node.former", "/v1/node/{node_id}/former/{alloc_id}", need=need.NOTHING,
        summary="The allocation whose place one of the node's own takes: where it is, and whether it has ended.",
        returns=shapes.FormerAllocation,
    ),
    asks(
        "node.leave", "/v1/node/{node_id}/leave", need=need.NOTHING,
        summary="A node ends and has its work moved away, or is back after that.",
        body=NodeDrainRequest, returns=NodeChangeResponse,
    ),
    asks(
        "node.report", "/v1/node/{node_id}/report", need=need.NOTHING, summary="A node says what became of its work.",
        body=shapes.NodeReportRequest, returns=shapes.NodeReportResponse,
    ),
    tells(
        "node.channel", "/v1/node/{node_id}/channel", need=need.NOTHING,
        summary="The websocket that a node keeps open: what is asked of the node goes through it.",
    ),
)  # fmt: skip
