"""What one allocation gets on the node that was chosen for it: cores, devices, ports, and the record that says so."""

from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.model.allocated_resources import (
    AllocatedCpu,
    AllocatedDevice,
    AllocatedMemory,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
    TaskLifecycle,
)
from wharf.model.group import TaskGroup
from wharf.model.network import NetworkResource
from wharf.model.node import Node
from wharf.model.task import Task
from wharf.scheduling.devices import assign
from wharf.scheduling.holdings import Holdings
from wharf.scheduling.ports import Chance, NoPort, Offer
from wharf.scheduling.usage import memory_of

UNLIMITED_MEMORY: Final = -1


class Refused(Exception):
    """The node has not got what is asked for, in this dimension."""

    def __init__(self, dimension: str) -> None:
        super().__init__(dimension)
        self.dimension = dimension


class Grants:
    """How resources are given to one group. Where nothing is held one by one, all its allocations share one record."""

    def __init__(self, group: TaskGroup, *, may_oversubscribe: bool) -> None:
        self._group = group
        self._may_oversubscribe = may_oversubscribe
        self._tasks = [task for task in group.tasks or () if task.resources is not None]
        self._lifecycles = {task.name: _lifecycle(task) for task in self._tasks}
        self._group_networks: Sequence[NetworkResource] = (group.networks or ())[:1]  # Only the first counts.
        of_tasks = [network for task in self._tasks for network in _task_network(task)]
        self.networks: Sequence[NetworkResource] = (*self._group_networks, *of_tasks)
        self.cores_asked = sum(task.resources.cores for task in self._tasks if task.resources is not None)
        has_devices = any(task.resources.devices for task in self._tasks if task.resources is not None)
        self.is_plain = not (self.networks or self.cores_asked or has_devices)
        self.shared: AllocatedResources | None = None
        """The record of all of them, once one was given; None: each gets its own."""

    def grant(self, node: Node, held: Holdings, chance: Chance) -> AllocatedResources:
        """Raises `Refused`."""
        if not self.is_plain:
            return self._resources(node, held, chance)
        if self.shared is None:
            self.shared = self._resources(node, held, chance)
        return self.shared

    def _resources(self, node: Node, held: Holdings, chance: Chance) -> AllocatedResources:
        taken = held.copy() if not self.is_plain else held
        offer = Offer(node, taken, chance)
        shared = self._of_group(offer)
        tasks = {task.name: self._task(task, node, taken, offer) for task in self._tasks}
        return AllocatedResources(tasks=tasks, task_lifecycles=self._lifecycles, shared=shared)

    def _task(self, task: Task, node: Node, taken: Holdings, offer: Offer) -> AllocatedTaskResources:
        asked = task.resources
        assert asked is not None, "only tasks with resources are asked for"
        cpu = AllocatedCpu(cpu_shares=asked.cpu)
        if asked.cores:
            cpu = _cores(node, asked.cores, taken)
            taken.cores.update(cpu.reserved_cores or ())
        devices: list[AllocatedDevice] = []
        for device in asked.devices or ():
            given = assign(node, device, taken)
            if given is None:
                raise Refused(f"devices: no devices match request {device.name}")
            devices.append(given)
            key = (given.vendor, given.type, given.name)
            taken.devices.update((key, device_id) for device_id in given.device_ids or ())
        memory = memory_of(task)
        memory_max = 0
        if self._may_oversubscribe and asked.memory_max_mb:
            is_unlimited = asked.memory_max_mb == UNLIMITED_MEMORY
            memory_max = UNLIMITED_MEMORY if is_unlimited else asked.memory_max_mb + asked.secrets_mb
        return AllocatedTaskResources(
            cpu=cpu,
            memory=AllocatedMemory(memory_mb=memory, memory_max_mb=memory_max),
            devices=tuple(devices) or None,
            networks=tuple(_given_to_task(network, offer) for network in _task_network(task)) or None,
        )

    def _of_group(self, offer: Offer) -> AllocatedSharedResources:
        disk_mb = self._group.ephemeral_disk.size_mb
        if not self._group_networks:
            return AllocatedSharedResources(disk_mb=disk_mb)
        (network,) = self._group_networks
        try:
            ports = offer.pick(network)
        except NoPort as none:
            raise Refused(f"network: {none}") from none
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


def _given_to_task(network: NetworkResource, offer: Offer) -> NetworkResource:
    try:
        address, ports = offer.pick_on_one_address(network)
    except NoPort as none:
        raise Refused(f"network: {none}") from none
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


def core_mhz(node: Node, core: int) -> int:
    """What one core counts: its own speed where the node tells it, else its share of all."""
    resources = node.node_resources
    assert resources is not None, "a node without resources is never chosen"
    topology = resources.processors.topology
    for each in (topology.cores if topology is not None else None) or ():
        if each.id == core:
            return each.base_speed or each.guess_speed or each.max_speed
    return resources.cpu.cpu_shares // max(1, resources.cpu.total_cpu_cores)


def usable_cores(node: Node) -> list[int]:
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


def _cores(node: Node, number: int, taken: Holdings) -> AllocatedCpu:
    free = [core for core in usable_cores(node) if core not in taken.cores]
    if len(free) < number:
        raise Refused("cores")
    given = tuple(free[:number])
    return AllocatedCpu(cpu_shares=sum(core_mhz(node, core) for core in given), reserved_cores=given)


def _lifecycle(task: Task) -> TaskLifecycle | None:
    return None if task.lifecycle is None else TaskLifecycle(hook=task.lifecycle.hook, sidecar=task.lifecycle.sidecar)
