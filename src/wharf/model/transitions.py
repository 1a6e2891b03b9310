"""The tables of states: job, evaluation, allocation (wanted and reported), deployment, node, task.

Only what really happens stands here: the simulation asserts that every step has been taken. The pictures in
`docs/states.md` are drawn from these tables (`python -m wharf.model.diagrams`).
"""

from typing import Final, TypeAlias

from wharf.model.allocation import ClientStatus, DesiredStatus
from wharf.model.deployment import DeploymentStatus
from wharf.model.evaluation import EvaluationStatus
from wharf.model.job import JobStatus
from wharf.model.machine import Custody, Machine, Step
from wharf.model.node import NodeStatus
from wharf.model.task_state import TaskStatus

MULTIREGION: Final = "multiregion"

JOB: Final = Machine(
    "job",
    JobStatus,
    steps=[
        Step(None, JobStatus.PENDING, "registered"),
        Step(None, JobStatus.RUNNING, "registered: system, periodic or parameterized"),
        Step(None, JobStatus.DEAD, "registered as stopped"),
        Step(JobStatus.PENDING, JobStatus.RUNNING, "an allocation is placed or a deployment begins"),
        Step(JobStatus.PENDING, JobStatus.DEAD, "its evaluations ended and nothing is left to run"),
        Step(JobStatus.RUNNING, JobStatus.PENDING, "nothing runs, and an evaluation is still open"),
        Step(JobStatus.RUNNING, JobStatus.DEAD, "stopped, or all its work has ended"),
        Step(JobStatus.DEAD, JobStatus.PENDING, "registered or evaluated again"),
        Step(
            JobStatus.DEAD, JobStatus.RUNNING, "started again: system, periodic or parameterized; or its work came back"
        ),
    ],
    custody={
        JobStatus.PENDING: Custody(
            "its open evaluation (broker or blocked queue)",
            "that evaluation's; while blocked it carries an explanation",
        ),
        JobStatus.RUNNING: Custody(
            "its allocations and deployment; for parents, whoever stops them",
            "none of its own: it rests here, and each change of an allocation, deployment or evaluation decides again",
        ),
    },
    terminal=frozenset({JobStatus.DEAD}),
)

EVALUATION: Final = Machine(
    "evaluation",
    EvaluationStatus,
    steps=[
        Step(None, EvaluationStatus.PENDING, "made"),
        Step(None, EvaluationStatus.BLOCKED, "made for what could not be placed"),
        Step(EvaluationStatus.PENDING, EvaluationStatus.COMPLETE, "processed, or its job was purged"),
        Step(
            EvaluationStatus.PENDING, EvaluationStatus.FAILED, "too many conflicts or deliveries, or a trigger unknown"
        ),
        Step(EvaluationStatus.PENDING, EvaluationStatus.CANCELED, "a newer evaluation of the job was processed"),
        Step(EvaluationStatus.PENDING, EvaluationStatus.BLOCKED, "unblocked in vain: blocked again under its own ID"),
        Step(EvaluationStatus.BLOCKED, EvaluationStatus.PENDING, "capacity came free, or a retry is due"),
        Step(EvaluationStatus.BLOCKED, EvaluationStatus.CANCELED, "superseded by a newer one, or no longer needed"),
    ],
    custody={
        EvaluationStatus.PENDING: Custody(
            "broker", "60 s a delivery and 3 deliveries, then failed; a delayed one begins at its Wait or WaitUntil"
        ),
        EvaluationStatus.BLOCKED: Custody(
            "blocked queue", "the next change of capacity that could help; after plan conflicts, 60 s"
        ),
    },
    terminal=frozenset({EvaluationStatus.COMPLETE, EvaluationStatus.FAILED, EvaluationStatus.CANCELED}),
)

