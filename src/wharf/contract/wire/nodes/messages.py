"""Messages of node endpoints that are not records: views, requests and replies, including those for signed identities."""

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
from wharf.contract.wire.times import DurationText

_HIDDEN_FIELDS: Final = frozenset(("secret_digest", "reports_from"))
_VIEW_FIELDS: Final = tuple(name for name in Node.__struct_fields__ if name not in _HIDDEN_FIELDS)


def _build_view_fields() -> list[tuple[str, Any, Any]]:
    """Return the fields of a node in replies: those of the record without the hidden ones, and an empty SecretID."""
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

        secret_id: str = ""

else:
    NodeView = msgspec.defstruct("NodeView", _build_view_fields(), module=__name__, frozen=True, gc=False, kw_only=True)


def build_node_view(node: Node) -> msgspec.Struct:
    """Return the node as replies show it."""
    return NodeView(**{name: getattr(node, name) for name in _VIEW_FIELDS})


class NodeListStub(Record):
    """A node in a list."""

    address: str = ""
    id: str
    attributes: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    datacenter: str = ""
    name: str = ""
    node_pool: str = ""
    node_class: str = ""
    version: str = ""
    drain: bool = False
    scheduling_eligibility: SchedulingEligibility = SchedulingEligibility.ELIGIBLE
    status: NodeStatus = NodeStatus.INITIALIZING
    status_description: str = ""
    drivers: dict[str, DriverInfo] | None = None
    host_volumes: dict[str, NodeHostVolume] | None = None
    node_resources: NodeResources | msgspec.UnsetType | None = msgspec.UNSET
    reserved_resources: ReservedResources | msgspec.UnsetType | None = msgspec.UNSET
    last_drain: DrainMetadata | None = None
    create_index: int = 0
    modify_index: int = 0


class DrainSpec(Record):
    """How to drain a node. `deadline` in ns: above 0 is a time limit, 0 sets no limit, below 0 moves everything at once."""

    deadline: int = 0
    ignore_system_jobs: bool = False


class NodeDrainRequest(Record):
    """Starts or changes a drain. Without a `drain_spec` it cancels the drain."""

    node_id: str = ""
    drain_spec: DrainSpec | None = None
    mark_eligible: bool = False
    meta: dict[str, str] | None = None


class NodeChangeResponse(Record):
    """The reply to a drain or to a change of eligibility."""

    node_modify_index: int = 0
    eval_ids: tuple[str, ...] | None = msgspec.field(name="EvalIDs", default=None)
    eval_create_index: int = 0
    index: int = 0


class EligibilityRequest(Record):
    node_id: str = ""
    eligibility: str = ""


class NodeUpdateResponse(Record):
    """The reply to a node's registration, heartbeat or evaluation."""

    heartbeat_ttl: int = msgspec.field(name="HeartbeatTTL", default=0)  # ns
    eval_ids: tuple[str, ...] | None = msgspec.field(name="EvalIDs", default=None)
    eval_create_index: int = 0
    node_modify_index: int = 0
    index: int = 0
    must_report: bool = False
    """Whether the node must first report all of its allocations (`is_whole`); until then it gets no new ones."""
    reports_from: int = 0
    """The number for the node's next report, unless the node is already beyond it; 0 if reports are not numbered."""


class NodeRegistration(Record):
    """The node record that a node registers, and the secret that authenticates it later.

    A node record with `reports_from` above 0 says that the agent has just started and needs the number for its next report.
    """

    node: Node
    secret_id: str


class AssignmentsRequest(Record):
    ids: tuple[str, ...] = msgspec.field(name="IDs", default=())


class AssignedAllocation(Record):
    """What a node needs to know of an allocation, apart from its job."""

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
    """Set if the node must determine the allocation's health for a deployment."""
    desired_transition: DesiredTransition | None = None
    previous_allocation: str = ""
    """The allocation that it replaces. If that one is on the same node, this one waits until it has ended."""


class Assignment(Record):
    """An allocation with its job, as servers send it to the node that must run it."""

    allocation: AssignedAllocation
    job: Job | None = None


class PredecessorView(Record):
    """What a node needs to know of the allocation that one of its own replaces."""

    id: str
    node_id: str = ""
    client_status: ClientStatus = ClientStatus.PENDING
    migrate_token: str = ""
    """Grants read access to the data of the allocation; empty if its node no longer exists."""

    @property
    def is_finished_or_unknown(self) -> bool:
        """Whether the successor can start without waiting: the allocation has ended, or its node is disconnected."""
        return self.client_status.is_terminal or self.client_status is ClientStatus.UNKNOWN


class AllocationUpdate(Record):
    """A node's report on one of its allocations."""

    id: str
    client_status: ClientStatus
    client_description: str = ""
    task_states: dict[str, TaskState] | None = None
    deployment_status: AllocDeploymentStatus | None = None
    network_status: NetworkStatus | None = None
    services: tuple[ServiceRegistration, ...] | None = None
    """Its current service registrations, or None if the report does not cover them."""
    log_tails: bytes = b""
    """After it has ended: the last log lines of its tasks, packed by `model.allocations.logs`."""


class NodeReportRequest(Record):
    """A node's report on its allocations. Sending the same `report_id` again changes nothing.

    `is_whole`: with this report the node has reported all of its allocations. `number`: greater than that of every earlier report;
    a report older than the newest known one is refused. 0 means that it is not numbered.
    """

    report_id: str = ""
    number: int = 0
    is_whole: bool = False
    allocations: tuple[AllocationUpdate, ...] = ()


class NodeReportResponse(Record):
    index: int = 0
    must_report: bool = False


class IdentitiesRequest(Record):
    """Requests signed identities for one task of the node; `names` are those that its job declares."""

    alloc_id: str
    task: str
    names: tuple[str, ...] = ()


class SignedIdentity(Record):
    """A signed workload identity. `expires` is in ns since the epoch; 0 means that it is valid until the allocation ends."""

    name: str
    jwt: str
    issued: int = 0
    expires: int = 0

    def with_local_times(self, now_ns: int) -> "SignedIdentity":
        """Return a just signed identity with its times moved to the clock of this machine, which may differ from the signer's."""
        expires = now_ns + self.expires - self.issued if self.expires else 0
        return msgspec.structs.replace(self, issued=now_ns, expires=expires)

    def __repr__(self) -> str:
        """Return a text without the token, for logs."""
        return f"SignedIdentity({self.name})"


class IdentitiesReply(Record):
    identities: tuple[SignedIdentity, ...] = ()


class NodeIdentityReply(Record):
    """The node's own signed identity."""

    identity: SignedIdentity
    signing_key_id: str = msgspec.field(name="SigningKeyID", default="")


class NodeMetaApplyRequest(Record):
    """Changes dynamic metadata of a node. Null deletes a key."""

    node_id: str = ""
    meta: dict[str, str | None] | None = None


class NodeMetaResponse(Record):
    """The metadata that jobs see, and its two sources: set at run time (dynamic) and configured (static)."""

    meta: dict[str, str] | None = None
    dynamic: dict[str, str | None] | None = None
    static: dict[str, str] | None = None


class NodeIdentityRequest(Record):
    node_id: str = ""


class IntroductionRequest(Record):
    ttl: DurationText = ""
    node_name: str = ""
    node_pool: str = ""


class IntroductionReply(Record):
    jwt: str
