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
    """An allocation that must stop."""

    allocation: Allocation
    reason: str  # The text that is stored with the allocation.
    client_status: ClientStatus | None = None  # Set if servers must record it because the node cannot report.


class PlacementRequest(msgspec.Struct, frozen=True):
    """A request to place one allocation on a node that is still to be chosen."""

    name: str  # The name of the new allocation, such as `job.group[0]`.
    job: Job  # The version to run, which is an older one while canaries are tried.
    group: TaskGroup  # The group in this version of the job.
    previous: Allocation | None = None  # The allocation that it replaces.
    is_canary: bool = False
    is_reschedule: bool = False  # It replaces a failed or unknown allocation, preferably on another node.
    failed_at_ns: int | None = None
    """When the rescheduled allocation became unknown, if its node cannot report a failure time."""
    stop: AllocationStop | None = None
    """The stop of the previous allocation. It applies only if the placement succeeds."""
    deployment_id: str = ""
    """If an older version is placed: the deployment of that version."""
    array_attempt: int = 0
    """The attempt of the array of which the allocation runs an element; 0: its group has no array."""
    array_item: str = ""  # The item of that element.
    node: Node | None = None
    """The only node that may be chosen, for jobs that run on every node."""


class FollowUp(msgspec.Struct, frozen=True):
    """A request for an evaluation that is due later, because of one allocation."""

    allocation: Allocation
    due_at_ns: int  # In Unix nanoseconds.
    trigger: EvaluationTrigger  # Why the evaluation is created.
    is_linked: bool = True
    """Whether the allocation records the id of the follow-up evaluation."""


class GroupOutcome(msgspec.Struct):
    """What the reconciliation of one group decided."""

    name: str  # The name of the group.
    stops: list[AllocationStop] = []
    placements: list[PlacementRequest] = []
    """In the order in which nodes are chosen for them."""
    replacements: list[PlacementRequest] = []
    """Updates that replace an allocation by a new one.

    The old one, in `stop`, does not count when the new one is placed.
    """
    in_place_updates: list[Allocation] = []
    """The current records of allocations that become part of the new version on their nodes."""
    disconnects: list[Allocation] = []
    """Records of disconnected allocations as they will be written."""
    reconnects: list[Allocation] = []
    """Records of reconnected allocations as they will be written."""
    follow_ups: list[FollowUp] = []
    update_counts: DesiredUpdates = DesiredUpdates()  # How many allocations are placed, stopped and updated.
    is_complete: bool = False  # The group needs nothing more from its deployment.
    deployment: DeploymentGroup | None = None
    """The state of the group in its deployment. `None`: the group has none."""
    is_new_deployment: bool = False  # A deployment must start for this group.
    has_more_elements: bool = False
    """Further elements of an array may begin, but another evaluation requests them, so that plans stay small."""
    infeasible_count: int = 0
    """Missing allocations of a system job on nodes that can never run the group. They do not count as required."""
