"""Bodies about evaluations, allocations, deployments, services and scaling that are no records."""

from typing import TYPE_CHECKING, Any, Final

import msgspec

from wharf.model.allocated_resources import AllocatedResources
from wharf.model.allocation import Allocation
from wharf.model.job import Job
from wharf.model.metric import AllocMetric
from wharf.model.record import Record
from wharf.model.task_state import ShownTaskState


class EvaluationDeleteRequest(Record):
    """One of the two: `eval_ids` all go or none; of those that `filter` matches the ones still needed stay."""

    eval_ids: tuple[str, ...] | None = msgspec.field(name="EvalIDs", default=None)
    filter: str = ""


class EvaluationDeleteResponse(Record):
    count: int = 0
    index: int = 0


class EvaluationCount(Record):
    count: int = 0
    index: int = 0
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""


class AllocationStopResponse(Record):
    eval_id: str = ""
    index: int = 0


_NOT_SHOWN: Final = frozenset(("job_version", "job_create_index", "log_tails", "report_number"))
"""The embedded job tells the first two, the reading of logs the third; the last is between servers and a node."""

_SHOWN_AS: Final[dict[str, Any]] = {
    "allocated_resources": AllocatedResources | None,
    "metrics": AllocMetric | None,
    "task_states": dict[str, ShownTaskState] | None,
}
"""Fields that are stored in a form of their own."""


def _shown_definition() -> list[tuple[str, Any, Any]]:
    """The fields of an allocation as a reply shows it, with its job."""
    found: list[tuple[str, Any, Any]] = [("job", Job | None, msgspec.field(name="Job", default=None))]
    for field in msgspec.structs.fields(Allocation):
        if field.name not in _NOT_SHOWN:
            kind = _SHOWN_AS.get(field.name, field.type)
            found.append((field.name, kind, msgspec.field(name=field.encode_name, default=field.default)))
    return found


# Made of the record's fields, so that a field of allocations is declared once.
if TYPE_CHECKING:

    class AllocationShown(Allocation):
        job: Job | None = None
        task_states: dict[str, ShownTaskState] | None = None  # type: ignore[assignment]  # Stored in a form of its own.

else:
    AllocationShown = msgspec.defstruct(
        "AllocationShown", _shown_definition(), module=__name__, frozen=True, gc=False, kw_only=True, omit_defaults=True
    )
SHOWN_FIELDS: Final = tuple(name for name in AllocationShown.__struct_fields__ if name not in ("job", *_SHOWN_AS))


class DeploymentPauseRequest(Record):
    deployment_id: str = ""
    pause: bool = False


class DeploymentPromoteRequest(Record):
    """`all`: every group with canaries; `groups` is then passed over."""

    deployment_id: str = ""
    all: bool = False
    groups: tuple[str, ...] | None = None


class DeploymentUnblockRequest(Record):
    deployment_id: str = ""


class DeploymentFailRequest(Record):
    """May be left out, and says nothing that counts."""

    deployment_id: str = ""


class DeploymentHealthRequest(Record):
    deployment_id: str = ""
    healthy_allocation_ids: tuple[str, ...] | None = msgspec.field(name="HealthyAllocationIDs", default=None)
    unhealthy_allocation_ids: tuple[str, ...] | None = msgspec.field(name="UnhealthyAllocationIDs", default=None)


class DeploymentUpdateResponse(Record):
    eval_id: str = ""
    eval_create_index: int = 0
    deployment_modify_index: int = 0
    reverted_job_version: int | None = None
    index: int = 0


class ServiceStub(Record):
    """A service by its name, with the tags of all of its instances."""

    service_name: str
    tags: tuple[str, ...] = ()


class ServicesOfNamespace(Record):
    namespace: str
    services: tuple[ServiceStub, ...] = ()


class ScalingPolicyStub(Record):
    """A policy as the list shows it."""

    id: str
    enabled: bool = True
    type: str = ""
    target: dict[str, str] | None = None
    create_index: int = 0
    modify_index: int = 0
