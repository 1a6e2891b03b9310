"""Allocations: instances of a group on a node, with their desired status and the status that the node reports.

The record is small, because a million of them are held in memory: it names the version of its job instead of holding the
job, and shares its resources and metrics with its siblings. What an allocation should do is decided elsewhere.
"""

import datetime
import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.allocations.task_states import TaskState, TaskStateView
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.networks import DNS
from wharf.contract.model.record import Record, SparseRecord

# These fields are decoded separately: decoding an allocation leaves them as bytes of the same format (JSON or msgpack). The
# replica replaces the first two with the struct of their type, through a cache, so that siblings share one object. Task states
# differ between allocations and are half of their size: the replica stores them as bytes and decodes them on access.
if TYPE_CHECKING:
    SharedResources = AllocatedResources | None
    SharedMetrics = AllocMetric | None
    PackedStates = Mapping[str, TaskState] | None
else:
    SharedResources = msgspec.Raw
    SharedMetrics = msgspec.Raw
    PackedStates = msgspec.Raw


class DesiredStatus(enum.StrEnum):
    """What servers want of an allocation: to run, or to stop."""

    RUN = "run"
    STOP = "stop"
    EVICT = "evict"  # Stop, because a job of higher priority needs the resources.


class ClientStatus(enum.StrEnum):
    """The state of an allocation as its node reports it.

    Servers assign `LOST` and `UNKNOWN` when the node is out of contact.
    """

    PENDING = "pending"
    RUNNING = "running"
    COMPLETE = "complete"  # All tasks ended without a failure.
    FAILED = "failed"
    LOST = "lost"  # Its node is down; it is replaced.
    UNKNOWN = "unknown"  # Its node is out of contact, but may still run it.

    @property
    def is_terminal(self) -> bool:
        """Whether none of the tasks runs any longer."""
        return self in (ClientStatus.COMPLETE, ClientStatus.FAILED, ClientStatus.LOST)


NOT_RETRIED_PREFIX: Final = "not retried: "
"""The beginning of the description of a failed allocation of a step with `Retry`. The reason why it is not retried follows."""
OVERDUE_TEXT: Final = "allocation exceeded max_run_duration"
"""The client description of an allocation that its node stopped because it ran longer than `MaxRunDuration`."""
INTERRUPTED_TEXT: Final = "alloc was stopped by its node before its end"
"""The description of an allocation of a finite job that a node stopped although servers wanted it to run."""

REPORTED_END_STATUSES: Final = frozenset((ClientStatus.COMPLETE, ClientStatus.FAILED))
"""The client statuses in which an allocation certainly runs no longer: only a report of its node sets them."""
REPORT_NUMBERS_PER_INDEX: Final = 65_536
"""Distance between first report numbers of successive log indexes, so that two ranges never overlap (ADR 64)."""


class RescheduleOutcome(enum.StrEnum):
    """The result of the last attempt to replace a failed allocation."""

    NONE = ""  # No attempt was made.
    OK = "ok"
    NO_PLACEMENT = "no placement"  # No node could run the replacement.


class DesiredTransition(Record):
    """Requests to the scheduler to move or replace an allocation. Null means that this request was never made."""

    migrate: bool | None = None  # Stop it and place a replacement on another node.
    reschedule: bool | None = None  # Replace the failed allocation.
    force_reschedule: bool | None = None  # Replace it even if its reschedule policy does not allow it.
    no_shutdown_delay: bool | None = None  # Stop it without its shutdown delay.
    migrate_disable_placement: bool | None = None  # Stop it without a replacement.
    move_to: str = ""  # With `migrate`: the preferred node for the replacement, if it has capacity.


class AllocationState(Record):
    """A change of the client status that servers made, because the node was out of contact."""

    field: int = 0  # Always 0, which stands for the client status.
    value: str = ""  # The new status.
    time: datetime.datetime | None = None


class AllocDeploymentStatus(Record):
    """The health of an allocation in its deployment."""

    healthy: bool | None = None  # Null until the node or an operator decides it.
    timestamp: datetime.datetime | None = None  # When the health was decided.
    canary: bool = False  # Whether it is a canary: a new version beside the old one.
    modify_index: int = 0


class RetryCause(enum.StrEnum):
    """Why a run of an element of a step with `Retry` ended without success."""

    NONE = ""  # The group has no `Retry`.
    PROGRAM = "program"  # The program failed, or took too long. Only this uses up an attempt.
    DRIVER = "driver"  # It failed before the program ran, or nothing observed the end of the program.
    NODE = "node"  # The node was lost, or stopped the allocation at its own end.
    MIGRATION = "migration"  # It was moved to another node, such as by a drain.
    PREEMPTION = "preemption"
    STOP = "stop"  # Servers stopped it for another reason.


class RescheduleEvent(Record):
    """One replacement of a failed allocation."""

    reschedule_time: int = 0  # ns since the epoch
    prev_alloc_id: str = ""  # The failed allocation.
    prev_node_id: str = ""  # Its node.
    delay: int = 0  # ns between the failure and the replacement.
    cause: RetryCause = RetryCause.NONE  # Why the allocation ended, if its step has `Retry`.
    detail: str = ""  # A text about the cause, such as `main: Exit Code: 75`.


