"""Volumes that a group requests, and where its tasks mount them."""

from enum import StrEnum
from typing import Final

import msgspec

from wharf.contract.model.record import Record

NO_PLUGINS_TEXT: Final = "CSI storage plugins are not supported"
"""The error of jobs with CSI plugins or their volumes."""
NO_PLUGINS_REASON: Final = f"{NO_PLUGINS_TEXT}. Use host volumes: see /v1/volumes?type=host"
"""The refusal of CSI plugins at the endpoints for them."""


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
    """The type of the file system with which a CSI volume is mounted.

    Default: none
    Example: ext4
    Effect: none, because Wharf has no CSI volumes
    """
    mount_flags: tuple[str, ...] | None = None
    """The options with which a CSI volume is mounted.

    Default: none
    Example: ["noatime"]
    Effect: none, because Wharf has no CSI volumes
    """


class VolumeRequest(Record):
    """A volume that every allocation of a group needs."""

    name: str = ""
    """The name of the request, by which tasks mount the volume.

    It is the key in the map `Volumes`, or in HCL the label of the block `volume`.

    Default: the key in `Volumes`
    Example: data
    """
    type: str = ""
    """What provides the volume.

    A request of any other type is dropped.

    Values:
        host: a folder of the node, from its configuration or created with `wharf volume create`
        csi: a CSI plugin; refused, because Wharf has none
    Default: none; required
    Example: host
    """
    source: str = ""
    """The name of the volume on the node.

    The group runs only on a node that has a volume of this name.

    Default: none; required
    Limits: 1 to 256 UTF-8 bytes
    Example: data
    """
    read_only: bool = False
    """Whether the tasks may only read the volume.

    A node whose configuration offers the volume for reading only satisfies the request only then.
    """
    sticky: bool = False
    """Whether each allocation name, such as `web.api[0]`, always uses the same volume.

    A replacement waits until the node of its volume has capacity. Only volumes that were created or registered
    can be sticky.

    Limits: not together with `PerAlloc`
    """
    access_mode: str = ""
    """How the volume may be used at the same time.

    The volume must offer this mode.

    Values:
        single-node-reader-only: allocations of one node read
        single-node-writer: allocations of one node read and write
        single-node-single-writer: one allocation reads and writes
        single-node-multi-writer: several allocations of one node read and write
        multi-node-reader-only: allocations of several nodes read; only for CSI volumes
        multi-node-single-writer: one allocation writes, others read; only for CSI volumes
        multi-node-multi-writer: allocations of several nodes read and write; only for CSI volumes
    Default: none; a host volume is then requested as `single-node-reader-only` with `ReadOnly`, and as
        `single-node-writer` otherwise
    Limits: required for CSI volumes; modes of readers need `ReadOnly`
    Example: single-node-writer
    """
    attachment_mode: str = ""
    """How a task sees the volume.

    Values:
        file-system: as a folder
        block-device: as a device file; only for CSI volumes
    Default: none; a host volume is then requested as `file-system`
    Limits: required for CSI volumes
    Example: file-system
    """
    mount_options: MountOptions | None = None
    """How a CSI volume is mounted.

    Limits: not for host volumes
    Effect: none, because Wharf has no CSI volumes
    """
    per_alloc: bool = False
    """Whether each allocation uses a volume of its own.

    The index of the allocation is added to `Source`: the allocation `web.api[2]` uses the volume `data[2]`.

    Limits: not for `system` and `sysbatch` jobs, not with canaries, and not together with `Sticky`
    """


class VolumeMount(Record):
    """Where one task mounts a volume of its group."""

    volume: str = ""
    """The name of a volume that the group requests.

    Default: none; required
    Limits: a key of the group's `Volumes`
    Example: data
    """
    destination: str = ""
    """The path at which the task sees the volume.

    A task of `raw_exec` finds a link of this name in its own folder.

    Default: none; required
    Example: /data
    """
    read_only: bool = False
    """Whether the task may only read the volume."""
    propagation_mode: str = "private"
    """Whether mounts that are made later below the volume are visible on the other side.

    Values:
        private: on neither side
        host-to-task: those of the host are visible in the task
        bidirectional: on both sides
    Example: private
    Effect: none, because every mount is private
    """
    selinux_label: str = ""
    """How the files are labeled for SELinux.

    Values:
        z: shared between containers
        Z: for this container only
    Default: none
    Example: z
    Effect: none, because Wharf sets no labels
    """
