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
    value: int = 0  # The port on the host; 0: assigned by the scheduler.
    to: int = 0  # The port inside the network namespace; 0 or -1: the same.
    host_network: str = ""  # Empty: the default network of the host.
    ignore_collision: bool = False  # Other allocations may use the port too.


class DNS(Record):
    """How host names are resolved inside a group's network, as in `resolv.conf`."""

    servers: tuple[str, ...] | None = None
    searches: tuple[str, ...] | None = None
    options: tuple[str, ...] | None = None


class CNI(Record):
    """Arguments for the CNI plugin that sets up the network."""

    args: dict[str, str] | None = None


class NetworkResource(SparseRecord):
    """A network with its ports, as a group requests it or as a node or an allocation has it."""

    mode: str = ""  # "host", "bridge", "none" or "cni/<name>"; empty: "host".
    device: str = ""  # The network interface; only the node sets it.
    cidr: str = ""
    ip: str = ""
    hostname: str = ""
    mbits: int = msgspec.field(default=0, name="MBits")  # Deprecated, without effect.
    dns: DNS | None = None
    reserved_ports: tuple[Port, ...] | None = None  # Static ports.
    dynamic_ports: tuple[Port, ...] | None = None  # Ports that the scheduler assigns.
    cni: CNI | None = None

    # The node chooses the device, never the job (jobs.md 2.6).
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"Device"})
