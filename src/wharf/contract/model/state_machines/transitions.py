"""The tables of states: job, evaluation, allocation (wanted and reported), deployment, node, task.

Only what really happens stands here: the simulation asserts that every step has been taken. The pictures in
`docs/states.md` are drawn from these tables (`python -m wharf.contract.model.state_machines.diagrams`).
"""

from typing import Final, TypeAlias

from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.allocations.task_states import TaskStatus
from wharf.contract.model.deployments import DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import JobStatus
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.state_machines.machine import StateMachine, StateOwnership, StateTransition

MULTIREGION_FEATURE: Final = "multiregion"

JOB_STATES: Final = StateMachine(
    "job",
    JobStatus,
    transitions=[
        StateTransition(None, JobStatus.PENDING, "registered"),
        StateTransition(None, JobStatus.RUNNING, "registered: system, periodic or parameterized"),
        StateTransition(None, JobStatus.DEAD, "registered as stopped"),
        StateTransition(JobStatus.PENDING, JobStatus.RUNNING, "an allocation is placed or a deployment begins"),
        StateTransition(JobStatus.PENDING, JobStatus.DEAD, "its evaluations ended and nothing is left to run"),
        StateTransition(JobStatus.RUNNING, JobStatus.PENDING, "nothing runs, and an evaluation is still open"),
        StateTransition(JobStatus.RUNNING, JobStatus.DEAD, "stopped, or all its work has ended"),
        StateTransition(JobStatus.DEAD, JobStatus.PENDING, "registered or evaluated again"),
        StateTransition(
            JobStatus.DEAD, JobStatus.RUNNING, "started again: system, periodic or parameterized; or its work came back"
        ),
    ],
    ownership={
        JobStatus.PENDING: StateOwnership(
            "its open evaluation (broker or blocked queue)",
            "that evaluation's; while blocked it carries an explanation",
        ),
        JobStatus.RUNNING: StateOwnership(
            "its allocations and deployment; for parents, whoever stops them",
            "none of its own: it rests here, and each change of an allocation, deployment or evaluation decides again",
        ),
    },
    terminal_states=frozenset({JobStatus.DEAD}),
)

EVALUATION_STATES: Final = StateMachine(
    "evaluation",
    EvaluationStatus,
    transitions=[
        StateTransition(None, EvaluationStatus.PENDING, "made"),
        StateTransition(None, EvaluationStatus.BLOCKED, "made for what could not be placed"),
        StateTransition(EvaluationStatus.PENDING, EvaluationStatus.COMPLETE, "processed, or its job was purged"),
        StateTransition(
            EvaluationStatus.PENDING, EvaluationStatus.FAILED, "too many conflicts or deliveries, or a trigger unknown"
        ),
        StateTransition(
            EvaluationStatus.PENDING, EvaluationStatus.CANCELED, "a newer evaluation of the job was processed"
        ),
        StateTransition(
            EvaluationStatus.PENDING, EvaluationStatus.BLOCKED, "unblocked in vain: blocked again under its own ID"
        ),
        StateTransition(EvaluationStatus.BLOCKED, EvaluationStatus.PENDING, "capacity came free, or a retry is due"),
        StateTransition(
            EvaluationStatus.BLOCKED, EvaluationStatus.CANCELED, "superseded by a newer one, or no longer needed"
        ),
    ],
    ownership={
        EvaluationStatus.PENDING: StateOwnership(
            "broker", "60 s a delivery and 3 deliveries, then failed; a delayed one begins at its Wait or WaitUntil"
        ),
        EvaluationStatus.BLOCKED: StateOwnership(
            "blocked queue", "the next change of capacity that could help; after plan conflicts, 60 s"
        ),
    },
    terminal_states=frozenset({EvaluationStatus.COMPLETE, EvaluationStatus.FAILED, EvaluationStatus.CANCELED}),
)

