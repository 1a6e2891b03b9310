"""The first part of a system job's rollout: a new version is tried on some of its nodes before the others (scheduling.md 5.11).

`canary` is a part of the nodes in percent there, not a number. Until the canaries are promoted the other nodes keep the version
that they have, and so does a node that joins. Where the trial fails, its nodes get that version back.
"""

import math
from collections.abc import Iterable

import msgspec

from wharf.model.allocation import Allocation
from wharf.model.deployment import Deployment, DeploymentGroup, DeploymentStatus
from wharf.model.policies import UpdatePolicy


class Trial(msgspec.Struct, frozen=True):
    """`canaries`: how many nodes try the version; 0: nothing is tried. `tried`: where it is, or was."""

    canaries: int = 0
    tried: tuple[str, ...] = ()
    is_open: bool = False
    """Nobody has promoted it yet, and it goes on."""
    has_failed: bool = False
    """Nobody will: its deployment failed before."""

    def missing(self, allocations: Iterable[Allocation]) -> int:
        """How many nodes are still to try it."""
        going_on = sum(each.id in self.tried and not each.is_terminal for each in allocations)
        return max(0, self.canaries - going_on)


NO_TRIAL = Trial()


def trial_of(
    update: UpdatePolicy | None, deployment: Deployment | None, known: DeploymentGroup | None, outdated: int
) -> Trial:
    """`known`: the group in its deployment; `outdated`: how many nodes have another version of what must start anew."""
    if known is None:
        if deployment is not None or update is None or update.max_parallel <= 0:
            return NO_TRIAL
        wanted = canaries_among(outdated, update)
        return Trial(wanted, (), is_open=wanted > 0)
    if not known.awaits_promotion or deployment is None:
        return NO_TRIAL
    has_failed = deployment.status is DeploymentStatus.FAILED
    return Trial(known.desired_canaries, known.placed_canaries or (), is_open=not has_failed, has_failed=has_failed)


def canaries_among(nodes: int, update: UpdatePolicy) -> int:
    """So many percent of the nodes, of a part of a node all of it; never more than are exchanged at once."""
    percent = min(100, max(0, update.canary))
    return min(math.ceil(nodes * percent / 100), update.max_parallel)
