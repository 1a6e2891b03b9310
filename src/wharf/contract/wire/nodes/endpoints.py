"""Endpoints of nodes: for operators, for the protocol between nodes and servers, and for signed identities.

Nodes authenticate with their own secret, so their endpoints need no token.
"""

from typing import Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.body_limits import MAX_REGISTRATION_BYTES
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
    text,
    unsigned,
)
from wharf.contract.wire.nodes import messages
from wharf.contract.wire.nodes.fleet import FleetGrouping, FleetPicture
from wharf.contract.wire.nodes.messages import (
    IdentitiesReply,
    IdentitiesRequest,
    NodeChangeResponse,
    NodeDrainRequest,
    NodeIdentityReply,
    NodeListStub,
    NodeView,
)
from wharf.contract.wire.nodes.use import DEFAULT_SHOWN_ALLOCATIONS, MAX_SHOWN_ALLOCATIONS, NodeOrder, NodeUse

NODE_LIST: Final = ListFeatures(
    record=Node, hidden_fields=frozenset({"SecretDigest"}), can_reverse=False, reversing_parameter="sort"
)

BAD_FIELDS_PREFIX: Final = "Failed to parse node list fields: "
NODE_FIELD_PARAMETERS: Final[tuple[Parameter, ...]] = (
    flag("resources", "Include the resources of each node and the reserved part.", refusal_prefix=BAD_FIELDS_PREFIX),
    flag("os", "Include the name of each node's operating system.", refusal_prefix=BAD_FIELDS_PREFIX),
)

ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "node.list", "/v1/nodes", need=permissions.READ_NODE, summary="List nodes.",
        list_features=NODE_LIST, reply_type=list[NodeListStub],
        parameters=(
            *NODE_FIELD_PARAMETERS,
            flag("use", "Include what the allocations of each node request together.", refusal_prefix=BAD_FIELDS_PREFIX),
            text("sort", f"The order, instead of by ID: {', '.join(NodeOrder)}. `state` begins with nodes that need a person, `use` with the fullest. Then `reverse` has an effect."),
        ),
    ),
    define_read(
        "node.fleet", "/v1/fleet", need=permissions.READ_NODE,
        summary="Read all nodes and their unfinished allocations in few bytes, for pictures.",
        parameters=(text("by", f"What the letters of allocations stand for: {', '.join(FleetGrouping)}; state by default."),),
        reply_type=FleetPicture,
    ),
    define_read("node.read", "/v1/node/{node_id}", need=permissions.READ_NODE, summary="Read a node.", reply_type=NodeView),
    define_read(
        "node.allocations", "/v1/node/{node_id}/allocations", need=permissions.READ_NODE,
        summary="List the allocations on a node in namespaces that the caller may read.",
        reply_type=list[AllocationView],
    ),
    define_read(
        "node.use", "/v1/node/{node_id}/use", need=permissions.READ_NODE,
        summary="Read what the allocations of a node request together, and the newest of them.",
        parameters=(unsigned("limit", f"How many allocations to return, at most {MAX_SHOWN_ALLOCATIONS}; {DEFAULT_SHOWN_ALLOCATIONS} by default."),),
        reply_type=NodeUse,
    ),
    define_leader_write(
        "node.drain", "/v1/node/{node_id}/drain", need=permissions.WRITE_NODE,
        summary="Drain a node, change its drain, or cancel it.",
        body_type=NodeDrainRequest, reply_type=NodeChangeResponse,
    ),
    define_leader_write(
        "node.eligibility", "/v1/node/{node_id}/eligibility", need=permissions.WRITE_NODE,
        summary="Set whether new allocations may be placed on a node.",
        body_type=messages.EligibilityRequest, reply_type=NodeChangeResponse,
    ),
    define_leader_write(
        "node.evaluate", "/v1/node/{node_id}/evaluate", need=permissions.WRITE_NODE,
        summary="Create an evaluation for every job that has or could have allocations on a node.", reply_type=messages.NodeUpdateResponse,
    ),
    define_leader_write(
        "node.purge", "/v1/node/{node_id}/purge", need=permissions.WRITE_NODE,
        summary="Delete a node; its allocations become lost.", reply_type=messages.NodeUpdateResponse,
    ),
)  # fmt: skip


NODE_PROTOCOL_ROWS: Final[tuple[Endpoint, ...]] = (
    define_leader_write(
        "node.register", "/v1/node/{node_id}/register", need=permissions.PUBLIC_ACCESS, summary="Register a node with its fingerprint. Called by nodes.",
        max_body_bytes=MAX_REGISTRATION_BYTES, body_type=messages.NodeRegistration, reply_type=messages.NodeUpdateResponse,
    ),
    define_leader_write(
        "node.heartbeat", "/v1/node/{node_id}/heartbeat", need=permissions.PUBLIC_ACCESS, summary="Record a node's heartbeat. Called by nodes.",
        reply_type=messages.NodeUpdateResponse,
    ),
    define_read(
        "node.desired", "/v1/node/{node_id}/desired", need=permissions.PUBLIC_ACCESS,
        summary="List the allocations of a node, each with the index of its last change. Called by nodes.", reply_type=dict[str, int],
        parameters=(flag("without_ended", "Whether to leave out allocations whose end the node has reported."),),
    ),
    Endpoint(
        name="node.fetch", method="POST", path="/v1/node/{node_id}/desired", kind=EndpointKind.LOCAL, need=permissions.PUBLIC_ACCESS,
        summary="Return complete allocations by ID. Called by nodes.",
        body_type=messages.AssignmentsRequest, reply_type=list[messages.Assignment],
    ),
    define_read(
        "node.former", "/v1/node/{node_id}/former/{alloc_id}", need=permissions.PUBLIC_ACCESS,
        summary="Read the predecessor of an allocation: its node and its status. Called by nodes.",
        reply_type=messages.PredecessorView,
    ),
    define_leader_write(
        "node.leave", "/v1/node/{node_id}/leave", need=permissions.PUBLIC_ACCESS,
        summary="Drain a node because it shuts down, or cancel that drain after its return. Called by nodes.",
        body_type=NodeDrainRequest, reply_type=NodeChangeResponse,
    ),
    define_leader_write(
        "node.report", "/v1/node/{node_id}/report", need=permissions.PUBLIC_ACCESS, summary="Report the states of a node's allocations. Called by nodes.",
        body_type=messages.NodeReportRequest, reply_type=messages.NodeReportResponse,
    ),
    define_local(
        "node.channel", "/v1/node/{node_id}/channel", need=permissions.PUBLIC_ACCESS,
        summary="Open the node channel: the websocket that carries requests to a node. Called by nodes.",
    ),
)  # fmt: skip


NODE_IDENTITY_ROWS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        name="node.identities", method="POST", path="/v1/node/{node_id}/identities", kind=EndpointKind.LOCAL, need=permissions.PUBLIC_ACCESS,
        summary="Sign the identities of a task. Called by nodes.", body_type=IdentitiesRequest, reply_type=IdentitiesReply,
    ),
    Endpoint(
        name="node.own_identity", method="POST", path="/v1/node/{node_id}/identity", kind=EndpointKind.LOCAL, need=permissions.PUBLIC_ACCESS,
        summary="Sign a node's own identity. Called by nodes.", reply_type=NodeIdentityReply,
    ),
)  # fmt: skip
