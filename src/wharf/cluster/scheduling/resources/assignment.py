"""Assigns cores, devices, ports and amounts of a chosen node to one allocation."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from wharf.cluster.scheduling.resources.devices import assign_devices
from wharf.cluster.scheduling.resources.exclusive import ExclusiveResources
from wharf.cluster.scheduling.resources.ports import PortAssigner, PortUnavailable, RandomBelow
from wharf.cluster.scheduling.resources.usage import get_task_memory_mb
from wharf.contract.model.allocations.resources import (
    AllocatedCpu,
    AllocatedDevice,
    AllocatedMemory,
    AllocatedPort,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
    TaskLifecycle,
)
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.jobs.resources import UNLIMITED_MEMORY_MB
from wharf.contract.model.nodes.node import Node


class InsufficientResources(Exception):
    """The node lacks what the group requests in this dimension."""

    def __init__(self, dimension: str) -> None:
        super().__init__(dimension)
        self.dimension = dimension


class ResourceAssigner:
    """Assigns resources to the allocations of one group. Groups that need only amounts share one record."""

    def __init__(self, group: TaskGroup, *, can_oversubscribe: bool) -> None:
        self._group = group
        self._can_oversubscribe = can_oversubscribe
        self._tasks = [task for task in group.tasks or () if task.resources is not None]
        self._lifecycles = {task.name: _make_lifecycle(task) for task in self._tasks}
        # Nomad uses only the first network of a group.
        self._group_networks: Sequence[NetworkResource] = (group.networks or ())[:1]
        task_networks = [network for task in self._tasks for network in _get_task_network(task)]
        self.networks: Sequence[NetworkResource] = (*self._group_networks, *task_networks)
        self.requested_cores = sum(task.resources.cores for task in self._tasks if task.resources is not None)
        has_devices = any(task.resources.devices for task in self._tasks if task.resources is not None)
        self.has_only_amounts = not (self.networks or self.requested_cores or has_devices)
        self.shared_resources: AllocatedResources | None = None
        """The record that all allocations share. `None`: not built yet, or each allocation gets its own."""

    def assign_resources(
        self, node: Node, exclusive: ExclusiveResources, random_below: RandomBelow
    ) -> AllocatedResources:
        """Return the resources of one more allocation on the node. Raises `InsufficientResources`."""
        if not self.has_only_amounts:
            return self._build_resources(node, exclusive, random_below)
        if self.shared_resources is None:
            self.shared_resources = self._build_resources(node, exclusive, random_below)
        return self.shared_resources

    def _build_resources(
        self, node: Node, exclusive: ExclusiveResources, random_below: RandomBelow
    ) -> AllocatedResources:
        """Return a new resource record for one allocation. Raises `InsufficientResources` if resources are missing."""
        in_use = exclusive.copy() if not self.has_only_amounts else exclusive
        port_assigner = PortAssigner(node, in_use, random_below)
        shared = self._assign_group(port_assigner)
        tasks = {task.name: self._assign_task(task, node, in_use, port_assigner) for task in self._tasks}
        return AllocatedResources(tasks=tasks, task_lifecycles=self._lifecycles, shared=shared)

    def _assign_task(
        self, task: Task, node: Node, in_use: ExclusiveResources, port_assigner: PortAssigner
    ) -> AllocatedTaskResources:
        """Assign the resources of one task."""
        requested = task.resources
        assert requested is not None, "only tasks with resources are assigned"
        cpu = AllocatedCpu(cpu_shares=requested.cpu)
        if requested.cores:
            cpu = _assign_cores(node, requested.cores, in_use)
            in_use.cores.update(cpu.reserved_cores or ())
        devices: list[AllocatedDevice] = []
        for device in requested.devices or ():
            assigned = assign_devices(node, device, in_use)
            if assigned is None:
                raise InsufficientResources(f"devices: no devices match request {device.name}")
            devices.append(assigned)
            key = (assigned.vendor, assigned.type, assigned.name)
            in_use.devices.update((key, device_id) for device_id in assigned.device_ids or ())
        memory = get_task_memory_mb(task)
        memory_max = 0
        if self._can_oversubscribe and requested.memory_max_mb:
            is_unlimited = requested.memory_max_mb == UNLIMITED_MEMORY_MB
            memory_max = UNLIMITED_MEMORY_MB if is_unlimited else requested.memory_max_mb + requested.secrets_mb
        return AllocatedTaskResources(
            cpu=cpu,
            memory=AllocatedMemory(memory_mb=memory, memory_max_mb=memory_max),
            devices=tuple(devices) or None,
            networks=tuple(_assign_task_network(network, port_assigner) for network in _get_task_network(task)) or None,
        )

    def _assign_group(self, port_assigner: PortAssigner) -> AllocatedSharedResources:
        """Assign the disk and the network of the group."""
        disk_mb = self._group.ephemeral_disk.size_mb
        if not self._group_networks:
            return AllocatedSharedResources(disk_mb=disk_mb)
        (network,) = self._group_networks
        try:
            ports = port_assigner.assign_ports(network)
        except PortUnavailable as error:
            raise InsufficientResources(f"network: {error}") from error
        assigned_network = _fill_dynamic_ports(network, ports[0].host_ip if ports else "", ports)
        return AllocatedSharedResources(disk_mb=disk_mb, networks=(assigned_network,), ports=ports or None)


def _get_task_network(task: Task) -> tuple[NetworkResource, ...]:
    """Return the task's own network, the older form of the job format. Only the first one counts."""
    return ((task.resources.networks if task.resources is not None else None) or ())[:1]