ALLOCATION: Final = Machine(
    "allocation",
    ClientStatus,
    steps=[
        Step(None, ClientStatus.PENDING, "placed"),
        Step(ClientStatus.PENDING, ClientStatus.RUNNING, "a task runs"),
        Step(
            ClientStatus.PENDING, ClientStatus.COMPLETE, "stopped before it ran, or all tasks ended between two reports"
        ),
        Step(ClientStatus.PENDING, ClientStatus.FAILED, "a task failed for good"),
        Step(ClientStatus.PENDING, ClientStatus.LOST, "its node is down, gone or out of contact"),
        Step(ClientStatus.RUNNING, ClientStatus.PENDING, "its only running task waits for a restart"),
        Step(ClientStatus.RUNNING, ClientStatus.COMPLETE, "all tasks ended well, or were killed as wanted"),
        Step(ClientStatus.RUNNING, ClientStatus.FAILED, "a task failed for good"),
        Step(ClientStatus.RUNNING, ClientStatus.LOST, "its node is down or gone"),
        Step(ClientStatus.RUNNING, ClientStatus.UNKNOWN, "its node is out of contact, within the group's window"),
        Step(ClientStatus.UNKNOWN, ClientStatus.PENDING, "its node is back; a task waits for a restart"),
        Step(ClientStatus.UNKNOWN, ClientStatus.RUNNING, "its node is back"),
        Step(ClientStatus.UNKNOWN, ClientStatus.COMPLETE, "its node is back; all tasks ended well meanwhile"),
        Step(ClientStatus.UNKNOWN, ClientStatus.FAILED, "its node is back; a task failed meanwhile"),
        Step(ClientStatus.UNKNOWN, ClientStatus.LOST, "the group's window is over"),
        Step(
            ClientStatus.LOST,
            ClientStatus.PENDING,
            "its node is back and has it, though none of its tasks runs just now",
        ),
        Step(ClientStatus.LOST, ClientStatus.RUNNING, "its node is back and has not stopped it yet: it occupies again"),
        Step(ClientStatus.LOST, ClientStatus.COMPLETE, "its node is back and has stopped it"),
        Step(ClientStatus.LOST, ClientStatus.FAILED, "its node is back; a task had failed meanwhile"),
    ],
    custody={
        ClientStatus.PENDING: Custody(
            "its node",
            "the deployment's healthy deadline; without one, the node's heartbeat and the task's own retries",
        ),
        ClientStatus.RUNNING: Custody(
            "its node", "the group's max run duration; without one it rests here as long as its node's heartbeat comes"
        ),
        ClientStatus.UNKNOWN: Custody(
            "its follow-up evaluation (max-disconnect-timeout)", "the group's lost_after since contact was lost"
        ),
    },
    terminal=frozenset({ClientStatus.COMPLETE, ClientStatus.FAILED, ClientStatus.LOST}),
)

ALLOCATION_DESIRED: Final = Machine(
    "allocation's desired status",
    DesiredStatus,
    steps=[
        Step(None, DesiredStatus.RUN, "placed"),
        Step(
            DesiredStatus.RUN, DesiredStatus.STOP, "no longer wanted here: update, scale, migration, loss, job stopped"
        ),
        Step(DesiredStatus.RUN, DesiredStatus.EVICT, "preempted by a job of higher priority"),
    ],
    custody={
        DesiredStatus.RUN: Custody(
            "scheduler", "none of its own: it rests here, and each evaluation of its job decides again"
        ),
    },
    terminal=frozenset({DesiredStatus.STOP, DesiredStatus.EVICT}),
)


def _ends(status: DeploymentStatus, *, feature: str = "") -> list[Step[DeploymentStatus]]:
    """Every active deployment may fail or be cancelled."""
    return [
        Step(status, DeploymentStatus.FAILED, "unhealthy, out of time, or failed by a person", feature),
        Step(status, DeploymentStatus.CANCELLED, "the job stopped or has a newer version", feature),
    ]


