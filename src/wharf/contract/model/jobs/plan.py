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
    """The difference of one scalar field between two versions of a job; values are text."""

    type: DiffType
    name: str
    old: str = ""  # Empty if the field was added.
    new: str = ""  # Empty if the field was deleted.
    annotations: tuple[str, ...] | None = None  # What the change forces, such as "forces create".


class ObjectDiff(Record):
    """The difference of one nested object between two versions of a job."""

    type: DiffType
    name: str
    fields: tuple[FieldDiff, ...] | None = None
    objects: tuple["ObjectDiff", ...] | None = None  # Differences of the objects inside it.


class TaskDiff(Record):
    """The difference of one task between two versions of a job."""

    type: DiffType
    name: str
    fields: tuple[FieldDiff, ...] | None = None
    objects: tuple[ObjectDiff, ...] | None = None  # Differences of the objects inside it.
    annotations: tuple[str, ...] | None = None  # What the change forces, such as "forces create".


class TaskGroupDiff(Record):
    """The difference of one group between two versions of a job."""

    type: DiffType
    name: str
    fields: tuple[FieldDiff, ...] | None = None
    objects: tuple[ObjectDiff, ...] | None = None  # Differences of the objects inside it, without tasks.
    tasks: tuple[TaskDiff, ...] | None = None
    # What the scheduler would do, such as "create", with the number of allocations.
    updates: dict[str, int] | None = None


class JobDiff(Record):
    """The difference between two versions of a job."""

    type: DiffType
    id: str
    fields: tuple[FieldDiff, ...] | None = None
    objects: tuple[ObjectDiff, ...] | None = None  # Differences of the objects inside it, without groups.
    task_groups: tuple[TaskGroupDiff, ...] | None = None


class DesiredUpdates(Record):
    """How many allocations of one group the scheduler would place, stop, update and so on."""

    ignore: int = 0  # Left unchanged.
    place: int = 0
    migrate: int = 0  # Moved to another node.
    stop: int = 0
    in_place_update: int = 0  # Updated without a new allocation.
    destructive_update: int = 0  # Replaced by a new allocation.
    canary: int = 0  # Placed as canaries.
    preemptions: int = 0  # Allocations of other jobs that are stopped for it.
    disconnect: int = 0  # Set to status unknown, because their node is out of contact.
    reconnect: int = 0  # Continued after their node returned.
    reschedule_now: int = 0  # Failed ones that are replaced at once.
    reschedule_later: int = 0  # Failed ones that are replaced after a delay.


class PlanAnnotations(Record):
    """What the plan of a dry run would do in each group, and which allocations it would preempt."""

    desired_tg_updates: dict[str, DesiredUpdates] | None = None  # By group name.
    preempted_allocs: tuple[AllocationStub, ...] | None = None
