"""Host volumes: nodes that have requested volumes, sticky volumes, and single writers (scheduling.md 2.6).

A replacement must return to the sticky volumes of its predecessor. So the newest allocation of a name holds the claim
on the sticky volumes of this name, whether it runs or has ended, as long as its record, its node and the volumes exist.
There is no separate record of a claim, so garbage collection keeps claim holders. Which allocations use a volume
follows from the job versions that they run.
"""

from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import find_allocation_job
from wharf.cluster.state.tables import (
    ALLOCATIONS_OF_JOB,
    HOST_VOLUMES,
    HOST_VOLUMES_ON_NODE,
    NODES,
    UNFINISHED_ALLOCATIONS_ON_NODE,
)
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.names import parse_index
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.volumes import AccessMode, AttachmentMode, VolumeRequest, VolumeType
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.volumes import HostVolume, HostVolumeState

VolumeLookup = Callable[[str], HostVolume | None]
"""Returns the host volume with this id, or `None` if it does not exist."""

VolumeCheck = Callable[[Node, int], bool]
"""Checks whether a node has the volumes that an allocation requests, given the index in the allocation's name."""


class NamespaceVolumes(msgspec.Struct, frozen=True):
    """Looks up host volumes of one namespace by id."""

    snapshot: Replica
    namespace: str

    def __call__(self, volume_id: str) -> HostVolume | None:
        """Return the host volume with this id, or `None` if the namespace has no such volume."""
        return self.snapshot.get(HOST_VOLUMES, self.namespace, volume_id)


def list_host_volume_requests(group: TaskGroup) -> list[VolumeRequest]:
    """Return the group's volume requests that are for host volumes."""
    return [request for request in (group.volumes or {}).values() if request.type == VolumeType.HOST]


def has_volume(node: Node, request: VolumeRequest, find_volume: VolumeLookup) -> bool:
    """Return whether the node has a host volume that satisfies the request.

    A volume from the node's configuration has no id; it satisfies requests that are not sticky, and if it is read-only
    only those that read. A registered volume must be ready and offer the requested access. With `per_alloc`, a volume
    of the requested name with any index is sufficient.
    """
    volumes = node.host_volumes or {}
    if request.per_alloc:
        # The allocation's name decides which volume it gets. Here one volume with this name and any index is enough.
        return any(name.startswith(f"{request.source}[") for name in volumes)
    volume_on_node = volumes.get(request.source)
    if volume_on_node is None:
        return False
    if not volume_on_node.id:
        return not request.sticky and (request.read_only or not volume_on_node.read_only)
    volume = find_volume(volume_on_node.id)
    return volume is not None and volume.state is HostVolumeState.READY and _can_use_volume(volume, request)


def make_volume_check(group: TaskGroup, find_volume: VolumeLookup) -> VolumeCheck | None:
    """Return a check for volumes that depend on the index in the allocation's name (`per_alloc`).

    Example: the allocation `web[2]` requests the volume `data[2]`. Return `None` if the group has no such request.
    """
    requests = [request for request in list_host_volume_requests(group) if request.per_alloc]
    if not requests:
        return None

    def has_volumes(node: Node, index: int) -> bool:
        """Return whether the node has the volumes that the allocation with this index in its name requests."""
        return all(has_volume(node, _fill_index(request, index), find_volume) for request in requests)

    return has_volumes


def find_requested_volumes(snapshot: Replica, allocation: Allocation) -> list[VolumeRequest]:
    """Return the requests for host volumes of the allocation's group, in the job version that the allocation runs.

    The list is empty if this version is no longer stored.
    """
    job = find_allocation_job(snapshot, allocation)
    group = job.find_group(allocation.task_group) if job is not None else None
    return list_host_volume_requests(group) if group is not None else []


def has_requested_volumes(
    snapshot: Replica, node: Node, allocation: Allocation, requests: Iterable[VolumeRequest]
) -> bool:
    """Return whether the node has the host volumes that the allocation requests, and they are ready."""
    find_volume = NamespaceVolumes(snapshot, allocation.namespace)
    index = parse_index(allocation.name)
    return all(has_volume(node, _fill_index(request, index), find_volume) for request in requests)


def get_requested_access(request: VolumeRequest) -> str:
    """Return the access mode that the request needs; without one, `read_only` selects the mode."""
    default_access = AccessMode.SINGLE_NODE_READER if request.read_only else AccessMode.SINGLE_NODE_WRITER
    return request.access_mode or default_access


def list_offered_access(volume: HostVolume) -> list[str]:
    """Return the access modes that the volume offers, sorted."""
    return sorted({capability.access_mode for capability in volume.requested_capabilities or ()})


