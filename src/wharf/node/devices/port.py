"""The protocol of device plugins.

A plugin is found by an entry point of the group `wharf.devices`: a callable that takes `client.options` and returns a
`DevicePlugin`. It runs in the agent's process. If it raises an exception or exceeds its time limit, its devices are not
offered; other plugins are not affected.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec


class Measure(NamedTuple):
    """A value in a unit that servers can compare: `MiB`, `GHz`, `W` and so on."""

    value: int | float
    unit: str


AttributeValue: TypeAlias = str | bool | int | float | Measure


class Kind(NamedTuple):
    """The kind of a device. Jobs request `type`, `vendor/type` or `vendor/type/name`."""

    vendor: str
    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.vendor}/{self.type}/{self.name}"


class Instance(msgspec.Struct, frozen=True):
    """One device. Its `id` must not change while it is in the machine."""

    id: str
    is_healthy: bool = True
    why: str = ""
    """Why it is unhealthy: a sentence that the node's status shows."""
    pci_bus_id: str = ""


class DeviceGroup(msgspec.Struct, frozen=True):
    """All instances of one kind."""

    kind: Kind
    instances: tuple[Instance, ...]
    attributes: Mapping[str, AttributeValue] = {}
    """Attributes for constraints, such as `${device.attr.NAME}`."""


class DeviceMount(NamedTuple):
    """A host file or folder, and its path in a task that has its own filesystem."""

    path: str
    target: str
    is_read_only: bool = True


class DeviceNode(NamedTuple):
    """A device file. `permissions`: letters of `r`, `w` and `m`."""

    path: str
    target: str = ""
    """The path in the task; empty: the same as `path`."""
    permissions: str = "rwm"


class Reserved(msgspec.Struct, frozen=True):
    """What a task needs to use its device instances."""

    environment: Mapping[str, str] = {}
    mounts: tuple[DeviceMount, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()


NOTHING_RESERVED: Final = Reserved()


class CannotReserve(Exception):
    """The devices cannot be used. The message is a sentence for the task's owner."""


class Figure(msgspec.Struct, frozen=True):
    """One measured value; `of`: its maximum."""

    value: int | float | str | bool
    of: int | float | None = None
    unit: str = ""
    about: str = ""


class InstanceFigures(msgspec.Struct, frozen=True):
    """The measured values of one instance."""

    summary: Figure
    """The most important value."""
    figures: Mapping[str, Figure] = {}


class DevicePlugin(Protocol):
    """Reports, reserves and measures devices."""

    name: str

    async def fingerprint(self) -> Sequence[DeviceGroup]:
        """Return all devices that exist now, healthy or not. Called twice a minute."""
        ...

    async def reserve(self, kind: Kind, ids: Sequence[str]) -> Reserved:
        """Return what a task needs to use these instances. Raises CannotReserve.

        The plugin stores no reservation: the same call returns the same result.
        """
        ...

    async def measure(self) -> Mapping[Kind, Mapping[str, InstanceFigures]]:
        """Return the measured values by instance. Called only on request."""
        ...
