"""The protocol of device plugins.

A plugin is found by an entry point of the group `wharf.devices`: a callable that takes `client.options` and returns a
`DevicePlugin`. It runs in the agent's process. If it raises an exception or exceeds its time limit, its devices are not
offered; other plugins are not affected.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec


class Measure(NamedTuple):
    """A number with a unit that servers can compare, such as `MiB`, `GHz` or `W`."""

    value: int | float
    unit: str


AttributeValue: TypeAlias = str | bool | int | float | Measure


class Kind(NamedTuple):
    """The vendor, type and name of a device model.

    Jobs request `type`, `vendor/type` or `vendor/type/name`.
    """

    vendor: str
    type: str  # such as gpu
    name: str  # the model

    def __str__(self) -> str:
        return f"{self.vendor}/{self.type}/{self.name}"


class Instance(msgspec.Struct, frozen=True):
    """One device. Its `id` must not change while it is in the machine."""

    id: str
    is_healthy: bool = True
    why: str = ""
    """Why it is unhealthy: a sentence that the node's status shows."""
    pci_bus_id: str = ""  # empty: unknown


class DeviceGroup(msgspec.Struct, frozen=True):
    """All device instances of one vendor, type and name on this node."""

    kind: Kind
    instances: tuple[Instance, ...]
    attributes: Mapping[str, AttributeValue] = {}
    """Attributes for constraints, such as `${device.attr.NAME}`."""


class DeviceMount(NamedTuple):
    """A file or folder of the host that a task needs in order to use its devices."""

    path: str  # on the host
    target: str  # in a task that has its own file system
    is_read_only: bool = True


class DeviceNode(NamedTuple):
    """A device file such as `/dev/nvidia0` that a task needs in order to use its devices."""

    path: str  # on the host
    target: str = ""
    """The path in the task; empty: the same as `path`."""
    permissions: str = "rwm"  # letters of r (read), w (write) and m (mknod)


class Reserved(msgspec.Struct, frozen=True):
    """The environment, mounts and device files that a task needs in order to use its device instances."""

    environment: Mapping[str, str] = {}  # variables to set
    mounts: tuple[DeviceMount, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()  # device files


NOTHING_RESERVED: Final = Reserved()


class CannotReserve(Exception):
    """The error of a reservation that failed. Its message is a sentence for the users of the task."""


class Figure(msgspec.Struct, frozen=True):
    """One measured value of a device."""

    value: int | float | str | bool
    of: int | float | None = None  # the maximum; None: no maximum
    unit: str = ""
    about: str = ""  # a description for users


class InstanceFigures(msgspec.Struct, frozen=True):
    """The measured values of one device instance."""

    summary: Figure
    """The most important value."""
    figures: Mapping[str, Figure] = {}  # by name


class DevicePlugin(Protocol):
    """A plugin that reports, reserves and measures devices of the node."""

    name: str

    async def fingerprint(self) -> Sequence[DeviceGroup]:
        """Return all devices that exist now, healthy or not. Called twice a minute."""
        ...

    async def reserve(self, kind: Kind, ids: Sequence[str]) -> Reserved:
        """Return what a task needs in order to use these device instances. Raises CannotReserve.

        The plugin stores no reservation: the same call returns the same result.
        """
        ...

    async def measure(self) -> Mapping[Kind, Mapping[str, InstanceFigures]]:
        """Return the measured values by kind of device and by instance id. Called only on request."""
        ...
