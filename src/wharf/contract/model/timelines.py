"""The timeline of a job: when each allocation waited, was prepared, ran and ended."""

import enum

from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.evaluations import EvaluationStatus, EvaluationTrigger
from wharf.contract.model.record import Record


class PhaseName(enum.StrEnum):
    """The phases of an allocation, in their order. An allocation can lack phases."""

    WAITING = "waiting"  # The scheduler has not found capacity yet.
    PLACED = "placed"  # It has a node, which has not received it yet.
    PREPARING = "preparing"  # The node builds its folders, volumes and networks.
    PULLING = "pulling"  # The node downloads artifacts or an image.
    STARTING = "starting"  # Its tasks run, and its rollout waits until it is healthy.
    RUNNING = "running"  # Its tasks run, without a rollout that checks its health.
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


class TimelinePhase(Record):
    """A phase of an allocation. It ends when the next one begins, or with the allocation."""

    name: PhaseName
    start: int  # ns since the epoch


class TimelineAllocation(Record):
    """An allocation with its phases."""

    id: str
    name: str
    task_group: str
    job_version: int
    node_id: str
    node_name: str
    client_status: ClientStatus
    desired_status: DesiredStatus
    phases: tuple[TimelinePhase, ...]
    ended: int = 0  # ns since the epoch; 0 if it has not ended.
    restarts: int = 0  # How often its tasks were restarted.


class TimelineEvaluation(Record):
    """An evaluation of the job."""

    id: str
    triggered_by: EvaluationTrigger
    status: EvaluationStatus
    create_time: int  # ns since the epoch


class JobTimeline(Record):
    """A page of the allocations of a job, the newest first, and its newest evaluations."""

    allocations: tuple[TimelineAllocation, ...]
    evaluations: tuple[TimelineEvaluation, ...]
    total: int  # How many allocations the job has.
    next_token: str = ""  # The parameter `before` of the next page; empty on the last page.
