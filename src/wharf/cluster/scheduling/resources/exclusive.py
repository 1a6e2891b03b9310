"""Exclusive resources: ports, cores and device instances, each used by one allocation at a time.

Most allocations have none. Only nodes where some are in use have a record.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.jobs.networks import NetworkResource

K = TypeVar("K")

PortKey = tuple[str, int]
"""IP address and port number, of task networks and group ports alike."""

DeviceKey = tuple[str, str, str]
"""Vendor, type and name of a device group."""


class ExclusiveResources:
    """The exclusive resources in use on one node.

    They are counted, because an allocation and its replacement may briefly hold the same resource.
    """

    __slots__ = ("cores", "devices", "ports")

    def __init__(self) -> None:
        self.ports: Counter[PortKey] = Counter()
        self.cores: Counter[int] = Counter()
        self.devices: Counter[tuple[DeviceKey, str]] = Counter()

    def copy(self) -> "ExclusiveResources":
        """Return an independent copy."""
        copied = ExclusiveResources()
        copied.ports, copied.cores, copied.devices = self.ports.copy(), self.cores.copy(), self.devices.copy()
        return copied

    def add_resources(self, resources: AllocatedResources) -> None:
        """Count the ports, cores and device instances of one allocation as in use."""
        self.ports.update(iter_ports(resources))
        self.cores.update(iter_cores(resources))
        self.devices.update(iter_devices(resources))

    def remove_resources(self, resources: AllocatedResources) -> None:
        """Count the ports, cores and device instances of one allocation as no longer in use."""
        _subtract(self.ports, iter_ports(resources))
        _subtract(self.cores, iter_cores(resources))
        _subtract(self.devices, iter_devices(resources))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in use."""
        return not (self.ports or self.cores or self.devices)


def _subtract(counter: Counter[K], keys: Iterator[K]) -> None:
    """Subtract one for each key and drop keys that reach 0."""
    for key in keys:
        counter[key] -= 1
        if counter[key] <= 0:
            del counter[key]


def has_exclusive_resources(resources: AllocatedResources) -> bool:
    """Return whether the allocation has ports, cores or devices."""
    if resources.shared.ports or resources.shared.networks:
        return True
    return any(task.cpu.reserved_cores or task.networks or task.devices for task in (resources.tasks or {}).values())


def iter_ports(resources: AllocatedResources) -> Iterator[PortKey]:
    """Yield the ports of the group and its tasks. Ports with `ignore_collision` are not exclusive."""
    for port in resources.shared.ports or ():
        if not port.ignore_collision:
            yield port.host_ip, port.value
    for task in (resources.tasks or {}).values():
        for network in task.networks or ():
            yield from _iter_network_ports(network)


def _iter_network_ports(network: NetworkResource) -> Iterator[PortKey]:
    """Yield the ports of a task's own network."""
    for port in (*(network.reserved_ports or ()), *(network.dynamic_ports or ())):
        if not port.ignore_collision:
            yield network.ip, port.value


def iter_cores(resources: AllocatedResources) -> Iterator[int]:
    """Yield the reserved cores of all tasks."""
    for task in (resources.tasks or {}).values():
        yield from task.cpu.reserved_cores or ()


def iter_devices(resources: AllocatedResources) -> Iterator[tuple[DeviceKey, str]]:
    """Yield the device instances of all tasks."""
    for task in (resources.tasks or {}).values():
        for device in task.devices or ():
            for device_id in device.device_ids or ():
                yield (device.vendor, device.type, device.name), device_id
