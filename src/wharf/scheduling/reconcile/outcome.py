"""What reconciling a group comes to, before anybody looks for nodes."""

import msgspec

from wharf.model.allocation import Allocation, ClientStatus
from wharf.model.deployment import DeploymentGroup
from wharf.model.evaluation import EvaluationTrigger
from wharf.model.group import TaskGroup
from wharf.model.job import Job
from wharf.model.plan import DesiredUpdates


class Stop(msgspec.Struct, frozen=True):
    """`client_status`: what servers say of it in its node's place."""

    allocation: Allocation
    why: str
    client_status: ClientStatus | None = None


class Placement(msgspec.Struct, frozen=True):
    """One allocation that is missing. `job` and `group` are those to run: an older version's while canaries are tried."""

    name: str
    job: Job
    group: TaskGroup
    previous: Allocation | None = None
    is_canary: bool = False
    is_reschedule: bool = False
    failed_at_ns: int | None = None
    """When that which is rescheduled was given up, where its node could not say."""
    stop: Stop | None = None
    """Carried out once this is placed: until then what failed is not given up."""
    deployment_id: str = ""
    """Of an older version's deployment."""


class Replacement(msgspec.Struct, frozen=True):
    """An update that needs the tasks to start anew: the old one stops, and one of its name is placed."""

    stop: Stop
    placement: Placement


class LookAgain(msgspec.Struct, frozen=True):
    """An evaluation to be made for later, on account of an allocation."""

    allocation: Allocation
    at_ns: int
    trigger: EvaluationTrigger
    marks: bool = True
    """The allocation names it as its follow-up."""


class GroupOutcome(msgspec.Struct):
    name: str
    stops: list[Stop] = []
    places: list[Placement] = []
    replacements: list[Replacement] = []
    in_place: list[Allocation] = []
    """As they are now; they become part of the new version where they are."""
    disconnects: list[Allocation] = []
    """As they shall be."""
    reconnects: list[Allocation] = []
    """As they shall be."""
    later: list[LookAgain] = []
    updates: DesiredUpdates = DesiredUpdates()
    is_complete: bool = False
    deployment: DeploymentGroup | None = None
    """How the group stands in its deployment; None: it has no part in one."""
    begins_deployment: bool = False
