"""The resources of a node: processors, memory, disk, networks and devices, and what is reserved from jobs."""

import msgspec

from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.record import Record


class NodeCpu(Record):
    """The processors in the format of older clients; always present."""

    cpu_shares: int = msgspec.field(name="CpuShares", default=0)  # MHz, all cores together
    total_cpu_cores: int = msgspec.field(name="TotalCpuCores", default=0)
    reservable_cpu_cores: tuple[int, ...] | None = msgspec.field(name="ReservableCpuCores", default=None)


class ProcessorCore(Record):
    """One core of a processor."""

    socket_id: int = 0
    node_id: int = 0  # The memory node (NUMA) that it belongs to.
    id: int = 0
    grade: bool = True  # True: a performance core, false: an efficiency core.
    disable: bool = False
    base_speed: int = 0  # MHz
    max_speed: int = 0
    guess_speed: int = 0


class ProcessorTopology(Record):
    """The NUMA nodes and cores of a machine."""

    nodes: tuple[int, ...] | None = None
    distances: tuple[tuple[int, ...], ...] | None = None
    cores: tuple[ProcessorCore, ...] | None = None
    override_total_compute: int = 0
    override_withhold_compute: int = msgspec.field(
        name="OverrideWitholdCompute", default=0
    )  # Nomad's misspelled wire name.


class NodeProcessors(Record):
    topology: ProcessorTopology | None = None


class NodeMemory(Record):
    memory_mb: int = 0


class NodeDisk(Record):
    disk_mb: int = 0


class NodeNetworkAddress(Record):
    """An address of a network interface."""

    family: str = ""  # "ipv4" or "ipv6"
    alias: str = ""
    address: str = ""
    reserved_ports: str = ""
    gateway: str = ""


class NodeNetwork(Record):
    """A network interface of the node."""

    mode: str = ""
    device: str = ""
    mac_address: str = ""
    speed: int = 0
    addresses: tuple[NodeNetworkAddress, ...] | None = None


class DeviceLocality(Record):
    pci_bus_id: str = ""


class DeviceInstance(Record):
    id: str = ""
    healthy: bool = False
    health_description: str = ""
    locality: DeviceLocality | None = None


class DeviceAttribute(Record):
    """A typed value: every field except the one in use is null."""

    float_: float | None = msgspec.field(name="Float", default=None)
    int_: int | None = msgspec.field(name="Int", default=None)
    string: str | None = None
    bool_: bool | None = msgspec.field(name="Bool", default=None)
    unit: str = ""


class NodeDevice(Record):
    """All instances of one device model on the node."""

    vendor: str = ""
    type: str = ""
    name: str = ""
    instances: tuple[DeviceInstance, ...] | None = None
    attributes: dict[str, DeviceAttribute] | None = None


MIN_DYNAMIC_PORT = 20000
MAX_DYNAMIC_PORT = 32000


class NodeResources(Record):
    """All resources of a node."""

    cpu: NodeCpu = msgspec.field(name="Cpu", default=NodeCpu())
    processors: NodeProcessors = NodeProcessors()
    memory: NodeMemory = NodeMemory()
    disk: NodeDisk = NodeDisk()
    networks: tuple[NetworkResource, ...] | None = None
    node_networks: tuple[NodeNetwork, ...] | None = None
    devices: tuple[NodeDevice, ...] | None = None
    min_dynamic_port: int = MIN_DYNAMIC_PORT
    max_dynamic_port: int = MAX_DYNAMIC_PORT  # inclusive


class ReservedCpu(Record):
    cpu_shares: int = msgspec.field(name="CpuShares", default=0)
    reserved_cpu_cores: tuple[int, ...] | None = msgspec.field(name="ReservedCpuCores", default=None)


class ReservedNetworks(Record):
    reserved_host_ports: str = ""  # "22,80,8000-8100"


class ReservedResources(Record):
    cpu: ReservedCpu = msgspec.field(name="Cpu", default=ReservedCpu())
    memory: NodeMemory = NodeMemory()
    disk: NodeDisk = NodeDisk()
    networks: ReservedNetworks = ReservedNetworks()
