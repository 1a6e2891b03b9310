"""What one allocation gets on the node that was chosen for it: cores, devices, ports, and the record that says so."""

from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.cluster.scheduling.resources.devices import assign_devices
from wharf.cluster.scheduling.resources.exclusive import ExclusiveResources
from wharf.cluster.scheduling.resources.ports import PortAssigner, PortUnavailable, RandomBelow
from wharf.cluster.scheduling.resources.usage import get_task_memory_mb
from wharf.contract.model.allocations.resources import (
    AllocatedCpu,
    AllocatedDevice,
    AllocatedMemory,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
    TaskLifecycle,
)
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.nodes.node import Node

UNLIMITED_MEMORY_MB: Final = -1


class InsufficientResources(Exception):
    """The node has not got what is asked for, in this dimension."""

    def __init__(self, dimension: str) -> None:
        super().__init__(dimension)
        self.dimension = dimension


class ResourceAssigner:
    """How resources are given to one group. Where nothing is held one by one, all its allocations share one record."""

    def __init__(self, group: TaskGroup, *, can_oversubscribe: bool) -> None:
        self._group = group
        self._may_oversubscribe = can_oversubscribe
        self._tasks = [task for task in group.tasks or () if task.resources is not None]
        self._lifecycles = {task.name: _lifecycle(task) for task in self._tasks}
        self._group_networks: Sequence[NetworkResource] = (group.networks or ())[:1]  # Only the first counts.
        of_tasks = [network for task in self._tasks for network in _task_network(task)]
        self.networks: Sequence[NetworkResource] = (*self._group_networks, *of_tasks)
        self.requested_cores = sum(task.resources.cores for task in self._tasks if task.resources is not None)
        has_devices = any(task.resources.devices for task in self._tasks if task.resources is not None)
        self.has_only_amounts = not (self.networks or self.requested_cores or has_devices)
        self.shared_resources: AllocatedResources | None = None
        """The record of all of them, once one was given; None: each gets its own."""

    def assign_resources(self, node: Node, held: ExclusiveResources, chance: RandomBelow) -> AllocatedResources:
        """Raises `Refused`."""
        if not self.has_only_amounts:
            return self._resources(node, held, chance)
        if self.shared_resources is None:
            self.shared_resources = self._resources(node, held, chance)
        return self.shared_resources

    def _resources(self, node: Node, held: ExclusiveResources, chance: RandomBelow) -> AllocatedResources:
        taken = held.copy() if not self.has_only_amounts else held
        offer = PortAssigner(node, taken, chance)
        shared = self._of_group(offer)
        tasks = {task.name: self._task(task, node, taken, offer) for task in self._tasks}
        return AllocatedResources(tasks=tasks, task_lifecycles=self._lifecycles, shared=shared)

    def _task(self, task: Task, node: Node, taken: ExclusiveResources, offer: PortAssigner) -> AllocatedTaskResources:
        asked = task.resources
        assert asked is not None, "only tasks with resources are asked for"
        cpu = AllocatedCpu(cpu_shares=asked.cpu)
        if asked.cores:
            cpu = _cores(node, asked.cores, taken)
            taken.cores.update(cpu.reserved_cores or ())
        devices: list[AllocatedDevice] = []
        for device in asked.devices or ():
            given = assign_devices(node, device, taken)
            if given is None:
                raise InsufficientResources(f"devices: no devices match request {device.name}")
            devices.append(given)
            key = (given.vendor, given.type, given.name)
            taken.devices.update((key, device_id) for device_id in given.device_ids or ())
        memory = get_task_memory_mb(task)
        memory_max = 0
        if self._may_oversubscribe and asked.memory_max_mb:
            is_unlimited = asked.memory_max_mb == UNLIMITED_MEMORY_MB
            memory_max = UNLIMITED_MEMORY_MB if is_unlimited else asked.memory_max_mb + asked.secrets_mb
        return AllocatedTaskResources(
            cpu=cpu,
            memory=AllocatedMemory(memory_mb=memory, memory_max_mb=memory_max),
            devices=tuple(devices) or None,
            networks=tuple(_given_to_task(network, offer) for network in _task_network(task)) or None,
        )

    def _of_group(self, offer: PortAssigner) -> AllocatedSharedResources:
        disk_mb = self._group.ephemeral_disk.size_mb
        if not self._group_networks:
            return AllocatedSharedResources(disk_mb=disk_mb)
        (network,) = self._group_networks
        try:
            ports = offer.assign_ports(network)
        except PortUnavailable as none:
            raise InsufficientResources(f"network: {none}") from none
        given = {port.label: port for port in ports}
        shown = msgspec.structs.replace(
            network,
            ip=ports[0].host_ip if ports else "",
            dynamic_ports=tuple(
                msgspec.structs.replace(port, value=given[port.label].value, to=given[port.label].to)
                for port in network.dynamic_ports or ()
            )
            or None,
        )
        return AllocatedSharedResources(disk_mb=disk_mb, networks=(shown,), ports=ports or None)


def _task_network(task: Task) -> tuple[NetworkResource, ...]:
    """The old form: a network of the task's own, of which the first counts."""
    return ((task.resources.networks if task.resources is not None else None) or ())[:1]


def _given_to_task(network: NetworkResource, offer: PortAssigner) -> NetworkResource:
    try:
        address, ports = offer.assign_ports_on_one_address(network)
    except PortUnavailable as none:
        raise InsufficientResources(f"network: {none}") from none
    given = {port.label: port for port in ports}
    return msgspec.structs.replace(
        network,
        ip=address,
        dynamic_ports=tuple(
            msgspec.structs.replace(port, value=given[port.label].value, to=given[port.label].to)
            for port in network.dynamic_ports or ()
        )
        or None,
    )


def get_core_mhz(node: Node, core: int) -> int:
    """What one core counts: its own speed where the node tells it, else its share of all."""
    resources = node.node_resources
    assert resources is not None, "a node without resources is never chosen"
    topology = resources.processors.topology
    for each in (topology.cores if topology is not None else None) or ():
        if each.id == core:
            return each.base_speed or each.guess_speed or each.max_speed
    return resources.cpu.cpu_shares // max(1, resources.cpu.total_cpu_cores)


def list_usable_cores(node: Node) -> list[int]:
    """Those that may be given away, lowest first."""
    resources = node.node_resources
    if resources is None:
        return []
    kept = set((node.reserved_resources.cpu.reserved_cpu_cores if node.reserved_resources else None) or ())
    topology = resources.processors.topology
    known = resources.cpu.reservable_cpu_cores
    if known is None:
        known = tuple(each.id for each in (topology.cores if topology is not None else None) or () if not each.disable)
    return sorted(set(known) - kept)


def _cores(node: Node, number: int, taken: ExclusiveResources) -> AllocatedCpu:
    free = [core for core in list_usable_cores(node) if core not in taken.cores]
    if len(free) < number:
        raise InsufficientResources("cores")
    given = tuple(free[:number])
    return AllocatedCpu(cpu_shares=sum(get_core_mhz(node, core) for core in given), reserved_cores=given)


def _lifecycle(task: Task) -> TaskLifecycle | None:
    return None if task.lifecycle is None else TaskLifecycle(hook=task.lifecycle.hook, sidecar=task.lifecycle.sidecar)
