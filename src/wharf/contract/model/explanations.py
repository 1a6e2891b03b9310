"""Explanations of jobs, evaluations and allocations for people: a sentence first, then the details. Nothing is decided here."""

import enum

from wharf.contract.model.allocations.metrics import NodeScore
from wharf.contract.model.record import Record


class WaitReason(enum.StrEnum):
    """What a job waits for."""

    NOTHING = "nothing"  # The job has its desired state.
    PAUSED_SCHEDULER = "paused-scheduler"  # An operator paused scheduling.
    QUEUE = "queue"  # Its evaluation is queued.
    DELAY = "delay"  # A due time, such as a delayed reschedule.
    CAPACITY = "room"  # Free resources on nodes.
    QUOTA = "quota"
    SCHEDULING_SLOT = "turn"  # Another child of the same parent must end first.
    LOCK = "lock"  # Another allocation holds the lock of a step.
    HEALTH = "health"  # Allocations of the deployment must become healthy.
    PROMOTION = "promotion"  # An operator must promote the canaries.
    RESUMPTION = "resumption"  # An operator must resume the deployment.
    DRAIN = "drain"
    NODE = "node"  # A node is out of contact.
    ARRAY = "array"  # Another element of the array must end first.
    STEP = "step"  # Another step of the run must end first.
    GATE = "gate"  # A person must approve a step.
    TASKS = "tasks"  # Tasks must start or end.
    LAUNCH = "launch"  # The next launch of a periodic job.
    DISPATCH = "dispatch"  # The job is a template and must be dispatched.
    CHANGE = "change"  # The job must be changed.
    UNKNOWN = "unknown"  # The reason could not be found.


class WaitCondition(Record):
    """One thing that the job waits for."""

    waits_for: WaitReason
    text: str  # A sentence for users.
    eval_id: str = ""  # The evaluation that waits; empty if it is not one.
    deployment_id: str = ""  # Empty if it is not a deployment that waits.
    advice: tuple[str, ...] = ()  # What would help. The text says it too.


class Exclusion(Record):
    """A constraint or other rule that excludes nodes from running a group."""

    rule: str  # The rule as text.
    nodes: int  # How many nodes it excludes.
    examples: tuple[str, ...] = ()  # The names of a few of them.
    text: str = ""  # A sentence with details of the nodes, instead of the rule; empty if there are none.

    def describe(self) -> str:
        """Return how many nodes the rule excludes, as a part of a sentence."""
        return self.text or f'{self.nodes} by "{self.rule}"'


class Shortage(Record):
    """A resource of which some nodes have too little free to run one more allocation of a group."""

    dimension: str  # The resource, such as "memory".
    nodes: int  # How many nodes have too little.
    missing: int = 0  # The smallest missing amount on any of them; 0: not a resource with an amount.
    unit: str = ""  # The unit of `missing`.
    examples: tuple[str, ...] = ()  # The names of a few nodes.


class GroupExplanation(Record):
    """The state of the allocations of one group, and why nodes cannot run another one."""

    group: str
    wanted: int = 0  # How many allocations the group should have.
    running: int = 0
    starting: int = 0  # Placed but not running yet.
    complete: int = 0  # Finished successfully; only of batch jobs.
    canaries: int = 0  # How many of the running ones are canaries, which exist beside the `wanted` ones.
    unplaced: int = 0  # Without a node.
    text: str = ""  # A sentence for users.
    nodes: int = 0  # How many nodes were examined.
    fitting: int = 0  # How many of them have capacity for one more.
    excluded: tuple[Exclusion, ...] = ()  # The rules that exclude nodes.
    exhausted: tuple[Shortage, ...] = ()  # The resources that nodes lack.
    smallest_change: str = ""  # The smallest change of the job that would allow a placement.
    is_array: bool = False  # It has an array: `wanted` are the elements that have not ended.


class PlacementExplanation(Record):
    """Why an allocation was placed on its node: the scores of this node and of the next best ones."""

    alloc_id: str
    name: str  # The name of the allocation.
    node_id: str
    node_name: str = ""
    nodes_evaluated: int = 0
    nodes_filtered: int = 0  # How many nodes constraints excluded.
    scores: tuple[NodeScore, ...] = ()  # Best node first.


class FailureExplanation(Record):
    """Why allocations of a job failed, if they failed for the same reason and were not replaced successfully."""

    alloc_id: str  # The newest of them.
    name: str  # The name of that allocation.
    text: str  # The reason.
    count: int = 1  # How many allocations failed for this reason.
    task: str = ""  # The task whose output may show the cause; empty if no program ended by itself.


class StepExplanation(Record):
    """Why a step of a run is in its state."""

    step: str
    phase: str  # A `StepPhase`.
    outcome: str  # A `StepOutcome`; `open`: it has not ended.
    text: str  # The end of a sentence that begins with the name of the step.


class JobExplanation(Record):
    """Why a job has its current state."""

    job_id: str
    namespace: str
    status: str
    text: str  # The summary sentence.
    waits: tuple[WaitCondition, ...] = ()  # What it waits for.
    queue_place: int = 0  # The position of its evaluation in the queue, counted from 1; 0: not queued.
    queue_length: int = 0  # How many evaluations the queue holds.
    groups: tuple[GroupExplanation, ...] = ()
    steps: tuple[StepExplanation, ...] = ()  # In the order of the file; only of a run.
    placements: tuple[PlacementExplanation, ...] = ()  # Why its allocations are on their nodes.
    failures: tuple[FailureExplanation, ...] = ()  # Why allocations of its current version failed, newest first.

    @property
    def is_explained(self) -> bool:
        """Whether the explanation has a summary and every reason for waiting is known."""
        return bool(self.text) and all(condition.waits_for is not WaitReason.UNKNOWN for condition in self.waits)


class EvaluationExplanation(Record):
    """Why an evaluation was created, what its outcome was, and what follows from it."""

    eval_id: str
    job_id: str
    namespace: str
    status: str
    triggered_by: str  # Its trigger, such as "job-register".
    text: str  # The summary sentence.
    waits: tuple[WaitCondition, ...] = ()
    before: tuple[str, ...] = ()  # Descriptions of the evaluations that led to it.
    after: tuple[str, ...] = ()  # Descriptions of the evaluations that follow from it.
    placed: int = 0  # How many allocations it placed.
    groups: tuple[GroupExplanation, ...] = ()  # The groups that it could not place completely.
    job: JobExplanation | None = None  # The current state of its job; null if the job no longer exists.


class AllocationExplanation(Record):
    """Why an allocation has its current state. `story` lists the events before and after its creation, oldest first."""

    alloc_id: str
    name: str  # Such as "web.frontend[0]".
    job_id: str
    namespace: str
    text: str  # The summary sentence.
    waits: tuple[WaitCondition, ...] = ()
    story: tuple[str, ...] = ()  # One description for each event.
    placement: PlacementExplanation
