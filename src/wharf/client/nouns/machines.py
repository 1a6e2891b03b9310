"""What can be asked about machines: nodes, pools, their volumes and files; and what nodes themselves say."""

from collections.abc import Mapping, Sequence
from typing import Unpack

from wharf.client.calls import Call, CallOptions, Listing, ListOptions, Read, ReadOptions, Stream, WriteOptions
from wharf.client.methods import M, Noun, calls, lists, reads, streams
from wharf.model.host_volume import HostVolume, HostVolumeStub
from wharf.model.node import Node
from wharf.model.node_pool import NodePool
from wharf.wire import client_shapes, identity_shapes, node_shapes, shapes, volume_shapes, work_shapes
from wharf.wire.client_shapes import AllocFileInfo, Figures


class Nodes(Noun[M]):
    @lists("node.list")
    def list(
        self, *, resources: bool = False, os: bool = False, **options: Unpack[ListOptions]
    ) -> Listing[node_shapes.NodeListStub]:
        return Listing(options, resources=resources, os=os)

    @reads("node.read")
    def read(self, node_id: str, **options: Unpack[ReadOptions]) -> Read[node_shapes.NodeShown]:
        return Read(options, node_id)

    @lists("node.allocations")
    def allocations(self, node_id: str, **options: Unpack[ReadOptions]) -> Listing[work_shapes.AllocationShown]:
        return Listing(options, node_id)

    @calls("node.drain")
    def drain(
        self,
        node_id: str,
        spec: node_shapes.DrainSpec | None,
        *,
        mark_eligible: bool = False,
        meta: Mapping[str, str] | None = None,
        **options: Unpack[WriteOptions],
    ) -> Call[node_shapes.NodeChangeResponse]:
        """Without a spec the drain is called off."""
        body = node_shapes.NodeDrainRequest(
            node_id=node_id,
            drain_spec=spec,
            mark_eligible=mark_eligible,
            meta=dict(meta) if meta is not None else None,
        )
        return Call(options, node_id, body=body)

    @calls("node.eligibility")
    def set_eligibility(
        self, node_id: str, *, eligible: bool, **options: Unpack[WriteOptions]
    ) -> Call[node_shapes.NodeChangeResponse]:
        body = shapes.EligibilityRequest(node_id=node_id, eligibility="eligible" if eligible else "ineligible")
        return Call(options, node_id, body=body)

    @calls("node.evaluate")
    def evaluate(self, node_id: str, **options: Unpack[WriteOptions]) -> Call[shapes.NodeUpdateResponse]:
        return Call(options, node_id)

    @calls("node.purge")
    def purge(self, node_id: str, **options: Unpack[WriteOptions]) -> Call[shapes.NodeUpdateResponse]:
        return Call(options, node_id)

    # -- what the node itself answers

    @calls("client.metadata")
    def metadata(self, node_id: str = "", **options: Unpack[CallOptions]) -> Call[client_shapes.NodeMetaResponse]:
        return Call(options, node_id=node_id)

    @calls("client.metadata_apply")
    def apply_metadata(
        self, meta: Mapping[str, str | None], *, node_id: str = "", **options: Unpack[WriteOptions]
    ) -> Call[client_shapes.NodeMetaResponse]:
        """None takes a key away."""
        return Call(options, body=client_shapes.NodeMetaApplyRequest(node_id=node_id, meta=dict(meta)), node_id=node_id)

    @calls("client.stats")
    def stats(self, node_id: str = "", *, history: str = "", **options: Unpack[CallOptions]) -> Call[Figures]:
        """`history`: how far back what was is told too, as `5m`."""
        return Call(options, node_id=node_id, history=history)

    @calls("client.gc_now")
    def collect(self, node_id: str = "", **options: Unpack[WriteOptions]) -> Call[None]:
        """Have it free what its finished allocations hold."""
        return Call(options, node_id=node_id)

    @calls("client.identity")
    def identity(self, node_id: str = "", **options: Unpack[CallOptions]) -> Call[Figures]:
        return Call(options, node_id=node_id)

    @calls("client.identity_renew")
    def renew_identity(self, node_id: str = "", **options: Unpack[WriteOptions]) -> Call[Figures]:
        return Call(options, body=client_shapes.NodeIdentityRequest(node_id=node_id), node_id=node_id)


