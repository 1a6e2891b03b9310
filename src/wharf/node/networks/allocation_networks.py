"""Chooses the network of an allocation by the mode that its group requests, and reports what the node supports.

`NetworkManager` creates and removes the networks.
"""

import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from wharf.contract.model.allocations.allocation import NetworkStatus
from wharf.contract.model.body_limits import cut_echo
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.jobs.validation.networks import is_valid_hostname
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
from wharf.node.node_mark import NodeMark
from wharf.node.settings import NodeSettings
from wharf.node.tasks.interpolation import ReferenceValues, resolve_text
from wharf.world import World

HOST_MODES: Final = ("", "host")
"""Network modes of groups whose tasks use the host's network."""
LOOPBACK_MODE: Final = "none"
BRIDGE_MODE: Final = "bridge"
CNI_MODE_PREFIX: Final = "cni/"
PROTOCOLS: Final = ("tcp", "udp")


class AllocationNetworks:
    """The networks of this node's allocations, and the network modes that the node supports."""

    def __init__(self, world: World, settings: NodeSettings, owner: NodeMark, folder: Path = STATE_ROOT) -> None:
        self._world = world
        self._folder = folder
        self._plugins = CniPlugins(settings.cni_path)
        self._lost_networks: dict[str, NetworkManager] = {}
        """The networks of nodes that no longer exist, by node id, while they are removed."""
        self._networks = NetworkManager(world, self._plugins, owner, folder)
        self._bridge = build_bridge_chain(
            settings.bridge_network_name, settings.bridge_network_subnet, folder / ADDRESSES_FOLDER
        )
        self._config_folder = Path(settings.cni_config_dir)
        self._chains: dict[str, PluginChain] = {}
        """The supported networks by mode."""
        self.attributes: dict[str, str] = {}
        """Node attributes: versions of CNI plugins, and hairpin mode if bridges are supported."""

    # -- what the node supports

    async def probe(self) -> None:
        """Find out which network modes this node supports, and store them with the plugins' versions. Never raises."""
        versions = {name: await self._plugins.find_version(name) for name in BRIDGE_PLUGINS}
        version_attributes = {f"plugins.cni.version.{name}": version for name, version in versions.items() if version}
        chains = {}
        if os.geteuid() == 0:
            chains = {f"{CNI_MODE_PREFIX}{chain.name}": chain for chain in read_declared_chains(self._config_folder)}
            has_programs = (
                len(version_attributes) == len(BRIDGE_PLUGINS)
                and shutil.which("iptables", path=PLUGIN_PATH) is not None
            )
            # Once a bridge could be created, the trial is not repeated: a kernel does not lose this ability.
            if has_programs and (BRIDGE_MODE in self._chains or not namespaces.find_bridge_error()):
                chains[BRIDGE_MODE] = self._bridge
        self._chains = chains
        hairpin = {f"{name}.bridge.hairpin_mode": "true" for name in ("wharf", "nomad") if BRIDGE_MODE in chains}
        self.attributes = version_attributes | hairpin

    def add_networks(self, resources: NodeResources) -> NodeResources:
        """Return `resources` with an entry for each network mode that this node supports."""
        modes = sorted(self._chains)
        return msgspec.structs.replace(
            resources,
            networks=(*(resources.networks or ()), *(NetworkResource(mode=mode) for mode in modes)),
            node_networks=(*(resources.node_networks or ()), *(NodeNetwork(mode=mode) for mode in modes)),
        )

    # -- networks of allocations

    async def ensure_network(self, allocation: AssignedAllocation, job: Job, reference_values: ReferenceValues) -> None:
        """Create the network that the allocation's group requests, unless it already exists. Raises NetworkError.

        Does nothing if the tasks use the host's network.
        """
        request = self._build_request(allocation, job, reference_values)
        if request is not None:
            await self._networks.ensure_network(allocation.id, request)

    def has_own_network(self, allocation: AssignedAllocation, job: Job) -> bool:
        """Return whether the group requests a network namespace of its own."""
        network = _find_group_network(allocation, job)
        return network is not None and network.mode not in HOST_MODES

    def _build_request(
        self, allocation: AssignedAllocation, job: Job, reference_values: ReferenceValues
    ) -> NetworkRequest | None:
        """Return the parameters of the network that the group requests; None if the tasks use the host's network.

        Raises NetworkError if this node does not support the mode.
        """
        network = _find_group_network(allocation, job)
        if network is None or network.mode in HOST_MODES:
            return None
        hostname = resolve_text(network.hostname, reference_values)
        if hostname and not is_valid_hostname(hostname):
            # A line break in it would add lines to the file /etc/hosts of the tasks.
            raise NetworkError(f'the hostname "{cut_echo(hostname)}" is not a valid DNS name: change what it refers to')
        if network.mode == LOOPBACK_MODE:
            return NetworkRequest(None, hostname=hostname, dns=network.dns)
        chain = self._chains.get(network.mode)
        if chain is None:
            raise NetworkError(f"this node does not support the network mode {network.mode}")
        resources = allocation.allocated_resources
        ports = (resources.shared.ports or ()) if resources is not None else ()
        mappings = [
            PortMapping(port.value, port.to if port.to > 0 else port.value, protocol, port.host_ip)
            for port in ports
            for protocol in PROTOCOLS
        ]
        args = (network.cni.args if network.cni is not None else None) or {}
        args_text = ";".join(["IgnoreUnknown=1", *(f"{name}={value}" for name, value in args.items())]) if args else ""
        return NetworkRequest(chain, tuple(mappings), hostname, network.dns, args_text)

    def find_task_network(self, allocation_id: str) -> TaskNetwork | None:
        """Return the network namespace that the allocation's tasks share; None if they use the host's network."""
        network = self._networks.find_network(allocation_id)
        return TaskNetwork(network.namespace, network.hostname, network.files) if network is not None else None

    def find_network_status(self, allocation_id: str) -> NetworkStatus | None:
        """Return the addresses of the allocation's own network; None if its tasks use the host's network."""
        network = self._networks.find_network(allocation_id)
        if network is None:
            return None
        return NetworkStatus(
            interface_name=network.address.interface,
            address=network.address.address,
            address_ipv6=network.address.address_ipv6,
            dns=network.dns,
        )

    def release_network(self, allocation_id: str) -> None:
        """Begin to remove the network of an ended allocation in the background."""
        self._networks.release_network(allocation_id)

    def sweep_unknown_networks(self, known_allocations: Collection[str]) -> None:
        """Begin to remove the networks of all allocations that are not in `known_allocations`."""
        self._networks.sweep_unknown_networks(known_allocations)

    def release_networks_of(self, node_id: str) -> None:
        """Begin to remove all networks of another node, which no longer exists."""
        networks = self._lost_networks.get(node_id)
        if networks is None:
            networks = NetworkManager(self._world, self._plugins, NodeMark(node_id), self._folder)
            self._lost_networks[node_id] = networks
        networks.sweep_unknown_networks(())

    async def close(self) -> None:
        """Wait a short time for removals of networks that are in progress, then cancel them."""
        await self._networks.close()
        for networks in self._lost_networks.values():
            await networks.close()


def _find_group_network(allocation: AssignedAllocation, job: Job) -> NetworkResource | None:
    """Return the network of the allocation's group. Groups have at most one; further ones are ignored."""
    group = job.find_group(allocation.task_group)
    return group.networks[0] if group is not None and group.networks else None
