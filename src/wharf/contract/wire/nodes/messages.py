"""Bodies about nodes that are no records: how nodes are shown, and what is asked of them.

Bodies that cross the wire and are no records: requests, replies, list forms.

Bodies by which nodes ask for signed identities: of the tasks that they run, and their own.
"""

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

_NOT_SHOWN: Final = frozenset(("secret_digest", "reports_from"))
_SHOWN_FIELDS: Final = tuple(name for name in Node.__struct_fields__ if name not in _NOT_SHOWN)


def _shown_definition() -> list[tuple[str, Any, Any]]:
    """The fields of a node as replies show it: all of the record's but two, and a SecretID that is empty."""
    found: list[tuple[str, Any, Any]] = [("secret_id", str, msgspec.field(name="SecretID", default=""))]
    for field in msgspec.structs.fields(Node):
        if field.name in _NOT_SHOWN:
            continue
        found.append((field.name, field.type, msgspec.field(name=field.encode_name, default=field.default)))
    return found


# Built from the record's fields, so that a field of nodes is declared once.
if TYPE_CHECKING:

    class NodeView(Node):
        secret_id: str = ""

else:
    NodeView = msgspec.defstruct("NodeView", _shown_definition(), module=__name__, frozen=True, gc=False, kw_only=True)


def build_node_view(node: Node) -> msgspec.Struct:
    """The node as everybody may see it."""
    return NodeView(**{name: getattr(node, name) for name in _SHOWN_FIELDS})


class NodeListStub(Record):
    """A node as lists show it."""

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
    """`deadline` in ns: above 0 a bound, 0 none, below 0 everything moves at once."""

    deadline: int = 0
    ignore_system_jobs: bool = False


class NodeDrainRequest(Record):
    """Without a `drain_spec` the drain is called off."""

    node_id: str = ""
    drain_spec: DrainSpec | None = None
    mark_eligible: bool = False
    meta: dict[str, str] | None = None


class NodeChangeResponse(Record):
    """What came of a drain or of a change of eligibility."""

    node_modify_index: int = 0
    eval_ids: tuple[str, ...] | None = msgspec.field(name="EvalIDs", default=None)
    eval_create_index: int = 0
    index: int = 0


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


class AssignmentsRequest(Record):
    ids: tuple[str, ...] = msgspec.field(name="IDs", default=())


class AssignedAllocation(Record):
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


class Assignment(Record):
    allocation: AssignedAllocation
    job: Job | None = None


class PredecessorView(Record):
    """What a node must know of an allocation whose place one of its own takes."""

    id: str
    node_id: str = ""
    client_status: ClientStatus = ClientStatus.PENDING
    migrate_token: str = ""
    """With it what the allocation has left may be read: empty where its node is known no more."""

    @property
    def is_finished_or_unknown(self) -> bool:
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


class IdentitiesRequest(Record):
    """Of one task of one of the node's allocations; `names` are those of the identities that its job declares."""

    alloc_id: str
    task: str
    names: tuple[str, ...] = ()


class SignedIdentity(Record):
    """`expires`: in ns since the epoch; 0: it holds until its allocation is over."""

    name: str
    jwt: str
    issued: int = 0
    expires: int = 0

    def with_local_times(self, now_ns: int) -> "SignedIdentity":
        """Just signed, with its times as the clock of whoever hears it tells them: that of the signer may differ."""
        expires = now_ns + self.expires - self.issued if self.expires else 0
        return msgspec.structs.replace(self, issued=now_ns, expires=expires)

    def __repr__(self) -> str:
        """Without what is secret."""
        return f"SignedIdentity({self.name})"


class IdentitiesReply(Record):
    identities: tuple[SignedIdentity, ...] = ()


class NodeIdentityReply(Record):
    """The node's own."""

    identity: SignedIdentity
    signing_key_id: str = msgspec.field(name="SigningKeyID", default="")


class NodeMetaApplyRequest(Record):
    """A null takes a key away."""

    node_id: str = ""
    meta: dict[str, str | None] | None = None


class NodeMetaResponse(Record):
    """What jobs see, and what of it was set while the node ran and what its configuration says."""

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
