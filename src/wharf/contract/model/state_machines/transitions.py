"""The state tables: job, evaluation, allocation (desired status and client status), deployment, node and task.

Every transition really occurs: the simulation asserts that each one has been taken. `docs/states.md` is generated from these
tables (`python -m wharf.contract.model.state_machines.diagrams`).
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
"""Transitions with this feature occur only in deployments of jobs in several regions."""

JOB_STATES: Final = StateMachine(
    "job",
    JobStatus,
    transitions=[
        StateTransition(None, JobStatus.PENDING, "registered"),
        StateTransition(None, JobStatus.RUNNING, "registered: system, periodic or parameterized"),
        StateTransition(None, JobStatus.DEAD, "registered as stopped"),
        StateTransition(JobStatus.PENDING, JobStatus.RUNNING, "an allocation is placed or a deployment begins"),
        StateTransition(JobStatus.PENDING, JobStatus.DEAD, "its evaluations ended and nothing is left to run"),
        StateTransition(
            JobStatus.RUNNING,
            JobStatus.PENDING,
            "nothing runs, and an evaluation is open for another reason than its next steps or elements",
        ),
        StateTransition(JobStatus.RUNNING, JobStatus.DEAD, "stopped, or all its allocations have ended"),
        StateTransition(JobStatus.DEAD, JobStatus.PENDING, "registered or evaluated again"),
        StateTransition(
            JobStatus.DEAD,
            JobStatus.RUNNING,
            "started again: system, periodic or parameterized; or a lost allocation runs again",
        ),
    ],
    ownership={
        JobStatus.PENDING: StateOwnership(
            "its open evaluation (broker or blocked queue)",
            "that evaluation's deadline; a blocked evaluation stores the reason",
        ),
        JobStatus.RUNNING: StateOwnership(
            "its allocations and deployment; for parent jobs, the caller that stops them",
            "none: re-evaluated at each change of an allocation, deployment or evaluation",
        ),
    },
    terminal_states=frozenset({JobStatus.DEAD}),
)

EVALUATION_STATES: Final = StateMachine(
    "evaluation",
    EvaluationStatus,
    transitions=[
        StateTransition(None, EvaluationStatus.PENDING, "created"),
        StateTransition(None, EvaluationStatus.BLOCKED, "created for allocations that could not be placed"),
        StateTransition(EvaluationStatus.PENDING, EvaluationStatus.COMPLETE, "processed, or its job was purged"),
        StateTransition(
            EvaluationStatus.PENDING, EvaluationStatus.FAILED, "too many conflicts or deliveries, or an unknown trigger"
        ),
        StateTransition(
            EvaluationStatus.PENDING, EvaluationStatus.CANCELED, "a newer evaluation of the job was processed"
        ),
        StateTransition(
            EvaluationStatus.PENDING,
            EvaluationStatus.BLOCKED,
            "retried without success: blocked again under the same ID",
        ),
        StateTransition(EvaluationStatus.BLOCKED, EvaluationStatus.PENDING, "capacity was freed, or a retry is due"),
        StateTransition(
            EvaluationStatus.BLOCKED, EvaluationStatus.CANCELED, "superseded by a newer one, or no longer needed"
        ),
    ],
    ownership={
        EvaluationStatus.PENDING: StateOwnership(
            "broker", "60 s for each of 3 deliveries, then failed; a delayed one starts at its Wait or WaitUntil"
        ),
        EvaluationStatus.BLOCKED: StateOwnership(
            "blocked queue", "the next capacity change that could allow a placement; after plan conflicts, 60 s"
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
        StateTransition(ClientStatus.PENDING, ClientStatus.LOST, "its node is down, deleted or disconnected"),
        StateTransition(ClientStatus.RUNNING, ClientStatus.PENDING, "its only running task waits for a restart"),
        StateTransition(ClientStatus.RUNNING, ClientStatus.COMPLETE, "all tasks succeeded, or were killed on request"),
        StateTransition(ClientStatus.RUNNING, ClientStatus.FAILED, "a task failed for good"),
        StateTransition(ClientStatus.RUNNING, ClientStatus.LOST, "its node is down or deleted"),
        StateTransition(
            ClientStatus.RUNNING, ClientStatus.UNKNOWN, "its node is disconnected, within the group's lost_after"
        ),
        StateTransition(ClientStatus.UNKNOWN, ClientStatus.PENDING, "its node reconnected; a task waits for a restart"),
        StateTransition(ClientStatus.UNKNOWN, ClientStatus.RUNNING, "its node reconnected"),
        StateTransition(ClientStatus.UNKNOWN, ClientStatus.COMPLETE, "its node reconnected; all tasks had succeeded"),
        StateTransition(ClientStatus.UNKNOWN, ClientStatus.FAILED, "its node reconnected; a task had failed"),
        StateTransition(
            ClientStatus.UNKNOWN,
            ClientStatus.LOST,
            "the group's lost_after has expired, and its node is out of contact",
        ),
        StateTransition(
            ClientStatus.LOST,
            ClientStatus.PENDING,
            "its node reconnected and has it, but no task is running",
        ),
        StateTransition(
            ClientStatus.LOST,
            ClientStatus.RUNNING,
            "its node reconnected and has not stopped it yet: it uses resources again",
        ),
        StateTransition(ClientStatus.LOST, ClientStatus.COMPLETE, "its node reconnected and has stopped it"),
        StateTransition(ClientStatus.LOST, ClientStatus.FAILED, "its node reconnected; a task had failed"),
    ],
    ownership={
        ClientStatus.PENDING: StateOwnership(
            "its node",
            "the deployment's healthy deadline; without one, the node's heartbeat and the task's own retries",
        ),
        ClientStatus.RUNNING: StateOwnership(
            "its node", "the group's max run duration; without one, none while its node sends heartbeats"
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
            DesiredStatus.RUN,
            DesiredStatus.STOP,
            "not needed on this node: update, scaling, migration, lost node, or job stopped",
        ),
        StateTransition(DesiredStatus.RUN, DesiredStatus.EVICT, "preempted by a job of higher priority"),
    ],
    ownership={
        DesiredStatus.RUN: StateOwnership("scheduler", "none: re-evaluated at each evaluation of its job"),
    },
    terminal_states=frozenset({DesiredStatus.STOP, DesiredStatus.EVICT}),
)


def _build_end_transitions(status: DeploymentStatus, *, feature: str = "") -> list[StateTransition[DeploymentStatus]]:
    """Return the transitions from this status of an active deployment to failed and to cancelled.

    `feature` names the feature without which the status does not occur; empty if it always can.
    """
    return [
        StateTransition(
            status, DeploymentStatus.FAILED, "unhealthy, past its deadline, or failed by an operator", feature
        ),
        StateTransition(status, DeploymentStatus.CANCELLED, "the job stopped or has a newer version", feature),
    ]


DEPLOYMENT_STATES: Final = StateMachine(
    "deployment",
    DeploymentStatus,
    transitions=[
        StateTransition(None, DeploymentStatus.RUNNING, "the first placements of a new version"),
        StateTransition(None, DeploymentStatus.INITIALIZING, "created in one of several regions", MULTIREGION_FEATURE),
        StateTransition(
            DeploymentStatus.INITIALIZING,
            DeploymentStatus.PENDING,
            "its region waits for earlier regions",
            MULTIREGION_FEATURE,
        ),
        StateTransition(
            DeploymentStatus.PENDING, DeploymentStatus.RUNNING, "the earlier regions are done", MULTIREGION_FEATURE
        ),
        StateTransition(DeploymentStatus.RUNNING, DeploymentStatus.PAUSED, "paused by an operator"),
        StateTransition(DeploymentStatus.PAUSED, DeploymentStatus.RUNNING, "resumed by an operator"),
        StateTransition(DeploymentStatus.RUNNING, DeploymentStatus.SUCCESSFUL, "all groups are healthy and promoted"),
        StateTransition(
            DeploymentStatus.RUNNING,
            DeploymentStatus.BLOCKED,
            "done in this region, not yet in others",
            MULTIREGION_FEATURE,
        ),
        StateTransition(
            DeploymentStatus.BLOCKED, DeploymentStatus.UNBLOCKING, "all regions are done", MULTIREGION_FEATURE
        ),
        StateTransition(
            DeploymentStatus.UNBLOCKING, DeploymentStatus.SUCCESSFUL, "every region was notified", MULTIREGION_FEATURE
        ),
        *_build_end_transitions(DeploymentStatus.RUNNING),
        *_build_end_transitions(DeploymentStatus.PAUSED),
        *_build_end_transitions(DeploymentStatus.INITIALIZING, feature=MULTIREGION_FEATURE),
        *_build_end_transitions(DeploymentStatus.PENDING, feature=MULTIREGION_FEATURE),
        *_build_end_transitions(DeploymentStatus.BLOCKED, feature=MULTIREGION_FEATURE),
        *_build_end_transitions(DeploymentStatus.UNBLOCKING, feature=MULTIREGION_FEATURE),
    ],
    ownership={
        DeploymentStatus.INITIALIZING: StateOwnership("deployment watcher", "the end of the earlier regions"),
        DeploymentStatus.PENDING: StateOwnership("deployment watcher", "the end of the earlier regions"),
        DeploymentStatus.RUNNING: StateOwnership(
            "deployment watcher", "each group's RequireProgressBy; none while it only waits for an operator's promotion"
        ),
        DeploymentStatus.PAUSED: StateOwnership(
            "the operator who paused it", "none: RequireProgressBy restarts on resume"
        ),
        DeploymentStatus.BLOCKED: StateOwnership("deployment watcher", "the end of the other regions"),
        DeploymentStatus.UNBLOCKING: StateOwnership("deployment watcher", "the other regions' replies"),
    },
    terminal_states=frozenset({DeploymentStatus.SUCCESSFUL, DeploymentStatus.FAILED, DeploymentStatus.CANCELLED}),
)

NODE_STATES: Final = StateMachine(
    "node",
    NodeStatus,
    transitions=[
        StateTransition(None, NodeStatus.INITIALIZING, "registered for the first time, or again after a purge"),
        StateTransition(
            NodeStatus.INITIALIZING,
            NodeStatus.READY,
            "fingerprinted, its pool exists and it has reported its allocations",
        ),
        StateTransition(NodeStatus.INITIALIZING, NodeStatus.DOWN, "no heartbeat"),
        StateTransition(NodeStatus.READY, NodeStatus.DOWN, "no heartbeat"),
        StateTransition(
            NodeStatus.READY,
            NodeStatus.DISCONNECTED,
            "no heartbeat, and an allocation is within its group's lost_after",
        ),
        StateTransition(
            NodeStatus.DISCONNECTED, NodeStatus.INITIALIZING, "reconnected: it must report its allocations first"
        ),
        StateTransition(
            NodeStatus.DISCONNECTED, NodeStatus.DOWN, "no heartbeat, and no allocation waits for it any longer"
        ),
        StateTransition(NodeStatus.DOWN, NodeStatus.READY, "reconnected, with no allocations to report"),
        StateTransition(NodeStatus.DOWN, NodeStatus.INITIALIZING, "reconnected: it must report its allocations first"),
    ],
    ownership={
        NodeStatus.INITIALIZING: StateOwnership("its agent", "its heartbeat: TTL and grace, then down"),
        NodeStatus.READY: StateOwnership("its agent", "its heartbeat: TTL and grace, then down or disconnected"),
        NodeStatus.DISCONNECTED: StateOwnership(
            "heartbeat timers", "the longest lost_after of its allocations; re-evaluated when its timer expires"
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
        StateTransition(TaskStatus.PENDING, TaskStatus.DEAD, "failed to start, or was stopped before it started"),
        StateTransition(TaskStatus.RUNNING, TaskStatus.PENDING, "ended, and its restart policy starts it again"),
        StateTransition(TaskStatus.RUNNING, TaskStatus.DEAD, "ended for good, or killed"),
        StateTransition(TaskStatus.DEAD, TaskStatus.PENDING, "an operator restarts all tasks of the allocation"),
    ],
    ownership={
        TaskStatus.PENDING: StateOwnership("its node", "the time limits of hooks and driver; then its restart policy"),
        TaskStatus.RUNNING: StateOwnership("its node", "the kill timeout once it must stop; none before"),
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
