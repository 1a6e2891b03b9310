"""The networks of allocations, as jobs ask for them and as the node tells of them: which it can make, and what came of it."""

import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from wharf.contract.model.allocations.allocation import NetworkStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.nodes.resources import NodeNetwork, NodeResources
from wharf.contract.wire.nodes.messages import AssignedAllocation
from wharf.node.drivers.port import TaskNetwork
from wharf.node.networks import (
    CniPlugins,
    NetworkError,
    NetworkManager,
    NetworkRequest,
    PluginChain,
    PortMapping,
    build_bridge_chain,
    namespaces,
)
from wharf.node.networks.cni_plugins import PLUGIN_PATH
from wharf.node.networks.manager import ADDRESSES_FOLDER, STATE_ROOT
from wharf.node.networks.plugin_chain import BRIDGE_PLUGINS, read_declared_chains
from wharf.node.settings import NodeSettings
from wharf.node.tasks.interpolation import ReferenceValues, resolve_text
from wharf.world import World

HOST_MODES: Final = ("", "host")
LOOPBACK_MODE: Final = "none"
BRIDGE_MODE: Final = "bridge"
CNI_MODE_PREFIX: Final = "cni/"
PROTOCOLS: Final = ("tcp", "udp")


class AllocationNetworks:
    def __init__(self, world: World, settings: NodeSettings, node: str, folder: Path = STATE_ROOT) -> None:
        self._plugins = CniPlugins(settings.cni_path)
        self._networks = NetworkManager(world, self._plugins, node, folder)
        self._bridge = build_bridge_chain(
            settings.bridge_network_name, settings.bridge_network_subnet, folder / ADDRESSES_FOLDER
        )
        self._declared_in = Path(settings.cni_config_dir)
        self._chains: dict[str, PluginChain] = {}
        self.attributes: dict[str, str] = {}

    # -- what the node can do

    async def probe(self) -> None:
        """Find which network modes this node supports. Never raises."""
        versions = {name: await self._plugins.find_version(name) for name in BRIDGE_PLUGINS}
        found = {f"plugins.cni.version.{name}": version for name, version in versions.items() if version}
        chains = {}
        if os.geteuid() == 0:
            chains = {f"{CNI_MODE_PREFIX}{chain.name}": chain for chain in read_declared_chains(self._declared_in)}
            is_able = len(found) == len(BRIDGE_PLUGINS) and shutil.which("iptables", path=PLUGIN_PATH) is not None
            # Once tried, a kernel does not forget how.
            if is_able and (BRIDGE_MODE in self._chains or not namespaces.find_bridge_error()):
                chains[BRIDGE_MODE] = self._bridge
        self._chains = chains
        hairpin = {f"{name}.bridge.hairpin_mode": "true" for name in ("wharf", "nomad") if BRIDGE_MODE in chains}
        self.attributes = found | hairpin

    def add_networks(self, resources: NodeResources) -> NodeResources:
        """Return the resources with the networks that the node offers."""
        modes = sorted(self._chains)
        return msgspec.structs.replace(
            resources,
            networks=(*(resources.networks or ()), *(NetworkResource(mode=mode) for mode in modes)),
            node_networks=(*(resources.node_networks or ()), *(NodeNetwork(mode=mode) for mode in modes)),
        )

    # -- for one allocation

    async def ensure_network(self, work: AssignedAllocation, job: Job, facts: ReferenceValues) -> None:
        """Create the network of an allocation if it needs one. Raises NetworkError."""
        if (asked := self._asked(work, job, facts)) is not None:
            await self._networks.ensure_network(work.id, asked)

    def has_own_network(self, work: AssignedAllocation, job: Job) -> bool:
        network = _network(work, job)
        return network is not None and network.mode not in HOST_MODES

    def _asked(self, work: AssignedAllocation, job: Job, facts: ReferenceValues) -> NetworkRequest | None:
        """Raises NetworkError."""
        network = _network(work, job)
        if network is None or network.mode in HOST_MODES:
            return None
        hostname = resolve_text(network.hostname, facts)
        if network.mode == LOOPBACK_MODE:
            return NetworkRequest(None, hostname=hostname, dns=network.dns)
        chain = self._chains.get(network.mode)
        if chain is None:
            raise NetworkError(f"this node cannot make networks of the mode {network.mode}")
        ports = (work.allocated_resources.shared.ports or ()) if work.allocated_resources is not None else ()
        given = [
            PortMapping(port.value, port.to if port.to > 0 else port.value, kind, port.host_ip)
            for port in ports
            for kind in PROTOCOLS
        ]
        args = (network.cni.args if network.cni is not None else None) or {}
        words = ";".join(["IgnoreUnknown=1", *(f"{name}={value}" for name, value in args.items())]) if args else ""
        return NetworkRequest(chain, tuple(given), hostname, network.dns, words)

    def find_task_network(self, allocation_id: str) -> TaskNetwork | None:
        """Return the network of the allocation's tasks; None for the host's network."""
        made = self._networks.find_network(allocation_id)
        return TaskNetwork(made.namespace, made.hostname, made.files) if made is not None else None

    def find_network_status(self, allocation_id: str) -> NetworkStatus | None:
        made = self._networks.find_network(allocation_id)
        if made is None:
            return None
        address = made.address
        return NetworkStatus(
            interface_name=address.interface,
            address=address.address,
            address_ipv6=address.address_ipv6,
            dns=made.dns,
        )

    def release_network(self, allocation_id: str) -> None:
        self._networks.release_network(allocation_id)

    def sweep_unknown_networks(self, live: Collection[str]) -> None:
        self._networks.sweep_unknown_networks(live)

    async def close(self) -> None:
        await self._networks.close()


def _network(work: AssignedAllocation, job: Job) -> NetworkResource | None:
    """Return the network of the allocation's group. Groups have at most one; further ones are ignored."""
    group = job.find_group(work.task_group)
    return group.networks[0] if group is not None and group.networks else None
