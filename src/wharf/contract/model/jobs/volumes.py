"""Volumes that a group requests, and where its tasks mount them."""

from enum import StrEnum

import msgspec

from wharf.contract.model.record import Record


class VolumeType(StrEnum):
    """Where a volume comes from."""

    HOST = "host"
    CSI = "csi"


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
    """How a volume is presented to a task."""

    FILE_SYSTEM = "file-system"
    BLOCK_DEVICE = "block-device"


class MountOptions(Record):
    """How the file system of a volume is mounted."""

    fs_type: str = msgspec.field(default="", name="FSType")
    mount_flags: tuple[str, ...] | None = None


class VolumeRequest(Record):
    """A volume that every allocation of the group needs. `source` is its name on the node or in the plugin."""

    name: str = ""
    type: str = ""
    source: str = ""
    read_only: bool = False
    sticky: bool = False
    access_mode: str = ""
    attachment_mode: str = ""
    mount_options: MountOptions | None = None
    per_alloc: bool = False


class VolumeMount(Record):
    """Where one task mounts a volume of its group."""

    volume: str = ""
    destination: str = ""
    read_only: bool = False
    propagation_mode: str = "private"
    selinux_label: str = ""
