"""Explanations of jobs, evaluations and allocations for people: a sentence first, then the details. Nothing is decided here."""

import enum

from wharf.contract.model.allocations.metrics import NodeScore
from wharf.contract.model.record import Record


class WaitReason(enum.StrEnum):
    """What a job waits for. `NOTHING`: the job has its desired state. `UNKNOWN`: the reason could not be found."""

    NOTHING = "nothing"
    PAUSED_SCHEDULER = "paused-scheduler"
    QUEUE = "queue"
    DELAY = "delay"
    CAPACITY = "room"
    QUOTA = "quota"
    SCHEDULING_SLOT = "turn"
    HEALTH = "health"
    PROMOTION = "promotion"
    RESUMPTION = "resumption"
    DRAIN = "drain"
    NODE = "node"
    TASKS = "tasks"
    LAUNCH = "launch"
    DISPATCH = "dispatch"
    CHANGE = "change"
    UNKNOWN = "unknown"


class WaitCondition(Record):
    """One thing that the job waits for."""

    waits_for: WaitReason
    text: str
    eval_id: str = ""
    deployment_id: str = ""


class Exclusion(Record):
    """A rule, and how many nodes it excludes. `examples` holds a few of their names."""

    rule: str
    nodes: int
    examples: tuple[str, ...] = ()


class Shortage(Record):
    """A resource of which nodes have too little. `missing` is the smallest missing amount on any of the nodes.

    0 means that the shortage is not an amount.
    """

    dimension: str
    nodes: int
    missing: int = 0
    unit: str = ""
    examples: tuple[str, ...] = ()


class GroupExplanation(Record):
    """The state of a group's allocations, and which nodes could run another one. `fitting` counts nodes with capacity for one more."""

    group: str
    wanted: int = 0
    running: int = 0
    starting: int = 0
    unplaced: int = 0
    text: str = ""
    nodes: int = 0
    fitting: int = 0
    excluded: tuple[Exclusion, ...] = ()
    exhausted: tuple[Shortage, ...] = ()
    smallest_change: str = ""


class PlacementExplanation(Record):
    """Why an allocation was placed on its node: the node's scores, and those of the next best nodes."""

    alloc_id: str
    name: str
    node_id: str
    node_name: str = ""
    nodes_evaluated: int = 0
    nodes_filtered: int = 0
    scores: tuple[NodeScore, ...] = ()


class JobExplanation(Record):
    """Why a job has its current state. `text` is the summary sentence.

    `queue_place` is the position of the job's evaluation in the queue, counted from 1; `queue_length` is the queue's length.
    """

    job_id: str
    namespace: str
    status: str
    text: str
    waits: tuple[WaitCondition, ...] = ()
    queue_place: int = 0
    queue_length: int = 0
    groups: tuple[GroupExplanation, ...] = ()
    placements: tuple[PlacementExplanation, ...] = ()

    @property
    def is_explained(self) -> bool:
        return bool(self.text) and all(condition.waits_for is not WaitReason.UNKNOWN for condition in self.waits)


class EvaluationExplanation(Record):
    """Why an evaluation was created, what its outcome was, and what follows from it.

    `groups` holds the groups that could not be placed, as the evaluation found them. `job` explains the job's current state, or
    is `None` if the job no longer exists.
    """

    eval_id: str
    job_id: str
    namespace: str
    status: str
    triggered_by: str
    text: str
    waits: tuple[WaitCondition, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    placed: int = 0
    groups: tuple[GroupExplanation, ...] = ()
    job: JobExplanation | None = None


class AllocationExplanation(Record):
    """Why an allocation has its current state. `story` lists the events before and after it, oldest first."""

    alloc_id: str
    name: str
    job_id: str
    namespace: str
    text: str
    waits: tuple[WaitCondition, ...] = ()
    story: tuple[str, ...] = ()
    placement: PlacementExplanation
