"""Why a job's work is where it is, or nowhere: for people, one sentence first and the table after. Nothing is decided here."""

import enum

from wharf.contract.model.allocations.metrics import NodeScore
from wharf.contract.model.record import Record


class WaitReason(enum.StrEnum):
    """What a job waits for. `NOTHING` is said of one that is as it is wanted, `UNKNOWN` of one that nobody can explain."""

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
    """One thing that is waited for."""

    waits_for: WaitReason
    text: str
    eval_id: str = ""
    deployment_id: str = ""


class Exclusion(Record):
    """A rule, and the nodes that it leaves out. `examples` are a few of their names."""

    rule: str
    nodes: int
    examples: tuple[str, ...] = ()


class Shortage(Record):
    """What there is too little of. `missing` is the least that is missing on one of the nodes; 0: it is no amount."""

    dimension: str
    nodes: int
    missing: int = 0
    unit: str = ""
    examples: tuple[str, ...] = ()


class GroupExplanation(Record):
    """How a group stands, and how the nodes stand to it. `fitting`: nodes that would take one more now."""

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
    """Why an allocation is where it is: what the node scored, and the next best ones."""

    alloc_id: str
    name: str
    node_id: str
    node_name: str = ""
    nodes_evaluated: int = 0
    nodes_filtered: int = 0
    scores: tuple[NodeScore, ...] = ()


class JobExplanation(Record):
    """`text` is the one sentence. Of the queue: the place of the job's evaluation counted from 1, and how many stand there."""

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
        return bool(self.text) and all(each.waits_for is not WaitReason.UNKNOWN for each in self.waits)


class EvaluationExplanation(Record):
    """Why a job was looked at, what came of it, and what it leads to. `groups`: those that found no room, as it found them.
    `job`: how its job stands now; None: there is none any more."""

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
    """Why an allocation is where it is. `story`: what led to it and what came after, the oldest first."""

    alloc_id: str
    name: str
    job_id: str
    namespace: str
    text: str
    waits: tuple[WaitCondition, ...] = ()
    story: tuple[str, ...] = ()
    placement: PlacementExplanation
