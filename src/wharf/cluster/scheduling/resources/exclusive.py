"""What allocations hold of a node one by one: ports, cores, instances of devices. Each has one owner at a time.

Most work holds none of it, so these are kept only for the nodes where something is held.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.jobs.networks import NetworkResource

K = TypeVar("K")

PortKey = tuple[str, int]
"""Address and number. Task networks of older jobs and ports of groups alike."""

DeviceKey = tuple[str, str, str]
"""Vendor, type, name."""


class ExclusiveResources:
    """What is held on one node, counted: two allocations may hold one thing for a moment when one replaces the other."""

    __slots__ = ("cores", "devices", "ports")

    def __init__(self) -> None:
        self.ports: Counter[PortKey] = Counter()
        self.cores: Counter[int] = Counter()
        self.devices: Counter[tuple[DeviceKey, str]] = Counter()

    def copy(self) -> "ExclusiveResources":
        copied = ExclusiveResources()
        copied.ports, copied.cores, copied.devices = self.ports.copy(), self.cores.copy(), self.devices.copy()
        return copied

    def add_resources(self, resources: AllocatedResources) -> None:
        self.ports.update(iter_ports(resources))
        self.cores.update(iter_cores(resources))
        self.devices.update(iter_devices(resources))

    def remove_resources(self, resources: AllocatedResources) -> None:
        _subtract(self.ports, iter_ports(resources))
        _subtract(self.cores, iter_cores(resources))
        _subtract(self.devices, iter_devices(resources))

    @property
    def is_empty(self) -> bool:
        return not (self.ports or self.cores or self.devices)


def _subtract(counter: Counter[K], keys: Iterator[K]) -> None:
    for key in keys:
        counter[key] -= 1
        if counter[key] <= 0:
            del counter[key]


def has_exclusive_resources(resources: AllocatedResources) -> bool:
    if resources.shared.ports or resources.shared.networks:
        return True
    return any(task.cpu.reserved_cores or task.networks or task.devices for task in (resources.tasks or {}).values())


def iter_ports(resources: AllocatedResources) -> Iterator[PortKey]:
    """Of the group and of its tasks. Those that mind no collision are held by nobody."""
    for port in resources.shared.ports or ():
        if not port.ignore_collision:
            yield port.host_ip, port.value
    for task in (resources.tasks or {}).values():
        for network in task.networks or ():
            yield from _of_network(network)


def _of_network(network: NetworkResource) -> Iterator[PortKey]:
    for port in (*(network.reserved_ports or ()), *(network.dynamic_ports or ())):
        if not port.ignore_collision:
            yield network.ip, port.value


def iter_cores(resources: AllocatedResources) -> Iterator[int]:
    for task in (resources.tasks or {}).values():
        yield from task.cpu.reserved_cores or ()


def iter_devices(resources: AllocatedResources) -> Iterator[tuple[DeviceKey, str]]:
    for task in (resources.tasks or {}).values():
        for device in task.devices or ():
            for device_id in device.device_ids or ():
                yield (device.vendor, device.type, device.name), device_id
