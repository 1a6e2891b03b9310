"""Endpoints of nodes, for those who look after them.

What nodes themselves say and ask. They prove who they are by their own secret, so no right of a token is needed.

Identities that nodes have signed. They prove who they are by their own secret, so no right of a token is needed.
"""

from typing import Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.nodes.node import Node
from wharf.contract.wire.allocations.messages import AllocationView
from wharf.contract.wire.endpoint import (
    Endpoint,
    EndpointKind,
    ListFeatures,
    Parameter,
    define_leader_write,
    define_local,
    define_read,
    flag,
)
from wharf.contract.wire.nodes import messages
from wharf.contract.wire.nodes.messages import (
    IdentitiesReply,
    IdentitiesRequest,
    NodeChangeResponse,
    NodeDrainRequest,
    NodeIdentityReply,
    NodeListStub,
    NodeView,
)

NODE_LIST: Final = ListFeatures(record=Node, hidden_fields=frozenset({"SecretDigest"}), can_reverse=False)

BAD_FIELDS_PREFIX: Final = "Failed to parse node list fields: "
NODE_FIELD_PARAMETERS: Final[tuple[Parameter, ...]] = (
    flag("resources", "Show what each node has and what it keeps back.", refusal_prefix=BAD_FIELDS_PREFIX),
    flag("os", "Show the name of each node's operating system.", refusal_prefix=BAD_FIELDS_PREFIX),
)

ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "node.list", "/v1/nodes", need=permissions.READ_NODE, summary="List nodes.",
        list_features=NODE_LIST, parameters=NODE_FIELD_PARAMETERS, reply_type=list[NodeListStub],
    ),
    define_read("node.read", "/v1/node/{node_id}", need=permissions.READ_NODE, summary="Read a node.", reply_type=NodeView),
    define_read(
        "node.allocations", "/v1/node/{node_id}/allocations", need=permissions.READ_NODE,
        summary="List the allocations on a node, of the namespaces that the caller may read.",
        reply_type=list[AllocationView],
    ),
    define_leader_write(
        "node.drain", "/v1/node/{node_id}/drain", need=permissions.WRITE_NODE,
        summary="Empty a node, change how it is emptied, or call that off.",
        body_type=NodeDrainRequest, reply_type=NodeChangeResponse,
    ),
    define_leader_write(
        "node.eligibility", "/v1/node/{node_id}/eligibility", need=permissions.WRITE_NODE,
        summary="Say whether new work may be put on a node.",
        body_type=messages.EligibilityRequest, reply_type=NodeChangeResponse,
    ),
    define_leader_write(
        "node.evaluate", "/v1/node/{node_id}/evaluate", need=permissions.WRITE_NODE,
        summary="Have every job looked at that has work on the node or could have.", reply_type=messages.NodeUpdateResponse,
    ),
    define_leader_write(
        "node.purge", "/v1/node/{node_id}/purge", need=permissions.WRITE_NODE,
        summary="Forget a node; what ran there is lost.", reply_type=messages.NodeUpdateResponse,
    ),
)  # fmt: skip


NODE_PROTOCOL_ROWS: Final[tuple[Endpoint, ...]] = (
    define_leader_write(
        "node.register", "/v1/node/{node_id}/register", need=permissions.PUBLIC_ACCESS, summary="A node says what it is.",
        body_type=messages.NodeRegistration, reply_type=messages.NodeUpdateResponse,
    ),
    define_leader_write(
        "node.heartbeat", "/v1/node/{node_id}/heartbeat", need=permissions.PUBLIC_ACCESS, summary="A node says that it is alive.",
        reply_type=messages.NodeUpdateResponse,
    ),
    define_read(
        "node.desired", "/v1/node/{node_id}/desired", need=permissions.PUBLIC_ACCESS,
        summary="The allocations that a node must know of, and where each was changed last.", reply_type=dict[str, int],
    ),
    Endpoint(
        name="node.fetch", method="POST", path="/v1/node/{node_id}/desired", kind=EndpointKind.LOCAL, need=permissions.PUBLIC_ACCESS,
        summary="Whole allocations, for the ids that a node asks for.",
        body_type=messages.AssignmentsRequest, reply_type=list[messages.Assignment],
    ),
    define_read(
        "node.former", "/v1/node/{node_id}/former/{alloc_id}", need=permissions.PUBLIC_ACCESS,
        summary="The allocation whose place one of the node's own takes: where it is, and whether it has ended.",
        reply_type=messages.PredecessorView,
    ),
    define_leader_write(
        "node.leave", "/v1/node/{node_id}/leave", need=permissions.PUBLIC_ACCESS,
        summary="A node ends and has its work moved away, or is back after that.",
        body_type=NodeDrainRequest, reply_type=NodeChangeResponse,
    ),
    define_leader_write(
        "node.report", "/v1/node/{node_id}/report", need=permissions.PUBLIC_ACCESS, summary="A node says what became of its work.",
        body_type=messages.NodeReportRequest, reply_type=messages.NodeReportResponse,
    ),
    define_local(
        "node.channel", "/v1/node/{node_id}/channel", need=permissions.PUBLIC_ACCESS,
        summary="The websocket that a node keeps open: what is asked of the node goes through it.",
    ),
)  # fmt: skip


NODE_IDENTITY_ROWS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        name="node.identities", method="POST", path="/v1/node/{node_id}/identities", kind=EndpointKind.LOCAL, need=permissions.PUBLIC_ACCESS,
        summary="A node has identities signed for a task that it runs.", body_type=IdentitiesRequest, reply_type=IdentitiesReply,
    ),
    Endpoint(
        name="node.own_identity", method="POST", path="/v1/node/{node_id}/identity", kind=EndpointKind.LOCAL, need=permissions.PUBLIC_ACCESS,
        summary="A node has its own identity signed.", reply_type=NodeIdentityReply,
    ),
)  # fmt: skip
