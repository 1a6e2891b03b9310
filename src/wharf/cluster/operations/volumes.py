"""Host volumes: create, register and delete them, and update their state from what nodes report."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, DecisionContext, build_delete_decision, set_written_index
from wharf.cluster.operations.references import build_parent_conditions
from wharf.cluster.scheduling.constraints import satisfies_constraint
from wharf.cluster.scheduling.feasibility.volumes import build_volume_name, list_host_volume_requests
from wharf.cluster.scheduling.plans import capacity_versions
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import find_allocation_job
from wharf.cluster.state.tables import (
    HOST_VOLUMES,
    HOST_VOLUMES_ON_NODE,
    NAMESPACES,
    NODES,
    UNFINISHED_ALLOCATIONS_ON_NODE,
)
from wharf.contract.model import volumes
from wharf.contract.model.allocations.names import parse_index
from wharf.contract.model.body_limits import cut_echo
from wharf.contract.model.jobs.validation.findings import ValidationProblem, format_problems
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.nodes.node import Node, NodeStatus, SchedulingEligibility
from wharf.contract.model.refusal import invalid_request, not_found
from wharf.contract.model.times import MINUTE, has_passed
from wharf.contract.model.volumes import HostVolume, HostVolumeState

REGISTERED_WRITE_KIND: Final = "host-volume-registered"
"""The name in the log of a write that stores a host volume."""
DELETED_WRITE_KIND: Final = "host-volume-deleted"
"""The name in the log of a write that deletes a host volume."""
DELETION_CHANGED_WRITE_KIND: Final = "host-volume-deletion-changed"
"""The name in the log of a write that marks a host volume as being deleted, or no longer so."""
MAX_DELETION_NS: Final = 10 * MINUTE
"""How long a volume stays marked as being deleted if no server reports the end, because it crashed or lost the node.

