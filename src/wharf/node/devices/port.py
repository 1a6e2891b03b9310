"""What the node asks of a plugin for devices.

A plugin is found by an entry point of the group `wharf.devices`: a callable that is given `client.options` and returns a
`DevicePlugin`. It is loaded into the node's agent. Whatever it raises, and whatever it does not answer in time, is its own
failure: its devices are not offered then, and nobody else's are touched.
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
    """What jobs ask for: `type`, `vendor/type` or `vendor/type/name`."""

    vendor: str
    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.vendor}/{self.type}/{self.name}"


class Instance(msgspec.Struct, frozen=True):
    """One device. Its `id` is the same for as long as it is in the machine."""

    id: str
    is_healthy: bool = True
    why: str = ""
    """What ails it: a sentence that nodes show."""
    pci_bus_id: str = ""


class DeviceGroup(msgspec.Struct, frozen=True):
    """All instances of one kind."""

    kind: Kind
    instances: tuple[Instance, ...]
    attributes: Mapping[str, AttributeValue] = {}
    """What constraints can name as `${device.attr.NAME}`."""


class DeviceMount(NamedTuple):
    """A file or folder of the machine, and where a task with a file system of its own finds it."""

    path: str
    target: str
    is_read_only: bool = True


class DeviceNode(NamedTuple):
    """A device file. `permissions`: of `r`, `w` and `m`."""

    path: str
    target: str = ""
    """Empty: the same."""
    permissions: str = "rwm"


class Reserved(msgspec.Struct, frozen=True):
    """What a task needs to use its instances, and no others."""

    environment: Mapping[str, str] = {}
    mounts: tuple[DeviceMount, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()


NOTHING_RESERVED: Final = Reserved()


class CannotReserve(Exception):
    """A sentence for the task's owner."""


class Figure(msgspec.Struct, frozen=True):
    """One value that was measured; `of`: the greatest that it can be."""

    value: int | float | str | bool
    of: int | float | None = None
    unit: str = ""
    about: str = ""


class InstanceFigures(msgspec.Struct, frozen=True):
    summary: Figure
    """The one that tells most."""
    figures: Mapping[str, Figure] = {}


class DevicePlugin(Protocol):
    name: str

    async def fingerprint(self) -> Sequence[DeviceGroup]:
        """All devices that there are now, healthy or not. Asked twice a minute."""
        ...

    async def reserve(self, kind: Kind, ids: Sequence[str]) -> Reserved:
        """What a task needs to use these. It holds nothing: asked again for the same it says the same. Raises
        CannotReserve."""
        ...

    async def measure(self) -> Mapping[Kind, Mapping[str, InstanceFigures]]:
        """By instance. Asked only when somebody wants to know."""
        ...