ALLOCATION_STATES: Final = StateMachine(
    "allocation",
    ClientStatus,
    transitions=[
        StateTransition(None, ClientStatus.PENDING, "placed"),
        StateTransition(ClientStatus.PENDING, ClientStatus.RUNNING, "a task runs"),
        StateTransition(
            ClientStatus.PENDING, ClientStatus.COMPLETE, "stopped before it ran, or all tasks ended between two reports"
        ),
        StateTransition(ClientStatus.PENDING, ClientStatus.FAILED, "a task failed for good"),
        StateTransition(ClientStatus.PENDING, ClientStatus.LOST, "its node is down, gone or out of contact"),
        StateTransition(ClientStatus.RUNNING, ClientStatus.PENDING, "its only running task waits for a restart"),
        StateTransition(ClientStatus.RUNNING, ClientStatus.COMPLETE, "all tasks ended well, or were killed as wanted"),
        StateTransition(ClientStatus.RUNNING, ClientStatus.FAILED, "a task failed for good"),
        StateTransition(ClientStatus.RUNNING, ClientStatus.LOST, "its node is down or gone"),
        StateTransition(
            ClientStatus.RUNNING, ClientStatus.UNKNOWN, "its node is out of contact, within the group's window"
        ),
        StateTransition(ClientStatus.UNKNOWN, ClientStatus.PENDING, "its node is back; a task waits for a restart"),
        StateTransition(ClientStatus.UNKNOWN, ClientStatus.RUNNING, "its node is back"),
        StateTransition(
            ClientStatus.UNKNOWN, ClientStatus.COMPLETE, "its node is back; all tasks ended well meanwhile"
        ),
        StateTransition(ClientStatus.UNKNOWN, ClientStatus.FAILED, "its node is back; a task failed meanwhile"),
        StateTransition(ClientStatus.UNKNOWN, ClientStatus.LOST, "the group's window is over"),
        StateTransition(
            ClientStatus.LOST,
            ClientStatus.PENDING,
            "its node is back and has it, though none of its tasks runs just now",
        ),
        StateTransition(
            ClientStatus.LOST, ClientStatus.RUNNING, "its node is back and has not stopped it yet: it occupies again"
        ),
        StateTransition(ClientStatus.LOST, ClientStatus.COMPLETE, "its node is back and has stopped it"),
        StateTransition(ClientStatus.LOST, ClientStatus.FAILED, "its node is back; a task had failed meanwhile"),
    ],
    ownership={
        ClientStatus.PENDING: StateOwnership(
            "its node",
            "the deployment's healthy deadline; without one, the node's heartbeat and the task's own retries",
        ),
        ClientStatus.RUNNING: StateOwnership(
            "its node", "the group's max run duration; without one it rests here as long as its node's heartbeat comes"
        ),
        ClientStatus.UNKNOWN: StateOwnership(
            "its follow-up evaluation (max-disconnect-timeout)", "the group's lost_after since contact was lost"
        ),
    },
    terminal_states=frozenset({ClientStatus.COMPLETE, ClientStatus.FAILED, ClientStatus.LOST}),
)

ALLOCATION_DESIRED_STATES: Final = StateMachine(
    "allocation's desired status",
    DesiredStatus,
    transitions=[
        StateTransition(None, DesiredStatus.RUN, "placed"),
        StateTransition(
            DesiredStatus.RUN, DesiredStatus.STOP, "no longer wanted here: update, scale, migration, loss, job stopped"
        ),
        StateTransition(DesiredStatus.RUN, DesiredStatus.EVICT, "preempted by a job of higher priority"),
    ],
    ownership={
        DesiredStatus.RUN: StateOwnership(
            "scheduler", "none of its own: it rests here, and each evaluation of its job decides again"
        ),
    },
    terminal_states=frozenset({DesiredStatus.STOP, DesiredStatus.EVICT}),
)


def _ends(status: DeploymentStatus, *, feature: str = "") -> list[StateTransition[DeploymentStatus]]:
    """Every active deployment may fail or be cancelled."""
    return [
        StateTransition(status, DeploymentStatus.FAILED, "unhealthy, out of time, or failed by a person", feature),
        StateTransition(status, DeploymentStatus.CANCELLED, "the job stopped or has a newer version", feature),
    ]


DEPLOYMENT_STATES: Final = StateMachine(
    "deployment",
    DeploymentStatus,
    transitions=[
        StateTransition(None, DeploymentStatus.RUNNING, "the first placements of a new version"),
        StateTransition(None, DeploymentStatus.INITIALIZING, "made in a region of several", MULTIREGION_FEATURE),
        StateTransition(
            DeploymentStatus.INITIALIZING,
            DeploymentStatus.PENDING,
            "its region waits for its turn",
            MULTIREGION_FEATURE,
        ),
        StateTransition(
            DeploymentStatus.PENDING, DeploymentStatus.RUNNING, "its region's turn has come", MULTIREGION_FEATURE
        ),
        StateTransition(DeploymentStatus.RUNNING, DeploymentStatus.PAUSED, "paused by a person"),
        StateTransition(DeploymentStatus.PAUSED, DeploymentStatus.RUNNING, "resumed by a person"),
        StateTransition(DeploymentStatus.RUNNING, DeploymentStatus.SUCCESSFUL, "all groups are healthy and promoted"),
        StateTransition(
            DeploymentStatus.RUNNING, DeploymentStatus.BLOCKED, "done here, not yet elsewhere", MULTIREGION_FEATURE
        ),
        StateTransition(
            DeploymentStatus.BLOCKED, DeploymentStatus.UNBLOCKING, "all regions are done", MULTIREGION_FEATURE
        ),
        StateTransition(
            DeploymentStatus.UNBLOCKING, DeploymentStatus.SUCCESSFUL, "every region was told", MULTIREGION_FEATURE
        ),
        *_ends(DeploymentStatus.RUNNING),
        *_ends(DeploymentStatus.PAUSED),
        *_ends(DeploymentStatus.INITIALIZING, feature=MULTIREGION_FEATURE),
        *_ends(DeploymentStatus.PENDING, feature=MULTIREGION_FEATURE),
        *_ends(DeploymentStatus.BLOCKED, feature=MULTIREGION_FEATURE),
        *_ends(DeploymentStatus.UNBLOCKING, feature=MULTIREGION_FEATURE),
    ],
    ownership={
        DeploymentStatus.INITIALIZING: StateOwnership("deployment watcher", "the turn of its region"),
        DeploymentStatus.PENDING: StateOwnership("deployment watcher", "the end of the regions before it"),
        DeploymentStatus.RUNNING: StateOwnership(
            "deployment watcher", "each group's RequireProgressBy; none while it only waits for a person's promotion"
        ),
        DeploymentStatus.PAUSED: StateOwnership(
            "the person who paused it", "none: RequireProgressBy begins anew when resumed"
        ),
        DeploymentStatus.BLOCKED: StateOwnership("deployment watcher", "the end of the other regions"),
        DeploymentStatus.UNBLOCKING: StateOwnership("deployment watcher", "the other regions' answers"),
    },
    terminal_states=frozenset({DeploymentStatus.SUCCESSFUL, DeploymentStatus.FAILED, DeploymentStatus.CANCELLED}),
)

