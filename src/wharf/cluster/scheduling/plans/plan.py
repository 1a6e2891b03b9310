"""A plan: the changes that one evaluation proposes. `plans.check` checks it before the leader commits it in parts."""

import msgspec

from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.job import Job


class AllocationChange(msgspec.Struct, frozen=True):
    """An existing allocation as the plan will write it."""

    allocation: Allocation  # The record to write.
    is_stop: bool = True  # A stop is committed even if the node has reported on the allocation since.


class Plan(msgspec.Struct, frozen=True):
    """The changes that one evaluation proposes."""

    evaluation: Evaluation
    job: Job | None = None
    """The job as the evaluation found it. `None`: the job does not exist."""
    changes: tuple[AllocationChange, ...] = ()  # Changed records of existing allocations.
    placements: dict[str, tuple[Allocation, ...]] = {}  # New allocations by node id.
    completed_evaluation: Evaluation | None = None
    """The evaluation as it ends. `None`: it must run again."""
    follow_ups: tuple[Evaluation, ...] = ()  # Further evaluations to write: new ones, and canceled ones.
    deployments: tuple[Deployment, ...] = ()
    """Deployments as they will be written. They come first, because new allocations count in them."""
    stable_job: Job | None = None
    """The job version that its deployment has proven stable."""
    all_at_once: bool = False  # The plan is committed in one write or not at all.

    @property
    def stops(self) -> tuple[Allocation, ...]:
        """The allocations that the plan stops."""
        return tuple(change.allocation for change in self.changes if change.is_stop)