class NodeAgents(Noun[M]):
    """What nodes say, each by its secret. All of it may be said twice."""

    @calls("node.register")
    def register(self, node: Node, secret_id: str, **options: Unpack[CallOptions]) -> Call[shapes.NodeUpdateResponse]:
        return Call(options, node.id, body=shapes.NodeRegistration(node=node, secret_id=secret_id))

    @calls("node.heartbeat")
    def heartbeat(
        self, node_id: str, secret_id: str, **options: Unpack[CallOptions]
    ) -> Call[shapes.NodeUpdateResponse]:
        return Call(options, node_id, headers=_known_by(secret_id))

    @reads("node.desired")
    def desired(self, node_id: str, secret_id: str, **options: Unpack[ReadOptions]) -> Read[dict[str, int]]:
        """Ids of its allocations, with the index of each one's last orders."""
        return Read(options, node_id, headers=_known_by(secret_id))

    @calls("node.fetch")
    def fetch(
        self, node_id: str, secret_id: str, ids: Sequence[str], **options: Unpack[CallOptions]
    ) -> Call[list[shapes.DesiredAllocation]]:
        return Call(options, node_id, headers=_known_by(secret_id), body=shapes.DesiredRequest(ids=tuple(ids)))

    @calls("node.leave")
    def leave(
        self, node_id: str, secret_id: str, spec: node_shapes.DrainSpec | None, **options: Unpack[CallOptions]
    ) -> Call[node_shapes.NodeChangeResponse]:
        """Without a spec: it is back."""
        body = node_shapes.NodeDrainRequest(drain_spec=spec)
        return Call(options, node_id, headers=_known_by(secret_id), body=body)

    @reads("node.former")
    def former(
        self, node_id: str, secret_id: str, alloc_id: str, **options: Unpack[ReadOptions]
    ) -> Read[shapes.FormerAllocation]:
        """The allocation whose place one of the node's own takes."""
        return Read(options, node_id, alloc_id, headers=_known_by(secret_id))

    @calls("node.report")
    def report(
        self, node_id: str, secret_id: str, report: shapes.NodeReportRequest, **options: Unpack[CallOptions]
    ) -> Call[shapes.NodeReportResponse]:
        return Call(options, node_id, headers=_known_by(secret_id), body=report)

    @calls("node.identities")
    def identities(
        self, node_id: str, secret_id: str, wanted: identity_shapes.IdentitiesRequest, **options: Unpack[CallOptions]
    ) -> Call[identity_shapes.IdentitiesReply]:
        return Call(options, node_id, headers=_known_by(secret_id), body=wanted)

    @calls("node.own_identity")
    def own_identity(
        self, node_id: str, secret_id: str, **options: Unpack[CallOptions]
    ) -> Call[identity_shapes.NodeIdentityReply]:
        return Call(options, node_id, headers=_known_by(secret_id))


def _known_by(secret_id: str) -> dict[str, str]:
    return {"x-cluster-node-secret": secret_id}


