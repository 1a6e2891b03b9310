"""What people do to volumes of hosts, and what a node's word about its folders makes of them."""

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.scheduling.feasibility.checker import satisfies_constraint
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS_ON_NODE,
    HOST_VOLUMES,
    HOST_VOLUMES_ON_NODE,
    JOB_VERSIONS,
    NAMESPACES,
    NODES,
)
from wharf.contract.model import volumes
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.validation.findings import ValidationProblem, format_problems
from wharf.contract.model.jobs.volumes import VolumeType
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, PutRecord, Write
from wharf.contract.model.nodes.node import Node, NodeStatus, SchedulingEligibility
from wharf.contract.model.refusal import invalid_request, not_found
from wharf.contract.model.volumes import HostVolume, HostVolumeState

REGISTERED_WRITE_KIND: Final = "host-volume-registered"
DELETED_WRITE_KIND: Final = "host-volume-deleted"


class VolumeWriteResult(msgspec.Struct, frozen=True):
    index: int
    volume: HostVolume


def check_volume(snapshot: Replica, requested: HostVolume, *, has_folder: bool) -> None:
    """Raises with all that is wrong. `is_made`: the folder is there already."""
    problems = volumes.list_host_volume_problems(requested, has_folder=has_folder)
    if snapshot.get(NAMESPACES, requested.namespace) is None:
        problems.append(f'namespace "{requested.namespace}" not found')
    node = snapshot.get(NODES, requested.node_id) if requested.node_id else None
    if requested.node_id and node is None:
        problems.append(f'node "{requested.node_id}" does not exist')
    if node is not None and requested.node_pool and requested.node_pool != node.node_pool:
        problems.append(f'node "{node.id}" is in node pool "{node.node_pool}", not in "{requested.node_pool}"')
    if problems:
        raise invalid_request(
            f"volume validation failed: {format_problems([ValidationProblem('', each) for each in problems]).rstrip()}"
        )


def register_volume(
    snapshot: Replica, requested: HostVolume, context: DecisionContext, *, cause: str = ""
) -> Decision[VolumeWriteResult]:
    """Make a folder that is there known, or replace what is known of it. It is ready when its node says that it has it."""
    check_volume(snapshot, requested, has_folder=True)
    node = snapshot.get(NODES, requested.node_id)
    assert node is not None, "the check refuses a volume on a node that is none"
    volume = replace(requested, node_pool=node.node_pool, modify_time=context.now_ns, modify_index=0)
    if requested.id:
        volume = _taking_the_place_of(snapshot.get(HOST_VOLUMES, requested.namespace, requested.id), volume)
    else:
        _refuse_name_taken(snapshot, requested)
        volume = replace(volume, id=context.new_id(), create_index=WRITE_INDEX, create_time=context.now_ns)
    state = HostVolumeState.READY if _is_told_of(volume, node) else HostVolumeState.PENDING
    volume = replace(volume, state=state)
    return _written(snapshot, volume, node, cause)


def list_candidate_nodes(snapshot: Replica, requested: HostVolume) -> list[Node]:
    """The nodes that can make it, those with the fewest volumes first. Raises where there is none, with the reason."""
    nodes = [snapshot.get(NODES, requested.node_id)] if requested.node_id else list(snapshot.iter_all(NODES))
    lacks: dict[str, int] = {}
    found = []
    for node in nodes:
        assert node is not None, "the check refuses a volume on a node that is none"
        lack = _lack_of(node, requested)
        if lack:
            lacks[lack] = lacks.get(lack, 0) + 1
        else:
            found.append(node)
    if not found:
        told = ", ".join(f"{lack} ({count})" for lack, count in sorted(lacks.items())) or "there are no nodes"
        raise invalid_request(f"no node can make the volume: {told}")
    return sorted(found, key=lambda node: (len(node.host_volumes or {}), node.id))


