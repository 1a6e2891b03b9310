"""Host volumes: folders of one node that jobs can mount, and the checks before one is written."""

import re
from enum import StrEnum
from typing import ClassVar, Final

from wharf.contract.model.jobs.constraints import Constraint
from wharf.contract.model.jobs.volumes import AccessMode, AttachmentMode
from wharf.contract.model.names import is_valid_name
from wharf.contract.model.record import Record

DEFAULT_VOLUME_PLUGIN = "mkdir"
PLUGIN_VERSION_ATTRIBUTE: Final = "plugins.host_volume.{}.version"
"""The node attribute that holds the version of a plugin that creates volumes on the node."""
_ALLOCATION_SUFFIX: Final = re.compile(r"\[[0-9]{1,9}\]\Z")
"""The end of the name of a volume that belongs to one allocation of a group (`PerAlloc`), such as `[0]`."""


class HostVolumeState(StrEnum):
    """Whether the node of a host volume can provide it."""

    PENDING = "pending"  # The node has not reported the volume yet.
    READY = "ready"
    UNAVAILABLE = "unavailable"  # The node does not report the volume.


class HostVolumeCapability(Record):
    """One allowed way to use a host volume."""

    attachment_mode: str = AttachmentMode.FILE_SYSTEM  # An `AttachmentMode`.
    access_mode: str = AccessMode.SINGLE_NODE_WRITER  # An `AccessMode`.


class HostVolume(Record):
    """A folder of a node that jobs can mount, as servers store it."""

    id: str = ""  # Assigned by the server.
    namespace: str = "default"
    name: str = ""
    plugin_id: str = ""  # The plugin that creates the folder.
    node_pool: str = ""  # Limits the choice of the node.
    node_id: str = ""  # Empty when submitted: the server chooses a node.
    constraints: tuple[Constraint, ...] | None = None  # Limit the choice of the node.
    capacity_bytes: int = 0  # The actual size.
    requested_capacity_min_bytes: int = 0
    requested_capacity_max_bytes: int = 0
    requested_capabilities: tuple[HostVolumeCapability, ...] | None = None
    parameters: dict[str, str] | None = (
        None  # Parameters for the plugin. They may hold secrets, so lists never include them.
    )
    host_path: str = ""  # The folder on the node.
    state: HostVolumeState = HostVolumeState.PENDING
    deletion_started: int = 0
    """When servers began to delete it, in ns since the epoch; 0: it is not being deleted. Meanwhile it is never ready."""
    create_index: int = 0
    create_time: int = 0  # ns since the epoch
    modify_index: int = 0
    modify_time: int = 0

    # Only the server sets these fields; submitted values are dropped.
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({
        "State", "DeletionStarted", "CreateIndex", "CreateTime", "ModifyIndex", "ModifyTime",
    })  # fmt: skip


class HostVolumeStub(Record):
    """The short form of a host volume, as lists show it."""

    id: str
    namespace: str = ""
    name: str = ""
    plugin_id: str = ""
    node_pool: str = ""
    node_id: str = ""
    capacity_bytes: int = 0
    state: HostVolumeState = HostVolumeState.PENDING
    create_index: int = 0
    create_time: int = 0
    modify_index: int = 0
    modify_time: int = 0


def make_host_volume_stub(volume: HostVolume) -> HostVolumeStub:
    """Return the short form of a host volume, as lists show it."""
    return HostVolumeStub(**{name: getattr(volume, name) for name in HostVolumeStub.__struct_fields__})


def list_host_volume_problems(volume: HostVolume, *, has_folder: bool) -> list[str]:
    """Return an error text for each thing that is wrong with a submitted host volume; empty if it is valid.

    `has_folder` means that the folder already exists on the node and is registered, instead of being created by a
    plugin.
    """
    found = []
    if not volume.name:
        found.append("missing name")
    elif not is_valid_name(_ALLOCATION_SUFFIX.sub("", volume.name)):
        found.append(f'invalid name "{volume.name}": use letters, digits and dashes, at most 128')
    if not volume.requested_capabilities:
        found.append("must include at least one capability block")
    for capability in volume.requested_capabilities or ():
        if capability.attachment_mode not in list(AttachmentMode):
            found.append(f'invalid attachment mode: "{capability.attachment_mode}"')
        if capability.access_mode not in list(AccessMode) or capability.access_mode.startswith("multi-node"):
            found.append(f'invalid access mode: "{capability.access_mode}"')
    min_bytes, max_bytes = volume.requested_capacity_min_bytes, volume.requested_capacity_max_bytes
    if min_bytes < 0 or max_bytes < 0:
        found.append("capacity cannot be negative")
    if max_bytes and max_bytes < min_bytes:
        found.append(f"capacity_max ({max_bytes}) must be larger than capacity_min ({min_bytes})")
    if has_folder:
        found += _list_folder_problems(volume)
    return found


def _list_folder_problems(volume: HostVolume) -> list[str]:
    """Return an error text for each thing that is wrong with the node or the path of a folder that already exists."""
    found = []
    if not volume.node_id:
        found.append("cannot register volume: node ID is required")
    if not volume.host_path:
        found.append("cannot register volume: host path is required")
    elif not volume.host_path.startswith("/"):
        found.append(f'host path must be absolute: "{volume.host_path}"')
    return found
