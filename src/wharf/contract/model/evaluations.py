"""Evaluations: requests to compare the desired and actual state of a job, and their outcome.

The allowed status changes are in `state_machines.transitions`. Queues and retries do not belong here.
"""

import datetime
import enum

from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.jobs.plan import PlanAnnotations
from wharf.contract.model.record import Record, SparseRecord


class EvaluationStatus(enum.StrEnum):
    """The status of an evaluation."""

    PENDING = "pending"
    BLOCKED = "blocked"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def is_terminal(self) -> bool:
        return self in (EvaluationStatus.COMPLETE, EvaluationStatus.FAILED, EvaluationStatus.CANCELED)


class SchedulerType(enum.StrEnum):
    """The scheduler that processes an evaluation: the job's type, or `CORE` for internal work of the cluster."""

    SERVICE = "service"
    BATCH = "batch"
    SYSTEM = "system"
    SYSBATCH = "sysbatch"
    CORE = "_core"


class EvaluationTrigger(enum.StrEnum):
    """Why an evaluation was created."""

    JOB_REGISTER = "job-register"
    JOB_DEREGISTER = "job-deregister"
    PERIODIC_JOB = "periodic-job"
    NODE_DRAIN = "node-drain"
    NODE_UPDATE = "node-update"
    ALLOC_STOP = "alloc-stop"
    ALLOC_RESCHEDULE = "alloc-reschedule"
    ALLOC_FAILURE = "alloc-failure"
    SCHEDULED = "scheduled"
    ROLLING_UPDATE = "rolling-update"
    DEPLOYMENT_WATCHER = "deployment-watcher"
    FAILED_FOLLOW_UP = "failed-follow-up"
    MAX_PLAN_ATTEMPTS = "max-plan-attempts"
    QUEUED_ALLOCS = "queued-allocs"
    PREEMPTION = "preemption"
    JOB_SCALING = "job-scaling"
    MAX_DISCONNECT_TIMEOUT = "max-disconnect-timeout"
    RECONNECT = "reconnect"


class EvaluationStub(Record):
    """The short form of an evaluation, as related evaluations list it."""

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
    wait_until: datetime.datetime | None = None
    next_eval: str = ""
    previous_eval: str = ""
    blocked_eval: str = ""
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0
    modify_time: int = 0


class Evaluation(SparseRecord):
    """A request to bring a job's allocations in line with its desired state."""

    id: str
    namespace: str = ""
    priority: int = 0
    type: SchedulerType
    triggered_by: EvaluationTrigger
    job_id: str = ""
    job_modify_index: int = 0
    node_id: str = ""
    node_modify_index: int = 0
    deployment_id: str = ""
    status: EvaluationStatus
    status_description: str = ""
    wait: int = 0  # ns
    wait_until: datetime.datetime | None = None
    next_eval: str = ""
    previous_eval: str = ""
    blocked_eval: str = ""
    related_evals: tuple[EvaluationStub, ...] | None = None  # Set in replies only, never stored.
    failed_tg_allocs: dict[str, AllocMetric] | None = None
    class_eligibility: dict[str, bool] | None = None
    escaped_computed_class: bool = False
    quota_limit_reached: str = ""
    missing_non_node_resources: tuple[str, ...] | None = None
    annotate_plan: bool = False
    queued_allocations: dict[str, int] | None = None
    plan_annotations: PlanAnnotations | None = None
    snapshot_index: int = 0
    waiting_since: int = 0  # ns since the epoch; when the job began to wait for capacity, over all its evaluations.
    reserved_node_id: str = ""  # The node whose freed capacity is reserved for it, because it has waited too long.
    waits_behind: str = ""  # The parent job that already runs its maximum number of children.
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0  # ns since the epoch
    modify_time: int = 0

    @property
    def waiting_since_ns(self) -> int:
        """The time since which the job has waited for capacity, in ns since the epoch."""
        return self.waiting_since or self.create_time


def make_evaluation_stub(evaluation: Evaluation) -> EvaluationStub:
    """Return the short form of an evaluation, as `RelatedEvals` lists it."""
    return EvaluationStub(**{name: getattr(evaluation, name) for name in EvaluationStub.__struct_fields__})
