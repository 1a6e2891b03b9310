"""Evaluations: requests to compare the desired and actual state of a job, and their outcome.

The allowed status changes are in `state_machines.transitions`. Queues and retries do not belong here.
"""

import datetime
import enum
from typing import Final

from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.jobs.lock_waits import LockWait
from wharf.contract.model.jobs.plan import PlanAnnotations
from wharf.contract.model.record import Record, SparseRecord


class EvaluationStatus(enum.StrEnum):
    """The status of an evaluation."""

    PENDING = "pending"
    BLOCKED = "blocked"  # Waits until capacity is free.
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELED = "canceled"  # Superseded by another evaluation.

    @property
    def is_terminal(self) -> bool:
        """Whether the evaluation has ended."""
        return self in (EvaluationStatus.COMPLETE, EvaluationStatus.FAILED, EvaluationStatus.CANCELED)


class SchedulerType(enum.StrEnum):
    """The scheduler that processes an evaluation: the type of its job, or `CORE`."""

    SERVICE = "service"
    BATCH = "batch"
    SYSTEM = "system"
    SYSBATCH = "sysbatch"
    CORE = "_core"  # Internal work of the cluster, such as garbage collection.


class EvaluationTrigger(enum.StrEnum):
    """Why an evaluation was created."""

    JOB_REGISTER = "job-register"
    JOB_DEREGISTER = "job-deregister"
    PERIODIC_JOB = "periodic-job"
    NODE_DRAIN = "node-drain"
    NODE_UPDATE = "node-update"  # A node registered or changed its status.
    ALLOC_STOP = "alloc-stop"
    ALLOC_RESCHEDULE = "alloc-reschedule"
    ALLOC_FAILURE = "alloc-failure"
    SCHEDULED = "scheduled"  # Garbage collection.
    ROLLING_UPDATE = "rolling-update"
    DEPLOYMENT_WATCHER = "deployment-watcher"
    FAILED_FOLLOW_UP = "failed-follow-up"  # A retry of a failed evaluation.
    MAX_PLAN_ATTEMPTS = "max-plan-attempts"  # Too many plans conflicted with other changes.
    QUEUED_ALLOCS = "queued-allocs"  # Allocations wait for capacity.
    PREEMPTION = "preemption"
    JOB_SCALING = "job-scaling"
    MAX_DISCONNECT_TIMEOUT = "max-disconnect-timeout"  # A disconnected node did not return in time.
    RECONNECT = "reconnect"  # A disconnected node returned.
    ARRAY_ELEMENT = "array-element"  # An element of an array ended, or others may begin.
    ARRAY_RERUN = "array-rerun"  # A user runs elements of an array again.
    STEP_READY = "step-ready"  # A step of a run may begin.
    RUN_CANCEL = "run-cancel"  # A run was canceled, or a step of it timed out.
    RUN_RETRY = "run-retry"  # A user runs steps of a run again.


ELEMENT_TRIGGERS: Final = frozenset({EvaluationTrigger.ARRAY_ELEMENT, EvaluationTrigger.STEP_READY})
"""The triggers of evaluations that the end of elements causes. Each may be based on a newer state than the one before."""


class EvaluationStub(Record):
    """The short form of an evaluation, as the list of related evaluations shows it."""

    id: str
    namespace: str = ""
    priority: int = 0
    type: SchedulerType
    triggered_by: EvaluationTrigger
    job_id: str = ""
    node_id: str = ""
    deployment_id: str = ""
    status: EvaluationStatus
    status_description: str = ""
    wait_until: datetime.datetime | None = None  # Not processed before this time.
    next_eval: str = ""  # The follow-up evaluation.
    previous_eval: str = ""
    blocked_eval: str = ""  # The evaluation for the allocations that could not be placed.
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0  # ns since the epoch
    modify_time: int = 0


class Evaluation(SparseRecord):
    """A request to bring the allocations of a job in line with its desired state, with the outcome."""

    id: str
    namespace: str = ""
    priority: int = 0
    type: SchedulerType
    triggered_by: EvaluationTrigger
    job_id: str = ""
    job_modify_index: int = 0
    node_id: str = ""  # The node whose change triggered it.
    node_modify_index: int = 0
    deployment_id: str = ""
    status: EvaluationStatus
    status_description: str = ""
    wait: int = 0  # ns to wait before it is processed.
    wait_until: datetime.datetime | None = None  # Not processed before this time.
    next_eval: str = ""  # The follow-up evaluation.
    previous_eval: str = ""
    blocked_eval: str = ""  # The evaluation for the allocations that could not be placed.
    related_evals: tuple[EvaluationStub, ...] | None = None  # Set in replies only, never stored.
    failed_tg_allocs: dict[str, AllocMetric] | None = None  # Why allocations could not be placed, by group.
    class_eligibility: dict[str, bool] | None = None  # Whether nodes of a computed class can run the job.
    escaped_computed_class: bool = False  # Constraints on unique attributes: classes do not decide.
    quota_limit_reached: str = ""  # The quota that prevented a placement.
    missing_non_node_resources: tuple[str, ...] | None = None
    annotate_plan: bool = False  # Store what the plan would do, for a dry run.
    queued_allocations: dict[str, int] | None = None  # How many are not placed yet, by group.
    plan_annotations: PlanAnnotations | None = None
    snapshot_index: int = 0  # The log index of the state that the scheduler used.
    waiting_since: int = 0  # ns since the epoch; when the job began to wait for capacity, also in earlier evaluations.
    reserved_node_id: str = ""  # The node whose freed capacity is reserved for it, because it has waited too long.
    waits_behind: str = ""  # The parent job whose maximum number of children already runs.
    lock_waits: tuple[LockWait, ...] | None = None  # The steps with a lock that could not be placed.
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0  # ns since the epoch
    modify_time: int = 0

    def find_lock_wait(self, step: str) -> LockWait | None:
        """Return the lock for which a step waits, or `None`."""
        return next((wait for wait in self.lock_waits or () if wait.step == step and not wait.lacks_capacity), None)

    @property
    def waits_only_for_locks(self) -> bool:
        """Whether each group that could not be placed waits for a lock, so that free capacity does not help."""
        locked = {wait.step for wait in self.lock_waits or () if not wait.lacks_capacity}
        return bool(locked) and locked.issuperset(self.failed_tg_allocs or ())

    @property
    def waiting_since_ns(self) -> int:
        """When the job began to wait for capacity, in ns since the epoch; the creation time if it was not recorded."""
        return self.waiting_since or self.create_time


def make_evaluation_stub(evaluation: Evaluation) -> EvaluationStub:
    """Return the short form of an evaluation, as `RelatedEvals` lists it."""
    return EvaluationStub(**{name: getattr(evaluation, name) for name in EvaluationStub.__struct_fields__})
