"""Allocations: instances of a group on a node, with their desired status and the status that the node reports.

The record is small, because a million of them are held in memory: it names the version of its job instead of holding the
job, and shares its resources and metrics with its siblings. What an allocation should do is decided elsewhere.
"""

import datetime
import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING

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
    """What servers want of an allocation."""

    RUN = "run"
    STOP = "stop"
    EVICT = "evict"


class ClientStatus(enum.StrEnum):
    """The state of an allocation as its node reports it. Servers assign lost and unknown."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    LOST = "lost"
    UNKNOWN = "unknown"

    @property
    def is_terminal(self) -> bool:
        return self in (ClientStatus.COMPLETE, ClientStatus.FAILED, ClientStatus.LOST)


class RescheduleOutcome(enum.StrEnum):
    """The result of the last attempt to replace an allocation."""

    NONE = ""
    OK = "ok"
    NO_PLACEMENT = "no placement"


class DesiredTransition(Record):
    """Requests to the scheduler to move or replace an allocation. Null means that no request was ever made, unlike false."""

    migrate: bool | None = None
    reschedule: bool | None = None
    force_reschedule: bool | None = None
    no_shutdown_delay: bool | None = None
    migrate_disable_placement: bool | None = None
    move_to: str = ""  # With `migrate`: the preferred node for the replacement, if it has capacity.


class AllocationState(Record):
    """A client status that servers assigned while the node was disconnected."""

    field: int = 0  # 0 is the client status, the only value.
    value: str = ""
    time: datetime.datetime | None = None


class AllocDeploymentStatus(Record):
    """An allocation's health in its deployment. Health is null until the node or an operator decides it."""

    healthy: bool | None = None
    timestamp: datetime.datetime | None = None
    canary: bool = False
    modify_index: int = 0


class RescheduleEvent(Record):
    """One replacement of a failed allocation: when, which allocation on which node, and after which delay."""

    reschedule_time: int = 0  # ns since the epoch
    prev_alloc_id: str = ""
    prev_node_id: str = ""
    delay: int = 0  # ns


class RescheduleTracker(Record):
    """The chain of replacements that led to an allocation."""

    events: tuple[RescheduleEvent, ...] | None = None
    last_reschedule: RescheduleOutcome = RescheduleOutcome.NONE


class NetworkStatus(Record):
    """The addresses inside the allocation's network namespace; empty if it uses the host's network."""

    interface_name: str = ""
    address: str = ""
    address_ipv6: str = msgspec.field(name="AddressIPv6", default="")
    dns: DNS | None = None


class Allocation(SparseRecord):
    """An instance of a group on a node. The default of each field is the zero value that the wire omits."""

    id: str
    namespace: str = ""
    eval_id: str = ""
    name: str = ""
    node_id: str = ""
    node_name: str = ""
    job_id: str = ""
    job_version: int = 0
    job_create_index: int = 0
    task_group: str = ""
    allocated_resources: SharedResources = None
    metrics: SharedMetrics = None
    desired_status: DesiredStatus
    desired_description: str = ""
    desired_transition: DesiredTransition | None = None
    client_status: ClientStatus
    client_description: str = ""
    task_states: PackedStates = None
    alloc_states: tuple[AllocationState, ...] | None = None
    deployment_id: str = ""
    deployment_status: AllocDeploymentStatus | None = None
    followup_eval_id: str = ""
    previous_allocation: str = ""
    next_allocation: str = ""
    reschedule_tracker: RescheduleTracker | None = None
    network_status: NetworkStatus | None = None
    preempted_allocations: tuple[str, ...] | None = None
    preempted_by_allocation: str = ""
    log_tails: bytes = b""  # After it has ended: the last log lines of its tasks, packed by `allocations.logs`.
    signing_key_id: str = ""
    report_number: int = 0  # The number of the node's last report that changed it; 0 if none did, or without a number.
    create_index: int = 0
    modify_index: int = 0
    alloc_modify_index: int = 0  # Not changed by reports of the node.
    create_time: int = 0  # ns since the epoch
    modify_time: int = 0

    @property
    def is_server_terminal(self) -> bool:
        """Whether the desired status is stop or evict."""
        return self.desired_status is not DesiredStatus.RUN

    @property
    def is_client_terminal(self) -> bool:
        """Whether the client status says that none of its tasks run any longer."""
        return self.client_status.is_terminal

    @property
    def is_terminal(self) -> bool:
        """Whether the desired status or the client status is terminal."""
        return self.is_server_terminal or self.is_client_terminal

    @property
    def should_migrate(self) -> bool:
        """Whether its stop on this node and a replacement were requested."""
        return self.desired_transition is not None and bool(self.desired_transition.migrate)

    @property
    def is_occupying(self) -> bool:
        """Whether its resources count as used: until its client status is terminal, whatever its desired status."""
        status = (
            self.client_status
        )  # Called for every allocation that is loaded: the common statuses are compared first.
        return status is ClientStatus.PENDING or status is ClientStatus.RUNNING or not status.is_terminal

    def is_of_version(self, job: Job) -> bool:
        """Return whether it runs this version of the job, and not one of an earlier job with the same id."""
        return self.job_version == job.version and self.job_create_index == job.create_index


class AllocationStub(Record):
    """An allocation in a list."""

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
