"""Collects the devices of all plugins of this node."""

import logging
from collections.abc import Mapping, Sequence
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
from wharf.node.plugins import NodeEventReporter, PluginError, call_plugin, list_entry_points
from wharf.world import World

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP: Final = "wharf.devices"


class NodeDevices:
    """The device plugins of this node, and the devices that they report."""

    def __init__(self, world: World, options: Mapping[str, str], report_event: NodeEventReporter) -> None:
        self._world = world
        self._options = options
        self._report_event = report_event
        self._plugins: list[DevicePlugin] = []
        self._plugin_errors: dict[str, str] = {}
        """Errors by plugin name. An event is recorded when the error changes."""
        self._plugins_by_kind: dict[Kind, DevicePlugin] = {}
        self.groups: tuple[NodeDevice, ...] = ()
        """The devices as reported to the servers."""

    async def load_plugins(self) -> None:
        """Load the installed device plugins, then read the devices of all of them.

        A plugin that cannot be loaded is reported as a node event.
        """
        for point in list_entry_points(ENTRY_POINT_GROUP):
            try:
                self._plugins.append(await call_plugin(self._world, self._load_plugin(point)))
            except PluginError as error:
                self._set_plugin_error(point.name, f"it cannot be loaded: {error}")
        await self.probe()

    async def _load_plugin(self, point: EntryPoint) -> DevicePlugin:
        """Import the plugin of an entry point and create it with the node's options."""
        plugin: DevicePlugin = point.load()(self._options)
        return plugin

    async def probe(self) -> None:
        """Read the devices of all plugins and store them; a plugin that fails is reported as a node event.

        If two plugins report the same kind of device, only the first plugin's devices are used.
        """
        groups: dict[Kind, NodeDevice] = {}
        plugins_by_kind: dict[Kind, DevicePlugin] = {}
        for plugin in self._plugins:
            try:
                groups_of_plugin = await call_plugin(self._world, _read_groups(plugin))
            except PluginError as error:
                self._set_plugin_error(plugin.name, str(error))
                continue
            duplicates = [kind for kind, _ in groups_of_plugin if kind in plugins_by_kind]
            self._set_plugin_error(
                plugin.name,
                f"plugin {plugins_by_kind[duplicates[0]].name} reports {duplicates[0]} already" if duplicates else "",
            )
            for kind, device in groups_of_plugin:
                if kind not in plugins_by_kind:
                    groups[kind], plugins_by_kind[kind] = device, plugin
        self._plugins_by_kind = plugins_by_kind
        self.groups = tuple(groups[kind] for kind in sorted(groups))

    def add_devices(self, resources: NodeResources) -> NodeResources:
        """Return the resources with the devices of this node."""
        return replace(resources, devices=self.groups or None)

    async def reserve_devices(self, devices: Sequence[AllocatedDevice]) -> Reserved:
        """Have the plugins reserve the task's devices. Return the combined environment, mounts and device files.

        Raises CannotReserve.
        """
        total = Reserved()
        for device in devices:
            kind = Kind(device.vendor, device.type, device.name)
            plugin = self._plugins_by_kind.get(kind)
            if plugin is None:
                raise CannotReserve(f"no plugin of this node reports devices {kind} any more")
            try:
                reserved = await call_plugin(
                    self._world,
                    _reserve_with_plugin(plugin, kind, tuple(device.device_ids or ())),
                    expected_errors=(CannotReserve,),
                )
            except (PluginError, CannotReserve) as error:
                raise CannotReserve(f"devices {kind}: {error}") from error
            total = Reserved(
                {**total.environment, **reserved.environment},
                (*total.mounts, *reserved.mounts),
                (*total.nodes, *reserved.nodes),
            )
        return total

    async def measure_devices(self) -> list[dict[str, Any]] | None:
        """Return the device statistics of all plugins in the format of the API; None if there are no plugins.

        A plugin that fails is skipped with a warning in the log.
        """
        if not self._plugins:
            return None
        statistics: list[dict[str, Any]] = []
        now = self._world.now_ns()
        for plugin in self._plugins:
            try:
                statistics += await call_plugin(self._world, _read_figures(plugin, now))
            except PluginError as error:
                log.warning("device plugin failed to measure plugin=%s error=%s", plugin.name, error)
        return statistics

    def _set_plugin_error(self, plugin: str, why: str) -> None:
        """Store the error of a plugin, and record a node event if it is new. An empty `why` means no error."""
        if self._plugin_errors.get(plugin, "") == why:
            return
        self._plugin_errors[plugin] = why
        if why:
            self._report_event(f"Device plugin {plugin} failed", plugin=plugin, error=why)


