"""Networks of allocations' own: a namespace that an allocation's tasks share, its interface, its ports on the machine."""

from wharf.node.networks.chain import CannotConnect, Chain, Mapping, bridge_chain
from wharf.node.networks.keeping import Asked, Networks, Shared
from wharf.node.networks.plugins import CannotRun, Plugins

__all__ = [
    "Asked",
    "CannotConnect",
    "CannotRun",
    "Chain",
    "Mapping",
    "Networks",
    "Plugins",
    "Shared",
    "bridge_chain",
]
