"""Volumes of hosts: folders of one node that jobs may ask for, known to the servers by a record."""

import re
from enum import StrEnum
from typing import ClassVar, Final

from wharf.contract.model.jobs.constraints import Constraint
from wharf.contract.model.jobs.volumes import AccessMode, AttachmentMode
from wharf.contract.model.names import is_valid_name
from wharf.contract.model.record import Record

DEFAULT_VOLUME_PLUGIN = "mkdir"
PLUGIN_VERSION_ATTRIBUTE: Final = "plugins.host_volume.{}.version"
"""What a node says of a plugin that makes volumes there."""
_OF_ALLOCATION: Final = re.compile(r"\[[0-9]{1,9}\]\Z")
"""At the end of a name, of a volume that one allocation of a group asks for with `PerAlloc`."""


class HostVolumeState(StrEnum):
    PENDING = "pending"  # The node has not said yet that it has it.
    READY = "ready"
    UNAVAILABLE = "unavailable"


class HostVolumeCapability(Record):
    """One way in which the volume may be used."""

    attachment_mode: str = AttachmentMode.FILE_SYSTEM
    access_mode: str = AccessMode.SINGLE_NODE_WRITER


class HostVolume(Record):
    """What servers know of a volume. A new one is given its ID."""

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
        None  # What a plugin is told. May hold secrets of the plugin's: never in a list.
    )
    host_path: str = ""
    state: HostVolumeState = HostVolumeState.PENDING
    create_index: int = 0
    create_time: int = 0  # ns since the epoch
    modify_index: int = 0
    modify_time: int = 0

    # What only the server sets is not taken from whoever submits a volume.
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({
        "State", "CreateIndex", "CreateTime", "ModifyIndex", "ModifyTime",
    })  # fmt: skip


class HostVolumeStub(Record):
    """A volume as lists show it."""

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
    return HostVolumeStub(**{name: getattr(volume, name) for name in HostVolumeStub.__struct_fields__})


def list_host_volume_problems(volume: HostVolume, *, has_folder: bool) -> list[str]:
    """Everything that is wrong with a volume somebody wants to write. `is_made`: the folder is there already."""
    found = []
    if not volume.name:
        found.append("missing name")
    elif not is_valid_name(_OF_ALLOCATION.sub("", volume.name)):
        found.append(f'invalid name "{volume.name}": use letters, digits and dashes, at most 128')
    if not volume.requested_capabilities:
        found.append("must include at least one capability block")
    for capability in volume.requested_capabilities or ():
        if capability.attachment_mode not in list(AttachmentMode):
            found.append(f'invalid attachment mode: "{capability.attachment_mode}"')
        if capability.access_mode not in list(AccessMode) or capability.access_mode.startswith("multi-node"):
            found.append(f'invalid access mode: "{capability.access_mode}"')
    least, most = volume.requested_capacity_min_bytes, volume.requested_capacity_max_bytes
    if least < 0 or most < 0:
        found.append("capacity cannot be negative")
    if most and most < least:
        found.append(f"capacity_max ({most}) must be larger than capacity_min ({least})")
    if has_folder:
        found += _problems_of_place(volume)
    return found


def _problems_of_place(volume: HostVolume) -> list[str]:
    """A folder that is there already lies somewhere."""
    found = []
    if not volume.node_id:
        found.append("cannot register volume: node ID is required")
    if not volume.host_path:
        found.append("cannot register volume: host path is required")
    elif not volume.host_path.startswith("/"):
        found.append(f'host path must be absolute: "{volume.host_path}"')
    return found
