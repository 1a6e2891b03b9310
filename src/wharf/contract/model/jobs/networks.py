"""Networks and ports: as a group requests them, and as an allocation or a node has them.

These records are sparse, so empty fields are not encoded and defaults are zero values. The canonical form defines what an empty
field means: an empty `HostNetwork` is `default`, an empty `Mode` is the host's network.
"""

from typing import ClassVar, Final

import msgspec

from wharf.contract.model.record import Record, SparseRecord

DEFAULT_HOST_NETWORK: Final = "default"


class Port(SparseRecord):
    """One port of a network: static (`value` is set) or assigned by the scheduler (`value` is 0)."""

    label: str = ""
    value: int = 0
    to: int = 0
    host_network: str = ""
    ignore_collision: bool = False


class DNS(Record):
    """How names are resolved inside a group's network."""

    servers: tuple[str, ...] | None = None
    searches: tuple[str, ...] | None = None
    options: tuple[str, ...] | None = None


class CNI(Record):
    """Arguments for the CNI plugin of the network."""

    args: dict[str, str] | None = None


class NetworkResource(SparseRecord):
    """A network with its ports."""

    mode: str = ""
    device: str = ""
    cidr: str = ""
    ip: str = ""
    hostname: str = ""
    mbits: int = msgspec.field(default=0, name="MBits")
    dns: DNS | None = None
    reserved_ports: tuple[Port, ...] | None = None
    dynamic_ports: tuple[Port, ...] | None = None
    cni: CNI | None = None

    # The node chooses the device, never the job (jobs.md 2.6).
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"Device"})
