"""Exclusive resources: ports, cores and device instances, each used by one allocation at a time.

Most allocations have none. Only nodes where some are in use have an `ExclusiveResources` object.
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
    """The ports, cores and device instances in use on one node, each with the number of allocations that hold it.

    The number may exceed 1: an allocation and its replacement may briefly hold the same resource.
    """

    __slots__ = ("cores", "devices", "ports")

    def __init__(self) -> None:
        self.ports: Counter[PortKey] = Counter()
        self.cores: Counter[int] = Counter()
        """By core id."""
        self.devices: Counter[tuple[DeviceKey, str]] = Counter()
        """By device group and instance id."""

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
        """Whether no port, core or device instance is in use on the node."""
        return not (self.ports or self.cores or self.devices)


def _subtract(counter: Counter[K], keys: Iterator[K]) -> None:
    """Reduce the count of each of the keys by one, and delete keys whose count reaches 0."""
    for key in keys:
        counter[key] -= 1
        if counter[key] <= 0:
            del counter[key]


def has_exclusive_resources(resources: AllocatedResources) -> bool:
    """Return whether an allocation with these resources has networks, ports, reserved cores or devices."""
    if resources.shared.ports or resources.shared.networks:
        return True
    return any(task.cpu.reserved_cores or task.networks or task.devices for task in (resources.tasks or {}).values())


def iter_ports(resources: AllocatedResources) -> Iterator[PortKey]:
    """Yield the address and number of each exclusive port of an allocation, of its group and of its tasks.

    Ports with `ignore_collision` are left out, because several allocations may use them at the same time.
    """
    for port in resources.shared.ports or ():
        if not port.ignore_collision:
            yield port.host_ip, port.value
    for task in (resources.tasks or {}).values():
        for network in task.networks or ():
            yield from _iter_network_ports(network)


def _iter_network_ports(network: NetworkResource) -> Iterator[PortKey]:
    """Yield the address and number of each exclusive port in a task's own network."""
    for port in (*(network.reserved_ports or ()), *(network.dynamic_ports or ())):
        if not port.ignore_collision:
            yield network.ip, port.value


def iter_cores(resources: AllocatedResources) -> Iterator[int]:
    """Yield the ids of the cores that the tasks of an allocation have reserved."""
    for task in (resources.tasks or {}).values():
        yield from task.cpu.reserved_cores or ()


def iter_devices(resources: AllocatedResources) -> Iterator[tuple[DeviceKey, str]]:
    """Yield the device instances of an allocation's tasks, each as device group and instance id."""
    for task in (resources.tasks or {}).values():
        for device in task.devices or ():
            for device_id in device.device_ids or ():
                yield (device.vendor, device.type, device.name), device_id
