"""Messages of node endpoints that are not records: views, requests and replies, including those for signed identities."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from wharf.contract.model.allocations.allocation import (
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
    DesiredTransition,
    NetworkStatus,
)
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.allocations.task_states import TaskState
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_outputs import ReportedOutputs
from wharf.contract.model.nodes.node import (
    DrainMetadata,
    DriverInfo,
    Node,
    NodeHostVolume,
    NodeStatus,
    SchedulingEligibility,
)
from wharf.contract.model.nodes.resources import NodeResources, ReservedResources
from wharf.contract.model.record import Record
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.wire.nodes.use import RequestedResources
from wharf.contract.wire.times import DurationText

_HIDDEN_FIELDS: Final = frozenset(("secret_digest", "reports_from"))
"""Fields of the record that replies omit."""
_VIEW_FIELDS: Final = tuple(name for name in Node.__struct_fields__ if name not in _HIDDEN_FIELDS)


def _build_view_fields() -> list[tuple[str, Any, Any]]:
    """Return (name, type, default) of each field of a node in replies, as `msgspec.defstruct` expects them.

    They are the fields of the record without the hidden ones, and an empty `SecretID`, which Nomad's clients expect.
    """
    view_fields: list[tuple[str, Any, Any]] = [("secret_id", str, msgspec.field(name="SecretID", default=""))]
    for field in msgspec.structs.fields(Node):
        if field.name in _HIDDEN_FIELDS:
            continue
        view_fields.append((field.name, field.type, msgspec.field(name=field.encode_name, default=field.default)))
    return view_fields


# Built from the fields of the record, so that each field is declared only once.
if TYPE_CHECKING:

    class NodeView(Node):
        """A node as replies show it: without its secrets."""

        secret_id: str = ""  # Always empty; expected by Nomad's clients.

else:
    NodeView = msgspec.defstruct("NodeView", _build_view_fields(), module=__name__, frozen=True, gc=False, kw_only=True)


def build_node_view(node: Node) -> msgspec.Struct:
    """Return the node as replies show it, without secrets and internal fields."""
    return NodeView(**{name: getattr(node, name) for name in _VIEW_FIELDS})


class NodeListStub(Record):
    """A node in a list."""

    address: str = ""  # IP address or host name.
    id: str
    attributes: dict[str, str] | msgspec.UnsetType = msgspec.UNSET  # Present only if requested.
    datacenter: str = ""
    name: str = ""
    node_pool: str = ""
    node_class: str = ""
    version: str = ""  # Version of its agent.
    drain: bool = False  # Whether it is draining.
    scheduling_eligibility: SchedulingEligibility = SchedulingEligibility.ELIGIBLE
    """Whether new allocations may be placed on it."""
    status: NodeStatus = NodeStatus.INITIALIZING
    status_description: str = ""
    drivers: dict[str, DriverInfo] | None = None  # By driver name.
    host_volumes: dict[str, NodeHostVolume] | None = None  # By volume name.
    node_resources: NodeResources | msgspec.UnsetType | None = msgspec.UNSET
    """All resources; present only if requested."""
    reserved_resources: ReservedResources | msgspec.UnsetType | None = msgspec.UNSET
    """Resources not for tasks; present only if requested."""
    requested_resources: RequestedResources | msgspec.UnsetType = msgspec.UNSET
    """What its allocations request together; present only if `use` requests it."""
    last_drain: DrainMetadata | None = None  # Its current or last drain.
    create_index: int = 0  # Log index of its creation.
    modify_index: int = 0  # Log index of its last change.


class DrainSpec(Record):
    """How to drain a node, that is, to move all allocations off it."""

    deadline: int = 0  # In ns. Above 0: time limit; 0: no limit; below 0: move all allocations at once.
    ignore_system_jobs: bool = False  # Whether allocations of system jobs stay.


class NodeDrainRequest(Record):
    """A request to start, change or cancel a drain of a node."""

    node_id: str = ""
    drain_spec: DrainSpec | None = None  # None cancels the drain.
    mark_eligible: bool = False  # On a cancellation: whether the node is eligible for allocations again.
    meta: dict[str, str] | None = None  # Notes of the operator, stored with the drain.


class NodeChangeResponse(Record):
    """The reply to a drain or to a change of eligibility."""

    node_modify_index: int = 0  # Log index of the node's change.
    eval_ids: tuple[str, ...] | None = msgspec.field(name="EvalIDs", default=None)  # The evaluations that were created.
    eval_create_index: int = 0  # Log index of the evaluations.
    index: int = 0  # Log index of the write.


class EligibilityRequest(Record):
    """A request to set whether new allocations may be placed on a node."""

    node_id: str = ""
    eligibility: str = ""  # `eligible` or `ineligible`.


class NodeUpdateResponse(Record):
    """The reply to a node's registration or heartbeat, and to requests to evaluate or purge a node."""

    heartbeat_ttl: int = msgspec.field(name="HeartbeatTTL", default=0)
    """In ns: the node must send its next heartbeat within this time."""
    eval_ids: tuple[str, ...] | None = msgspec.field(name="EvalIDs", default=None)  # The evaluations that were created.
    eval_create_index: int = 0  # Log index of the evaluations.
    node_modify_index: int = 0  # Log index of the node's last change.
    index: int = 0  # Log index of the write.
    must_report: bool = False
    """Whether the node must first report the states of all its allocations; until then it is assigned no new ones."""
    reports_from: int = 0
    """The number of the node's next report, unless the node already uses a higher one; 0 if reports are not numbered.
    """
    cluster_id: str = msgspec.field(name="ClusterID", default="")  # The id of the cluster; empty if it has none yet.


