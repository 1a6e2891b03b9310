"""What the node is, as servers are told: looked at again and again, and told anew when it is not what it was."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from msgspec.structs import replace

from wharf.contract.model.nodes.node import DriverInfo, HostNetwork, Node, NodeEventSubsystem
from wharf.contract.model.nodes.resources import NodeDisk, NodeMemory, ReservedCpu, ReservedNetworks, ReservedResources
from wharf.contract.model.times import to_datetime
from wharf.node.agent.fingerprint import machine
from wharf.node.agent.fingerprint.host_ports import is_port_taken
from wharf.node.agent.fingerprint.metadata import NodeMetadata
from wharf.node.agent.servers.node_events import NodeEventQueue
from wharf.node.agent.servers.node_identity import SignedNodeIdentity
from wharf.node.devices.node_devices import NodeDevices
from wharf.node.drivers.port import Driver, Health
from wharf.node.networks.allocation_networks import AllocationNetworks
from wharf.node.settings import NodeLocation, NodeSettings
from wharf.node.volumes.node_volumes import NodeVolumes
from wharf.world import World

FINGERPRINT_INTERVAL_S: Final = 30.0
"""How often the machine, the drivers and the plugins are looked at."""


class NodeFingerprint:
    def __init__(
        self,
        world: World,
        node_id: str,
        settings: NodeSettings,
        location: NodeLocation,
        drivers: Mapping[str, Driver],
        *,
        event_queue: NodeEventQueue,
        metadata: NodeMetadata,
        signed_identity: SignedNodeIdentity,
        networks: AllocationNetworks,
        volumes: NodeVolumes,
        devices: NodeDevices,
    ) -> None:
        self._world = world
        self._node_id = node_id
        self._settings = settings
        self._places = location
        self._drivers = drivers
        self._news = event_queue
        self._metadata = metadata
        self._own_identity = signed_identity
        self._connecting = networks
        self._volumes = volumes
        self._devices = devices
        self._health: dict[str, DriverInfo] = {}
        self._fell_ill: set[str] = set()
        self._taken_ports: set[int] = set()
        self.machine = self._look()

    def _look(self) -> machine.MachineInfo:
        settings = self._settings
        return machine.probe_machine(
            self._places.allocation_folder,
            interface=settings.network_interface,
            min_port=settings.min_dynamic_port,
            max_port=settings.max_dynamic_port,
        )

    async def load_plugins(self) -> None:
        """What plugins had here before, and what they have."""
        await self._volumes.restore()
        await self._devices.load_plugins()

    async def probe(self) -> None:
        await self._connecting.probe()
        for name, driver in self._drivers.items():
            if name:
                told = build_driver_info(await driver.probe(), self._world.now_ns())
                known = self._health.get(name)
                self._tell_of_health(name, was_well=known is not None and known.healthy, told=told)
                if known is None or replace(told, update_time=known.update_time) != known:
                    self._health[name] = told

    def _tell_of_health(self, name: str, *, was_well: bool, told: DriverInfo) -> None:
        """That it fell ill, and that it is well again; not that it became what it was from the start."""
        if was_well == told.healthy or (told.healthy and name not in self._fell_ill):
            return
        self._fell_ill ^= {name}
        self._news.add_event(NodeEventSubsystem.DRIVER, told.health_description, driver=name)

    async def list_working_drivers(self) -> list[str]:
        await self.probe()
        return [name for name, told in self._health.items() if told.healthy]

    async def probe_and_build_node(self) -> Node:
        await self.probe()
        return self.build_node()

    async def watch_for_changes(self) -> None:
        """Until cancelled: have servers told when the node is not what it was."""
        before = self._all_told()
        while True:
            await asyncio.sleep(FINGERPRINT_INTERVAL_S)
            await self.probe()
            self._look_at_ports()
            self.machine = machine.merge_machine_info(self.machine, self._look())
            await self._volumes.probe()
            await self._devices.probe()
            if (now := self._all_told()) != before:
                before = now
                self._news.mark_changed()

    def _all_told(self) -> tuple[object, ...]:
        attributes = self._volumes.attributes | self._connecting.attributes
        return dict(self._health), self.machine, attributes, self._devices.groups

    # -- ports that something else holds

    def mark_port_taken(self, port: int) -> None:
        """Servers are not to give it away again while it is held."""
        if port not in self._taken_ports:
            self._taken_ports.add(port)
            self._news.add_event(
                NodeEventSubsystem.CLUSTER, f"Port {port} is held by something else and not given away"
            )

    def _look_at_ports(self) -> None:
        free = {port for port in self._taken_ports if not is_port_taken(port, "", self.machine.address)}
        if free:
            self._taken_ports -= free
            self._news.mark_changed()

    # -- all of it

    def build_node(self) -> Node:
        settings, looked = self._settings, self.machine
        attributes = {**looked.attributes, **self._volumes.attributes, **self._connecting.attributes}
        for name, told in self._health.items():
            if told.healthy:
                attributes[f"driver.{name}"] = "1"
                attributes |= told.attributes or {}
        reserved = settings.reserved
        return Node(
            id=self._node_id,
            name=self._places.name,
            datacenter=self._places.datacenter,
            node_class=settings.node_class,
            node_pool=settings.node_pool,
            attributes=attributes,
            meta=self._metadata.merged,
            node_resources=self._devices.add_devices(self._connecting.add_networks(looked.resources)),
            reserved_resources=ReservedResources(
                cpu=ReservedCpu(cpu_shares=reserved.cpu),
                memory=NodeMemory(memory_mb=reserved.memory),
                disk=NodeDisk(disk_mb=reserved.disk),
                networks=ReservedNetworks(
                    reserved_host_ports=format_reserved_ports(reserved.reserved_ports, self._taken_ports)
                ),
            ),
            identity_signing_key_id=self._own_identity.signing_key_id,
            events=self._news.pending_events,
            drivers=dict(self._health),
            host_volumes=dict(self._volumes.by_name),
            host_networks={
                name: HostNetwork(name=name, cidr=net.cidr, interface=net.interface, reserved_ports=net.reserved_ports)
                for name, net in settings.host_network.items()
            },
        )


def format_reserved_ports(ranges: str, more: Collection[int]) -> str:
    return ",".join([*filter(None, [ranges]), *map(str, sorted(more))])


def build_driver_info(health: Health, now_ns: int) -> DriverInfo:
    return DriverInfo(
        attributes=dict(health.attributes),
        detected=health.is_there,
        healthy=health.is_healthy,
        health_description=health.why,
        update_time=to_datetime(now_ns),
    )
