"""The list of nodes and the page of one node."""

from collections.abc import Mapping
from typing import Any

import msgspec

from wharf.contract.model.nodes.resources import NodeDevice, NodeResources, ReservedResources
from wharf.contract.model.resource_usage import get_capacity
from wharf.contract.model.times import to_ns
from wharf.contract.wire.nodes.messages import NodeListStub, NodeView
from wharf.contract.wire.nodes.use import NodeOrder, NodeUse, RequestedResources
from wharf.web.rendering import build_link, format_age, format_clock, format_span
from wharf.web.views.allocations import AllocationRow, build_allocation_row
from wharf.web.views.charts import Chart, build_chart, read_map, read_number
from wharf.web.views.people import Author, Names, name_author
from wharf.web.views.states import State, describe_node

MEGABYTE = 1024 * 1024


class Amount(msgspec.Struct, frozen=True):
    """How much of a resource is requested by allocations, of how much."""

    name: str
    unit: str
    requested: int
    capacity: int

    @property
    def percent(self) -> int:
        return min(100, round(100 * self.requested / self.capacity)) if self.capacity else 0

    @property
    def level(self) -> str:
        """How full it is, as the style shows it."""
        return "full" if self.percent >= 90 else "high" if self.percent >= 70 else "normal"


class NodeRow(msgspec.Struct, frozen=True):
    """A node in the list."""

    key: str
    url: str
    name: str
    short_id: str
    state: State
    pool: str
    node_class: str
    datacenter: str
    cpu: Amount
    memory: Amount
    version: str

    @property
    def fullest(self) -> Amount:
        """The resource of which allocations request the larger share."""
        return max(self.cpu, self.memory, key=lambda amount: amount.percent)


class DeviceRow(msgspec.Struct, frozen=True):
    """All devices of one model."""

    name: str
    count: int
    healthy: int
    in_use: int


class NodeVolumeView(msgspec.Struct, frozen=True):
    """A host volume of the node."""

    name: str
    path: str
    is_read_only: bool


class DrainView(msgspec.Struct, frozen=True):
    """The drain of a node, or its last one: who, from when, until when."""

    is_active: bool
    author: Author | None
    started: str
    """Such as "2026-11-28 10:00 UTC"; empty if it is not known."""
    started_age: str
    end: str
    """When it ended, or when what still runs is stopped; empty if there is no such time."""
    end_age: str
    """How long ago that was, or how long it lasts until then."""
    status: str
    note: str


class NodeEventRow(msgspec.Struct, frozen=True):
    """Something that happened to the node."""

    at_ns: int
    age: str
    text: str


class NodePageView(msgspec.Struct, frozen=True):
    """The page of a node."""

    id: str
    name: str
    state: State
    address: str
    pool: str
    node_class: str
    datacenter: str
    amounts: tuple[Amount, ...]
    drivers: tuple[tuple[str, str], ...]
    allocations: tuple[AllocationRow, ...]
    hidden_allocations: int
    events: tuple[NodeEventRow, ...]
    is_draining: bool
    is_eligible: bool
    charts: tuple[Chart, ...]
    drain: DrainView | None
    """The drain of the node, or its last one; `None` if there was none."""
    is_drained: bool
    """Whether a drain has emptied the node, and it is still ineligible."""
    devices: tuple[DeviceRow, ...]
    volumes: tuple[NodeVolumeView, ...]


MAX_ALLOCATIONS = 100
MAX_EVENTS = 10
MAX_VOLUMES = 100
MAX_NOTES = 5
DRAIN_DEADLINES_S = {"10m": 600, "1h": 3_600, "6h": 21_600, "1d": 86_400, "none": 0, "now": -1}
"""The deadlines that the form offers: no limit, or at once, besides durations."""
DEADLINE_TEXTS = {
    "10m": "What still runs after 10 minutes is stopped.",
    "1h": "What still runs after 1 hour is stopped.",
    "6h": "What still runs after 6 hours is stopped.",
    "1d": "What still runs after 1 day is stopped.",
    "none": "They may take any time.",
    "now": "All of them are stopped at once.",
}
"""What each deadline means."""


def read_node_order(text: str) -> NodeOrder:
    """Return the order that the address names, if it is one; by name otherwise."""
    return NodeOrder(text) if text in tuple(NodeOrder) else NodeOrder.NAME


def build_node_row(node: NodeListStub) -> NodeRow:
    """Return a node as the list shows it."""
    capacity = get_capacity(
        node.node_resources if isinstance(node.node_resources, NodeResources) else None,
        node.reserved_resources if isinstance(node.reserved_resources, ReservedResources) else None,
    )
    requested = node.requested_resources
    use = requested if isinstance(requested, RequestedResources) else RequestedResources()
    return NodeRow(
        key=node.id,
        url=build_link("nodes", node.id),
        name=node.name,
        short_id=node.id[:8],
        state=describe_node(node),
        pool=node.node_pool,
        node_class=node.node_class,
        datacenter=node.datacenter,
        cpu=Amount("CPU", "MHz", use.cpu, capacity.cpu),
        memory=Amount("Memory", "MB", use.memory_mb, capacity.memory_mb),
        version=node.version,
    )