class NodeRegistration(Record):
    """A node's request to register, with its record and the secret that authenticates its later requests.

    If the record has a `reports_from` above 0, the agent has just started and needs the number of its next report.
    """

    node: Node
    secret_id: str


class AssignmentsRequest(Record):
    """A node's request for complete allocations by ID."""

    ids: tuple[str, ...] = msgspec.field(name="IDs", default=())
    # Whether the reply may contain each job once: see `Assignment.job_of`. Nodes of earlier releases do not set it.
    shares_jobs: bool = False


class AssignedAllocation(Record):
    """The part of an allocation that its node needs, without the job."""

    id: str
    name: str = ""
    namespace: str = ""
    job_id: str = ""
    task_group: str = ""  # The name of its group in the job.
    desired_status: DesiredStatus = DesiredStatus.RUN  # What servers want: run, stop or evict.
    client_status: ClientStatus = ClientStatus.PENDING  # The state that the node reported last.
    alloc_modify_index: int = 0  # Log index of the last change by servers.
    allocated_resources: AllocatedResources | None = None
    deployment_id: str = ""
    """Set if the node must determine the allocation's health for a deployment."""
    desired_transition: DesiredTransition | None = None  # Requests such as a restart or a migration.
    previous_allocation: str = ""
    """ID of its predecessor, which it replaces; empty if none.

    If both are on the same node, it waits until the predecessor has ended.
    """
    array_attempt: int = 0  # The attempt of the array of which it runs an element; 0: its group has no array.
    array_item: str = ""  # The item of its element.
    step_outputs: dict[str, dict[str, str]] | None = (
        None  # The texts of the steps that its step needs, by step and name.
    )


class Assignment(Record):
    """An allocation with its job, as servers send it to the node that must run it."""

    allocation: AssignedAllocation
    job: Job | None = None  # The version of the job to run; None if it is no longer stored.
    # The ID of an earlier allocation of the same reply, whose job this allocation has too; then `job` is None.
    job_of: str = ""


def restore_shared_jobs(assignments: Sequence[Assignment]) -> list[Assignment]:
    """Return the assignments of a reply, each with its job. Assignments of one job share it in memory."""
    jobs = {each.allocation.id: each.job for each in assignments if not each.job_of}
    return [
        msgspec.structs.replace(each, job=jobs.get(each.job_of), job_of="") if each.job_of else each
        for each in assignments
    ]