By then the request has reached the node or failed. The node makes a volume unavailable before it deletes the folder, so
a deletion that takes longer is safe without the mark.
"""


class VolumeWriteResult(msgspec.Struct, frozen=True):
    """The result of a request to store a host volume."""

    index: int  # The log index of the write.
    volume: HostVolume  # As stored, with its indexes.


def check_volume(snapshot: Replica, requested: HostVolume, *, has_folder: bool) -> None:
    """Raise an error that lists everything that is wrong with the requested volume.

    `has_folder`: its folder on the node exists already, so its path must be given.
    """
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
    """Return the decision that registers a volume whose folder exists, or updates one if the request has an id.

    It becomes ready when its node reports it. Raises if the volume is invalid, or if its name is in use on the node.
    """
    check_volume(snapshot, requested, has_folder=True)
    node = snapshot.get(NODES, requested.node_id)
    assert node is not None, "check_volume refuses a node that does not exist"
    volume = replace(requested, node_pool=node.node_pool, modify_time=context.now_ns, modify_index=0)
    if requested.id:
        volume = _make_update(snapshot.get(HOST_VOLUMES, requested.namespace, requested.id), volume)
    else:
        _check_name_free(snapshot, requested)
        volume = replace(volume, id=context.new_id(), create_index=WRITE_INDEX, create_time=context.now_ns)
    state = HostVolumeState.READY if _is_reported_by(volume, node) else HostVolumeState.PENDING
    volume = replace(volume, state=state, deletion_started=0)
    return _build_volume_decision(snapshot, volume, node, cause)


class VolumeNodeSearch:
    """Finds the nodes that can create a requested volume. The caller adds node by node, so that it can pause in between."""

    def __init__(self, requested: HostVolume) -> None:
        self._requested = requested
        self._obstacle_counts: dict[str, int] = {}
        self._candidates: list[Node] = []

    def add(self, node: Node) -> None:
        """Examine a node. With 250 constraints this takes about a millisecond."""
        obstacle = _describe_obstacle(node, self._requested)
        if obstacle:
            self._obstacle_counts[obstacle] = self._obstacle_counts.get(obstacle, 0) + 1
        else:
            self._candidates.append(node)

    def list_candidates(self) -> list[Node]:
        """Return the nodes that can create the volume, those with the fewest volumes first.

        Raises an error with the reasons if no node can.
        """
        if not self._candidates:
            reasons = (
                ", ".join(f"{obstacle} ({count})" for obstacle, count in sorted(self._obstacle_counts.items()))
                or "there are no nodes"
            )
            raise invalid_request(f"no node can create the volume: {reasons}")
        return sorted(self._candidates, key=lambda node: (len(node.host_volumes or {}), node.id))


def _describe_obstacle(node: Node, requested: HostVolume) -> str:
    """Return why the node cannot create the volume, or an empty text."""
    plugin = requested.plugin_id or volumes.DEFAULT_VOLUME_PLUGIN
    if node.status is not NodeStatus.READY:
        return "not ready"
    if not requested.node_id and node.scheduling_eligibility is not SchedulingEligibility.ELIGIBLE:
        return "not eligible"
    if requested.node_pool and node.node_pool != requested.node_pool:
        return f'not in node pool "{requested.node_pool}"'
    if volumes.PLUGIN_VERSION_ATTRIBUTE.format(plugin) not in (node.attributes or {}):
        return f'without the plugin "{plugin}"'
    existing = (node.host_volumes or {}).get(requested.name)
    if existing is not None and existing.id != requested.id:
        return f'has a volume "{requested.name}" already'
    missing = [each for each in requested.constraints or () if not satisfies_constraint(node, each)]
    return f"does not meet {missing[0]}" if missing else ""


def begin_volume_creation(
    snapshot: Replica, requested: HostVolume, node_id: str, context: DecisionContext, *, cause: str = ""
) -> Decision[VolumeWriteResult]:
    """Return the decision that stores the volume before its node creates the folder, so that a record exists in any
    case.

    With an id, the request updates a stored volume. Raises if the volume is invalid or the node does not exist.
    """
    check_volume(snapshot, requested, has_folder=False)
    node = snapshot.get(NODES, node_id)
    if node is None:
        raise not_found(f"Unknown node {cut_echo(node_id)}")
    plugin = requested.plugin_id or volumes.DEFAULT_VOLUME_PLUGIN
    volume = replace(requested, node_id=node_id, node_pool=node.node_pool, plugin_id=plugin, modify_index=0)
    volume = replace(volume, host_path="", capacity_bytes=0, modify_time=context.now_ns, deletion_started=0)
    if requested.id:
        stored = snapshot.get(HOST_VOLUMES, requested.namespace, requested.id)
        if stored is not None:
            volume = replace(
                volume, host_path=stored.host_path, capacity_bytes=stored.capacity_bytes, state=stored.state
            )
            if stored.plugin_id != plugin:
                raise invalid_request(f'cannot change the plugin of a volume from "{stored.plugin_id}" to "{plugin}"')
        volume = _make_update(stored, volume)
    else:
        _check_name_free(snapshot, volume)
        volume = replace(volume, id=context.new_id(), create_index=WRITE_INDEX, create_time=context.now_ns)
    return _build_volume_decision(snapshot, volume, node, cause)


def finish_volume_creation(
    snapshot: Replica, namespace: str, volume_id: str, *, host_path: str, capacity_bytes: int, context: DecisionContext,
    cause: str = "",
) -> Decision[VolumeWriteResult]:  # fmt: skip
    """Return the decision that stores the path and the capacity that the node reported for the new volume.

    The volume becomes ready when the node lists it among its volumes.
    """
    volume = get_volume(snapshot, namespace, volume_id)
    node = snapshot.get(NODES, volume.node_id)
    if node is None:
        raise not_found(f"Unknown node {cut_echo(volume.node_id)}")
    state = HostVolumeState.READY if _is_usable_on(volume, node) else volume.state
    volume = replace(
        volume, host_path=host_path, capacity_bytes=capacity_bytes, state=state, modify_time=context.now_ns
    )
    return _build_volume_decision(snapshot, volume, node, cause)


def _build_volume_decision(
    snapshot: Replica, volume: HostVolume, node: Node, cause: str
) -> Decision[VolumeWriteResult]:
    """Return the decision that stores the volume. It conflicts if the node's record changes before the commit."""
    conditions = [
        snapshot.build_key_condition(HOST_VOLUMES, volume.namespace, volume.id),
        # Two volumes with one name on one node would share a folder: the second write conflicts on the node's record.
        snapshot.build_key_condition(NODES, node.id),
        *build_parent_conditions(snapshot, HOST_VOLUMES, volume),
    ]
    write = Write(REGISTERED_WRITE_KIND, Cause(CauseKind.REQUEST, cause), [HOST_VOLUMES.build_put(volume)], conditions)
    return Decision(write, lambda index: VolumeWriteResult(index, set_written_index(volume, index)))


