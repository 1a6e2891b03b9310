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
    """Whether the node has the volume."""

    PENDING = "pending"  # The node has not reported the volume yet.
    READY = "ready"
    UNAVAILABLE = "unavailable"


class HostVolumeCapability(Record):
    """One way in which the volume may be attached and accessed."""

    attachment_mode: str = AttachmentMode.FILE_SYSTEM
    access_mode: str = AccessMode.SINGLE_NODE_WRITER


class HostVolume(Record):
    """A host volume as servers store it. The server assigns the ID of a new one."""

    id: str = ""
    namespace: str = "default"
    name: str = ""
    plugin_id: str = ""
    node_pool: str = ""
    node_id: str = ""
    constraints: tuple[Constraint, ...] | None = None
    capacity_bytes: int = 0
    requested_capacity_min_bytes: int = 0
    requested_capacity_max_bytes: int = 0
    requested_capabilities: tuple[HostVolumeCapability, ...] | None = None
    parameters: dict[str, str] | None = (
        None  # Parameters for the plugin. They may hold secrets, so lists never include them.
    )
    host_path: str = ""
    state: HostVolumeState = HostVolumeState.PENDING
    create_index: int = 0
    create_time: int = 0  # ns since the epoch
    modify_index: int = 0
    modify_time: int = 0

    # Only the server sets these fields; submitted values are dropped.
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({
        "State", "CreateIndex", "CreateTime", "ModifyIndex", "ModifyTime",
    })  # fmt: skip


class HostVolumeStub(Record):
    """A host volume in a list."""

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
    """Return the list item for a host volume."""
    return HostVolumeStub(**{name: getattr(volume, name) for name in HostVolumeStub.__struct_fields__})


def list_host_volume_problems(volume: HostVolume, *, has_folder: bool) -> list[str]:
    """Return everything that is wrong with a submitted volume.

    `has_folder`: the volume is registered with a folder that already exists, instead of being created by a plugin.
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
    """Return what is wrong with the node and the path of a folder that already exists."""
    found = []
    if not volume.node_id:
        found.append("cannot register volume: node ID is required")
    if not volume.host_path:
        found.append("cannot register volume: host path is required")
    elif not volume.host_path.startswith("/"):
        found.append(f'host path must be absolute: "{volume.host_path}"')
    return found
