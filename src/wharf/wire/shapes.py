"""Bodies that cross the wire and are no records: requests, replies, list forms."""

import datetime
from typing import Any

import msgspec

from wharf.model.allocated_resources import AllocatedResources
from wharf.model.allocation import AllocDeploymentStatus, ClientStatus, DesiredStatus, DesiredTransition, NetworkStatus
from wharf.model.job import Job
from wharf.model.node import Node
from wharf.model.record import Record
from wharf.model.registration import ServiceRegistration
from wharf.model.summary import JobSummary
from wharf.model.task_state import TaskState


class JobSource(Record):
    """The text that a job was made from, with its variables."""

    source: str = ""
    format: str = ""
    variable_flags: dict[str, str] | None = None
    variables: str = ""


class JobRegisterRequest(Record):
    job: Job | None = None
    submission: JobSource | None = None
    enforce_index: bool = False
    job_modify_index: int = 0
    policy_override: bool = False
    preserve_counts: bool = False
    preserve_resources: bool = False
    eval_priority: int = 0
    namespace: str = ""
    region: str = ""
    secret_id: str = ""


class JobRegisterResponse(Record):
    eval_id: str = ""
    eval_create_index: int = 0
    job_modify_index: int = 0
    warnings: str = ""
    index: int = 0
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""
    next_periodic_launches: tuple[datetime.datetime, ...] | msgspec.UnsetType = msgspec.UNSET
    """Of a periodic job: when it is launched next, a few times ahead."""


class JobDeregisterResponse(Record):
    eval_id: str = ""
    eval_create_index: int = 0
    job_modify_index: int = 0
    volume_eval_id: str = ""
    volume_eval_index: int = 0
    index: int = 0
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""


class JobStub(Record):
    """A job as lists show it."""

    id: str
    parent_id: str = ""
    name: str = ""
    namespace: str = ""
    datacenters: tuple[str, ...] = ()
    node_pool: str = ""
    multiregion: None = None
    type: str = ""
    priority: int = 0
    periodic: bool = False
    parameterized_job: bool = False
    stop: bool = False
    status: str = ""
    status_description: str = ""
    job_summary: JobSummary | None = None
    create_index: int = 0
    modify_index: int = 0
    job_modify_index: int = 0
    submit_time: int = 0
    meta: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class EligibilityRequest(Record):
    node_id: str = ""
    eligibility: str = ""


class NodeUpdateResponse(Record):
    heartbeat_ttl: int = msgspec.field(name="HeartbeatTTL", default=0)  # ns
    eval_ids: tuple[str, ...] | None = msgspec.field(name="EvalIDs", default=None)
    eval_create_index: int = 0
    node_modify_index: int = 0
    index: int = 0
    must_report: bool = False
    """The node gets nothing new until it has told of every allocation that it knows, in a report with `is_whole`."""
    reports_from: int = 0
    """From where on the node is to number its reports, if that is not behind it; 0: they have no numbers."""


class NodeRegistration(Record):
    """A node says what it is, and by which secret it will be known. With a `reports_from` above 0 its agent begins, and
    asks from where on it is to number its reports."""

    node: Node
    secret_id: str


class DesiredRequest(Record):
    ids: tuple[str, ...] = msgspec.field(name="IDs", default=())


class DesiredWork(Record):
    """What a node needs to know of an allocation, beside its job."""

    id: str
    name: str = ""
    namespace: str = ""
    job_id: str = ""
    task_group: str = ""
    desired_status: DesiredStatus = DesiredStatus.RUN
    client_status: ClientStatus = ClientStatus.PENDING
    alloc_modify_index: int = 0
    allocated_resources: AllocatedResources | None = None
    deployment_id: str = ""
    """Set where the servers want to know whether it is healthy."""
    desired_transition: DesiredTransition | None = None
    previous_allocation: str = ""
    """The one whose place it takes: where it is on the same node, this one waits for its end."""


class DesiredAllocation(Record):
    allocation: DesiredWork
    job: Job | None = None


class FormerAllocation(Record):
    """What a node must know of an allocation whose place one of its own takes."""

    id: str
    node_id: str = ""
    client_status: ClientStatus = ClientStatus.PENDING
    migrate_token: str = ""
    """With it what the allocation has left may be read: empty where its node is known no more."""

    @property
    def is_out_of_the_way(self) -> bool:
        """Nobody waits for what has ended, nor for what is on a node that nobody hears of."""
        return self.client_status.is_terminal or self.client_status is ClientStatus.UNKNOWN


class AllocationUpdate(Record):
    """What a node says of one of its allocations."""

    id: str
    client_status: ClientStatus
    client_description: str = ""
    task_states: dict[str, TaskState] | None = None
    deployment_status: AllocDeploymentStatus | None = None
    network_status: NetworkStatus | None = None
    services: tuple[ServiceRegistration, ...] | None = None
    """Those of it that run now; None: nothing is said of them."""
    log_tails: bytes = b""
    """When it is over: the ends of its tasks' logs, as `model.log_tails` packs them."""


class NodeReportRequest(Record):
    """The same `report_id` again changes nothing. `is_whole`: with it the node has told of all that it knows.

    `number`: greater than that of every report before it; what is older than what is known is refused. 0: it has none.
    """

    report_id: str = ""
    number: int = 0
    is_whole: bool = False
    allocations: tuple[AllocationUpdate, ...] = ()


class NodeReportResponse(Record):
    index: int = 0
    must_report: bool = False


class StateSizes(Record):
    """How many records each table holds, and where the log stands."""

    index: int
    tables: dict[str, int]
    engine: dict[str, Any]
