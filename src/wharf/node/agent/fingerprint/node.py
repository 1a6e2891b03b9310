"""Builds the description of the node for servers, and requests a new registration when it changes."""

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
"""Seconds between checks of the machine, the drivers and the plugins."""


class NodeFingerprint:
    """The description of the node, built from machine, drivers, networks, volumes, devices and metadata."""

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
        self._location = location
        self._drivers = drivers
        self._event_queue = event_queue
        self._metadata = metadata
        self._signed_identity = signed_identity
        self._networks = networks
        self._volumes = volumes
        self._devices = devices
        self._health: dict[str, DriverInfo] = {}
        self._unhealthy_drivers: set[str] = set()
        self._taken_ports: set[int] = set()
        self.machine = self._probe_machine()

    def _probe_machine(self) -> machine.MachineInfo:
        """Return the machine's attributes, resources and address, read from the kernel."""
        settings = self._settings
        return machine.probe_machine(
            self._location.allocation_folder,
            interface=settings.network_interface,
            min_port=settings.min_dynamic_port,
            max_port=settings.max_dynamic_port,
        )

    async def load_plugins(self) -> None:
        """Add the stored volumes of volume plugins to the node, then load the device plugins."""
        await self._volumes.restore()
        await self._devices.load_plugins()

    async def probe(self) -> None:
        """Check networks and drivers, and store the drivers' health.

        A change of a driver's health is queued as a node event.
        """
        await self._networks.probe()
        for name, driver in self._drivers.items():
            if name:
                driver_info = build_driver_info(await driver.probe(), self._world.now_ns())
                previous_info = self._health.get(name)
                self._report_health_change(
                    name, was_healthy=previous_info is not None and previous_info.healthy, driver_info=driver_info
                )
                if (
                    previous_info is None
                    or replace(driver_info, update_time=previous_info.update_time) != previous_info
                ):
                    self._health[name] = driver_info

    def _report_health_change(self, name: str, *, was_healthy: bool, driver_info: DriverInfo) -> None:
        """Queue a node event if the driver became unhealthy, or healthy after it was unhealthy.

        A driver that is healthy at the first check causes no event.
        """
        if was_healthy == driver_info.healthy or (driver_info.healthy and name not in self._unhealthy_drivers):
            return
        self._unhealthy_drivers ^= {name}
        self._event_queue.add_event(NodeEventSubsystem.DRIVER, driver_info.health_description, driver=name)

    async def list_working_drivers(self) -> list[str]:
        """Check networks and drivers, then return the names of the healthy drivers."""
        await self.probe()
        return [name for name, driver_info in self._health.items() if driver_info.healthy]

    def describe_unavailable_drivers(self) -> str:
        """Return the drivers that cannot run tasks, each with its reason, as of the last check."""
        return "; ".join(
            f"{name} ({driver_info.health_description})"
            for name, driver_info in sorted(self._health.items())
            if not driver_info.healthy
        )

    async def probe_and_build_node(self) -> Node:
        """Check networks and drivers, then return the description of the node."""
        await self.probe()
        return self.build_node()

    async def watch_for_changes(self) -> None:
        """Check machine, drivers, volumes and devices at intervals; request a new registration after a change.

        Runs until canceled. Also releases ports that other programs no longer hold.
        """
        previous = self._collect_compared_values()
        while True:
            await asyncio.sleep(FINGERPRINT_INTERVAL_S)
            await self.probe()
            self._release_free_ports()
            self.machine = machine.merge_machine_info(self.machine, self._probe_machine())
            await self._volumes.probe()
            await self._devices.probe()
            if (current := self._collect_compared_values()) != previous:
                previous = current
                self._event_queue.mark_changed()

    def _collect_compared_values(self) -> tuple[object, ...]:
        """Return (driver health, machine, attributes, devices): a difference between two checks is a change."""
        attributes = self._volumes.attributes | self._networks.attributes
        return dict(self._health), self.machine, attributes, self._devices.groups

    # -- ports that other programs hold

    def mark_port_taken(self, port: int) -> None:
        """Report a port that another program holds as reserved, so that servers do not assign it again.

        Queues a node event for it, once for each port.
        """
        if port not in self._taken_ports:
            self._taken_ports.add(port)
            self._event_queue.add_event(
                NodeEventSubsystem.CLUSTER, f"Port {port} is in use by another program and is not assigned to tasks"
            )

    def _release_free_ports(self) -> None:
        """Stop reserving ports that other programs no longer hold, and request a new registration if there are any."""
        free = {port for port in self._taken_ports if not is_port_taken(port, "", self.machine.address)}
        if free:
            self._taken_ports -= free
            self._event_queue.mark_changed()

    # -- the whole description

    def build_node(self) -> Node:
        """Return the description of the node from the results of the last checks; checks nothing itself."""
        settings, machine_info = self._settings, self.machine
        attributes = {**machine_info.attributes, **self._volumes.attributes, **self._networks.attributes}
        for name, driver_info in self._health.items():
            if driver_info.healthy:
                attributes[f"driver.{name}"] = "1"
                attributes |= driver_info.attributes or {}
        reserved = settings.reserved
        return Node(
            id=self._node_id,
            name=self._location.name,
            datacenter=self._location.datacenter,
            node_class=settings.node_class,
            http_addr=self._location.http_address,
            node_pool=settings.node_pool,
            attributes=attributes,
            meta=self._metadata.merged,
            node_resources=self._devices.add_devices(self._networks.add_networks(machine_info.resources)),
            reserved_resources=ReservedResources(
                cpu=ReservedCpu(cpu_shares=reserved.cpu),
                memory=NodeMemory(memory_mb=reserved.memory),
                disk=NodeDisk(disk_mb=reserved.disk),
                networks=ReservedNetworks(
                    reserved_host_ports=format_reserved_ports(reserved.reserved_ports, self._taken_ports)
                ),
            ),
            identity_signing_key_id=self._signed_identity.signing_key_id,
            events=self._event_queue.pending_events,
            drivers=dict(self._health),
            host_volumes=dict(self._volumes.by_name),
            host_networks={
                name: HostNetwork(name=name, cidr=net.cidr, interface=net.interface, reserved_ports=net.reserved_ports)
                for name, net in settings.host_network.items()
            },
        )


def format_reserved_ports(ranges: str, additional_ports: Collection[int]) -> str:
    """Return the configured port ranges and `additional_ports` as one text, such as `1-1024,8080`."""
    return ",".join([*filter(None, [ranges]), *map(str, sorted(additional_ports))])


def build_driver_info(health: Health, now_ns: int) -> DriverInfo:
    """Return a driver's health as the message for servers, with `now_ns` as its update time."""
    return DriverInfo(
        attributes=dict(health.attributes),
        detected=health.is_there,
        healthy=health.is_healthy,
        health_description=health.why,
        update_time=to_datetime(now_ns),
    )
