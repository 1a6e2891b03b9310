"""The state that the steps share while they reconcile one group of a service or batch job.

The steps are in the other modules of this package.
"""

from wharf.cluster.scheduling.reconcile.input import LOST_TEXT, ReconcileInput, is_replacement_owed
from wharf.cluster.scheduling.reconcile.outcome import AllocationStop, GroupOutcome
from wharf.cluster.scheduling.reconcile.replacement_chain import ReplacementChain
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.deployments import DeploymentGroup, DeploymentStatus
from wharf.contract.model.jobs.group_policies import UpdatePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.plan import DesiredUpdates

AllocationsById = dict[str, Allocation]
"""Allocations by id, in order of creation."""


class GroupState:
    """The working state while one group of a service or batch job is reconciled.

    Each step changes what earlier steps left.
    """

    def __init__(self, reconcile_input: ReconcileInput, group: TaskGroup, allocations: AllocationsById) -> None:
        self.input = reconcile_input
        self.job = reconcile_input.job
        self.group = group
        self.outcome = GroupOutcome(group.name)  # What the steps have decided so far.
        self.counts: dict[str, int] = dict.fromkeys(DesiredUpdates.__struct_fields__, 0)
        """How many allocations are placed, stopped, updated and so on, for the result."""
        self.untainted: AllocationsById = {}
        """Allocations that count towards the group's count and are not affected by their nodes, without those that are
        rescheduled or replaced.
        """
        self.migrating: AllocationsById = {}  # Allocations that move to another node.
        self.lost: AllocationsById = {}  # Allocations whose node is down or deleted.
        self.destructive: list[Allocation] = []
        """Of `untainted`, the allocations of an older version that must be replaced, in the order of replacement."""
        self.reschedule_now: list[Allocation] = []
        """Allocations that are rescheduled now: failed ones, and those of a service that ended although they should run."""
        self.awaiting_watcher: list[Allocation] = []
        """Failed allocations of the current deployment whose retry the leader's deployment controller has not decided."""
        self.replaced_unknown: list[tuple[Allocation, int]] = []
        """Unknown allocations that are replaced but not stopped, with the time when they became unknown."""
        self.holds_placements = False
        """Nothing is placed for now, because a lost allocation may still run on its node."""
        self.owed_count = sum(map(is_replacement_owed, allocations.values()))
        """How many replacements are owed: old allocations were stopped for an update, but the new ones found no
        capacity.

        They are placed even if the deployment is paused or failed.
        """
        self._counting_ids = {key for key, allocation in allocations.items() if not allocation.is_terminal}
        """The ids of allocations that count towards the group's count: active ones, and failed ones that stay."""
        self._replacement_chain = ReplacementChain(dict(allocations))
        deployment = reconcile_input.deployment
        self.is_paused = deployment is not None and deployment.status is not DeploymentStatus.RUNNING
        """A deployment exists and is not running."""
        self.is_failed = deployment is not None and deployment.status is DeploymentStatus.FAILED
        known = (deployment.task_groups or {}).get(group.name) if deployment is not None else None
        self.is_in_deployment = known is not None  # The current deployment has a state for this group.
        self.rollout = known if known is not None else _make_rollout(group.update)
        """The group's state in its deployment, or in the one that may start now."""
        self.canary_ids = dict.fromkeys(self.rollout.placed_canaries or ())
        """The ids of the canaries of the current deployment, whatever their state."""

    @property
    def update_policy(self) -> UpdatePolicy | None:
        """The update policy, or `None` if all allocations are updated at once."""
        update = self.group.update
        return update if update is not None and update.max_parallel > 0 else None

    @property
    def is_canarying(self) -> bool:
        """Whether the group has canaries that were not promoted yet, or needs some."""
        return self.rollout.desired_canaries > 0 and not self.rollout.promoted and self.update_policy is not None

    def add_stop(self, stop: AllocationStop, *, is_counted: bool = True) -> None:
        """Record a stop. With `is_counted`, it adds to the number of stops in the result."""
        self.outcome.stops.append(stop)
        self._counting_ids.discard(stop.allocation.id)  # The allocation that it replaced counts again.
        if is_counted:
            self.counts["stop"] += 1

    def count_failed_allocations(self) -> None:
        """Let failed allocations that are retried or stay in the group count towards its count, as active ones do."""
        self._counting_ids.update(self.untainted, (allocation.id for allocation in self.reschedule_now))

    def find_replacements(self, allocation: Allocation) -> list[Allocation]:
        """Return the direct replacement of the allocation, the replacement's replacement, and so on."""
        return list(self._replacement_chain.iter_replacements(allocation))

    def has_counting_replacement(self, allocation: Allocation) -> bool:
        """Return whether a direct or indirect replacement of the allocation counts towards the group's count."""
        replacements = self._replacement_chain.iter_replacements(allocation)
        return any(replacement.id in self._counting_ids for replacement in replacements)

    def is_unknown_and_replaced(self, allocation: Allocation) -> bool:
        """Return whether the allocation is unknown and has a replacement that counts towards the group's count."""
        return allocation.client_status is ClientStatus.UNKNOWN and self.has_counting_replacement(allocation)


def _make_rollout(update: UpdatePolicy | None) -> DeploymentGroup:
    """Return the state with which a group with this update policy starts in a deployment."""
    if update is None:
        return DeploymentGroup()
    return DeploymentGroup(
        auto_revert=update.auto_revert, auto_promote=update.auto_promote, progress_deadline=update.progress_deadline
    )


def stop_as_lost(allocation: Allocation) -> AllocationStop:
    """Return a stop that also sets the client status to lost, because the node cannot report."""
    return AllocationStop(allocation, LOST_TEXT, ClientStatus.LOST)
