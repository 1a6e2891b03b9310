"""The result of reconciling a group, before nodes are chosen."""

import msgspec

from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.deployments import DeploymentGroup
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.plan import DesiredUpdates
from wharf.contract.model.nodes.node import Node


class AllocationStop(msgspec.Struct, frozen=True):
    """An allocation that must stop. `client_status` is set if servers must record it because the node cannot report."""

    allocation: Allocation
    reason: str
    client_status: ClientStatus | None = None


class PlacementRequest(msgspec.Struct, frozen=True):
    """One allocation that needs a node.

    `job` and `group` are the version to run, which is an older one while canaries are tried. `previous` is the
    allocation that it replaces.
    """

    name: str
    job: Job
    group: TaskGroup
    previous: Allocation | None = None
    is_canary: bool = False
    is_reschedule: bool = False
    failed_at_ns: int | None = None
    """When the rescheduled allocation became unknown, if its node cannot report a failure time."""
    stop: AllocationStop | None = None
    """Applied only after the placement succeeds. Until then the previous allocation continues."""
    deployment_id: str = ""
    """The deployment of an older version."""
    node: Node | None = None
    """The only node that may be chosen, for jobs that run on every node."""


class FollowUp(msgspec.Struct, frozen=True):
    """An evaluation that must be created for a later time because of an allocation."""

    allocation: Allocation
    due_at_ns: int
    trigger: EvaluationTrigger
    is_linked: bool = True
    """Whether the allocation records the id of the follow-up evaluation."""


class GroupOutcome(msgspec.Struct):
    """What reconciling one group decided."""

    name: str
    stops: list[AllocationStop] = []
    placements: list[PlacementRequest] = []
    """In the order in which they are tried."""
    replacements: list[PlacementRequest] = []
    """Updates that need a new allocation. The old one, which `stop` names, does not count against its replacement."""
    in_place_updates: list[Allocation] = []
    """The current records of allocations that become part of the new version on their nodes."""
    disconnects: list[Allocation] = []
    """Records of disconnected allocations as they will be written."""
    reconnects: list[Allocation] = []
    """Records of reconnected allocations as they will be written."""
    follow_ups: list[FollowUp] = []
    update_counts: DesiredUpdates = DesiredUpdates()
    is_complete: bool = False
    deployment: DeploymentGroup | None = None
    """The state of the group in its deployment. `None`: the group has none."""
    is_new_deployment: bool = False
    infeasible_count: int = 0
    """Missing allocations of a system job on nodes that can never run the group. They do not count as required."""
