"""What people do to volumes of hosts, and what a node's word about its folders makes of them."""

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.model import host_volume
from wharf.model.changes import THIS, Cause, CauseKind, Condition, Put, Write
from wharf.model.host_volume import HostVolume, HostVolumeState
from wharf.model.job import Job
from wharf.model.node import Node, NodeStatus, SchedulingEligibility
from wharf.model.refusal import invalid, unknown
from wharf.model.validation.findings import Problem, multi_error
from wharf.model.volume import VolumeType
from wharf.operations.decision import Decision, Moment
from wharf.scheduling.feasibility import satisfies
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
    return _written(snapshot, volume, node, cause)


def places_for(snapshot: Replica, wanted: HostVolume) -> list[Node]:
    """The nodes that can make it, those with the fewest volumes first. Raises where there is none, with the reason."""
    nodes = [snapshot.get(NODES, wanted.node_id)] if wanted.node_id else list(snapshot.all(NODES))
    lacks: dict[str, int] = {}
    found = []
    for node in nodes:
        assert node is not None, "the check refuses a volume on a node that is none"
        lack = _lack_of(node, wanted)
        if lack:
            lacks[lack] = lacks.get(lack, 0) + 1
        else:
            found.append(node)
    if not found:
        told = ", ".join(f"{lack} ({count})" for lack, count in sorted(lacks.items())) or "there are no nodes"
        raise invalid(f"no node can make the volume: {told}")
    return sorted(found, key=lambda node: (len(node.host_volumes or {}), node.id))


def _lack_of(node: Node, wanted: HostVolume) -> str:
    plugin = wanted.plugin_id or host_volume.DEFAULT_PLUGIN
    if node.status is not NodeStatus.READY:
        return "not ready"
    if not wanted.node_id and node.scheduling_eligibility is not SchedulingEligibility.ELIGIBLE:
        return "not eligible"
    if wanted.node_pool and node.node_pool != wanted.node_pool:
        return f'not in node pool "{wanted.node_pool}"'
    if host_volume.PLUGIN_ATTRIBUTE.format(plugin) not in (node.attributes or {}):
        return f'without the plugin "{plugin}"'
    has = (node.host_volumes or {}).get(wanted.name)
    if has is not None and has.id != wanted.id:
        return f'has a volume "{wanted.name}" already'
    missing = [each for each in wanted.constraints or () if not satisfies(node, each)]
    return f"does not meet {missing[0]}" if missing else ""


def begin_making(
    snapshot: Replica, wanted: HostVolume, node_id: str, moment: Moment, *, cause: str = ""
) -> Decision[VolumeWritten]:
    """Make it known before its node is asked for it: whatever happens then, there is a record that tells of it."""
    check(snapshot, wanted, is_made=False)
    node = snapshot.get(NODES, node_id)
    if node is None:
        raise unknown(f"Unknown node {node_id}")
    plugin = wanted.plugin_id or host_volume.DEFAULT_PLUGIN
    volume = replace(wanted, node_id=node_id, node_pool=node.node_pool, plugin_id=plugin, modify_index=0)
    volume = replace(volume, host_path="", capacity_bytes=0, modify_time=moment.now_ns)
    if wanted.id:
        stored = snapshot.get(HOST_VOLUMES, wanted.namespace, wanted.id)
        if stored is not None:
            volume = replace(
                volume, host_path=stored.host_path, capacity_bytes=stored.capacity_bytes, state=stored.state
            )
            if stored.plugin_id != plugin:
                raise invalid(f'cannot change the plugin of a volume from "{stored.plugin_id}" to "{plugin}"')
        volume = _taking_the_place_of(stored, volume)
    else:
        _refuse_name_taken(snapshot, volume)
        volume = replace(volume, id=moment.new_id(), create_index=THIS, create_time=moment.now_ns)
    return _written(snapshot, volume, node, cause)


def end_making(
    snapshot: Replica, namespace: str, volume_id: str, *, host_path: str, capacity_bytes: int, moment: Moment,
    cause: str = "",
) -> Decision[VolumeWritten]:  # fmt: skip
    """Its node has it, and says where. It is ready when the node says so with all else that it has."""
    volume = find(snapshot, namespace, volume_id)
    node = snapshot.get(NODES, volume.node_id)
    if node is None:
        raise unknown(f"Unknown node {volume.node_id}")
    state = HostVolumeState.READY if _is_told_of(volume, node) else volume.state
    volume = replace(volume, host_path=host_path, capacity_bytes=capacity_bytes, state=state, modify_time=moment.now_ns)
    return _written(snapshot, volume, node, cause)


def _written(snapshot: Replica, volume: HostVolume, node: Node, cause: str) -> Decision[VolumeWritten]:
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
        raise invalid(f"volume {volume.id} in use by allocations: {', '.join(users)}")
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
