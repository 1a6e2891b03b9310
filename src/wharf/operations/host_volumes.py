"""What people do to volumes of hosts, and what a node's word about its folders makes of them."""

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.model import host_volume
from wharf.model.changes import THIS, Cause, CauseKind, Condition, Put, Write
from wharf.model.host_volume import HostVolume, HostVolumeState
from wharf.model.job import Job
from wharf.model.node import Node
from wharf.model.refusal import invalid, unknown
from wharf.model.validation.findings import Problem, multi_error
from wharf.model.volume import VolumeType
from wharf.operations.decision import Decision, Moment
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS_ON_NODE, HOST_VOLUMES, HOST_VOLUMES_ON_NODE, JOB_VERSIONS, NAMESPACES, NODES

REGISTERED: Final = "host-volume-registered"
DELETED: Final = "host-volume-deleted"


class VolumeWritten(msgspec.Struct, frozen=True):
    index: int
    volume: HostVolume


def check(snapshot: Replica, wanted: HostVolume, *, is_made: bool) -> None:
    """Raises with all that is wrong. `is_made`: the folder is there already."""
    problems = host_volume.problems(wanted, is_made=is_made)
    if snapshot.get(NAMESPACES, wanted.namespace) is None:
        problems.append(f'namespace "{wanted.namespace}" not found')
    node = snapshot.get(NODES, wanted.node_id) if wanted.node_id else None
    if wanted.node_id and node is None:
        problems.append(f'node "{wanted.node_id}" does not exist')
    if node is not None and wanted.node_pool and wanted.node_pool != node.node_pool:
        problems.append(f'node "{node.id}" is in node pool "{node.node_pool}", not in "{wanted.node_pool}"')
    if problems:
        raise invalid(f"volume validation failed: {multi_error([Problem('', each) for each in problems]).rstrip()}")


def register(snapshot: Replica, wanted: HostVolume, moment: Moment, *, cause: str = "") -> Decision[VolumeWritten]:
    """Make a folder that is there known, or replace what is known of it. It is ready when its node says that it has it."""
    check(snapshot, wanted, is_made=True)
    node = snapshot.get(NODES, wanted.node_id)
    assert node is not None, "the check refuses a volume on a node that is none"
    volume = replace(wanted, node_pool=node.node_pool, modify_time=moment.now_ns, modify_index=0)
    if wanted.id:
        volume = _taking_the_place_of(snapshot.get(HOST_VOLUMES, wanted.namespace, wanted.id), volume)
    else:
        _refuse_name_taken(snapshot, wanted)
        volume = replace(volume, id=moment.new_id(), create_index=THIS, create_time=moment.now_ns)
    state = HostVolumeState.READY if _is_told_of(volume, node) else HostVolumeState.PENDING
    volume = replace(volume, state=state)
    conditions = [
        snapshot.as_seen(HOST_VOLUMES, volume.namespace, volume.id),
        # Two volumes of one name on one node would be one folder: whoever is second sees that the node has moved on.
        snapshot.as_seen(NODES, node.id),
        snapshot.as_seen(NAMESPACES, volume.namespace),
    ]
    write = Write(REGISTERED, Cause(CauseKind.REQUEST, cause), [HOST_VOLUMES.put(volume)], conditions)
    return Decision(write, lambda index: VolumeWritten(index, _as_written(volume, index)))


def _taking_the_place_of(stored: HostVolume | None, volume: HostVolume) -> HostVolume:
    if stored is None:
        raise invalid(f'cannot register volume: no volume has the ID "{volume.id}"; leave it out to make a new one')
    for name, was, now in (
        ("name", stored.name, volume.name),
        ("node ID", stored.node_id, volume.node_id),
        ("host path", stored.host_path, volume.host_path),
    ):
        if was != now:
            raise invalid(f'cannot change the {name} of a volume from "{was}" to "{now}": register another')
    return replace(volume, create_index=stored.create_index, create_time=stored.create_time)


def _refuse_name_taken(snapshot: Replica, wanted: HostVolume) -> None:
    taken = [each for each in snapshot.those_by_key(HOST_VOLUMES_ON_NODE, wanted.node_id) if each.name == wanted.name]
    if taken:
        raise invalid(f'node "{wanted.node_id}" has a volume "{wanted.name}" already: {taken[0].id}')


def _as_written(volume: HostVolume, index: int) -> HostVolume:
    create_index = index if volume.create_index == THIS else volume.create_index
    return replace(volume, create_index=create_index, modify_index=index)


def find(snapshot: Replica, namespace: str, volume_id: str) -> HostVolume:
    volume = snapshot.get(HOST_VOLUMES, namespace, volume_id)
    if volume is None:
        raise unknown("volume not found")
    return volume


def needs_its_node(snapshot: Replica, volume: HostVolume) -> bool:
    """Whether its node must take the folder away before the record may go."""
    return volume.state is not HostVolumeState.PENDING and snapshot.get(NODES, volume.node_id) is not None


def delete(snapshot: Replica, namespace: str, volume_id: str, *, cause: str = "") -> Decision[int]:
    """Forget the volume. Refused while work on its node uses it."""
    volume = find(snapshot, namespace, volume_id)
    users = sorted(_users_of(snapshot, volume))
    if users:
        raise invalid(f"volume {volume.id} in use by allocations: {users}")
    conditions = [snapshot.unchanged(HOST_VOLUMES, volume)]
    write = Write(DELETED, Cause(CauseKind.REQUEST, cause), [HOST_VOLUMES.drop(namespace, volume_id)], conditions)
    return Decision(write, lambda index: index)


def _users_of(snapshot: Replica, volume: HostVolume) -> Iterator[str]:
    for allocation in snapshot.those(ALLOCATIONS_ON_NODE, volume.node_id):
        if allocation.is_client_terminal or allocation.namespace != volume.namespace:
            continue
        job = snapshot.get(JOB_VERSIONS, allocation.namespace, allocation.job_id, allocation.job_version)
        if job is not None and volume.name in _volumes_asked_for(job, allocation.task_group, allocation.name):
            yield allocation.id


def _volumes_asked_for(job: Job, group_name: str, allocation_name: str) -> list[str]:
    group = job.group(group_name)
    asked = [each for each in ((group.volumes if group else None) or {}).values() if each.type == VolumeType.HOST]
    slot = allocation_name[allocation_name.rfind("[") :]
    return [each.source + slot if each.per_alloc else each.source for each in asked]


def _is_told_of(volume: HostVolume, node: Node) -> bool:
    """Whether the node says that it has this very volume."""
    has = (node.host_volumes or {}).get(volume.name)
    return has is not None and has.id == volume.id


def told_by(snapshot: Replica, node: Node, moment: Moment, *, volumes_max: int) -> tuple[list[Put], list[Condition]]:
    """What the node's word about its folders makes of the volumes on it: the changes, and what they rest on."""
    changes: list[Put] = []
    conditions: list[Condition] = []
    for volume in snapshot.those_by_key(HOST_VOLUMES_ON_NODE, node.id):
        is_told_of = _is_told_of(volume, node)
        if is_told_of is (volume.state is HostVolumeState.READY):
            continue
        if not is_told_of and volume.state is HostVolumeState.PENDING:
            continue
        state = HostVolumeState.READY if is_told_of else HostVolumeState.UNAVAILABLE
        changes.append(HOST_VOLUMES.put(replace(volume, state=state, modify_time=moment.now_ns)))
        conditions.append(snapshot.unchanged(HOST_VOLUMES, volume))
        if len(changes) == volumes_max:
            break
    return changes, conditions
