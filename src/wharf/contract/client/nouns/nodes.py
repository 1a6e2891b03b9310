"""Client methods for nodes, and the methods with which nodes talk to servers."""

from collections.abc import Mapping, Sequence
from typing import Unpack

from wharf.contract.client.calls import (
    CallOptions,
    CallSpec,
    ListOptions,
    ListSpec,
    ReadOptions,
    ReadSpec,
    WriteOptions,
)
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method, read_method
from wharf.contract.model.nodes.node import Node
from wharf.contract.wire.allocations import messages as allocation_messages
from wharf.contract.wire.allocations.messages import Measurements
from wharf.contract.wire.nodes import messages


class NodeMethods(MethodGroup[M]):
    """Methods of `client.nodes`."""

    @list_method("node.list")
    def list(
        self, *, resources: bool = False, os: bool = False, **options: Unpack[ListOptions]
    ) -> ListSpec[messages.NodeListStub]:
        """List nodes."""
        return ListSpec(options, resources=resources, os=os)

    @read_method("node.read")
    def read(self, node_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[messages.NodeView]:
        """Read a node."""
        return ReadSpec(options, node_id)

    @list_method("node.allocations")
    def allocations(self, node_id: str, **options: Unpack[ReadOptions]) -> ListSpec[allocation_messages.AllocationView]:
        """List the allocations on a node in namespaces that the caller may read."""
        return ListSpec(options, node_id)

    @call_method("node.drain")
    def drain(
        self,
        node_id: str,
        spec: messages.DrainSpec | None,
        *,
        mark_eligible: bool = False,
        meta: Mapping[str, str] | None = None,
        **options: Unpack[WriteOptions],
    ) -> CallSpec[messages.NodeChangeResponse]:
        """Drain a node. Without a spec, cancel the drain."""
        body = messages.NodeDrainRequest(
            node_id=node_id,
            drain_spec=spec,
            mark_eligible=mark_eligible,
            meta=dict(meta) if meta is not None else None,
        )
        return CallSpec(options, node_id, body=body)

    @call_method("node.eligibility")
    def set_eligibility(
        self, node_id: str, *, eligible: bool, **options: Unpack[WriteOptions]
    ) -> CallSpec[messages.NodeChangeResponse]:
        """Set whether new allocations may be placed on a node."""
        body = messages.EligibilityRequest(node_id=node_id, eligibility="eligible" if eligible else "ineligible")
        return CallSpec(options, node_id, body=body)

    @call_method("node.evaluate")
    def evaluate(self, node_id: str, **options: Unpack[WriteOptions]) -> CallSpec[messages.NodeUpdateResponse]:
        """Create an evaluation for every job that has or could have allocations on a node."""
        return CallSpec(options, node_id)

    @call_method("node.purge")
    def purge(self, node_id: str, **options: Unpack[WriteOptions]) -> CallSpec[messages.NodeUpdateResponse]:
        """Delete a node; its allocations become lost."""
        return CallSpec(options, node_id)

    # -- requests that the node itself handles

    @call_method("client.metadata")
    def metadata(self, node_id: str = "", **options: Unpack[CallOptions]) -> CallSpec[messages.NodeMetaResponse]:
        """Read the metadata of a node."""
        return CallSpec(options, node_id=node_id)

    @call_method("client.metadata_apply")
    def apply_metadata(
        self, meta: Mapping[str, str | None], *, node_id: str = "", **options: Unpack[WriteOptions]
    ) -> CallSpec[messages.NodeMetaResponse]:
        """Change the dynamic metadata of a node. A value of None deletes a key."""
        return CallSpec(options, body=messages.NodeMetaApplyRequest(node_id=node_id, meta=dict(meta)), node_id=node_id)

    @call_method("client.stats")
    def stats(self, node_id: str = "", *, history: str = "", **options: Unpack[CallOptions]) -> CallSpec[Measurements]:
        """Read statistics of a node. `history`: include earlier measurements of this duration, such as `5m`."""
        return CallSpec(options, node_id=node_id, history=history)

    @call_method("client.gc_now")
    def collect(self, node_id: str = "", **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Delete the folders of the node's finished allocations."""
        return CallSpec(options, node_id=node_id)

    @call_method("client.identity")
    def identity(self, node_id: str = "", **options: Unpack[CallOptions]) -> CallSpec[Measurements]:
        """Read the claims of a node's identity."""
        return CallSpec(options, node_id=node_id)

    @call_method("client.identity_renew")
    def renew_identity(self, node_id: str = "", **options: Unpack[WriteOptions]) -> CallSpec[Measurements]:
        """Renew the identity of a node."""
        return CallSpec(options, body=messages.NodeIdentityRequest(node_id=node_id), node_id=node_id)


class NodeProtocolMethods(MethodGroup[M]):
    """Methods of `client.node_agents`: requests of nodes, authenticated by their secret. All may be repeated safely."""

    @call_method("node.register")
    def register(
        self, node: Node, secret_id: str, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.NodeUpdateResponse]:
        """Register a node with its fingerprint."""
        return CallSpec(options, node.id, body=messages.NodeRegistration(node=node, secret_id=secret_id))

    @call_method("node.heartbeat")
    def send_heartbeat(
        self, node_id: str, secret_id: str, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.NodeUpdateResponse]:
        """Record a node's heartbeat."""
        return CallSpec(options, node_id, headers=_build_secret_header(secret_id))

    @read_method("node.desired")
    def list_assignments(
        self, node_id: str, secret_id: str, **options: Unpack[ReadOptions]
    ) -> ReadSpec[dict[str, int]]:
        """List the IDs of the node's allocations, each with the index of its last change."""
        return ReadSpec(options, node_id, headers=_build_secret_header(secret_id))

    @call_method("node.fetch")
    def fetch_assignments(
        self, node_id: str, secret_id: str, ids: Sequence[str], **options: Unpack[CallOptions]
    ) -> CallSpec[list[messages.Assignment]]:
        """Return complete allocations by ID."""
        return CallSpec(
            options, node_id, headers=_build_secret_header(secret_id), body=messages.AssignmentsRequest(ids=tuple(ids))
        )

    @call_method("node.leave")
    def leave(
        self, node_id: str, secret_id: str, spec: messages.DrainSpec | None, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.NodeChangeResponse]:
        """Drain the node because it shuts down. Without a spec, cancel that drain after its return."""
        body = messages.NodeDrainRequest(drain_spec=spec)
        return CallSpec(options, node_id, headers=_build_secret_header(secret_id), body=body)

    @read_method("node.former")
    def read_predecessor(
        self, node_id: str, secret_id: str, alloc_id: str, **options: Unpack[ReadOptions]
    ) -> ReadSpec[messages.PredecessorView]:
        """Read the predecessor of one of the node's allocations."""
        return ReadSpec(options, node_id, alloc_id, headers=_build_secret_header(secret_id))

    @call_method("node.report")
    def send_report(
        self, node_id: str, secret_id: str, report: messages.NodeReportRequest, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.NodeReportResponse]:
        """Report the states of a node's allocations."""
        return CallSpec(options, node_id, headers=_build_secret_header(secret_id), body=report)

    @call_method("node.identities")
    def sign_identities(
        self, node_id: str, secret_id: str, request: messages.IdentitiesRequest, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.IdentitiesReply]:
        """Sign the identities of a task."""
        return CallSpec(options, node_id, headers=_build_secret_header(secret_id), body=request)

    @call_method("node.own_identity")
    def sign_own_identity(
        self, node_id: str, secret_id: str, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.NodeIdentityReply]:
        """Sign a node's own identity."""
        return CallSpec(options, node_id, headers=_build_secret_header(secret_id))


def _build_secret_header(secret_id: str) -> dict[str, str]:
    """Return the header that authenticates a node."""
    return {"x-cluster-node-secret": secret_id}
