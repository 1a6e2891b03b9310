"""Networks of allocations: a namespace that the allocation's tasks share, its interface, and its ports on the host."""

from wharf.node.networks.cni_plugins import CniPlugins
from wharf.node.networks.manager import NetworkManager, NetworkRequest
from wharf.node.networks.plugin_chain import NetworkError, PluginChain, PortMapping, build_bridge_chain

__all__ = [
    "CniPlugins",
    "NetworkError",
    "NetworkManager",
    "NetworkRequest",
    "PluginChain",
    "PortMapping",
    "build_bridge_chain",
]