def _can_use_volume(volume: HostVolume, request: VolumeRequest) -> bool:
    """Return whether the volume offers the access mode and attachment mode of the request.

    False, too, if the request is read-only but not its access mode, or the other way round.
    """
    access = get_requested_access(request)
    attachment = request.attachment_mode or AttachmentMode.FILE_SYSTEM
    if (access == AccessMode.SINGLE_NODE_READER) != request.read_only:
        return False
    capabilities = volume.requested_capabilities or ()
    return any(
        capability.access_mode == access and capability.attachment_mode == attachment for capability in capabilities
    )


def has_sticky_volumes(group: TaskGroup) -> bool:
    """Return whether the group requests sticky host volumes, to which replacements of its allocations must return."""
    return bool(_list_sticky_sources(group))


def _list_sticky_sources(group: TaskGroup) -> list[str]:
    """Return the names of the group's sticky host volumes."""
    return [request.source for request in list_host_volume_requests(group) if request.sticky]


def find_claim_node(snapshot: Replica, group: TaskGroup, holder: Allocation) -> Node | None:
    """Return the node with the sticky volumes of this allocation, to which its replacement must return.

    Return `None` if one of the volumes, or the node, no longer exists. Then the replacement may go to any node.
    """
    return snapshot.get(NODES, holder.node_id) if list_claimed_volumes(snapshot, group, holder) else None


def list_claimed_volumes(snapshot: Replica, group: TaskGroup, holder: Allocation) -> list[HostVolume]:
    """Return the group's sticky host volumes on the node of `holder`, the newest allocation of its name.

    If one of them no longer exists, no claim remains and the list is empty.
    """
    volume_by_name = {
        volume.name: volume
        for volume in snapshot.list_by_index(HOST_VOLUMES_ON_NODE, holder.node_id)
        if volume.namespace == holder.namespace
    }
    sources = _list_sticky_sources(group)
    return [volume_by_name[name] for name in sources] if all(name in volume_by_name for name in sources) else []


def find_claim_holder(allocations: Iterable[Allocation], group_name: str, name: str) -> Allocation | None:
    """Return the newest of the job's allocations with this name and group: it holds the claim on its sticky volumes.

    Return `None` if there is no such allocation.
    """
    same_name = (
        allocation for allocation in allocations if allocation.name == name and allocation.task_group == group_name
    )
    return max(same_name, key=lambda allocation: (allocation.create_index, allocation.id), default=None)


def is_claim_holder(snapshot: Replica, allocation: Allocation, job: Job) -> bool:
    """Return whether the allocation holds a claim on sticky volumes. Then it must not be garbage-collected.

    It is the newest allocation of its name, its group requests sticky volumes, and they exist on its node.
    """
    group = job.find_group(allocation.task_group)
    if group is None or not has_sticky_volumes(group) or not list_claimed_volumes(snapshot, group, allocation):
        return False
    job_allocations = snapshot.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id)
    return find_claim_holder(job_allocations, group.name, allocation.name) == allocation


def list_single_writer_volumes(group: TaskGroup) -> list[VolumeRequest]:
    """Return the group's requests for host volumes that only one allocation at a time may write."""
    return [
        request
        for request in list_host_volume_requests(group)
        if request.access_mode == AccessMode.SINGLE_NODE_SINGLE_WRITER
    ]


def can_write_volumes(
    snapshot: Replica, node: Node, group: TaskGroup, index: int, placed: Iterable[Allocation]
) -> bool:
    """Return whether a new allocation may write the single-writer volumes that it requests on the node.

    It may not if another allocation on the node writes one of them. Allocations that are being stopped count until they
    have ended. `index` is the index in the name of the new allocation. `placed` are the allocations that the current
    evaluation has placed on the node already.
    """
    requested = {build_volume_name(request, index) for request in list_single_writer_volumes(group)}
    if not requested:
        return True
    occupying = [
        allocation
        for allocation in snapshot.list_by_index(UNFINISHED_ALLOCATIONS_ON_NODE, node.id)
        if allocation.is_occupying
    ]
    return not any(_may_write(snapshot, allocation, requested) for allocation in (*occupying, *placed))


def _may_write(snapshot: Replica, allocation: Allocation, volume_names: set[str]) -> bool:
    """Return whether the allocation may write one of these host volumes.

    It may write every volume if its job version is no longer stored, because the job was purged.
    """
    job = find_allocation_job(snapshot, allocation)
    if job is None:
        return True
    group = job.find_group(allocation.task_group)
    requests = list_host_volume_requests(group) if group is not None else []
    index = parse_index(allocation.name)
    return any(build_volume_name(request, index) in volume_names for request in requests if not request.read_only)


def _fill_index(request: VolumeRequest, index: int) -> VolumeRequest:
    """Return the request of the allocation with this index in its name: for one volume, also with `per_alloc`."""
    return replace(request, source=build_volume_name(request, index), per_alloc=False)


def build_volume_name(request: VolumeRequest, index: int) -> str:
    """Return the volume name of the request; with `per_alloc` it includes the index."""
    return f"{request.source}[{index}]" if request.per_alloc else request.source
