"""What the changes of a job make the scheduler do, written into the diff: counts by group, and what forces an update.

A pure function of a diff and a plan's annotations; it neither compares jobs nor schedules.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from wharf.model.plan import (
    DesiredUpdates,
    DiffType,
    FieldDiff,
    JobDiff,
    ObjectDiff,
    PlanAnnotations,
    TaskDiff,
    TaskGroupDiff,
)

_FORCES_CREATE: Final = "forces create"
_FORCES_DESTROY: Final = "forces destroy"
_FORCES_IN_PLACE: Final = "forces in-place update"
_FORCES_DESTRUCTIVE: Final = "forces create/destroy update"

_UPDATE_LABELS: Final[Mapping[str, str]] = {
    "ignore": "ignore",
    "place": "create",
    "migrate": "migrate",
    "stop": "destroy",
    "in_place_update": "in-place update",
    "destructive_update": "create/destroy update",
    "canary": "canary",
}

_IN_PLACE_FIELDS: Final = frozenset({"KillTimeout"})
_IN_PLACE_OBJECTS: Final = frozenset({"LogConfig", "Service", "Constraint", "Affinity", "Spread"})


def annotate(job: JobDiff, annotations: PlanAnnotations | None) -> JobDiff:
    """The diff with what it makes the scheduler do: counts by group, and what forces an update."""
    updates = (annotations.desired_tg_updates if annotations is not None else None) or {}
    groups = tuple(_annotate_group(group, updates.get(group.name)) for group in job.task_groups or ())
    return msgspec.structs.replace(job, task_groups=groups or None)


def _annotate_group(group: TaskGroupDiff, updates: DesiredUpdates | None) -> TaskGroupDiff:
    counts = {label: getattr(updates, name) for name, label in _UPDATE_LABELS.items()} if updates is not None else {}
    return msgspec.structs.replace(
        group,
        fields=tuple(_annotate_count(field) for field in group.fields) if group.fields else None,
        tasks=tuple(_annotate_task(task, group.type) for task in group.tasks) if group.tasks else None,
        updates={label: count for label, count in counts.items() if count} or None,
    )


def _annotate_count(field: FieldDiff) -> FieldDiff:
    if field.name != "Count" or field.type is DiffType.NONE:
        return field
    forces = _FORCES_CREATE if int(field.new or 0) > int(field.old or 0) else _FORCES_DESTROY
    return msgspec.structs.replace(field, annotations=(forces,))


def _annotate_task(task: TaskDiff, group: DiffType) -> TaskDiff:
    if task.type is DiffType.NONE:
        return task
    if group is DiffType.ADDED:
        forces = _FORCES_CREATE
    elif group is DiffType.DELETED:
        forces = _FORCES_DESTROY
    else:
        forces = _FORCES_IN_PLACE if _is_in_place(task) else _FORCES_DESTRUCTIVE
    return msgspec.structs.replace(task, annotations=(forces,))


def _is_in_place(task: TaskDiff) -> bool:
    return (
        task.type is DiffType.EDITED
        and all(field.name in _IN_PLACE_FIELDS for field in task.fields or ())
        and all(part.name in _IN_PLACE_OBJECTS and not _switches_log(part) for part in task.objects or ())
    )


def _switches_log(part: ObjectDiff) -> bool:
    return part.name == "LogConfig" and any(
        field.name == "Disabled" and field.type is not DiffType.NONE for field in part.fields or ()
    )