DEPLOYMENT: Final = Machine(
    "deployment",
    DeploymentStatus,
    steps=[
        Step(None, DeploymentStatus.RUNNING, "the first placements of a new version"),
        Step(None, DeploymentStatus.INITIALIZING, "made in a region of several", MULTIREGION),
        Step(DeploymentStatus.INITIALIZING, DeploymentStatus.PENDING, "its region waits for its turn", MULTIREGION),
        Step(DeploymentStatus.PENDING, DeploymentStatus.RUNNING, "its region's turn has come", MULTIREGION),
        Step(DeploymentStatus.RUNNING, DeploymentStatus.PAUSED, "paused by a person"),
        Step(DeploymentStatus.PAUSED, DeploymentStatus.RUNNING, "resumed by a person"),
        Step(DeploymentStatus.RUNNING, DeploymentStatus.SUCCESSFUL, "all groups are healthy and promoted"),
        Step(DeploymentStatus.RUNNING, DeploymentStatus.BLOCKED, "done here, not yet elsewhere", MULTIREGION),
        Step(DeploymentStatus.BLOCKED, DeploymentStatus.UNBLOCKING, "all regions are done", MULTIREGION),
        Step(DeploymentStatus.UNBLOCKING, DeploymentStatus.SUCCESSFUL, "every region was told", MULTIREGION),
        *_ends(DeploymentStatus.RUNNING),
        *_ends(DeploymentStatus.PAUSED),
        *_ends(DeploymentStatus.INITIALIZING, feature=MULTIREGION),
        *_ends(DeploymentStatus.PENDING, feature=MULTIREGION),
        *_ends(DeploymentStatus.BLOCKED, feature=MULTIREGION),
        *_ends(DeploymentStatus.UNBLOCKING, feature=MULTIREGION),
    ],
    custody={
        DeploymentStatus.INITIALIZING: Custody("deployment watcher", "the turn of its region"),
        DeploymentStatus.PENDING: Custody("deployment watcher", "the end of the regions before it"),
        DeploymentStatus.RUNNING: Custody(
            "deployment watcher", "each group's RequireProgressBy; none while it only waits for a person's promotion"
        ),
        DeploymentStatus.PAUSED: Custody(
            "the person who paused it", "none: RequireProgressBy begins anew when resumed"
        ),
        DeploymentStatus.BLOCKED: Custody("deployment watcher", "the end of the other regions"),
        DeploymentStatus.UNBLOCKING: Custody("deployment watcher", "the other regions' answers"),
    },
    terminal=frozenset({DeploymentStatus.SUCCESSFUL, DeploymentStatus.FAILED, DeploymentStatus.CANCELLED}),
)

NODE: Final = Machine(
    "node",
    NodeStatus,
    steps=[
        Step(None, NodeStatus.INITIALIZING, "registered for the first time"),
        Step(NodeStatus.INITIALIZING, NodeStatus.READY, "fingerprinted, its pool exists and its allocations are told"),
        Step(NodeStatus.INITIALIZING, NodeStatus.DOWN, "no heartbeat"),
        Step(NodeStatus.READY, NodeStatus.DOWN, "no heartbeat"),
        Step(NodeStatus.READY, NodeStatus.DISCONNECTED, "no heartbeat, and an allocation is within its group's window"),
        Step(NodeStatus.DISCONNECTED, NodeStatus.INITIALIZING, "back: it must tell of its allocations first"),
        Step(NodeStatus.DISCONNECTED, NodeStatus.DOWN, "no heartbeat, and no allocation waits for it any more"),
        Step(NodeStatus.DOWN, NodeStatus.READY, "back, with nothing to tell"),
        Step(NodeStatus.DOWN, NodeStatus.INITIALIZING, "back: it must tell of its allocations first"),
    ],
    custody={
        NodeStatus.INITIALIZING: Custody("its agent", "its heartbeat: TTL and grace, then down"),
        NodeStatus.READY: Custody("its agent", "its heartbeat: TTL and grace, then down or disconnected"),
        NodeStatus.DISCONNECTED: Custody(
            "heartbeat timers", "the longest lost_after of its allocations; each expiry of its timer decides again"
        ),
    },
    terminal=frozenset({NodeStatus.DOWN}),
)

TASK: Final = Machine(
    "task",
    TaskStatus,
    steps=[
        Step(None, TaskStatus.PENDING, "received by the node"),
        Step(TaskStatus.PENDING, TaskStatus.RUNNING, "started"),
        Step(TaskStatus.PENDING, TaskStatus.DEAD, "could not start, or was stopped before"),
        Step(TaskStatus.RUNNING, TaskStatus.PENDING, "ended, and its restart policy starts it again"),
        Step(TaskStatus.RUNNING, TaskStatus.DEAD, "ended for good, or killed"),
        Step(TaskStatus.DEAD, TaskStatus.PENDING, "a person restarts all tasks of the allocation"),
    ],
    custody={
        TaskStatus.PENDING: Custody("its node", "hooks and driver have bounds of their own; then its restart policy"),
        TaskStatus.RUNNING: Custody("its node", "the kill timeout once it is to stop; else it rests here"),
    },
    terminal=frozenset({TaskStatus.DEAD}),
)

AnyMachine: TypeAlias = (
    Machine[JobStatus]
    | Machine[EvaluationStatus]
    | Machine[ClientStatus]
    | Machine[DesiredStatus]
    | Machine[DeploymentStatus]
    | Machine[NodeStatus]
    | Machine[TaskStatus]
)

MACHINES: Final[tuple[AnyMachine, ...]] = (JOB, EVALUATION, ALLOCATION, ALLOCATION_DESIRED, DEPLOYMENT, NODE, TASK)