def _lack_of(node: Node, wanted: HostVolume) -> str:
    plugin = wanted.plugin_id or volumes.DEFAULT_VOLUME_PLUGIN
    if node.status is not NodeStatus.READY:
        return "not ready"
    if not wanted.node_id and node.scheduling_eligibility is not SchedulingEligibility.ELIGIBLE:
        return "not eligible"
    if wanted.node_pool and node.node_pool != wanted.node_pool:
        return f'not in node pool "{wanted.node_pool}"'
    if volumes.PLUGIN_VERSION_ATTRIBUTE.format(plugin) not in (node.attributes or {}):
        return f'without the plugin "{plugin}"'
    has = (node.host_volumes or {}).get(wanted.name)
    if has is not None and has.id != wanted.id:
        return f'has a volume "{wanted.name}" already'
    missing = [each for each in wanted.constraints or () if not satisfies_constraint(node, each)]
    return f"does not meet {missing[0]}" if missing else ""


def begin_volume_creation(
    snapshot: Replica, requested: HostVolume, node_id: str, context: DecisionContext, *, cause: str = ""
) -> Decision[VolumeWriteResult]:
    """Make it known before its node is asked for it: whatever happens then, there is a record that tells of it."""
    check_volume(snapshot, requested, has_folder=False)
    node = snapshot.get(NODES, node_id)
    if node is None:
        raise not_found(f"Unknown node {node_id}")
    plugin = requested.plugin_id or volumes.DEFAULT_VOLUME_PLUGIN
    volume = replace(requested, node_id=node_id, node_pool=node.node_pool, plugin_id=plugin, modify_index=0)
    volume = replace(volume, host_path="", capacity_bytes=0, modify_time=context.now_ns)
    if requested.id:
        stored = snapshot.get(HOST_VOLUMES, requested.namespace, requested.id)
        if stored is not None:
            volume = replace(
                volume, host_path=stored.host_path, capacity_bytes=stored.capacity_bytes, state=stored.state
            )
            if stored.plugin_id != plugin:
                raise invalid_request(f'cannot change the plugin of a volume from "{stored.plugin_id}" to "{plugin}"')
        volume = _taking_the_place_of(stored, volume)
    else:
        _refuse_name_taken(snapshot, volume)
        volume = replace(volume, id=context.new_id(), create_index=WRITE_INDEX, create_time=context.now_ns)
    return _written(snapshot, volume, node, cause)


def finish_volume_creation(
    snapshot: Replica, namespace: str, volume_id: str, *, host_path: str, capacity_bytes: int, context: DecisionContext,
    cause: str = "",
) -> Decision[VolumeWriteResult]:  # fmt: skip
    """Its node has it, and says where. It is ready when the node says so with all else that it has."""
    volume = get_volume(snapshot, namespace, volume_id)
    node = snapshot.get(NODES, volume.node_id)
    if node is None:
        raise not_found(f"Unknown node {volume.node_id}")
    state = HostVolumeState.READY if _is_told_of(volume, node) else volume.state
    volume = replace(
        volume, host_path=host_path, capacity_bytes=capacity_bytes, state=state, modify_time=context.now_ns
    )
    return _written(snapshot, volume, node, cause)


def _written(snapshot: Replica, volume: HostVolume, node: Node, cause: str) -> Decision[VolumeWriteResult]:
    conditions = [
        snapshot.build_key_condition(HOST_VOLUMES, volume.namespace, volume.id),
        # Two volumes of one name on one node would be one folder: whoever is second sees that the node has moved on.
        snapshot.build_key_condition(NODES, node.id),
        snapshot.build_key_condition(NAMESPACES, volume.namespace),
    ]
    write = Write(REGISTERED_WRITE_KIND, Cause(CauseKind.REQUEST, cause), [HOST_VOLUMES.build_put(volume)], conditions)
    return Decision(write, lambda index: VolumeWriteResult(index, _as_written(volume, index)))


def _taking_the_place_of(stored: HostVolume | None, volume: HostVolume) -> HostVolume:
    if stored is None:
        raise invalid_request(
            f'cannot register volume: no volume has the ID "{volume.id}"; leave it out to make a new one'
        )
    for name, was, now in (
        ("name", stored.name, volume.name),
        ("node ID", stored.node_id, volume.node_id),
        ("host path", stored.host_path, volume.host_path),
    ):
        if was != now:
            raise invalid_request(f'cannot change the {name} of a volume from "{was}" to "{now}": register another')
    return replace(volume, create_index=stored.create_index, create_time=stored.create_time)


