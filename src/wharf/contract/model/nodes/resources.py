"""The resources of a node: processors, memory, disk, networks and devices, and what is reserved from jobs."""

import msgspec

from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.record import Record


class NodeCpu(Record):
    """The processors of a node in the format that older clients read."""

    cpu_shares: int = msgspec.field(name="CpuShares", default=0)  # MHz, all cores together
    total_cpu_cores: int = msgspec.field(name="TotalCpuCores", default=0)
    # Numbers of the cores that tasks can have for themselves.
    reservable_cpu_cores: tuple[int, ...] | None = msgspec.field(name="ReservableCpuCores", default=None)


class ProcessorCore(Record):
    """One core of a processor, as the node detected it."""

    socket_id: int = 0
    node_id: int = 0  # The memory node (NUMA) that it belongs to.
    id: int = 0  # The number of the core.
    grade: bool = True  # True: a performance core, false: an efficiency core.
    disable: bool = False  # Not used for tasks.
    base_speed: int = 0  # MHz; 0: unknown.
    max_speed: int = 0  # MHz; 0: unknown.
    guess_speed: int = 0  # MHz; an estimate.


class ProcessorTopology(Record):
    """The NUMA nodes and cores of a machine."""

    nodes: tuple[int, ...] | None = None  # Numbers of the NUMA nodes.
    distances: tuple[tuple[int, ...], ...] | None = None  # Relative access times between NUMA nodes.
    cores: tuple[ProcessorCore, ...] | None = None
    override_total_compute: int = 0  # MHz set by the operator for all cores; 0: as detected.
    override_withhold_compute: int = msgspec.field(
        name="OverrideWitholdCompute", default=0
    )  # MHz that tasks cannot use. The wire name is misspelled in Nomad.


class NodeProcessors(Record):
    """The processors of a node."""

    topology: ProcessorTopology | None = None


class NodeMemory(Record):
    """The memory of a node, or the part of it that is reserved."""

    memory_mb: int = 0


class NodeDisk(Record):
    """The disk space of a node, or the part of it that is reserved."""

    disk_mb: int = 0


class NodeNetworkAddress(Record):
    """An address of a network interface."""

    family: str = ""  # "ipv4" or "ipv6"
    alias: str = ""  # The name of the host network.
    address: str = ""
    reserved_ports: str = ""  # Ports that jobs cannot use: "22,8000-8100".
    gateway: str = ""


class NodeNetwork(Record):
    """A network interface of the node."""

    mode: str = ""  # "host" or the mode of a container network.
    device: str = ""  # The name of the interface.
    mac_address: str = ""
    speed: int = 0  # Mbit/s; 0: unknown.
    addresses: tuple[NodeNetworkAddress, ...] | None = None


class DeviceLocality(Record):
    """Where a device is attached to the machine."""

    pci_bus_id: str = ""


class DeviceInstance(Record):
    """One device of a node, such as a GPU."""

    id: str = ""
    healthy: bool = False
    health_description: str = ""
    locality: DeviceLocality | None = None


class DeviceAttribute(Record):
    """The value of an attribute of a device. Only the field of its type is set; the others are null."""

    float_: float | None = msgspec.field(name="Float", default=None)
    int_: int | None = msgspec.field(name="Int", default=None)
    string: str | None = None
    bool_: bool | None = msgspec.field(name="Bool", default=None)
    unit: str = ""  # Such as "MiB"; empty: none.


class NodeDevice(Record):
    """All devices of one model on the node, such as two equal GPUs."""

    vendor: str = ""
    type: str = ""
    name: str = ""
    instances: tuple[DeviceInstance, ...] | None = None
    attributes: dict[str, DeviceAttribute] | None = None


MIN_DYNAMIC_PORT = 20000
"""The lowest port that the scheduler assigns, unless the node sets another."""
MAX_DYNAMIC_PORT = 32000
"""The highest port that the scheduler assigns, unless the node sets another."""


class NodeResources(Record):
    """All resources of a node, including those that are reserved for the system."""

    cpu: NodeCpu = msgspec.field(name="Cpu", default=NodeCpu())
    processors: NodeProcessors = NodeProcessors()
    memory: NodeMemory = NodeMemory()
    disk: NodeDisk = NodeDisk()
    networks: tuple[NetworkResource, ...] | None = None  # Network interfaces in the format of older clients.
    node_networks: tuple[NodeNetwork, ...] | None = None
    devices: tuple[NodeDevice, ...] | None = None
    min_dynamic_port: int = MIN_DYNAMIC_PORT
    max_dynamic_port: int = MAX_DYNAMIC_PORT  # inclusive


class ReservedCpu(Record):
    """The processor time and the cores of a node that jobs cannot use."""

    cpu_shares: int = msgspec.field(name="CpuShares", default=0)  # MHz
    # Numbers of the cores.
    reserved_cpu_cores: tuple[int, ...] | None = msgspec.field(name="ReservedCpuCores", default=None)


class ReservedNetworks(Record):
    """The ports of a node that jobs cannot use."""

    reserved_host_ports: str = ""  # "22,80,8000-8100"


class ReservedResources(Record):
    """The resources of a node that jobs cannot use, because the system needs them."""

    cpu: ReservedCpu = msgspec.field(name="Cpu", default=ReservedCpu())
    memory: NodeMemory = NodeMemory()
    disk: NodeDisk = NodeDisk()
    networks: ReservedNetworks = ReservedNetworks()
