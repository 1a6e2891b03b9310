"""Messages of allocation endpoints that are not records: the view of an allocation, and requests that its node handles."""

from typing import TYPE_CHECKING, Any, Final

import msgspec

from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.allocations.task_states import TaskStateView
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.record import Record


class AllocationStopResponse(Record):
    """The reply to a stop of an allocation."""

    eval_id: str = ""  # The evaluation that places the replacement.
    index: int = 0  # Log index of the write.


_HIDDEN_FIELDS: Final = frozenset(("job_version", "job_create_index", "log_tails", "report_number", "output_texts"))
"""Fields that replies omit: the embedded job has the first two, log endpoints read the third, and the others are internal."""

_TYPE_BY_VIEW_FIELD: Final[dict[str, Any]] = {
    "allocated_resources": AllocatedResources | None,
    "metrics": AllocMetric | None,
    "task_states": dict[str, TaskStateView] | None,
}
"""The types of fields that are decoded on access; the record holds them as bytes."""


def _build_view_fields() -> list[tuple[str, Any, Any]]:
    """Return (name, type, default) of each field of an allocation in replies, as `msgspec.defstruct` expects them.

    They are the fields of the record without the hidden ones, and in addition the job and the resources in the form that
    older clients read.
    """
    view_fields: list[tuple[str, Any, Any]] = [
        ("job", Job | None, msgspec.field(name="Job", default=None)),
        ("resources", Resources | None, msgspec.field(name="Resources", default=None)),
        ("shared_resources", Resources | None, msgspec.field(name="SharedResources", default=None)),
        ("task_resources", dict[str, Resources] | None, msgspec.field(name="TaskResources", default=None)),
    ]
    for field in msgspec.structs.fields(Allocation):
        if field.name not in _HIDDEN_FIELDS:
            view_type = _TYPE_BY_VIEW_FIELD.get(field.name, field.type)
            view_fields.append((field.name, view_type, msgspec.field(name=field.encode_name, default=field.default)))
    return view_fields


# Built from the fields of the record, so that each field is declared only once.
if TYPE_CHECKING:

    class AllocationView(Allocation):
        """An allocation as replies show it, with its job."""

        job: Job | None = None
        resources: Resources | None = None
        shared_resources: Resources | None = None
        task_resources: dict[str, Resources] | None = None
        task_states: dict[str, TaskStateView] | None = None  # type: ignore[assignment]  # Stored as bytes in the record.

else:
    AllocationView = msgspec.defstruct(
        "AllocationView", _build_view_fields(), module=__name__, frozen=True, gc=False, kw_only=True, omit_defaults=True
    )
ALLOCATION_VIEW_FIELDS: Final = tuple(
    name
    for name in AllocationView.__struct_fields__
    if name not in ("job", "resources", "shared_resources", "task_resources", *_TYPE_BY_VIEW_FIELD)
)
"""The fields that are copied unchanged from the record."""


class AllocRestartRequest(Record):
    """A request to restart tasks of an allocation."""

    task_name: str = ""  # The task to restart; empty: all running tasks.
    all_tasks: bool = False  # Restart also the tasks that have ended.


class AllocSignalRequest(Record):
    """A request to send a signal to tasks of an allocation."""

    task: str = ""  # Empty: all running tasks.
    signal: str = ""  # The name of the signal, such as `SIGHUP`.


class AllocPauseRequest(Record):
    """A request to pause a task, to run it, or to return it to its schedule."""

    task: str = ""
    schedule_state: str = ""  # `pause`, `run` or `scheduled`.


class AllocPauseState(Record):
    """Whether a task is paused by its schedule."""

    schedule_state: str = ""  # Empty: the task is not paused. Always empty, because task schedules are not supported.


class IndexResponse(Record):
    """A reply without a value."""

    index: int = 0  # Log index of the write, or 0 if nothing was written.


class AllocFileInfo(Record):
    """The metadata of a file or folder of an allocation."""

    name: str = ""
    is_dir: bool = False
    size: int = 0  # Bytes.
    file_mode: str = ""  # Permissions as text, such as `-rw-r--r--`.
    mod_time: str = ""  # When the content last changed (RFC 3339).
    content_type: str | msgspec.UnsetType = msgspec.UNSET  # MIME type; absent if it was not determined.


Measurements = dict[str, Any]
"""Measured values by name. The names depend on the machine and on the driver."""