def _make_update(stored: HostVolume | None, volume: HostVolume) -> HostVolume:
    """Return `volume` with the creation time and index of the stored volume that it replaces.

    Raises if no volume is stored, if it is being deleted, or if its name, node or path would change.
    """
    if stored is None:
        raise invalid_request(
            f'cannot register volume: no volume has the ID "{volume.id}"; leave the ID out to create a new volume'
        )
    if stored.deletion_started:
        raise invalid_request(f"volume {stored.id} is being deleted: delete it again to see whether that succeeds")
    for field, old, new in (
        ("name", stored.name, volume.name),
        ("node ID", stored.node_id, volume.node_id),
        ("host path", stored.host_path, volume.host_path),
    ):
        if old != new:
            raise invalid_request(
                f'cannot change the {field} of a volume from "{old}" to "{new}": register another volume'
            )
    return replace(volume, create_index=stored.create_index, create_time=stored.create_time)


def _check_name_free(snapshot: Replica, requested: HostVolume) -> None:
    """Raise if the requested volume's node already has a volume of this name."""
    same_name = [
        each
        for each in snapshot.list_by_index_sorted(HOST_VOLUMES_ON_NODE, requested.node_id)
        if each.name == requested.name
    ]
    if same_name:
        raise invalid_request(f'node "{requested.node_id}" has a volume "{requested.name}" already: {same_name[0].id}')


def get_volume(snapshot: Replica, namespace: str, volume_id: str) -> HostVolume:
    """Return the volume. Raises not-found if it does not exist."""
    volume = snapshot.get(HOST_VOLUMES, namespace, volume_id)
    if volume is None:
        raise not_found("volume not found")
    return volume


def has_folder_on_node(snapshot: Replica, volume: HostVolume) -> bool:
    """Return whether the volume has a folder that its node must delete before the record can be deleted."""
    return volume.state is not HostVolumeState.PENDING and snapshot.get(NODES, volume.node_id) is not None


def begin_volume_deletion(
    snapshot: Replica, namespace: str, volume_id: str, context: DecisionContext, *, cause: str = ""
) -> Decision[int]:
    """Return the decision that marks the volume as being deleted, so that no allocation is placed on it any more.

    It conflicts with every plan that was decided on the same state. Raises while allocations on its node use it.
    """
    volume = _get_unused_volume(snapshot, namespace, volume_id)
    state = HostVolumeState.UNAVAILABLE if volume.state is HostVolumeState.READY else volume.state
    marked = replace(volume, state=state, deletion_started=context.now_ns, modify_time=context.now_ns)
    changes: list[PutRecord | DeleteRecord] = [HOST_VOLUMES.build_put(marked)]
    conditions = [snapshot.build_record_condition(HOST_VOLUMES, volume)]
    if snapshot.get(NODES, volume.node_id) is not None:
        changes.append(capacity_versions.write_node_version(volume.node_id))
        conditions += capacity_versions.expect_both_versions(snapshot, volume.node_id)
    write = Write(DELETION_CHANGED_WRITE_KIND, Cause(CauseKind.REQUEST, cause), changes, conditions)
    return Decision(write, lambda index: index)


def cancel_volume_deletion(
    snapshot: Replica, namespace: str, volume_id: str, context: DecisionContext, *, cause: str = ""
) -> Decision[int]:
    """Return the decision that makes a volume usable again because its node did not delete it."""
    volume = snapshot.get(HOST_VOLUMES, namespace, volume_id)
    if volume is None or not volume.deletion_started:
        return Decision(None, lambda index: index)
    return Decision(_build_unmarking(snapshot, [volume], context, Cause(CauseKind.REQUEST, cause)), lambda index: index)


def end_old_deletions(snapshot: Replica, context: DecisionContext, *, max_changes: int) -> Decision[int] | None:
    """Return the decision that makes volumes usable again whose deletion began too long ago; `None` if there are none.

    The reply is the number of volumes. A volume that its node has deleted stays unavailable.
    """
    old = [
        volume
        for volume in snapshot.iter_all(HOST_VOLUMES)
        if volume.deletion_started
        and has_passed(volume.deletion_started + MAX_DELETION_NS, MAX_DELETION_NS, context.now_ns)
    ][:max_changes]
    if not old:
        return None
    write = _build_unmarking(snapshot, old, context, Cause(CauseKind.TIMER, "volume deletion"))
    return Decision(write, lambda _index: len(old))


