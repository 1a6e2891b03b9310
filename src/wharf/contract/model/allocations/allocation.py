"""Allocations: one group of a job put on one node, what is wanted of it and what its node says of it.

The record is kept small, because a million of them lie in memory: it names its job's version instead of holding the
job, and shares its resources and metrics with its siblings. It never decides whether it should run.
"""

import datetime
import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.allocations.task_states import TaskState, TaskStateView
from wharf.contract.model.jobs.networks import DNS
from wharf.contract.model.record import Record, SparseRecord

# Decoded apart: reading an allocation leaves these as bytes of the same format (JSON or msgpack). The replica replaces the
# first two by the struct that the type names, through a cache, so that siblings share one object; states of tasks, which
# differ from one to the next and are half of an allocation, it keeps as bytes and decodes when somebody reads them.
if TYPE_CHECKING:
    SharedResources = AllocatedResources | None
    SharedMetrics = AllocMetric | None
    PackedStates = Mapping[str, TaskState] | None
else:
    SharedResources = msgspec.Raw
    SharedMetrics = msgspec.Raw
    PackedStates = msgspec.Raw


class DesiredStatus(enum.StrEnum):
    RUN = "run"
    STOP = "stop"
    EVICT = "evict"


class ClientStatus(enum.StrEnum):
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
    NONE = ""
    OK = "ok"
    NO_PLACEMENT = "no placement"


class DesiredTransition(Record):
    """Marks that ask the scheduler to move an allocation. Null is "never said", unlike false."""

    migrate: bool | None = None
    reschedule: bool | None = None
    force_reschedule: bool | None = None
    no_shutdown_delay: bool | None = None
    migrate_disable_placement: bool | None = None
    move_to: str = ""  # With `migrate`: the node that it is to have, if that still has room.


class AllocationState(Record):
    """A client status that servers gave while the node was out of contact."""

    field: int = 0  # 0: the client status; there is no other.
    value: str = ""
    time: datetime.datetime | None = None


class AllocDeploymentStatus(Record):
    """An allocation's part in its deployment. Health is null until the node or a person decides it."""

    healthy: bool | None = None
    timestamp: datetime.datetime | None = None
    canary: bool = False
    modify_index: int = 0


class RescheduleEvent(Record):
    reschedule_time: int = 0  # ns since the epoch
    prev_alloc_id: str = ""
    prev_node_id: str = ""
    delay: int = 0  # ns


class RescheduleTracker(Record):
    """The chain of replacements that led to an allocation."""

    events: tuple[RescheduleEvent, ...] | None = None
    last_reschedule: RescheduleOutcome = RescheduleOutcome.NONE


class NetworkStatus(Record):
    """The addresses inside the allocation's network namespace, empty with the host's network."""

    interface_name: str = ""
    address: str = ""
    address_ipv6: str = msgspec.field(name="AddressIPv6", default="")
    dns: DNS | None = None


class Allocation(SparseRecord):
    """One group on one node. What is dropped on the wire when empty has the wire's zero as its default here."""

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
    log_tails: bytes = b""  # When it is over: the ends of its tasks' logs, as `model.log_tails` packs them.
    signing_key_id: str = ""
    report_number: int = 0  # Of the report of its node that changed it last; 0: none, or one without a number.
    create_index: int = 0
    modify_index: int = 0
    alloc_modify_index: int = 0  # Stays when only the node reports.
    create_time: int = 0  # ns since the epoch
    modify_time: int = 0

    @property
    def is_server_terminal(self) -> bool:
        """Servers want it stopped."""
        return self.desired_status is not DesiredStatus.RUN

    @property
    def is_client_terminal(self) -> bool:
        """Its node, or the servers in its place, say that nothing of it runs any more."""
        return self.client_status.is_terminal

    @property
    def is_terminal(self) -> bool:
        return self.is_server_terminal or self.is_client_terminal

    @property
    def should_migrate(self) -> bool:
        """Somebody asked that it be stopped here and started anew."""
        return self.desired_transition is not None and bool(self.desired_transition.migrate)

    @property
    def is_occupying(self) -> bool:
        """Its resources count as used: until it is terminal on the node's side, whatever servers want."""
        status = self.client_status  # Asked of everything that is taken in, so the usual answers come first.
        return status is ClientStatus.PENDING or status is ClientStatus.RUNNING or not status.is_terminal


class AllocationStub(Record):
    """An allocation as lists show it."""

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
