"""Evaluations: the requests to look at a job again, and what came of each.

An evaluation says why a job is looked at and in which chain it stands. Which of its statuses may follow which is in
`transitions`; queues and retries are not known here.
"""

import datetime
import enum

from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.jobs.plan import PlanAnnotations
from wharf.contract.model.record import Record, SparseRecord


class EvaluationStatus(enum.StrEnum):
    PENDING = "pending"
    BLOCKED = "blocked"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def is_terminal(self) -> bool:
        return self in (EvaluationStatus.COMPLETE, EvaluationStatus.FAILED, EvaluationStatus.CANCELED)


class SchedulerType(enum.StrEnum):
    """Who processes an evaluation: the scheduler of a job's type, or the one for the cluster's own chores."""

    SERVICE = "service"
    BATCH = "batch"
    SYSTEM = "system"
    SYSBATCH = "sysbatch"
    CORE = "_core"


class EvaluationTrigger(enum.StrEnum):
    """Why an evaluation was made."""

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
    """An evaluation as its relatives show it."""

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
    """One request to bring a job's allocations in line with what is wanted."""

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
    related_evals: tuple[EvaluationStub, ...] | None = None  # Filled for replies only, never stored.
    failed_tg_allocs: dict[str, AllocMetric] | None = None
    class_eligibility: dict[str, bool] | None = None
    escaped_computed_class: bool = False
    quota_limit_reached: str = ""
    missing_non_node_resources: tuple[str, ...] | None = None
    annotate_plan: bool = False
    queued_allocations: dict[str, int] | None = None
    plan_annotations: PlanAnnotations | None = None
    snapshot_index: int = 0
    waiting_since: int = 0  # ns; of one that waits for room: since when its job does, whatever happened meanwhile.
    reserved_node_id: str = ""  # The node whose room is kept for it, because it has waited too long.
    waits_behind: str = ""  # The parent of its job, of whose children as many run already as may.
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0  # ns since the epoch
    modify_time: int = 0

    @property
    def waiting_since_ns(self) -> int:
        return self.waiting_since or self.create_time


def make_evaluation_stub(evaluation: Evaluation) -> EvaluationStub:
    """The short form of an evaluation, as `RelatedEvals` lists it."""
    return EvaluationStub(**{name: getattr(evaluation, name) for name in EvaluationStub.__struct_fields__})
