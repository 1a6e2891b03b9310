"""Volumes that a group requests, and where its tasks mount them."""

from enum import StrEnum
from typing import Final

import msgspec

from wharf.contract.model.record import Record

NO_PLUGINS_REASON: Final = "CSI storage plugins are not supported. Use host volumes: see /v1/volumes?type=host"
"""The refusal of CSI plugins, in jobs and at the endpoints for them."""


class VolumeType(StrEnum):
    """What provides a volume."""

    HOST = "host"  # A folder of the node.
    CSI = "csi"  # A CSI plugin.


class AccessMode(StrEnum):
    """How many nodes and allocations may use a volume at the same time, and whether they may write."""

    SINGLE_NODE_READER = "single-node-reader-only"
    SINGLE_NODE_WRITER = "single-node-writer"
    SINGLE_NODE_SINGLE_WRITER = "single-node-single-writer"
    SINGLE_NODE_MULTI_WRITER = "single-node-multi-writer"
    MULTI_NODE_READER = "multi-node-reader-only"
    MULTI_NODE_SINGLE_WRITER = "multi-node-single-writer"
    MULTI_NODE_MULTI_WRITER = "multi-node-multi-writer"


class AttachmentMode(StrEnum):
    """Whether a task sees a volume as a mounted file system or as a block device."""

    FILE_SYSTEM = "file-system"
    BLOCK_DEVICE = "block-device"


class MountOptions(Record):
    """How the file system of a volume is mounted."""

    fs_type: str = msgspec.field(default="", name="FSType")
    mount_flags: tuple[str, ...] | None = None


class VolumeRequest(Record):
    """A volume that every allocation of a group needs."""

    name: str = ""  # The name by which tasks mount it.
    type: str = ""  # A `VolumeType`.
    source: str = ""  # Its name on the node or in the CSI plugin.
    read_only: bool = False
    sticky: bool = False  # A replacement must use the same volume.
    access_mode: str = ""  # An `AccessMode`.
    attachment_mode: str = ""  # An `AttachmentMode`.
    mount_options: MountOptions | None = None
    per_alloc: bool = False  # Each allocation has its own volume: its index is added to `source`.


class VolumeMount(Record):
    """Where one task mounts a volume of its group."""

    volume: str = ""  # The name of the volume request.
    destination: str = ""  # The path in the task.
    read_only: bool = False
    propagation_mode: str = "private"  # Whether later mounts below it are visible on the other side.
    selinux_label: str = ""  # "z", "Z" or empty.
