"""The queue of jobs that wait for capacity, as people see it. Nothing is decided here."""

from enum import StrEnum

from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.record import Record


class QueueEntry(Record):
    """A job that waits for capacity, as the queue of waiting jobs shows it."""

    place: int  # Its place in the order of retries, counted from 1, among all jobs that wait.
    eval_id: str
    job_id: str
    namespace: str
    priority: int = 0
    waiting_since: int = 0  # ns since the epoch
    unplaced: int = 0  # How many elements of arrays and allocations of other groups wait.
    elements: int = 0  # How many of them are elements of arrays.
    requested_share: float = 0.0  # The share of the cluster that its missing allocations request, 0.0 to 1.0.
    failed_groups: dict[str, AllocMetric] | None = None  # Why allocations could not be placed, by group.
    quota_limit_reached: str = ""  # The quota that prevents a placement.
    waits_behind: str = ""  # The parent job whose maximum number of children already runs.
    locks: tuple[str, ...] | None = None  # For each step that waits for a lock, a text about who holds it.
    reserved_node_id: str = ""  # The node whose freed capacity is reserved for it.
    reserved_node_name: str = ""  # Empty if the caller may not read nodes.


class NamespaceShareView(Record):
    """The part of the cluster that a namespace uses. The order of retries divides it by the weight."""

    namespace: str
    weight: int = 1
    used_share: float = 0.0  # The larger of its shares of CPU and memory, 0.0 to 1.0.
    waiting: int = 0  # How many of its jobs wait for capacity.


class JobQueue(Record):
    """The jobs that wait for capacity, in the order in which they are retried."""

    entries: tuple[QueueEntry, ...] = ()
    count: int = 0  # How many jobs wait for capacity, also in namespaces that the caller may not read.
    pending: int = 0  # How many evaluations the scheduler has not processed yet.
    delayed: int = 0  # How many of these are not due yet.
    shares: tuple[NamespaceShareView, ...] = ()  # The namespaces with waiting jobs, the largest share first.


class QueueReasonKind(StrEnum):
    """What a waiting job lacks."""

    RESOURCE = "resource"  # All suitable nodes have too little of a resource.
    CONSTRAINT = "constraint"  # A rule excludes the nodes.
    NODES = "nodes"  # No node of the node pool is ready in the datacenters of the job.
    QUOTA = "quota"
    PARENT = "parent"  # The maximum number of children of its parent job runs.
    LOCK = "lock"
    OTHER = "other"


class QueueReason(Record):
    """A reason why jobs wait for capacity, with the job that has waited longest for it."""

    kind: QueueReasonKind
    name: str  # The resource, rule, node pool, quota, parent job or key of the lock.
    count: int  # How many jobs wait for this reason.
    job_id: str
    namespace: str
    waiting_since: int  # Since when this job has waited, in ns since the epoch.


class QueueReasons(Record):
    """The jobs that wait for capacity by their reasons. Each job counts once, with its most important reason."""

    reasons: tuple[QueueReason, ...] = ()  # The reason of most jobs first.
    count: int = 0  # How many jobs wait in the requested namespaces that the caller may read.
    others: int = 0  # How many of them wait for reasons that are not listed, because there are too many.