NODE_STATES: Final = StateMachine(
    "node",
    NodeStatus,
    transitions=[
        StateTransition(None, NodeStatus.INITIALIZING, "registered for the first time"),
        StateTransition(
            NodeStatus.INITIALIZING, NodeStatus.READY, "fingerprinted, its pool exists and its allocations are told"
        ),
        StateTransition(NodeStatus.INITIALIZING, NodeStatus.DOWN, "no heartbeat"),
        StateTransition(NodeStatus.READY, NodeStatus.DOWN, "no heartbeat"),
        StateTransition(
            NodeStatus.READY, NodeStatus.DISCONNECTED, "no heartbeat, and an allocation is within its group's window"
        ),
        StateTransition(
            NodeStatus.DISCONNECTED, NodeStatus.INITIALIZING, "back: it must tell of its allocations first"
        ),
        StateTransition(
            NodeStatus.DISCONNECTED, NodeStatus.DOWN, "no heartbeat, and no allocation waits for it any more"
        ),
        StateTransition(NodeStatus.DOWN, NodeStatus.READY, "back, with nothing to tell"),
        StateTransition(NodeStatus.DOWN, NodeStatus.INITIALIZING, "back: it must tell of its allocations first"),
    ],
    ownership={
        NodeStatus.INITIALIZING: StateOwnership("its agent", "its heartbeat: TTL and grace, then down"),
        NodeStatus.READY: StateOwnership("its agent", "its heartbeat: TTL and grace, then down or disconnected"),
        NodeStatus.DISCONNECTED: StateOwnership(
            "heartbeat timers", "the longest lost_after of its allocations; each expiry of its timer decides again"
        ),
    },
    terminal_states=frozenset({NodeStatus.DOWN}),
)

TASK_STATES: Final = StateMachine(
    "task",
    TaskStatus,
    transitions=[
        StateTransition(None, TaskStatus.PENDING, "received by the node"),
        StateTransition(TaskStatus.PENDING, TaskStatus.RUNNING, "started"),
        StateTransition(TaskStatus.PENDING, TaskStatus.DEAD, "could not start, or was stopped before"),
        StateTransition(TaskStatus.RUNNING, TaskStatus.PENDING, "ended, and its restart policy starts it again"),
        StateTransition(TaskStatus.RUNNING, TaskStatus.DEAD, "ended for good, or killed"),
        StateTransition(TaskStatus.DEAD, TaskStatus.PENDING, "a person restarts all tasks of the allocation"),
    ],
    ownership={
        TaskStatus.PENDING: StateOwnership(
            "its node", "hooks and driver have bounds of their own; then its restart policy"
        ),
        TaskStatus.RUNNING: StateOwnership("its node", "the kill timeout once it is to stop; else it rests here"),
    },
    terminal_states=frozenset({TaskStatus.DEAD}),
)

AnyStateMachine: TypeAlias = (
    StateMachine[JobStatus]
    | StateMachine[EvaluationStatus]
    | StateMachine[ClientStatus]
    | StateMachine[DesiredStatus]
    | StateMachine[DeploymentStatus]
    | StateMachine[NodeStatus]
    | StateMachine[TaskStatus]
)

STATE_MACHINES: Final[tuple[AnyStateMachine, ...]] = (
    JOB_STATES,
    EVALUATION_STATES,
    ALLOCATION_STATES,
    ALLOCATION_DESIRED_STATES,
    DEPLOYMENT_STATES,
    NODE_STATES,
    TASK_STATES,
)
