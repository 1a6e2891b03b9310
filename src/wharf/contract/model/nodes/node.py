"""Nodes: the machines that run allocations, their drain, their drivers and their events.

Only a digest of a node's secret is stored. The allowed status changes are in `state_machines.transitions`; the resources
of a node are in `resources`.
"""

import datetime
import enum

import msgspec

from wharf.contract.model.nodes.resources import NodeResources, ReservedResources
from wharf.contract.model.record import Record


class NodeStatus(enum.StrEnum):
    INITIALIZING = "initializing"
    READY = "ready"
    DOWN = "down"
    DISCONNECTED = "disconnected"


class SchedulingEligibility(enum.StrEnum):
    ELIGIBLE = "eligible"
    INELIGIBLE = "ineligible"


class DrainStatus(enum.StrEnum):
    DRAINING = "draining"
    COMPLETE = "complete"
    CANCELED = "canceled"


class NodeEventSubsystem(enum.StrEnum):
    """The part of the system that reports a node event."""

    CLUSTER = "Cluster"
    DRAIN = "Drain"
    DRIVER = "Driver"
    SCHEDULER = "Scheduler"
    STORAGE = "Storage"
    CSI = "CSI"
    HEARTBEAT = "Heartbeat"


MAX_NODE_EVENTS = 10
"""Events stored for each node, the newest; limits the size of the record."""


class NodeEvent(Record):
    """An event in the history of a node."""

    message: str = ""
    subsystem: NodeEventSubsystem = NodeEventSubsystem.CLUSTER
    details: dict[str, str] | None = None
    timestamp: datetime.datetime | None = None
    create_index: int = 0


class DrainStrategy(Record):
    """How a node is drained. A deadline above 0 is a time limit, 0 sets no limit, and below 0 all allocations move at once."""

    deadline: int = 0  # ns
    ignore_system_jobs: bool = False
    force_deadline: datetime.datetime | None = None
    started_at: datetime.datetime | None = None


class DrainMetadata(Record):
    """The latest drain: who requested it and its status."""

    started_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None
    status: DrainStatus = DrainStatus.DRAINING
    accessor_id: str = ""
    meta: dict[str, str] | None = None


class DriverInfo(Record):
    """Whether a driver is available and healthy on the node."""

    attributes: dict[str, str] | None = None
    detected: bool = False
    healthy: bool = False
    health_description: str = ""
    update_time: datetime.datetime | None = None


class NodeHostVolume(Record):
    """A folder of the node that jobs can mount. Only dynamic volumes have an ID."""

    name: str = ""
    path: str = ""
    read_only: bool = False
    id: str = ""


class HostNetwork(Record):
    name: str = ""
    cidr: str = ""
    interface: str = ""
    reserved_ports: str = ""


class CSITopology(Record):
    segments: dict[str, str] | None = None


class CSIControllerInfo(Record):
    supports_read_only_attach: bool = False
    supports_attach_detach: bool = False
    supports_list_volumes: bool = False
    supports_list_volumes_attached_nodes: bool = False


class CSINodeInfo(Record):
    id: str = ""
    max_volumes: int = 0
    accessible_topology: CSITopology | None = None
    requires_node_stage_volume: bool = False


class CSIInfo(Record):
    """A CSI storage plugin that runs on the node."""

    plugin_id: str = ""
    alloc_id: str = ""
    provider: str = ""
    provider_version: str = ""
    healthy: bool = False
    health_description: str = ""
    update_time: datetime.datetime | None = None
    requires_controller_plugin: bool = False
    requires_topologies: bool = False
    controller_info: CSIControllerInfo | msgspec.UnsetType = msgspec.UNSET
    node_info: CSINodeInfo | msgspec.UnsetType = msgspec.UNSET


class Node(Record):
    """A machine that runs allocations. `drain` is true when a strategy is set; `set_drain_strategy` changes both together."""

    id: str
    secret_digest: str = ""  # SHA-256 in hex of the secret; never in a reply.
    name: str = ""
    datacenter: str = "dc1"
    node_class: str = ""
    node_pool: str = "default"
    http_addr: str = ""
    tls_enabled: bool = False
    cgroup_parent: str = ""
    attributes: dict[str, str] | None = None
    meta: dict[str, str] | None = None
    links: dict[str, str] | None = None
    node_resources: NodeResources | None = None
    reserved_resources: ReservedResources | None = None
    computed_class: str = ""
    drain: bool = False
    drain_strategy: DrainStrategy | None = None
    scheduling_eligibility: SchedulingEligibility = SchedulingEligibility.ELIGIBLE
    status: NodeStatus = NodeStatus.INITIALIZING
    status_description: str = ""
    status_updated_at: int = 0  # Seconds since the epoch, unlike every other time.
    identity_signing_key_id: str = ""
    events: tuple[NodeEvent, ...] | None = None  # Newest last.
    drivers: dict[str, DriverInfo] | None = None
    host_volumes: dict[str, NodeHostVolume] | None = None
    gc_volumes_on_node_gc: bool = msgspec.field(name="GCVolumesOnNodeGC", default=False)
    host_networks: dict[str, HostNetwork] | None = None
    csi_controller_plugins: dict[str, CSIInfo] | None = None
    csi_node_plugins: dict[str, CSIInfo] | None = None
    last_drain: DrainMetadata | None = None
    node_max_allocs: int = 0  # 0: no limit
    last_missed_heartbeat_index: int = 0
    last_alloc_update_index: int = 0
    reports_from: int = 0  # The first report number of the agent, as it registered; 0 if it did not send one.
    create_index: int = 0
    modify_index: int = 0

    @property
    def is_ready_for_placements(self) -> bool:
        """Whether new allocations may be placed on the node."""
        return (
            self.status is NodeStatus.READY
            and self.drain_strategy is None
            and self.scheduling_eligibility is SchedulingEligibility.ELIGIBLE
        )


def set_drain_strategy(node: Node, strategy: DrainStrategy | None) -> Node:
    """Return the node with this drain strategy; `None` ends the drain."""
    return msgspec.structs.replace(node, drain=strategy is not None, drain_strategy=strategy)


def add_node_event(node: Node, event: NodeEvent) -> Node:
    """Return the node with one more event. Only the newest `MAX_NODE_EVENTS` are retained."""
    return msgspec.structs.replace(node, events=((*(node.events or ()), event))[-MAX_NODE_EVENTS:])


def add_new_node_events(node: Node, events: tuple[NodeEvent, ...] | None) -> Node:
    """Return the node with those of its reported events that are not stored yet. A node may report an event more than once."""
    known = {(event.timestamp, event.message) for event in node.events or ()}
    for event in events or ():
        if (event.timestamp, event.message) not in known:
            node = add_node_event(node, event)
    return node
