"""What reconciling a group comes to, before anybody looks for nodes."""

import msgspec

from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.deployments import DeploymentGroup
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.plan import DesiredUpdates


class AllocationStop(msgspec.Struct, frozen=True):
    """`client_status`: what servers say of it in its node's place."""

    allocation: Allocation
    reason: str
    client_status: ClientStatus | None = None


class PlacementRequest(msgspec.Struct, frozen=True):
    """One allocation that is missing. `job` and `group` are those to run: an older version's while canaries are tried."""

    name: str
    job: Job
    group: TaskGroup
    previous: Allocation | None = None
    is_canary: bool = False
    is_reschedule: bool = False
    failed_at_ns: int | None = None
    """When that which is rescheduled was given up, where its node could not say."""
    stop: AllocationStop | None = None
    """Carried out once this is placed: until then what failed is not given up."""
    deployment_id: str = ""
    """Of an older version's deployment."""


class ReplacementRequest(msgspec.Struct, frozen=True):
    """An update that needs the tasks to start anew: the old one stops, and one of its name is placed."""

    stop: AllocationStop
    placement: PlacementRequest


class FollowUp(msgspec.Struct, frozen=True):
    """An evaluation to be made for later, on account of an allocation."""

    allocation: Allocation
    due_at_ns: int
    trigger: EvaluationTrigger
    is_linked: bool = True
    """The allocation names it as its follow-up."""


class GroupOutcome(msgspec.Struct):
    name: str
    stops: list[AllocationStop] = []
    placements: list[PlacementRequest] = []
    replacements: list[ReplacementRequest] = []
    in_place_updates: list[Allocation] = []
    """As they are now; they become part of the new version where they are."""
    disconnects: list[Allocation] = []
    """As they shall be."""
    reconnects: list[Allocation] = []
    """As they shall be."""
    follow_ups: list[FollowUp] = []
    update_counts: DesiredUpdates = DesiredUpdates()
    is_complete: bool = False
    deployment: DeploymentGroup | None = None
    """How the group stands in its deployment; None: it has no part in one."""
    is_new_deployment: bool = False
