"""Assigns cores, devices, ports, CPU, memory and disk of a chosen node to one allocation."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from wharf.cluster.scheduling.resources.devices import DeviceShortage, assign_devices, list_device_requests
from wharf.cluster.scheduling.resources.exclusive import ExclusiveResources
from wharf.cluster.scheduling.resources.ports import PortAssigner, PortUnavailable, RandomBelow
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
from wharf.contract.model.resource_usage import get_task_memory_mb, limit_amount


class InsufficientResources(Exception):
    """The node lacks something that the group requests. `dimension` says what, as metrics show it.

    Examples: `cores`, `network: dynamic port selection failed`.
    """

    def __init__(self, dimension: str) -> None:
        super().__init__(dimension)
        self.dimension = dimension


class ResourceAssigner:
    """Assigns resources to the allocations of one group.

    If the group requests only amounts (CPU, memory and disk), all its allocations share one resource record. Otherwise
    each gets its own, with ports, cores and devices of its node.
    """

    def __init__(self, group: TaskGroup, *, can_oversubscribe: bool) -> None:
        """With `can_oversubscribe`, tasks may use more memory than they reserve, up to their `memory_max`."""
        self._group = group
        self._can_oversubscribe = can_oversubscribe
        self._tasks = [task for task in group.tasks or () if task.resources is not None]
        self._lifecycles = {task.name: _make_lifecycle(task) for task in self._tasks}
        # Nomad uses only the first network of a group.
        self._group_networks: Sequence[NetworkResource] = (group.networks or ())[:1]
        task_networks = [network for task in self._tasks for network in _get_task_network(task)]
        self.networks: Sequence[NetworkResource] = (*self._group_networks, *task_networks)
        """The network of the group and the networks of its tasks, with the requested ports."""
        self.requested_cores = sum(task.resources.cores for task in self._tasks if task.resources is not None)
        """How many cores one allocation reserves, all tasks together."""
        self._device_requests = list_device_requests(group)
        """The device requests of all tasks, each with the name of its task."""
        self.has_only_amounts = not (self.networks or self.requested_cores or self._device_requests)
        """Whether the group requests only CPU, memory and disk: no networks, cores or devices."""
        self.shared_resources: AllocatedResources | None = None
        """The record that all allocations share. `None`: it is not built yet, or each allocation gets its own."""

    def assign_resources(
        self, node: Node, exclusive: ExclusiveResources, random_below: RandomBelow
    ) -> AllocatedResources:
        """Return the resource record of one more allocation on the node.

        `exclusive` are the ports, cores and devices in use there; the caller adds those of the new allocation. Raises
        `InsufficientResources` if the node lacks ports, cores or devices. CPU, memory and disk are not checked.
        """
        if not self.has_only_amounts:
            return self._build_resources(node, exclusive, random_below)
        if self.shared_resources is None:
            self.shared_resources = self._build_resources(node, exclusive, random_below)
        return self.shared_resources

    def _build_resources(
        self, node: Node, exclusive: ExclusiveResources, random_below: RandomBelow
    ) -> AllocatedResources:
        """Return a new resource record for one allocation on the node.

        `exclusive` are the ports, cores and devices in use there; it is not changed. Raises `InsufficientResources` if
        the node lacks ports, cores or devices.
        """
        in_use = exclusive.copy() if not self.has_only_amounts else exclusive
        port_assigner = PortAssigner(node, in_use, random_below)
        shared = self._assign_group(port_assigner)
        devices = self._assign_devices(node, in_use)
        tasks = {
            task.name: self._assign_task(task, node, in_use, port_assigner, tuple(devices.get(task.name, ())))
            for task in self._tasks
        }
        return AllocatedResources(tasks=tasks, task_lifecycles=self._lifecycles, shared=shared)

    def _assign_devices(self, node: Node, in_use: ExclusiveResources) -> dict[str, list[AllocatedDevice]]:
        """Return the devices that each task is assigned on the node, by task name. `in_use` is not changed.

        Raises `InsufficientResources` if the node has too few free devices.
        """
        try:
            assigned = assign_devices(node, [request for _, request in self._device_requests], in_use)
        except DeviceShortage as shortage:
            raise InsufficientResources(f"devices: no devices match request {shortage.name}") from shortage
        devices: dict[str, list[AllocatedDevice]] = {}
        for (task_name, _), device in zip(self._device_requests, assigned, strict=True):
            devices.setdefault(task_name, []).append(device)
        return devices

    def _assign_task(
        self,
        task: Task,
        node: Node,
        in_use: ExclusiveResources,
        port_assigner: PortAssigner,
        devices: tuple[AllocatedDevice, ...],
    ) -> AllocatedTaskResources:
        """Return the resources that one task is assigned on the node, and add its cores to `in_use`.

        Raises `InsufficientResources` if the node has too few free cores or ports.
        """
        requested = task.resources
        assert requested is not None, "only tasks with resources are assigned"
        cpu = AllocatedCpu(cpu_shares=requested.cpu)
        if requested.cores:
            cpu = _assign_cores(node, requested.cores, in_use)
            in_use.cores.update(cpu.reserved_cores or ())
        memory = get_task_memory_mb(task)
        memory_max = 0
        if self._can_oversubscribe and requested.memory_max_mb:
            is_unlimited = requested.memory_max_mb == UNLIMITED_MEMORY_MB
            memory_max = UNLIMITED_MEMORY_MB if is_unlimited else requested.memory_max_mb + requested.secrets_mb
        return AllocatedTaskResources(
            cpu=cpu,
            memory=AllocatedMemory(memory_mb=memory, memory_max_mb=memory_max),
            devices=devices or None,
            networks=tuple(_assign_task_network(network, port_assigner) for network in _get_task_network(task)) or None,
        )

    def _assign_group(self, port_assigner: PortAssigner) -> AllocatedSharedResources:
        """Return the resources that the tasks of the allocation share: disk, network and ports.

        Raises `InsufficientResources` if a requested port is not free.
        """
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
    """Return the task's own network as a tuple of at most one entry.

    Older jobs request networks in tasks instead of the group. As in Nomad, only the first network of a task counts.
    """
    return ((task.resources.networks if task.resources is not None else None) or ())[:1]


def _assign_task_network(network: NetworkResource, port_assigner: PortAssigner) -> NetworkResource:
    """Assign all ports of a task's own network on one address, and return the network with address and port numbers.

    Raises `InsufficientResources` if no address of the node has all ports free.
    """
    try:
        address, ports = port_assigner.assign_ports_on_one_address(network)
    except PortUnavailable as error:
        raise InsufficientResources(f"network: {error}") from error
    return _fill_dynamic_ports(network, address, ports)


def _fill_dynamic_ports(network: NetworkResource, address: str, ports: Iterable[AllocatedPort]) -> NetworkResource:
    """Return a copy of the network with this IP address and with the numbers that its dynamic ports were assigned.

    `ports` are the assigned ports; they are matched by label.
    """
    port_by_label = {port.label: port for port in ports}
    dynamic_ports = tuple(
        replace(port, value=port_by_label[port.label].value, to=port_by_label[port.label].to)
        for port in network.dynamic_ports or ()
    )
    return replace(network, ip=address, dynamic_ports=dynamic_ports or None)


def get_core_mhz(node: Node, core: int) -> int:
    """Return the speed in MHz of the core with this id, as the node reports it.

    If the node reports no speeds of single cores, it is the node's total MHz divided by its number of cores.
    """
    resources = node.node_resources
    assert resources is not None, "a node without resources is never chosen"
    topology = resources.processors.topology
    for reported in (topology.cores if topology is not None else None) or ():
        if reported.id == core:
            return reported.base_speed or reported.guess_speed or reported.max_speed
    return resources.cpu.cpu_shares // max(1, resources.cpu.total_cpu_cores)


def list_usable_cores(node: Node) -> list[int]:
    """Return the ids of the cores that tasks may reserve, lowest first, whether or not they are in use.

    Cores that the node keeps for itself are left out. The list is empty if the node reports no resources.
    """
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


def _assign_cores(node: Node, count: int, in_use: ExclusiveResources) -> AllocatedCpu:
    """Return the `count` free cores with the lowest ids, and their speed added up in MHz. `in_use` is not changed.

    Raises `InsufficientResources` if the node has fewer free cores.
    """
    free = [core for core in list_usable_cores(node) if core not in in_use.cores]
    if len(free) < count:
        raise InsufficientResources("cores")
    assigned = tuple(free[:count])
    mhz = limit_amount(sum(get_core_mhz(node, core) for core in assigned))
    return AllocatedCpu(cpu_shares=mhz, reserved_cores=assigned)


def _make_lifecycle(task: Task) -> TaskLifecycle | None:
    """Return the task's lifecycle (hook and sidecar) for the allocation record, or `None` for a main task."""
    return None if task.lifecycle is None else TaskLifecycle(hook=task.lifecycle.hook, sidecar=task.lifecycle.sidecar)
