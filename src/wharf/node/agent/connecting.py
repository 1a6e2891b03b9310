"""The networks of allocations, as jobs ask for them and as the node tells of them: which it can make, and what came of it."""

import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from wharf.model.allocation import NetworkStatus
from wharf.model.job import Job
from wharf.model.network import NetworkResource
from wharf.model.node_resources import NodeNetwork, NodeResources
from wharf.node.agent.interpolation import Facts, resolve_text
from wharf.node.drivers.port import TaskNetwork
from wharf.node.networks import Asked, CannotConnect, Chain, Mapping, Networks, Plugins, bridge_chain, namespaces
from wharf.node.networks.chain import OF_BRIDGE
from wharf.node.networks.declared import declared
from wharf.node.networks.keeping import ADDRESSES, RUN
from wharf.node.networks.plugins import PATH
from wharf.node.settings import ClientSettings
from wharf.wire.shapes import DesiredWork
from wharf.world import World

HOST: Final = ("", "host")
NONE: Final = "none"
BRIDGE: Final = "bridge"
CNI: Final = "cni/"
PROTOCOLS: Final = ("tcp", "udp")


class Connecting:
    def __init__(self, world: World, settings: ClientSettings, node: str, folder: Path = RUN) -> None:
        self._plugins = Plugins(settings.cni_path)
        self._networks = Networks(world, self._plugins, node, folder)
        self._bridge = bridge_chain(settings.bridge_network_name, settings.bridge_network_subnet, folder / ADDRESSES)
        self._declared_in = Path(settings.cni_config_dir)
        self._chains: dict[str, Chain] = {}
        self.attributes: dict[str, str] = {}

    # -- what the node can do

    async def probe(self) -> None:
        """What a job may ask for here. Never raises."""
        versions = {name: await self._plugins.version(name) for name in OF_BRIDGE}
        found = {f"plugins.cni.version.{name}": version for name, version in versions.items() if version}
        chains = {}
        if os.geteuid() == 0:
            chains = {f"{CNI}{chain.name}": chain for chain in declared(self._declared_in)}
            is_able = len(found) == len(OF_BRIDGE) and shutil.which("iptables", path=PATH) is not None
            # Once tried, a kernel does not forget how.
            if is_able and (BRIDGE in self._chains or not namespaces.why_no_bridge()):
                chains[BRIDGE] = self._bridge
        self._chains = chains
        hairpin = {f"{name}.bridge.hairpin_mode": "true" for name in ("wharf", "nomad") if BRIDGE in chains}
        self.attributes = found | hairpin

    def told(self, resources: NodeResources) -> NodeResources:
        """With the networks that tasks can be given."""
        modes = sorted(self._chains)
        return msgspec.structs.replace(
            resources,
            networks=(*(resources.networks or ()), *(NetworkResource(mode=mode) for mode in modes)),
            node_networks=(*(resources.node_networks or ()), *(NodeNetwork(mode=mode) for mode in modes)),
        )

    # -- for one allocation

    async def ensure(self, work: DesiredWork, job: Job, facts: Facts) -> None:
        """Raises CannotConnect."""
        if (asked := self._asked(work, job, facts)) is not None:
            await self._networks.ensure(work.id, asked)

    def has_own(self, work: DesiredWork, job: Job) -> bool:
        network = _network(work, job)
        return network is not None and network.mode not in HOST

    def _asked(self, work: DesiredWork, job: Job, facts: Facts) -> Asked | None:
        """Raises CannotConnect."""
        network = _network(work, job)
        if network is None or network.mode in HOST:
            return None
        hostname = resolve_text(network.hostname, facts)
        if network.mode == NONE:
            return Asked(None, hostname=hostname, dns=network.dns)
        chain = self._chains.get(network.mode)
        if chain is None:
            raise CannotConnect(f"this node cannot make networks of the mode {network.mode}")
        ports = (work.allocated_resources.shared.ports or ()) if work.allocated_resources is not None else ()
        given = [
            Mapping(port.value, port.to if port.to > 0 else port.value, kind, port.host_ip)
            for port in ports
            for kind in PROTOCOLS
        ]
        args = (network.cni.args if network.cni is not None else None) or {}
        words = ";".join(["IgnoreUnknown=1", *(f"{name}={value}" for name, value in args.items())]) if args else ""
        return Asked(chain, tuple(given), hostname, network.dns, words)

    def network_of(self, allocation_id: str) -> TaskNetwork | None:
        """None: the machine's own."""
        made = self._networks.of(allocation_id)
        return TaskNetwork(made.namespace, made.hostname, made.files) if made is not None else None

    def status_of(self, allocation_id: str) -> NetworkStatus | None:
        made = self._networks.of(allocation_id)
        if made is None:
            return None
        address = made.address
        return NetworkStatus(
            interface_name=address.interface,
            address=address.address,
            address_ipv6=address.address_ipv6,
            dns=made.dns,
        )

    def release(self, allocation_id: str) -> None:
        self._networks.release(allocation_id)

    def sweep(self, live: Collection[str]) -> None:
        self._networks.sweep(live)

    async def close(self) -> None:
        await self._networks.close()


def _network(work: DesiredWork, job: Job) -> NetworkResource | None:
    """Only the first of a group counts."""
    group = job.group(work.task_group)
    return group.networks[0] if group is not None and group.networks else None
