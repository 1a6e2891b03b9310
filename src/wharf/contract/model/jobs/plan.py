"""The result of a dry run of a job: the difference between two versions, and what the scheduler would do.

Holds the records only. `diff` compares the jobs; the scheduler makes the annotations.
"""

import enum

from wharf.contract.model.allocations.allocation import AllocationStub
from wharf.contract.model.record import Record


class DiffType(enum.StrEnum):
    """How a part of a job differs between two versions."""

    NONE = "None"
    ADDED = "Added"
    DELETED = "Deleted"
    EDITED = "Edited"


class FieldDiff(Record):
    """The difference of one scalar field, as text. `old` is empty if it was added, `new` if it was deleted."""

    type: DiffType
    name: str
    old: str = ""
    new: str = ""
    annotations: tuple[str, ...] | None = None


class ObjectDiff(Record):
    """The difference of one nested object."""

    type: DiffType
    name: str
    fields: tuple[FieldDiff, ...] | None = None
    objects: tuple["ObjectDiff", ...] | None = None


class TaskDiff(Record):
    """The difference of one task. `annotations` say what kind of update it forces."""

    type: DiffType
    name: str
    fields: tuple[FieldDiff, ...] | None = None
    objects: tuple[ObjectDiff, ...] | None = None
    annotations: tuple[str, ...] | None = None


class TaskGroupDiff(Record):
    """The difference of one group. `updates` counts what the scheduler would do."""

    type: DiffType
    name: str
    fields: tuple[FieldDiff, ...] | None = None
    objects: tuple[ObjectDiff, ...] | None = None
    tasks: tuple[TaskDiff, ...] | None = None
    updates: dict[str, int] | None = None


class JobDiff(Record):
    """The difference between two versions of a job."""

    type: DiffType
    id: str
    fields: tuple[FieldDiff, ...] | None = None
    objects: tuple[ObjectDiff, ...] | None = None
    task_groups: tuple[TaskGroupDiff, ...] | None = None


class DesiredUpdates(Record):
    """How many allocations of one group the scheduler would place, stop, update and so on."""

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
    """What a plan would do in each group, and which allocations it would preempt."""

    desired_tg_updates: dict[str, DesiredUpdates] | None = None
    preempted_allocs: tuple[AllocationStub, ...] | None = None