def _refuse_name_taken(snapshot: Replica, wanted: HostVolume) -> None:
    taken = [
        each for each in snapshot.list_by_index_sorted(HOST_VOLUMES_ON_NODE, wanted.node_id) if each.name == wanted.name
    ]
    if taken:
        raise invalid_request(f'node "{wanted.node_id}" has a volume "{wanted.name}" already: {taken[0].id}')


def _as_written(volume: HostVolume, index: int) -> HostVolume:
    create_index = index if volume.create_index == WRITE_INDEX else volume.create_index
    return replace(volume, create_index=create_index, modify_index=index)


def get_volume(snapshot: Replica, namespace: str, volume_id: str) -> HostVolume:
    volume = snapshot.get(HOST_VOLUMES, namespace, volume_id)
    if volume is None:
        raise not_found("volume not found")
    return volume


def has_folder_on_node(snapshot: Replica, volume: HostVolume) -> bool:
    """Whether its node must take the folder away before the record may go."""
    return volume.state is not HostVolumeState.PENDING and snapshot.get(NODES, volume.node_id) is not None


def delete_volume(snapshot: Replica, namespace: str, volume_id: str, *, cause: str = "") -> Decision[int]:
    """Forget the volume. Refused while work on its node uses it."""
    volume = get_volume(snapshot, namespace, volume_id)
    users = sorted(_users_of(snapshot, volume))
    if users:
        raise invalid_request(f"volume {volume.id} in use by allocations: {', '.join(users)}")
    conditions = [snapshot.build_record_condition(HOST_VOLUMES, volume)]
    write = Write(
        DELETED_WRITE_KIND,
        Cause(CauseKind.REQUEST, cause),
        [HOST_VOLUMES.build_delete(namespace, volume_id)],
        conditions,
    )
    return Decision(write, lambda index: index)


def _users_of(snapshot: Replica, volume: HostVolume) -> Iterator[str]:
    for allocation in snapshot.list_by_index(ALLOCATIONS_ON_NODE, volume.node_id):
        if allocation.is_client_terminal or allocation.namespace != volume.namespace:
            continue
        job = snapshot.get(JOB_VERSIONS, allocation.namespace, allocation.job_id, allocation.job_version)
        if job is not None and volume.name in _volumes_asked_for(job, allocation.task_group, allocation.name):
            yield allocation.id


def _volumes_asked_for(job: Job, group_name: str, allocation_name: str) -> list[str]:
    group = job.find_group(group_name)
    asked = [each for each in ((group.volumes if group else None) or {}).values() if each.type == VolumeType.HOST]
    slot = allocation_name[allocation_name.rfind("[") :]
    return [each.source + slot if each.per_alloc else each.source for each in asked]


def _is_told_of(volume: HostVolume, node: Node) -> bool:
    """Whether the node says that it has this very volume."""
    has = (node.host_volumes or {}).get(volume.name)
    return has is not None and has.id == volume.id


def build_volume_changes(
    snapshot: Replica, node: Node, context: DecisionContext, *, max_volumes: int
) -> tuple[list[PutRecord], list[Condition]]:
    """What the node's word about its folders makes of the volumes on it: the changes, and what they rest on."""
    changes: list[PutRecord] = []
    conditions: list[Condition] = []
    for volume in snapshot.list_by_index_sorted(HOST_VOLUMES_ON_NODE, node.id):
        is_told_of = _is_told_of(volume, node)
        if is_told_of is (volume.state is HostVolumeState.READY):
            continue
        if not is_told_of and volume.state is HostVolumeState.PENDING:
            continue
        state = HostVolumeState.READY if is_told_of else HostVolumeState.UNAVAILABLE
        changes.append(HOST_VOLUMES.build_put(replace(volume, state=state, modify_time=context.now_ns)))
        conditions.append(snapshot.build_record_condition(HOST_VOLUMES, volume))
        if len(changes) == max_volumes:
            break
    return changes, conditions