class RescheduleTracker(Record):
    """The replacements of failed allocations that led to this one, oldest first."""

    events: tuple[RescheduleEvent, ...] | None = None
    last_reschedule: RescheduleOutcome = RescheduleOutcome.NONE


class NetworkStatus(Record):
    """The network interface and addresses inside the network namespace of an allocation."""

    interface_name: str = ""
    address: str = ""
    address_ipv6: str = msgspec.field(name="AddressIPv6", default="")
    dns: DNS | None = None


class Allocation(SparseRecord):
    """An instance of a group on a node.

    The default of each field is the value that the wire format omits. The name is `job.group[index]`.
    """

    id: str
    namespace: str = ""
    eval_id: str = ""  # The evaluation that placed it.
    name: str = ""
    node_id: str = ""
    node_name: str = ""
    job_id: str = ""
    job_version: int = 0
    job_create_index: int = 0  # Distinguishes it from an earlier job with the same ID.
    task_group: str = ""
    allocated_resources: SharedResources = None
    metrics: SharedMetrics = None
    desired_status: DesiredStatus
    desired_description: str = ""  # Why servers want this status.
    desired_transition: DesiredTransition | None = None
    client_status: ClientStatus
    client_description: str = ""
    task_states: PackedStates = None
    alloc_states: tuple[AllocationState, ...] | None = None  # Client statuses that servers assigned, oldest first.
    deployment_id: str = ""
    deployment_status: AllocDeploymentStatus | None = None
    followup_eval_id: str = ""  # The evaluation that will replace it after a delay.
    previous_allocation: str = ""  # The allocation that it replaces.
    next_allocation: str = ""  # Its replacement.
    reschedule_tracker: RescheduleTracker | None = None
    network_status: NetworkStatus | None = None
    preempted_allocations: tuple[str, ...] | None = None
    preempted_by_allocation: str = ""
    log_tails: bytes = b""  # The last log lines of its tasks, compressed; stored after it has ended.
    signing_key_id: str = ""  # The keyring key that was active when it was placed, and signs its first identity tokens.
    report_number: int = 0  # The number of the node's last report that changed it; 0 if no numbered report did.
    array_attempt: int = 0  # The attempt of the array of which it runs an element; 0: its group has no array.
    array_item: str = ""  # The item of its element.
    array_result: str = ""  # The result of its element, if this allocation decided it: succeeded or failed.
    output_texts: bytes = b""  # Packed texts of its programs for later steps, until its element has a result.
    lock_key: str = ""  # The lock of its step, of which it holds a slot until its node has reported its end.
    create_index: int = 0
    modify_index: int = 0
    alloc_modify_index: int = 0  # The log index of the last change by servers; reports of the node do not change it.
    create_time: int = 0  # ns since the epoch
    modify_time: int = 0

    @property
    def is_server_terminal(self) -> bool:
        """Whether servers want the allocation to end: its desired status is stop or evict."""
        return self.desired_status is not DesiredStatus.RUN

    @property
    def is_client_terminal(self) -> bool:
        """Whether none of its tasks runs any longer, according to its client status."""
        return self.client_status.is_terminal

    @property
    def is_terminal(self) -> bool:
        """Whether it should stop or has ended: its desired status or its client status is terminal."""
        return self.is_server_terminal or self.is_client_terminal

    @property
    def is_interrupted(self) -> bool:
        """Whether its node stopped it before its end, so that its job has to run it again (record 0305)."""
        return self.client_status is ClientStatus.COMPLETE and self.desired_description == INTERRUPTED_TEXT

    @property
    def is_unhealthy(self) -> bool:
        """Whether its node or an operator reported it as unhealthy in its deployment."""
        return self.deployment_status is not None and self.deployment_status.healthy is False

    @property
    def should_migrate(self) -> bool:
        """Whether servers have requested to stop it on this node and to place a replacement elsewhere."""
        return self.desired_transition is not None and bool(self.desired_transition.migrate)

    @property
    def is_occupying(self) -> bool:
        """Whether its resources count as used: until none of its tasks runs, even if it should already stop."""
        status = (
            self.client_status
        )  # Called for every allocation that is loaded: the common statuses are compared first.
        return status is ClientStatus.PENDING or status is ClientStatus.RUNNING or not status.is_terminal

    def is_of_version(self, job: Job) -> bool:
        """Return whether it runs exactly this version of this job, and not that of an earlier job with the same ID."""
        return self.job_version == job.version and self.job_create_index == job.create_index


class AllocationStub(Record):
    """The short form of an allocation, as lists and events show it."""

    id: str
    eval_id: str = ""
    name: str = ""
    namespace: str = ""
    node_id: str = ""
    node_name: str = ""
    job_id: str = ""
    job_type: str = ""
    job_version: int = 0
    task_group: str = ""
    # Missing unless the request asks for it.
    allocated_resources: AllocatedResources | msgspec.UnsetType | None = msgspec.UNSET
    desired_status: DesiredStatus
    desired_description: str = ""
    desired_transition: DesiredTransition = DesiredTransition()
    client_status: ClientStatus
    client_description: str = ""
    task_states: dict[str, TaskStateView] | None = None
    deployment_status: AllocDeploymentStatus | None = None
    followup_eval_id: str = ""
    next_allocation: str = ""
    reschedule_tracker: RescheduleTracker | None = None
    preempted_allocations: tuple[str, ...] | None = None
    preempted_by_allocation: str = ""
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0
    modify_time: int = 0
