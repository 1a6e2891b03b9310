"""What can be asked about machines: nodes, pools, their volumes and files; and what nodes themselves say."""

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
from wharf.contract.wire.allocations import messages as work_shapes
from wharf.contract.wire.allocations.messages import Measurements
from wharf.contract.wire.nodes import messages


class NodeMethods(MethodGroup[M]):
    @list_method("node.list")
    def list(
        self, *, resources: bool = False, os: bool = False, **options: Unpack[ListOptions]
    ) -> ListSpec[messages.NodeListStub]:
        return ListSpec(options, resources=resources, os=os)

    @read_method("node.read")
    def read(self, node_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[messages.NodeView]:
        return ReadSpec(options, node_id)

    @list_method("node.allocations")
    def allocations(self, node_id: str, **options: Unpack[ReadOptions]) -> ListSpec[work_shapes.AllocationView]:
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
        """Without a spec the drain is called off."""
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
        body = messages.EligibilityRequest(node_id=node_id, eligibility="eligible" if eligible else "ineligible")
        return CallSpec(options, node_id, body=body)

    @call_method("node.evaluate")
    def evaluate(self, node_id: str, **options: Unpack[WriteOptions]) -> CallSpec[messages.NodeUpdateResponse]:
        return CallSpec(options, node_id)

    @call_method("node.purge")
    def purge(self, node_id: str, **options: Unpack[WriteOptions]) -> CallSpec[messages.NodeUpdateResponse]:
        return CallSpec(options, node_id)

    # -- what the node itself answers

    @call_method("client.metadata")
    def metadata(self, node_id: str = "", **options: Unpack[CallOptions]) -> CallSpec[messages.NodeMetaResponse]:
        return CallSpec(options, node_id=node_id)

    @call_method("client.metadata_apply")
    def apply_metadata(
        self, meta: Mapping[str, str | None], *, node_id: str = "", **options: Unpack[WriteOptions]
    ) -> CallSpec[messages.NodeMetaResponse]:
        """None takes a key away."""
        return CallSpec(options, body=messages.NodeMetaApplyRequest(node_id=node_id, meta=dict(meta)), node_id=node_id)

    @call_method("client.stats")
    def stats(self, node_id: str = "", *, history: str = "", **options: Unpack[CallOptions]) -> CallSpec[Measurements]:
        """`history`: how far back what was is told too, as `5m`."""
        return CallSpec(options, node_id=node_id, history=history)

    @call_method("client.gc_now")
    def collect(self, node_id: str = "", **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Have it free what its finished allocations hold."""
        return CallSpec(options, node_id=node_id)

    @call_method("client.identity")
    def identity(self, node_id: str = "", **options: Unpack[CallOptions]) -> CallSpec[Measurements]:
        return CallSpec(options, node_id=node_id)

    @call_method("client.identity_renew")
    def renew_identity(self, node_id: str = "", **options: Unpack[WriteOptions]) -> CallSpec[Measurements]:
        return CallSpec(options, body=messages.NodeIdentityRequest(node_id=node_id), node_id=node_id)


class NodeProtocolMethods(MethodGroup[M]):
    """What nodes say, each by its secret. All of it may be said twice."""

    @call_method("node.register")
    def register(
        self, node: Node, secret_id: str, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.NodeUpdateResponse]:
        return CallSpec(options, node.id, body=messages.NodeRegistration(node=node, secret_id=secret_id))

    @call_method("node.heartbeat")
    def send_heartbeat(
        self, node_id: str, secret_id: str, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.NodeUpdateResponse]:
        return CallSpec(options, node_id, headers=_known_by(secret_id))

    @read_method("node.desired")
    def list_assignments(
        self, node_id: str, secret_id: str, **options: Unpack[ReadOptions]
    ) -> ReadSpec[dict[str, int]]:
        """Ids of its allocations, with the index of each one's last orders."""
        return ReadSpec(options, node_id, headers=_known_by(secret_id))

    @call_method("node.fetch")
    def fetch_assignments(
        self, node_id: str, secret_id: str, ids: Sequence[str], **options: Unpack[CallOptions]
    ) -> CallSpec[list[messages.Assignment]]:
        return CallSpec(
            options, node_id, headers=_known_by(secret_id), body=messages.AssignmentsRequest(ids=tuple(ids))
        )

    @call_method("node.leave")
    def leave(
        self, node_id: str, secret_id: str, spec: messages.DrainSpec | None, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.NodeChangeResponse]:
        """Without a spec: it is back."""
        body = messages.NodeDrainRequest(drain_spec=spec)
        return CallSpec(options, node_id, headers=_known_by(secret_id), body=body)

    @read_method("node.former")
    def read_predecessor(
        self, node_id: str, secret_id: str, alloc_id: str, **options: Unpack[ReadOptions]
    ) -> ReadSpec[messages.PredecessorView]:
        """The allocation whose place one of the node's own takes."""
        return ReadSpec(options, node_id, alloc_id, headers=_known_by(secret_id))

    @call_method("node.report")
    def send_report(
        self, node_id: str, secret_id: str, report: messages.NodeReportRequest, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.NodeReportResponse]:
        return CallSpec(options, node_id, headers=_known_by(secret_id), body=report)

    @call_method("node.identities")
    def sign_identities(
        self, node_id: str, secret_id: str, wanted: messages.IdentitiesRequest, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.IdentitiesReply]:
        return CallSpec(options, node_id, headers=_known_by(secret_id), body=wanted)

    @call_method("node.own_identity")
    def sign_own_identity(
        self, node_id: str, secret_id: str, **options: Unpack[CallOptions]
    ) -> CallSpec[messages.NodeIdentityReply]:
        return CallSpec(options, node_id, headers=_known_by(secret_id))


def _known_by(secret_id: str) -> dict[str, str]:
    return {"x-cluster-node-secret": secret_id}
