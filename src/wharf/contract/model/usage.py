"""A report about the use of a cluster: the fullest nodes, the largest jobs, and what waits. Nothing is decided here."""

import enum

from wharf.contract.model.record import Record


class UsageOrder(enum.StrEnum):
    """By what the nodes and the jobs of a report are sorted. The largest shares and amounts come first."""

    CPU = "cpu"
    MEMORY = "memory"
    ALLOCATIONS = "allocations"
    NAME = "name"


class NodeUsage(Record):
    """What the allocations of one node request, and what the node has for allocations."""

    id: str
    name: str
    node_pool: str = ""
    datacenter: str = ""
    status: str = ""  # Such as `ready`, `down`, or `draining` and `ineligible` for a node that accepts no placements.
    allocations: int = 0  # How many allocations are on it.
    cpu: int = 0  # MHz that its allocations request.
    cpu_capacity: int = 0  # MHz
    memory_mb: int = 0  # MB that its allocations request.
    memory_capacity_mb: int = 0
    disk_mb: int = 0
    disk_capacity_mb: int = 0


class JobUsage(Record):
    """What the allocations of one job request that are not ended."""

    id: str
    namespace: str
    type: str = ""
    priority: int = 0
    allocations: int = 0
    running: int = 0  # How many of them run.
    cpu: int = 0  # MHz
    memory_mb: int = 0


class WaitingJob(Record):
    """A job that lacks allocations, because an evaluation of it waits."""

    job_id: str
    namespace: str
    eval_id: str
    unplaced: int = 0  # How many elements of arrays and allocations of other groups wait.
    elements: int = 0  # How many of them are elements of arrays.
    since: int = 0  # Since when, in ns since 1970.
    reason: str = ""


class ClusterUsage(Record):
    """The use of a cluster. The counts are those of everything; the lists have the first ones only."""

    node_count: int = 0
    ready_count: int = 0  # Nodes that accept placements.
    cpu: int = 0
    cpu_capacity: int = 0  # Of all nodes that are not down.
    memory_mb: int = 0
    memory_capacity_mb: int = 0
    nodes: tuple[NodeUsage, ...] = ()
    job_count: int = 0  # Jobs with allocations that are not ended.
    jobs: tuple[JobUsage, ...] = ()
    waiting_count: int = 0
    waiting: tuple[WaitingJob, ...] = ()  # Those that wait longest first.
