"""Networks and ports: as a group requests them, and as an allocation or a node has them.

These records are sparse, so empty fields are not encoded and defaults are zero values. The canonical form defines what an empty
field means: an empty `HostNetwork` is `default`, an empty `Mode` is the host's network.
"""

from typing import ClassVar, Final

import msgspec

from wharf.contract.model.record import Record, SparseRecord

DEFAULT_HOST_NETWORK: Final = "default"
MAX_PORT: Final = 65_535


class Port(SparseRecord):
    """A port of a network: either static, or assigned by the scheduler."""

    label: str = ""
    """The name of the port, by which services and tasks refer to it.

    Tasks find the number in `NOMAD_PORT_<label>`. In HCL, it is the label of the block `port`.

    Default: none; required
    Limits: 1 to 256 UTF-8 bytes; unique in the group
    Example: http
    """
    value: int = 0
    """The number of a static port on the node.

    0 lets the scheduler assign a free one. In HCL the argument is `static`. A node runs only one allocation
    with a static port, so use it only for ports that clients must know.

    Limits: 0 to 65,535
    Example: 8080
    """
    to: int = 0
    """The number of the port inside the network of the group, in the modes `bridge` and `cni/…`, or inside the
    container.

    0 and -1 mean the same number as on the node.

    Limits: -1 to 65,535
    Example: 80
    """
    host_network: str = ""
    """The network of the node on which the port is opened, by its name in the configuration of the node
    (`client.host_network`).

    Limits: 1 to 256 UTF-8 bytes
    Example: private
    """
    ignore_collision: bool = False
    """Whether other allocations of the node may use the same static port.

    Use it only for programs that share a port on purpose.

    Limits: only in the network mode `host`
    """


class DNS(Record):
    """How host names are resolved inside a group's network, as in `resolv.conf`."""

    servers: tuple[str, ...] | None = None
    """The addresses of the name servers.

    Default: those of the node
    Example: ["10.0.0.2"]
    """
    searches: tuple[str, ...] | None = None
    """The domains in which names without a dot are searched.

    Default: those of the node
    Example: ["example.internal"]
    """
    options: tuple[str, ...] | None = None
    """Options of the resolver.

    Default: those of the node
    Example: ["ndots:2"]
    """


class CNI(Record):
    """Arguments for the CNI plugin that sets up the network."""

    args: dict[str, str] | None = None
    """Arguments for the CNI plugins, by name.

    Default: none
    Limits: no `;` in names and values; no name in two networks of the group
    Example: {"zone": "blue"}
    """


class NetworkResource(SparseRecord):
    """A network with its ports, as a group requests it or as a node or an allocation has it."""

    mode: str = ""
    """Which network the tasks of the group have.

    Values:
        host: the network of the node
        bridge: a network of their own, connected to a bridge of the node; ports are forwarded
        none: a network of their own without a connection
        cni/<name>: the network of this name in the CNI configuration of the node
    Default: `host`
    Example: bridge
    """
    device: str = ""
    """The network interface.

    Nodes set it; a submitted value is dropped.

    Set by: servers
    """
    cidr: str = ""
    """The address range of the network.

    Default: none
    Example: 10.0.0.0/24
    Effect: none; nodes report it
    """
    ip: str = ""
    """The address of the network.

    Default: none
    Example: 10.0.0.7
    Effect: none; nodes report it
    """
    hostname: str = ""
    """The host name of the tasks in a network of their own.

    References such as `${NOMAD_ALLOC_INDEX}` are replaced on the node.

    Default: the name of the node
    Limits: a DNS name
    Example: web-${NOMAD_ALLOC_INDEX}
    """
    mbits: int = msgspec.field(default=0, name="MBits")
    """The bandwidth that the group needs.

    Unit: Mbit/s
    Example: 0
    Effect: none
    Deprecated: leave it out
    """
    dns: DNS | None = None
    """How tasks resolve host names in a network of their own.

    Default: as the node does
    """
    reserved_ports: tuple[Port, ...] | None = None
    """The static ports.

    In HCL, they are the blocks `port` with `static`.
    """
    dynamic_ports: tuple[Port, ...] | None = None
    """The ports whose numbers the scheduler assigns.

    In HCL, they are the blocks `port` without `static`.
    """
    cni: CNI | None = None
    """Arguments for the CNI plugins of the network."""

    # The node chooses the device, never the job (jobs.md 2.6).
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"Device"})