class NodePools(Noun[M]):
    @lists("node_pool.list")
    def list(self, **options: Unpack[ListOptions]) -> Listing[NodePool]:
        return Listing(options)

    @reads("node_pool.read")
    def read(self, name: str, **options: Unpack[ReadOptions]) -> Read[NodePool]:
        return Read(options, name)

    @calls("node_pool.store")
    def store(self, pool: NodePool, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, body=pool)

    @calls("node_pool.update")
    def update(self, name: str, pool: NodePool, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, name, body=pool)

    @calls("node_pool.delete")
    def delete(self, name: str, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, name)

    @lists("node_pool.nodes")
    def nodes(
        self, name: str, *, resources: bool = False, os: bool = False, **options: Unpack[ListOptions]
    ) -> Listing[node_shapes.NodeListStub]:
        return Listing(options, name, resources=resources, os=os)

    @lists("node_pool.jobs")
    def jobs(self, name: str, *, meta: bool = False, **options: Unpack[ListOptions]) -> Listing[shapes.JobStub]:
        return Listing(options, name, meta=meta)


class HostVolumes(Noun[M]):
    @lists("host_volume.list")
    def list(
        self, *, node_id: str = "", node_pool: str = "", **options: Unpack[ListOptions]
    ) -> Listing[HostVolumeStub]:
        return Listing(options, type="host", node_id=node_id, node_pool=node_pool)

    @reads("host_volume.read")
    def read(self, volume_id: str, **options: Unpack[ReadOptions]) -> Read[HostVolume]:
        return Read(options, volume_id)

    @calls("host_volume.create")
    def create(
        self, volume: HostVolume, *, policy_override: bool = False, **options: Unpack[WriteOptions]
    ) -> Call[volume_shapes.HostVolumeResponse]:
        return Call(options, body=volume_shapes.HostVolumeRequest(volume=volume, policy_override=policy_override))

    @calls("host_volume.register")
    def register(
        self, volume: HostVolume, *, policy_override: bool = False, **options: Unpack[WriteOptions]
    ) -> Call[volume_shapes.HostVolumeResponse]:
        return Call(options, body=volume_shapes.HostVolumeRequest(volume=volume, policy_override=policy_override))

    @calls("host_volume.delete")
    def delete(self, volume_id: str, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, volume_id)


class Files(Noun[M]):
    """Files of an allocation, on its node."""

    @calls("client.fs_list")
    def list(self, alloc_id: str, path: str = "/", **options: Unpack[CallOptions]) -> Call["tuple[AllocFileInfo, ...]"]:
        return Call(options, alloc_id, path=path)

    @calls("client.fs_stat")
    def stat(self, alloc_id: str, path: str, **options: Unpack[CallOptions]) -> Call[AllocFileInfo]:
        return Call(options, alloc_id, path=path)

    @streams("client.fs_cat")
    def cat(self, alloc_id: str, path: str, **options: Unpack[CallOptions]) -> Stream[bytes]:
        return Stream(options, alloc_id, path=path)

    @streams("client.fs_read_at")
    def read_at(
        self, alloc_id: str, path: str, *, offset: int, limit: int, **options: Unpack[CallOptions]
    ) -> Stream[bytes]:
        return Stream(options, alloc_id, path=path, offset=offset, limit=limit)

    @streams("client.fs_stream")
    def stream(
        self,
        alloc_id: str,
        path: str,
        *,
        offset: int = 0,
        origin: str = "",
        follow: bool = True,
        **options: Unpack[CallOptions],
    ) -> Stream[bytes]:
        return Stream(options, alloc_id, path=path, offset=offset, origin=origin, follow=None if follow else "false")

    @streams("client.fs_logs")
    def logs(
        self,
        alloc_id: str,
        task: str,
        *,
        type: str = "stdout",
        offset: int = 0,
        origin: str = "",
        follow: bool = False,
        **options: Unpack[CallOptions],
    ) -> Stream[bytes]:
        return Stream(options, alloc_id, task=task, type=type, offset=offset, origin=origin, follow=follow)

    @streams("client.snapshot")
    def snapshot(self, alloc_id: str, *, migrate_token: str = "", **options: Unpack[CallOptions]) -> Stream[bytes]:
        """What an ended allocation keeps (`alloc/data` and each task's `local`) as one archive."""
        return Stream(options, alloc_id, headers={"x-cluster-token": migrate_token} if migrate_token else None)
