"""A plan: the changes that one evaluation proposes. `plans.check` checks it before the leader commits it in parts."""

import msgspec

from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.job import Job


class AllocationChange(msgspec.Struct, frozen=True):
    """An existing allocation as it will be written.

    A stop stays valid if the node has reported on the allocation in the meantime.
    """

    allocation: Allocation
    is_stop: bool = True


class Plan(msgspec.Struct, frozen=True):
    """The changes that one evaluation proposes.

    `changes` concern existing allocations. `placements` maps node ids to new allocations.
    """

    evaluation: Evaluation
    job: Job | None = None
    """The job as the evaluation found it. `None`: the job does not exist."""
    changes: tuple[AllocationChange, ...] = ()
    placements: dict[str, tuple[Allocation, ...]] = {}
    completed_evaluation: Evaluation | None = None
    """The evaluation as it ends. `None`: it must run again."""
    follow_ups: tuple[Evaluation, ...] = ()
    deployments: tuple[Deployment, ...] = ()
    """Deployments as they will be written. They come first, because new allocations count in them."""
    stable_job: Job | None = None
    """The job version that its deployment has proven stable."""
    all_at_once: bool = False

    @property
    def stops(self) -> tuple[Allocation, ...]:
        """The allocations that the plan stops."""
        return tuple(change.allocation for change in self.changes if change.is_stop)
