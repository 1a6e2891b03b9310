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
    """The status of a node, as servers see it."""

    INITIALIZING = "initializing"  # Has not reported its allocations yet.
    READY = "ready"
    DOWN = "down"  # No heartbeat.
    DISCONNECTED = "disconnected"  # No heartbeat, but allocations may continue when it returns.

    @property
    def is_in_contact(self) -> bool:
        """Whether the node sends heartbeats, so that only the node itself can report the end of an allocation."""
        return self in (NodeStatus.INITIALIZING, NodeStatus.READY)


class SchedulingEligibility(enum.StrEnum):
    """Whether new allocations may be placed on a node."""

    ELIGIBLE = "eligible"
    INELIGIBLE = "ineligible"


class DrainStatus(enum.StrEnum):
    """The status of the latest drain of a node."""

    DRAINING = "draining"
    COMPLETE = "complete"
    CANCELED = "canceled"


class NodeEventSubsystem(enum.StrEnum):
    """The part of the system that reported an event of a node."""

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
    """An event in the history of a node, such as a missed heartbeat."""

    message: str = ""
    subsystem: NodeEventSubsystem = NodeEventSubsystem.CLUSTER
    details: dict[str, str] | None = None
    timestamp: datetime.datetime | None = None
    create_index: int = 0


class DrainStrategy(Record):
    """How a node is drained: its allocations move to other nodes within a time limit."""

    deadline: int = 0  # ns; 0: no time limit; negative: all allocations move at once.
    ignore_system_jobs: bool = False  # Do not stop system jobs.
    force_deadline: datetime.datetime | None = None  # When the remaining allocations are stopped.
    started_at: datetime.datetime | None = None


class DrainMetadata(Record):
    """The latest drain of a node: its times, its status and the caller that requested it."""

    started_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None
    status: DrainStatus = DrainStatus.DRAINING
    accessor_id: str = ""  # The token that requested it.
    meta: dict[str, str] | None = None  # Notes of the caller.


class DriverInfo(Record):
    """The state of one driver of a node. A driver runs tasks in one way, such as in containers."""

    attributes: dict[str, str] | None = None
    detected: bool = False  # The programs that it needs exist.
    healthy: bool = False  # It can run tasks.
    health_description: str = ""
    update_time: datetime.datetime | None = None


class NodeHostVolume(Record):
    """A folder of the node that jobs can mount, as the node reports it."""

    name: str = ""
    path: str = ""
    read_only: bool = False
    id: str = ""  # Empty unless it was created through the API.


class HostNetwork(Record):
    """A named network of a node; the ports of a job can request it by name."""

    name: str = ""
    cidr: str = ""
    interface: str = ""
    reserved_ports: str = ""  # Ports that jobs cannot use: "22,8000-8100".


class CSITopology(Record):
    """Where a CSI volume is accessible: names and values of places, such as a zone."""

    segments: dict[str, str] | None = None


class CSIControllerInfo(Record):
    """What the controller of a CSI plugin can do. It attaches volumes to nodes."""

    supports_read_only_attach: bool = False
    supports_attach_detach: bool = False
    supports_list_volumes: bool = False
    supports_list_volumes_attached_nodes: bool = False


class CSINodeInfo(Record):
    """How a CSI plugin mounts volumes on the node."""

    id: str = ""  # The ID of the node for the plugin.
    max_volumes: int = 0  # 0: no limit.
    accessible_topology: CSITopology | None = None
    requires_node_stage_volume: bool = False  # A volume is mounted once on the node before tasks use it.


class CSIInfo(Record):
    """A CSI storage plugin that runs on the node."""

    plugin_id: str = ""
    alloc_id: str = ""  # The allocation that runs it.
    provider: str = ""  # The name that the plugin reports.
    provider_version: str = ""
    healthy: bool = False
    health_description: str = ""
    update_time: datetime.datetime | None = None
    requires_controller_plugin: bool = False
    requires_topologies: bool = False
    controller_info: CSIControllerInfo | msgspec.UnsetType = msgspec.UNSET
    node_info: CSINodeInfo | msgspec.UnsetType = msgspec.UNSET


class Node(Record):
    """A machine that runs allocations. `drain` is true exactly if `drain_strategy` is set."""

    id: str
    secret_digest: str = ""  # SHA-256 in hex of the secret; never in a reply.
    name: str = ""
    datacenter: str = "dc1"
    node_class: str = ""  # A name for nodes of one type, set by operators.
    node_pool: str = "default"
    http_addr: str = ""
    tls_enabled: bool = False
    cgroup_parent: str = ""  # The control group of its tasks.
    attributes: dict[str, str] | None = None
    meta: dict[str, str] | None = None
    links: dict[str, str] | None = None  # Without use; clients expect the field.
    node_resources: NodeResources | None = None
    reserved_resources: ReservedResources | None = None
    computed_class: str = ""  # A digest of what constraints can compare; equal nodes have equal digests.
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
    # Delete its volumes together with the node.
    gc_volumes_on_node_gc: bool = msgspec.field(name="GCVolumesOnNodeGC", default=False)
    host_networks: dict[str, HostNetwork] | None = None
    csi_controller_plugins: dict[str, CSIInfo] | None = None
    csi_node_plugins: dict[str, CSIInfo] | None = None
    last_drain: DrainMetadata | None = None  # The latest drain.
    node_max_allocs: int = 0  # Allocations that it may run at a time; 0: no limit.
    last_missed_heartbeat_index: int = 0  # The log index of its last missed heartbeat; 0: none since it was ready.
    last_alloc_update_index: int = 0  # The log index of its last report of allocations.
    reports_from: int = 0  # The number of the first report since the agent registered; 0: its reports have no numbers.
    create_index: int = 0
    modify_index: int = 0

    @property
    def is_ready_for_placements(self) -> bool:
        """Whether new allocations may be placed on the node: it is ready, eligible and not draining."""
        return (
            self.status is NodeStatus.READY
            and self.drain_strategy is None
            and self.scheduling_eligibility is SchedulingEligibility.ELIGIBLE
        )


def set_drain_strategy(node: Node, strategy: DrainStrategy | None) -> Node:
    """Return the node with this drain strategy. `None` ends the drain."""
    return msgspec.structs.replace(node, drain=strategy is not None, drain_strategy=strategy)


def add_node_event(node: Node, event: NodeEvent) -> Node:
    """Return the node with one more event in its history. Only the newest `MAX_NODE_EVENTS` events are retained."""
    return msgspec.structs.replace(node, events=((*(node.events or ()), event))[-MAX_NODE_EVENTS:])


def add_new_node_events(node: Node, events: tuple[NodeEvent, ...] | None) -> Node:
    """Return the node with those of the reported events added to its history that are not in it yet.

    A node may report an event more than once.
    """
    known = {(event.timestamp, event.message) for event in node.events or ()}
    for event in events or ():
        if (event.timestamp, event.message) not in known:
            node = add_node_event(node, event)
    return node