def _build_unmarking(snapshot: Replica, marked: Sequence[HostVolume], context: DecisionContext, cause: Cause) -> Write:
    """Return the write that removes the marks of these volumes. They become ready if their nodes report them."""
    changes: list[PutRecord | DeleteRecord] = []
    for volume in marked:
        unmarked = replace(volume, deletion_started=0, modify_time=context.now_ns)
        node = snapshot.get(NODES, volume.node_id)
        if node is not None and _is_reported_by(volume, node):
            unmarked = replace(unmarked, state=HostVolumeState.READY)
        changes.append(HOST_VOLUMES.build_put(unmarked))
    conditions = [snapshot.build_record_condition(HOST_VOLUMES, volume) for volume in marked]
    # The state depends on what the nodes report.
    node_ids = dict.fromkeys(volume.node_id for volume in marked)
    conditions += [snapshot.build_key_condition(NODES, node_id) for node_id in node_ids]
    return Write(DELETION_CHANGED_WRITE_KIND, cause, changes, conditions)


def delete_volume(snapshot: Replica, namespace: str, volume_id: str, *, cause: str = "") -> Decision[int]:
    """Return the decision that deletes the record of the volume. Raises while allocations on its node use it."""
    _get_unused_volume(snapshot, namespace, volume_id)
    return _build_deletion(snapshot, namespace, volume_id, cause)


def finish_volume_deletion(snapshot: Replica, namespace: str, volume_id: str, *, cause: str = "") -> Decision[int]:
    """Return the decision that deletes the record of a volume whose folder its node has deleted."""
    if snapshot.get(HOST_VOLUMES, namespace, volume_id) is None:
        return Decision(None, lambda index: index)
    return _build_deletion(snapshot, namespace, volume_id, cause)


def _get_unused_volume(snapshot: Replica, namespace: str, volume_id: str) -> HostVolume:
    """Return the volume. Raises not-found if it does not exist, and a refusal while allocations on its node use it."""
    volume = get_volume(snapshot, namespace, volume_id)
    users = sorted(_iter_users(snapshot, volume))
    if users:
        raise invalid_request(f"volume {volume.id} in use by allocations: {', '.join(users)}")
    return volume


def _build_deletion(snapshot: Replica, namespace: str, volume_id: str, cause: str) -> Decision[int]:
    """Return the decision that deletes the record of the volume."""
    return build_delete_decision(
        snapshot,
        HOST_VOLUMES,
        namespace,
        volume_id,
        write_kind=DELETED_WRITE_KIND,
        cause=Cause(CauseKind.REQUEST, cause),
    )


def _iter_users(snapshot: Replica, volume: HostVolume) -> Iterator[str]:
    """Yield the ids of the allocations on the volume's node that have not ended and use the volume.

    An allocation whose job version is no longer stored, because the job was purged, may use every volume of its namespace.
    """
    for allocation in snapshot.list_by_index(UNFINISHED_ALLOCATIONS_ON_NODE, volume.node_id):
        if allocation.is_client_terminal or allocation.namespace != volume.namespace:
            continue
        job = find_allocation_job(snapshot, allocation)
        group = job.find_group(allocation.task_group) if job is not None else None
        requests = list_host_volume_requests(group) if group is not None else []
        index = parse_index(allocation.name)
        if job is None or any(build_volume_name(request, index) == volume.name for request in requests):
            yield allocation.id


def _is_usable_on(volume: HostVolume, node: Node) -> bool:
    """Return whether allocations on the node can use the volume: the node reports it, and it is not being deleted."""
    return not volume.deletion_started and _is_reported_by(volume, node)


def _is_reported_by(volume: HostVolume, node: Node) -> bool:
    """Return whether the node reports a volume with this name and id."""
    existing = (node.host_volumes or {}).get(volume.name)
    return existing is not None and existing.id == volume.id


def build_volume_changes(
    snapshot: Replica, node: Node, context: DecisionContext, *, max_volumes: int
) -> tuple[list[PutRecord], list[Condition]]:
    """Return the changes of volume states that follow from the volumes that the node reports, and their conditions.

    A reported volume becomes ready unless it is being deleted, and a ready one that is missing becomes unavailable. At
    most `max_volumes` change.

    A volume that is being deleted gets a condition too: if its deletion is canceled at the same time, one of the two
    writes must see the other, or its state never fits what the node reports.
    """
    changes: list[PutRecord] = []
    conditions: list[Condition] = []
    for volume in snapshot.list_by_index_sorted(HOST_VOLUMES_ON_NODE, node.id):
        is_usable = _is_usable_on(volume, node)
        has_changed = is_usable is not (volume.state is HostVolumeState.READY)
        if has_changed:
            state = HostVolumeState.READY if is_usable else HostVolumeState.UNAVAILABLE
            changes.append(HOST_VOLUMES.build_put(replace(volume, state=state, modify_time=context.now_ns)))
        if has_changed or volume.deletion_started:
            conditions.append(snapshot.build_record_condition(HOST_VOLUMES, volume))
        if len(conditions) == max_volumes:
            break
    return changes, conditions
