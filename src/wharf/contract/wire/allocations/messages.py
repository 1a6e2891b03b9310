"""Bodies about evaluations, allocations, deployments, services and scaling that are no records.

Bodies of what a node answers itself: metadata, restarts, signals, files, figures.

What a node tells of its machine and of its tasks is as free as the machine is: such replies are maps.
"""

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


_NOT_SHOWN: Final = frozenset(("job_version", "job_create_index", "log_tails", "report_number"))
"""The embedded job tells the first two, the reading of logs the third; the last is between servers and a node."""

_SHOWN_AS: Final[dict[str, Any]] = {
    "allocated_resources": AllocatedResources | None,
    "metrics": AllocMetric | None,
    "task_states": dict[str, TaskStateView] | None,
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


# Built from the record's fields, so that a field of allocations is declared once.
if TYPE_CHECKING:

    class AllocationView(Allocation):
        job: Job | None = None
        task_states: dict[str, TaskStateView] | None = None  # type: ignore[assignment]  # Stored in a form of its own.

else:
    AllocationView = msgspec.defstruct(
        "AllocationView", _shown_definition(), module=__name__, frozen=True, gc=False, kw_only=True, omit_defaults=True
    )
ALLOCATION_VIEW_FIELDS: Final = tuple(
    name for name in AllocationView.__struct_fields__ if name not in ("job", *_SHOWN_AS)
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
    name: str = ""
    is_dir: bool = False
    size: int = 0
    file_mode: str = ""
    mod_time: str = ""
    content_type: str | msgspec.UnsetType = msgspec.UNSET


Measurements = dict[str, Any]
"""Whatever the machine measures, by name."""
