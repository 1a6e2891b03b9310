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
from wharf.contract.wire.nodes.fleet import FleetPicture
from wharf.contract.wire.nodes.use import NodeUse


class NodeMethods(MethodGroup[M]):
    """The methods of `client.nodes`. Each describes a call, which the client then sends."""

    @list_method("node.list")
    def list(
        self,
        *,
        resources: bool = False,
        os: bool = False,
        use: bool = False,
        sort: str = "",
        **options: Unpack[ListOptions],
    ) -> ListSpec[messages.NodeListStub]:
        """List nodes. `resources`, `os` and `use` select whether these fields are included.

        `sort`: `name`, `state`, `pool` or `use` instead of the order by ID; then `reverse` has an effect.
        """
        return ListSpec(options, resources=resources, os=os, use=use, sort=sort)

    @read_method("node.fleet")
    def fleet(self, *, by: str = "", **options: Unpack[ReadOptions]) -> ReadSpec[FleetPicture]:
        """Read all nodes and their unfinished allocations in few bytes. `by`: state, job or namespace."""
        return ReadSpec(options, by=by)

    @read_method("node.read")
    def read(self, node_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[messages.NodeView]:
        """Read the node with this ID."""
        return ReadSpec(options, node_id)

    @list_method("node.allocations")
    def allocations(self, node_id: str, **options: Unpack[ReadOptions]) -> ListSpec[allocation_messages.AllocationView]:
        """List the allocations on a node, in the namespaces that the caller may read."""
        return ListSpec(options, node_id)

    @read_method("node.use")
    def use(self, node_id: str, *, limit: int | None = None, **options: Unpack[ReadOptions]) -> ReadSpec[NodeUse]:
        """Read what the allocations of a node request together, and the newest of them, at most `limit`."""
        return ReadSpec(options, node_id, limit=limit)

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
        """Drain a node, that is, move all allocations off it. Without `spec`, cancel its drain.

        `mark_eligible`: after a cancellation, new allocations may be placed on it again. `meta` holds notes of the
        operator.
        """
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
        """Read the metadata of a node. `node_id` is empty for the node of the replying agent."""
        return CallSpec(options, node_id=node_id)

    @call_method("client.metadata_apply")
    def apply_metadata(
        self, meta: Mapping[str, str | None], *, node_id: str = "", **options: Unpack[WriteOptions]
    ) -> CallSpec[messages.NodeMetaResponse]:
        """Change the dynamic metadata of a node. A value of None deletes a key.

        `node_id` is empty for the node of the replying agent.
        """
        return CallSpec(options, body=messages.NodeMetaApplyRequest(node_id=node_id, meta=dict(meta)), node_id=node_id)

    @call_method("client.stats")
    def stats(self, node_id: str = "", *, history: str = "", **options: Unpack[CallOptions]) -> CallSpec[Measurements]:
        """Read statistics of a node's machine.

        `history`: include earlier measurements of this duration, such as `5m`. `node_id` is empty for the node of the
        replying agent.
        """
        return CallSpec(options, node_id=node_id, history=history)

    @call_method("client.gc_now")
    def collect(self, node_id: str = "", **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Delete the folders of a node's finished allocations (garbage collection).

        `node_id` is empty for the node of the replying agent.
        """
        return CallSpec(options, node_id=node_id)

    @call_method("client.identity")
    def identity(self, node_id: str = "", **options: Unpack[CallOptions]) -> CallSpec[Measurements]:
        """Read the claims of a node's signed identity. `node_id` is empty for the node of the replying agent."""
        return CallSpec(options, node_id=node_id)

    @call_method("client.identity_renew")
    def renew_identity(self, node_id: str = "", **options: Unpack[WriteOptions]) -> CallSpec[Measurements]:
        """Renew the signed identity of a node. `node_id` is empty for the node of the replying agent."""
        return CallSpec(options, body=messages.NodeIdentityRequest(node_id=node_id), node_id=node_id)


class NodeProtocolMethods(MethodGroup[M]):
    """The methods of `client.node_agents`: requests of nodes, authenticated by their secret. All may be repeated."""

    @call_method("node.register")
    def register(
        self, node: Node, secret_id: str, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.NodeUpdateResponse]:
        """Register a node with its record. `secret_id` authenticates its later requests."""
        body = messages.NodeRegistration(node=node, secret_id=secret_id)
        return CallSpec(options, node.id, headers=_build_secret_header(secret_id), body=body)

    @call_method("node.heartbeat")
    def send_heartbeat(
        self, node_id: str, secret_id: str, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.NodeUpdateResponse]:
        """Send a node's heartbeat, which shows that the node is alive. `secret_id` is the node's secret."""
        return CallSpec(options, node_id, headers=_build_secret_header(secret_id))

    @read_method("node.desired")
    def list_assignments(
        self, node_id: str, secret_id: str, *, without_ended: bool = False, **options: Unpack[ReadOptions]
    ) -> ReadSpec[dict[str, int]]:
        """List the IDs of the allocations of a node, each with the log index of its last change.

        `secret_id` is the node's secret. `without_ended` leaves out allocations of which servers know that they ended.
        """
        return ReadSpec(options, node_id, headers=_build_secret_header(secret_id), without_ended=without_ended or None)

    @call_method("node.fetch")
    def fetch_assignments(
        self,
        node_id: str,
        secret_id: str,
        ids: Sequence[str],
        *,
        shares_jobs: bool = False,
        **options: Unpack[CallOptions],
    ) -> CallSpec[list[messages.Assignment]]:
        """Read allocations of a node, with their jobs, by ID. `secret_id` is the node's secret.

        With `shares_jobs`, the reply has each job once. Pass it to `messages.restore_shared_jobs`.
        """
        body = messages.AssignmentsRequest(ids=tuple(ids), shares_jobs=shares_jobs)
        return CallSpec(options, node_id, headers=_build_secret_header(secret_id), body=body)

    @call_method("node.leave")
    def leave(
        self, node_id: str, secret_id: str, spec: messages.DrainSpec | None, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.NodeChangeResponse]:
        """Drain a node because it shuts down. Without `spec`, cancel that drain after the node has returned.

        `secret_id` is the node's secret.
        """
        body = messages.NodeDrainRequest(drain_spec=spec)
        return CallSpec(options, node_id, headers=_build_secret_header(secret_id), body=body)

    @read_method("node.former")
    def read_predecessor(
        self, node_id: str, secret_id: str, alloc_id: str, **options: Unpack[ReadOptions]
    ) -> ReadSpec[messages.PredecessorView]:
        """Read the predecessor of an allocation of the node, that is, the allocation that it replaces.

        `secret_id` is the node's secret.
        """
        return ReadSpec(options, node_id, alloc_id, headers=_build_secret_header(secret_id))

    @call_method("node.report")
    def send_report(
        self, node_id: str, secret_id: str, report: messages.NodeReportRequest, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.NodeReportResponse]:
        """Report the states of a node's allocations. `secret_id` is the node's secret."""
        return CallSpec(options, node_id, headers=_build_secret_header(secret_id), body=report)

    @call_method("node.identities")
    def sign_identities(
        self, node_id: str, secret_id: str, request: messages.IdentitiesRequest, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.IdentitiesReply]:
        """Request signed workload identities for a task of the node. `secret_id` is the node's secret."""
        return CallSpec(options, node_id, headers=_build_secret_header(secret_id), body=request)

    @call_method("node.own_identity")
    def sign_own_identity(
        self, node_id: str, secret_id: str, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.NodeIdentityReply]:
        """Request a signed identity of the node itself. `secret_id` is the node's secret."""
        return CallSpec(options, node_id, headers=_build_secret_header(secret_id))


def _build_secret_header(secret_id: str) -> dict[str, str]:
    """Return the request header with a node's secret, which authenticates the node."""
    return {"x-cluster-node-secret": secret_id}