async def _read_groups(plugin: DevicePlugin) -> list[tuple[Kind, NodeDevice]]:
    """Return the devices that the plugin reports, with their kinds, in the format of the API.

    The conversion runs under the plugin's error handling, so invalid values count as an error of the plugin.
    """
    return [_convert_group(group) for group in await plugin.fingerprint()]


async def _reserve_with_plugin(plugin: DevicePlugin, kind: Kind, device_ids: Sequence[str]) -> Reserved:
    """Return the plugin's reservation for the device instances with these ids, copied into a new `Reserved`.

    The copy is made under the plugin's error handling, so invalid values count as an error of the plugin.
    """
    result = await plugin.reserve(kind, device_ids)
    return Reserved(dict(result.environment), tuple(result.mounts), tuple(result.nodes))


async def _read_figures(plugin: DevicePlugin, now_ns: int) -> list[dict[str, Any]]:
    """Return the measured values of a plugin's devices in the format of the API, sorted by kind."""
    statistics = []
    for kind, instances in sorted((await plugin.measure()).items()):
        instance_stats = {
            id: {
                "Summary": _convert_figure(each.summary),
                "Stats": {"Attributes": {name: _convert_figure(figure) for name, figure in each.figures.items()}},
                "Timestamp": now_ns,
            }
            for id, each in instances.items()
        }
        statistics.append(
            {"Vendor": kind.vendor, "Type": kind.type, "Name": kind.name, "InstanceStats": instance_stats}
        )
    return statistics


def _convert_group(group: DeviceGroup) -> tuple[Kind, NodeDevice]:
    """Return (kind, devices) of a group that a plugin reported, in the format of the API."""
    kind = Kind(*group.kind)
    return kind, NodeDevice(
        vendor=kind.vendor,
        type=kind.type,
        name=kind.name,
        instances=tuple(_convert_instance(each) for each in sorted(group.instances, key=lambda each: each.id)),
        attributes={name: _convert_attribute(value) for name, value in sorted(group.attributes.items())},
    )


def _convert_instance(instance: Instance) -> DeviceInstance:
    """Return the device instance in the format of the API."""
    return DeviceInstance(
        id=instance.id,
        healthy=instance.is_healthy,
        health_description=instance.why,
        locality=DeviceLocality(pci_bus_id=instance.pci_bus_id) if instance.pci_bus_id else None,
    )


def _convert_attribute(value: AttributeValue) -> DeviceAttribute:
    """Return the device attribute in the format of the API, which has one field for each type."""
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


def _convert_figure(figure: Figure) -> dict[str, Any]:
    """Return the measured value in the format of the API, which has fields for value and maximum of each type."""
    value, maximum = figure.value, figure.of
    match value:
        case bool():
            result: dict[str, Any] = {"BoolVal": value}
        case str():
            result = {"StringVal": value}
        case int():
            result = {"IntNumeratorVal": value, **({"IntDenominatorVal": maximum} if maximum is not None else {})}
        case float():
            result = {"FloatNumeratorVal": value, **({"FloatDenominatorVal": maximum} if maximum is not None else {})}
    return result | {name: text for name, text in (("Unit", figure.unit), ("Desc", figure.about)) if text}