def build_node_page(
    node: NodeView, use: NodeUse, figures: Mapping[str, Any], now_ns: int, names: Names | None = None
) -> NodePageView:
    """Return the page of a node: how full it is, what runs on it, and what happened to it."""
    capacity = get_capacity(node.node_resources, node.reserved_resources)
    events = [
        NodeEventRow(at_ns, format_age(at_ns, now_ns), event.message)
        for event in (node.events or ())
        for at_ns in (to_ns(event.timestamp) if event.timestamp else 0,)
    ]
    stub = NodeListStub(
        id=node.id,
        status=node.status,
        drain=node.drain,
        scheduling_eligibility=node.scheduling_eligibility,
        last_drain=node.last_drain,
    )
    amounts = (
        Amount("CPU", "MHz", use.cpu, capacity.cpu),
        Amount("Memory", "MB", use.memory_mb, capacity.memory_mb),
    )
    return NodePageView(
        id=node.id,
        name=node.name,
        state=describe_node(stub),
        address=node.http_addr,
        pool=node.node_pool,
        node_class=node.node_class,
        datacenter=node.datacenter,
        amounts=amounts,
        drivers=tuple(
            (name, "ready" if driver.healthy else driver.health_description or "not ready")
            for name, driver in sorted((node.drivers or {}).items())
            if driver.detected
        ),
        allocations=tuple(build_allocation_row(each, now_ns) for each in use.allocations),
        hidden_allocations=max(0, use.allocation_count - len(use.allocations)),
        events=tuple(reversed(events[-MAX_EVENTS:])),
        is_draining=node.drain,
        is_eligible=str(node.scheduling_eligibility) == "eligible",
        charts=build_machine_charts(figures, amounts[0].percent, amounts[1].requested),
        drain=build_drain_view(node, now_ns, names or {}),
        is_drained=describe_node(stub).text == "drained",
        devices=tuple(
            _build_device_row(device, use)
            for device in (node.node_resources.devices if node.node_resources else None) or ()
        ),
        volumes=tuple(
            NodeVolumeView(name, volume.path, volume.read_only)
            for name, volume in sorted((node.host_volumes or {}).items())[:MAX_VOLUMES]
        ),
    )


def build_machine_charts(figures: Mapping[str, Any], cpu_percent: int, memory_mb: int) -> tuple[Chart, ...]:
    """Return the charts of the machine's use, with what allocations request; none if the node measures nothing."""
    history = figures.get("History")
    total_mb = read_number(read_map(figures.get("Memory")).get("Total")) / MEGABYTE
    charts = (
        build_chart("CPU in use", history, "Percent", unit="%", requested=cpu_percent, full=100),
        build_chart(
            "Memory in use", history, "Memory", unit="MB", divisor=MEGABYTE, requested=memory_mb, full=total_mb
        ),
    )
    return tuple(chart for chart in charts if chart is not None)


def build_drain_view(node: NodeView, now_ns: int, names: Names) -> DrainView | None:
    """Return the drain of the node, or its last one; `None` if there was none."""
    last, strategy = node.last_drain, node.drain_strategy
    if last is None:
        return None
    started_ns = to_ns(last.started_at) if last.started_at else 0
    if not node.drain:
        end_ns = to_ns(last.updated_at) if last.updated_at else 0
        end_age = format_age(end_ns, now_ns)
    else:
        has_end = strategy is not None and strategy.force_deadline is not None
        end_ns = to_ns(strategy.force_deadline) if has_end else 0  # type: ignore[union-attr,arg-type]
        end_age = format_span(end_ns - now_ns) if has_end else ""
    return DrainView(
        is_active=node.drain,
        author=name_author(last.accessor_id, names),
        started=format_clock(started_ns) if started_ns else "",
        started_age=format_age(started_ns, now_ns),
        end=format_clock(end_ns) if end_ns else "",
        end_age=end_age,
        status=str(last.status),
        note="; ".join(f"{name}: {text}" for name, text in sorted((last.meta or {}).items())[:MAX_NOTES]),
    )


def _build_device_row(device: NodeDevice, use: NodeUse) -> DeviceRow:
    instances = device.instances or ()
    names = (device.vendor, device.type, device.name)
    in_use = sum(each.in_use for each in use.devices if (each.vendor, each.type, each.name) == names)
    return DeviceRow("/".join(names), len(instances), sum(each.healthy for each in instances), in_use)
