"""What a dry run of a job tells: the changes of its text, and what the scheduler would do about them.

Result shapes only. `diff` makes the job's part, the scheduler makes the annotations.
"""

import enum

from wharf.contract.model.allocations.allocation import AllocationStub
from wharf.contract.model.record import Record


class DiffType(enum.StrEnum):
    NONE = "None"
    ADDED = "Added"
    DELETED = "Deleted"
    EDITED = "Edited"


class FieldDiff(Record):
    """One scalar, as text. Old is empty when added, New when deleted."""

    type: DiffType
    name: str
    old: str = ""
    new: str = ""
    annotations: tuple[str, ...] | None = None


class ObjectDiff(Record):
    type: DiffType
    name: str
    fields: tuple[FieldDiff, ...] | None = None
    objects: tuple["ObjectDiff", ...] | None = None


class TaskDiff(Record):
    type: DiffType
    name: str
    fields: tuple[FieldDiff, ...] | None = None
    objects: tuple[ObjectDiff, ...] | None = None
    annotations: tuple[str, ...] | None = None


class TaskGroupDiff(Record):
    type: DiffType
    name: str
    fields: tuple[FieldDiff, ...] | None = None
    objects: tuple[ObjectDiff, ...] | None = None
    tasks: tuple[TaskDiff, ...] | None = None
    updates: dict[str, int] | None = None


class JobDiff(Record):
    type: DiffType
    id: str
    fields: tuple[FieldDiff, ...] | None = None
    objects: tuple[ObjectDiff, ...] | None = None
    task_groups: tuple[TaskGroupDiff, ...] | None = None


class DesiredUpdates(Record):
    """How many allocations of one group the scheduler would treat in each way."""

    ignore: int = 0
    place: int = 0
    migrate: int = 0
    stop: int = 0
    in_place_update: int = 0
    destructive_update: int = 0
    canary: int = 0
    preemptions: int = 0
    disconnect: int = 0
    reconnect: int = 0
    reschedule_now: int = 0
    reschedule_later: int = 0


class PlanAnnotations(Record):
    """What a plan would do, group by group, and whom it would push aside."""

    desired_tg_updates: dict[str, DesiredUpdates] | None = None
    preempted_allocs: tuple[AllocationStub, ...] | None = None
