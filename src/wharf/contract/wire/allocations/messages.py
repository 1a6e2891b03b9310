"""Messages of allocation endpoints that are not records: the view of an allocation, and requests that its node handles."""

from typing import TYPE_CHECKING, Any, Final

import msgspec

from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.allocations.task_states import TaskStateView
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.record import Record


class AllocationStopResponse(Record):
    eval_id: str = ""
    index: int = 0


_HIDDEN_FIELDS: Final = frozenset(("job_version", "job_create_index", "log_tails", "report_number"))
"""Fields that replies omit: the embedded job has the first two, log endpoints read the third, and the last is internal."""

_TYPE_BY_VIEW_FIELD: Final[dict[str, Any]] = {
    "allocated_resources": AllocatedResources | None,
    "metrics": AllocMetric | None,
    "task_states": dict[str, TaskStateView] | None,
}
"""The types of fields that are decoded on access; the record holds them as bytes."""


def _build_view_fields() -> list[tuple[str, Any, Any]]:
    """Return the fields of an allocation in replies: those of the record without the hidden ones, and its job."""
    view_fields: list[tuple[str, Any, Any]] = [("job", Job | None, msgspec.field(name="Job", default=None))]
    for field in msgspec.structs.fields(Allocation):
        if field.name not in _HIDDEN_FIELDS:
            kind = _TYPE_BY_VIEW_FIELD.get(field.name, field.type)
            view_fields.append((field.name, kind, msgspec.field(name=field.encode_name, default=field.default)))
    return view_fields


# Built from the fields of the record, so that each field is declared only once.
if TYPE_CHECKING:

    class AllocationView(Allocation):
        """An allocation as replies show it, with its job."""

        job: Job | None = None
        task_states: dict[str, TaskStateView] | None = None  # type: ignore[assignment]  # Stored as bytes in the record.

else:
    AllocationView = msgspec.defstruct(
        "AllocationView", _build_view_fields(), module=__name__, frozen=True, gc=False, kw_only=True, omit_defaults=True
    )
ALLOCATION_VIEW_FIELDS: Final = tuple(
    name for name in AllocationView.__struct_fields__ if name not in ("job", *_TYPE_BY_VIEW_FIELD)
)


class AllocRestartRequest(Record):
    task_name: str = ""
    all_tasks: bool = False


class AllocSignalRequest(Record):
    task: str = ""
    signal: str = ""


class AllocPauseRequest(Record):
    task: str = ""
    schedule_state: str = ""


class AllocPauseState(Record):
    schedule_state: str = ""


class IndexResponse(Record):
    index: int = 0


class AllocFileInfo(Record):
    """The metadata of a file of an allocation."""

    name: str = ""
    is_dir: bool = False
    size: int = 0
    file_mode: str = ""
    mod_time: str = ""
    content_type: str | msgspec.UnsetType = msgspec.UNSET


Measurements = dict[str, Any]
"""Measured values by name. The names depend on the machine and on the driver."""
