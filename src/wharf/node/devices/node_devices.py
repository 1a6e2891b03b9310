"""All devices of this node, by the plugins that tell of them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any, Final

from msgspec.structs import replace

from wharf.contract.model.allocations.resources import AllocatedDevice
from wharf.contract.model.nodes.resources import (
    DeviceAttribute,
    DeviceInstance,
    DeviceLocality,
    NodeDevice,
    NodeResources,
)
from wharf.node.devices.port import (
    AttributeValue,
    CannotReserve,
    DeviceGroup,
    DevicePlugin,
    Figure,
    Instance,
    Kind,
    Measure,
    Reserved,
)
from wharf.node.plugins import PluginError, call_plugin, list_entry_points
from wharf.world import World

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP: Final = "wharf.devices"

NodeEventReporter = Callable[..., None]
"""(message, **details): an event of the node."""


class NodeDevices:
    def __init__(self, world: World, options: Mapping[str, str], report_event: NodeEventReporter) -> None:
        self._world = world
        self._options = options
        self._tell = report_event
        self._plugins: list[DevicePlugin] = []
        self._ill: dict[str, str] = {}
        """What ails a plugin, by its name: told when it changes."""
        self._owners: dict[Kind, DevicePlugin] = {}
        self.groups: tuple[NodeDevice, ...] = ()
        """As servers are told of them."""

    async def load_plugins(self) -> None:
        """Find the plugins that are installed, and ask each what there is."""
        for point in list_entry_points(ENTRY_POINT_GROUP):
            try:
                self._plugins.append(await call_plugin(self._world, self._loaded(point)))
            except PluginError as error:
                self._note(point.name, f"it cannot be loaded: {error}")
        await self.probe()

    async def _loaded(self, point: EntryPoint) -> DevicePlugin:
        plugin: DevicePlugin = point.load()(self._options)
        return plugin

    async def probe(self) -> None:
        groups: dict[Kind, NodeDevice] = {}
        owners: dict[Kind, DevicePlugin] = {}
        for plugin in self._plugins:
            try:
                told = await call_plugin(self._world, _groups_of(plugin))
            except PluginError as error:
                self._note(plugin.name, str(error))
                continue
            twice = [kind for kind, _ in told if kind in owners]
            self._note(plugin.name, f"{twice[0]} is told of by {owners[twice[0]].name} already" if twice else "")
            for kind, device in told:
                if kind not in owners:
                    groups[kind], owners[kind] = device, plugin
        self._owners = owners
        self.groups = tuple(groups[kind] for kind in sorted(groups))

    def add_devices(self, resources: NodeResources) -> NodeResources:
        return replace(resources, devices=self.groups or None)

    async def reserve_devices(self, devices: Sequence[AllocatedDevice]) -> Reserved:
        """What a task needs to use what it was given. Raises CannotReserve."""
        found = Reserved()
        for device in devices:
            kind = Kind(device.vendor, device.type, device.name)
            owner = self._owners.get(kind)
            if owner is None:
                raise CannotReserve(f"no plugin of this node knows devices {kind} any more")
            try:
                one = await call_plugin(
                    self._world,
                    _reserved_by(owner, kind, tuple(device.device_ids or ())),
                    expected_errors=(CannotReserve,),
                )
            except (PluginError, CannotReserve) as error:
                raise CannotReserve(f"devices {kind}: {error}") from error
            found = Reserved(
                {**found.environment, **one.environment}, (*found.mounts, *one.mounts), (*found.nodes, *one.nodes)
            )
        return found

    async def measure_devices(self) -> list[dict[str, Any]] | None:  # In the words of the interface.
        if not self._plugins:
            return None
        found: list[dict[str, Any]] = []
        now = self._world.now_ns()
        for plugin in self._plugins:
            try:
                found += await call_plugin(self._world, _figures_of(plugin, now))
            except PluginError as error:
                log.warning("a plugin of devices measures nothing: %s", error, extra={"plugin": plugin.name})
        return found

    def _note(self, plugin: str, why: str) -> None:
        if self._ill.get(plugin, "") == why:
            return
        self._ill[plugin] = why
        if why:
            self._tell(f"The plugin {plugin} tells of no devices", plugin=plugin, error=why)


async def _groups_of(plugin: DevicePlugin) -> list[tuple[Kind, NodeDevice]]:
    """Put into our words in its own task, too: it may say what is none of its words."""
    return [_shown(group) for group in await plugin.fingerprint()]


async def _reserved_by(plugin: DevicePlugin, kind: Kind, ids: Sequence[str]) -> Reserved:
    said = await plugin.reserve(kind, ids)
    return Reserved(dict(said.environment), tuple(said.mounts), tuple(said.nodes))


async def _figures_of(plugin: DevicePlugin, now_ns: int) -> list[dict[str, Any]]:  # In the words of the interface.
    found = []
    for kind, instances in sorted((await plugin.measure()).items()):
        stats = {
            id: {
                "Summary": _figure(each.summary),
                "Stats": {"Attributes": {name: _figure(one) for name, one in each.figures.items()}},
                "Timestamp": now_ns,
            }
            for id, each in instances.items()
        }
        found.append({"Vendor": kind.vendor, "Type": kind.type, "Name": kind.name, "InstanceStats": stats})
    return found


def _shown(group: DeviceGroup) -> tuple[Kind, NodeDevice]:
    kind = Kind(*group.kind)
    return kind, NodeDevice(
        vendor=kind.vendor,
        type=kind.type,
        name=kind.name,
        instances=tuple(_instance(each) for each in sorted(group.instances, key=lambda each: each.id)),
        attributes={name: _attribute(value) for name, value in sorted(group.attributes.items())},
    )


def _instance(instance: Instance) -> DeviceInstance:
    return DeviceInstance(
        id=instance.id,
        healthy=instance.is_healthy,
        health_description=instance.why,
        locality=DeviceLocality(pci_bus_id=instance.pci_bus_id) if instance.pci_bus_id else None,
    )


def _attribute(value: AttributeValue) -> DeviceAttribute:
    match value:
        case bool():
            return DeviceAttribute(bool_=value)
        case str():
            return DeviceAttribute(string=value)
        case int():
            return DeviceAttribute(int_=value)
        case float():
            return DeviceAttribute(float_=value)
        case Measure(number, unit):
            is_whole = isinstance(number, int)
            return DeviceAttribute(
                int_=int(number) if is_whole else None, float_=None if is_whole else float(number), unit=unit
            )


def _figure(figure: Figure) -> dict[str, Any]:
    """One of the four pairs of fields is there."""
    value, of = figure.value, figure.of
    match value:
        case bool():
            said: dict[str, Any] = {"BoolVal": value}
        case str():
            said = {"StringVal": value}
        case int():
            said = {"IntNumeratorVal": value, **({"IntDenominatorVal": of} if of is not None else {})}
        case float():
            said = {"FloatNumeratorVal": value, **({"FloatDenominatorVal": of} if of is not None else {})}
    return said | {name: text for name, text in (("Unit", figure.unit), ("Desc", figure.about)) if text}