def _assign_task_network(network: NetworkResource, port_assigner: PortAssigner) -> NetworkResource:
    """Assign the ports of a task's own network."""
    try:
        address, ports = port_assigner.assign_ports_on_one_address(network)
    except PortUnavailable as error:
        raise InsufficientResources(f"network: {error}") from error
    return _fill_dynamic_ports(network, address, ports)


def _fill_dynamic_ports(network: NetworkResource, address: str, ports: Iterable[AllocatedPort]) -> NetworkResource:
    """Return the network with this address and the assigned values of its dynamic ports."""
    port_by_label = {port.label: port for port in ports}
    dynamic_ports = tuple(
        replace(port, value=port_by_label[port.label].value, to=port_by_label[port.label].to)
        for port in network.dynamic_ports or ()
    )
    return replace(network, ip=address, dynamic_ports=dynamic_ports or None)


def get_core_mhz(node: Node, core: int) -> int:
    """Return the speed of the core as the node reports it, else its share of the node's MHz."""
    resources = node.node_resources
    assert resources is not None, "a node without resources is never chosen"
    topology = resources.processors.topology
    for reported in (topology.cores if topology is not None else None) or ():
        if reported.id == core:
            return reported.base_speed or reported.guess_speed or reported.max_speed
    return resources.cpu.cpu_shares // max(1, resources.cpu.total_cpu_cores)


def list_usable_cores(node: Node) -> list[int]:
    """Return the cores that tasks may reserve, lowest first."""
    resources = node.node_resources
    if resources is None:
        return []
    reserved = set((node.reserved_resources.cpu.reserved_cpu_cores if node.reserved_resources else None) or ())
    topology = resources.processors.topology
    reservable = resources.cpu.reservable_cpu_cores
    if reservable is None:
        reservable = tuple(
            core.id for core in (topology.cores if topology is not None else None) or () if not core.disable
        )
    return sorted(set(reservable) - reserved)


def _assign_cores(node: Node, number: int, in_use: ExclusiveResources) -> AllocatedCpu:
    """Return the `number` lowest free cores of the node and their speed. Raises `InsufficientResources`."""
    free = [core for core in list_usable_cores(node) if core not in in_use.cores]
    if len(free) < number:
        raise InsufficientResources("cores")
    assigned = tuple(free[:number])
    return AllocatedCpu(cpu_shares=sum(get_core_mhz(node, core) for core in assigned), reserved_cores=assigned)


def _make_lifecycle(task: Task) -> TaskLifecycle | None:
    """Return the lifecycle of the task for the allocation record."""
    return None if task.lifecycle is None else TaskLifecycle(hook=task.lifecycle.hook, sidecar=task.lifecycle.sidecar)