class PredecessorView(Record):
    """The part of a predecessor that a node needs. The predecessor is the allocation that another one replaces."""

    id: str
    node_id: str = ""  # The node that runs or ran it.
    client_status: ClientStatus = ClientStatus.PENDING
    migrate_token: str = ""
    """Grants read access to the data of the predecessor; empty if its node no longer exists."""

    @property
    def is_finished_or_unknown(self) -> bool:
        """Whether the replacement can start without waiting.

        It can if the predecessor has ended or if its node is disconnected.
        """
        return self.client_status.is_terminal or self.client_status is ClientStatus.UNKNOWN


class AllocationUpdate(Record):
    """The state of one allocation in a node's report."""

    id: str
    client_status: ClientStatus
    client_description: str = ""  # Why it has this state.
    task_states: dict[str, TaskState] | None = None  # By task name.
    deployment_status: AllocDeploymentStatus | None = None
    network_status: NetworkStatus | None = None  # Address and interface; None if it has no own network.
    services: tuple[ServiceRegistration, ...] | None = None
    """Its current service registrations, or None if the report does not include them."""
    log_tails: bytes = b""
    """The last log lines of the tasks of an ended allocation, packed by `model.allocations.logs`."""
    outputs: ReportedOutputs | None = None  # The texts of an ended allocation of a step, if it declares any.


class NodeReportRequest(Record):
    """A node's report of the states of its allocations. The same `report_id` again changes nothing."""

    report_id: str = ""  # A unique ID, which makes a repeated request harmless.
    number: int = 0
    """Higher than that of every earlier report, so that servers refuse reports that arrive late; 0: not numbered."""
    is_whole: bool = False  # Whether the node has reported all of its allocations with this report.
    allocations: tuple[AllocationUpdate, ...] = ()


class NodeReportResponse(Record):
    """The reply to a node's report."""

    index: int = 0  # Log index of the write.
    must_report: bool = False  # Whether the node must report the states of all its allocations.


class IdentitiesRequest(Record):
    """A node's request for signed identities of one of its tasks."""

    alloc_id: str
    task: str  # The task's name.
    names: tuple[str, ...] = ()  # The names of the identities, as the job declares them.


class SignedIdentity(Record):
    """A signed identity token."""

    name: str  # The name of the identity in the job.
    jwt: str  # The token.
    issued: int = 0  # In ns since 1970.
    expires: int = 0  # In ns since 1970; 0: valid until the allocation ends.

    def with_local_times(self, now_ns: int) -> "SignedIdentity":
        """Return the identity with its times moved to the clock of this machine: issued at `now_ns`, same lifetime.

        The clock of the signing server may differ. Call this right after the identity was received.
        """
        expires = now_ns + self.expires - self.issued if self.expires else 0
        return msgspec.structs.replace(self, issued=now_ns, expires=expires)

    def __repr__(self) -> str:
        """Return a text without the token, for logs."""
        return f"SignedIdentity({self.name})"


class IdentitiesReply(Record):
    """The signed identities of a task."""

    identities: tuple[SignedIdentity, ...] = ()


class NodeIdentityReply(Record):
    """The signed identity of a node itself."""

    identity: SignedIdentity
    signing_key_id: str = msgspec.field(name="SigningKeyID", default="")


class NodeMetaApplyRequest(Record):
    """A request to change metadata of a node while it runs."""

    node_id: str = ""
    meta: dict[str, str | None] | None = None  # New values by key; null deletes a key.


class NodeMetaResponse(Record):
    """The metadata of a node."""

    meta: dict[str, str] | None = None  # The effective metadata, which jobs see.
    dynamic: dict[str, str | None] | None = None  # Set by requests; null hides a key of the configuration.
    static: dict[str, str] | None = None  # Set in the configuration.


class NodeIdentityRequest(Record):
    """A request to renew the signed identity of a node."""

    node_id: str = ""


class IntroductionRequest(Record):
    """A request for an introduction token, with which a new node may register."""

    ttl: DurationText = ""  # Lifetime of the token; empty: the default.
    node_name: str = ""  # The only node name that may use it; empty: any.
    node_pool: str = ""  # The only node pool that may use it; empty: any.


class IntroductionReply(Record):
    """An introduction token, with which a new node may register."""

    jwt: str  # The token.
