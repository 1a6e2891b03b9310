"""The difference between two versions of a job, as lines for people: in the terminal, and in pages.

Knows no colors: a line has a depth and a type.
"""

import difflib
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.explanations import GroupExplanation
from wharf.contract.model.jobs.plan import (
    DesiredUpdates,
    DiffType,
    FieldDiff,
    JobDiff,
    ObjectDiff,
    TaskDiff,
    TaskGroupDiff,
)
from wharf.contract.model.times import format_duration
from wharf.job_files.fields import DURATION_FIELDS

NONE: Final = DiffType.NONE
ADDED: Final = DiffType.ADDED
DELETED: Final = DiffType.DELETED
OUTLINE_UNITS: Final = {"CPU": "MHz", "Cores": "cores", "MemoryMB": "MB"}
"""The resources that the one-line outline of a new task shows, with their units."""
CONTEXT_LINES: Final = 3
"""The unchanged lines before and after a changed line of a text."""
MAX_SHOWN_LINES: Final = 200
"""The changed lines of a text that are shown. More are rather read in the file."""
MAX_COMPARED_LINES: Final = 10_000
"""The lines of both texts of a field. The comparison of many equal lines takes quadratic time."""
_TYPES_BY_SIGN: Final = {"+": ADDED, "-": DELETED, " ": NONE}
UPDATE_LABELS: Final = {
    "place": "to place", "stop": "to stop", "migrate": "to migrate", "destructive_update": "to replace",
    "in_place_update": "to update in place", "canary": "to place as canary", "preemptions": "to preempt",
    "reschedule_now": "to reschedule now", "reschedule_later": "to reschedule later", "disconnect": "disconnected",
    "reconnect": "reconnected", "ignore": "unchanged",
}  # fmt: skip
"""Fields of the planned updates of a group, with their labels."""
REPLACES_ALLOCATIONS: Final = "forces create/destroy update"
"""The note of the API on a changed task that needs new allocations."""
SIGNS: Final = {DiffType.ADDED: "+", DiffType.DELETED: "-", DiffType.EDITED: "±", DiffType.NONE: " "}


class DiffLine(msgspec.Struct, frozen=True):
    """A line of a difference. Lines of a field are one level deeper than those of the object around it."""

    depth: int
    type: DiffType
    text: str
    is_note: bool = False
    """Whether it stands for no part of the job, such as the position of changed lines in a text."""

    @property
    def signed_text(self) -> str:
        return f"{SIGNS[self.type]} {self.text}"


MAX_SHOWN_NEEDS: Final = 5
"""Needs of a step that a plan names."""


def list_replaced_groups(diff: JobDiff | None) -> set[str]:
    """Return the groups whose changed tasks need new allocations, also those that the first step of a rollout leaves alone."""
    groups = (diff.task_groups if diff is not None else None) or ()
    return {
        group.name for group in groups for task in group.tasks or () if REPLACES_ALLOCATIONS in (task.annotations or ())
    }


def list_added_needs(diff: JobDiff | None) -> dict[str, list[str]]:
    """Return what the steps of a new run wait for, by the name of the step: other steps, and other jobs."""
    jobs = [f"job {name}" for name in _iterate_needs(diff.objects)] if diff is not None else []
    groups = (diff.task_groups if diff is not None else None) or ()
    needs = {group.name: [*_iterate_needs(group.objects), *jobs] for group in groups if group.type == ADDED}
    for group in groups:
        is_final = any(field.name == "Final" and field.new == "true" for field in group.fields or ())
        if is_final and not needs.get(group.name, True):
            needs[group.name] = ["all steps that are not final"]
    return {name: names for name, names in needs.items() if names}


def _iterate_needs(objects: tuple[ObjectDiff, ...] | None) -> Iterator[str]:
    for part in objects or ():
        if part.name == "Depends" and part.type != DELETED:
            yield from (field.new for field in part.fields or () if field.name == "On")


def count_failed(
    update: DesiredUpdates, metric: AllocMetric | None, explanation: GroupExplanation | None
) -> tuple[DesiredUpdates, int]:
    """Return the updates of a group, and how many of its allocations no node can take.

    Of an array, all elements that have not begun are to be placed: the scheduler plans only a part of them.
    """
    if explanation is not None and explanation.is_array and explanation.wanted > 1:
        return replace(update, place=explanation.wanted - explanation.running), explanation.unplaced
    return update, metric.coalesced_failures + 1 if metric is not None else 0


def describe_updates(update: DesiredUpdates, failed: int, *, is_replaced: bool, needs: Sequence[str] = ()) -> str:
    """Return what happens to the allocations of a group during the whole rollout. The API has the counts of its first step.

    `failed` is the number of allocations that no node can take, and `needs` is what the group waits for.
    """
    if needs and not any(getattr(update, name) for name in UPDATE_LABELS):
        more = f" and {len(needs) - MAX_SHOWN_NEEDS} more" if len(needs) > MAX_SHOWN_NEEDS else ""
        return f"none now: it waits for {', '.join(needs[:MAX_SHOWN_NEEDS])}{more}"
    counts = {name: getattr(update, name) for name in UPDATE_LABELS}
    labels = {**UPDATE_LABELS}
    later = ""
    if counts["ignore"] and (is_replaced or counts["destructive_update"]):
        if counts["canary"]:
            labels["ignore"] = "to replace after the promotion"
        else:
            step = counts["place"] + counts["destructive_update"]
            counts["destructive_update"] += counts.pop("ignore")
            later = f"; the first step changes {step}" if step else ""
    if 0 < failed <= counts["place"]:
        counts["place"], labels["place"] = counts["place"] - failed, f"of {counts['place']} can be placed"
        return (
            ", ".join(f"{count} {labels[name]}" for name, count in counts.items() if count or name == "place") + later
        )
    return (", ".join(f"{count} {labels[name]}" for name, count in counts.items() if count) or "none") + later


def list_diff_lines(diff: JobDiff, *, is_full: bool) -> Iterator[DiffLine]:
    """Yield the lines of a diff. `is_full`: with all fields of groups and tasks that are added or removed."""
    if diff.type == NONE:
        yield DiffLine(0, NONE, f"Job {diff.id} is unchanged", is_note=True)
        return
    if diff.type == ADDED and not is_full:
        fields = _get_new_values(diff.fields)
        yield DiffLine(0, ADDED, f"Job {diff.id}, new: a {fields.get('Type', 'service')} job")
    else:
        yield DiffLine(0, diff.type, f"Job {diff.id}")
        yield from _render_fields(1, diff.fields, diff.objects)
    for group in diff.task_groups or ():
        if group.type != NONE:
            yield from _render_group_diff(group, is_full=is_full)


def _render_group_diff(group: TaskGroupDiff, *, is_full: bool) -> Iterator[DiffLine]:
    """Yield the lines of a group's diff, with its tasks."""
    heading = f"Group {group.name}"
    if group.type == DELETED and not is_full:
        yield DiffLine(1, DELETED, heading)
        return
    if group.type == ADDED and not is_full:
        yield DiffLine(1, ADDED, heading)
    else:
        yield DiffLine(1, group.type, heading)
        yield from _render_fields(2, group.fields, group.objects)
    for task in group.tasks or ():
        if task.type != NONE:
            yield from _render_task_diff(task, is_full=is_full)


def _render_task_diff(task: TaskDiff, *, is_full: bool) -> Iterator[DiffLine]:
    """Yield the lines of a task's diff; a task that is added or removed is one line unless `is_full`."""
    if task.type == DELETED and not is_full:
        yield DiffLine(2, DELETED, f"Task {task.name}")
        return
    if task.type == ADDED and not is_full:
        yield DiffLine(2, ADDED, f"Task {task.name}: {_format_task_outline(task)}")
        return
    notes = f" ({', '.join(task.annotations)})" if task.annotations else ""
    yield DiffLine(2, task.type, f"Task {task.name}{notes}")
    yield from _render_fields(3, task.fields, task.objects)


def _format_task_outline(task: TaskDiff) -> str:
    """Return driver and main resources of a new task, such as `raw_exec, 100 MHz, 64 MB`."""
    resources = {
        name: value
        for object_diff in task.objects or ()
        if object_diff.name == "Resources"
        for name, value in _get_new_values(object_diff.fields).items()
    }
    parts = [_get_new_values(task.fields).get("Driver", "")]
    parts += [f"{resources[name]} {unit}" for name, unit in OUTLINE_UNITS.items() if resources.get(name, "0") != "0"]
    return ", ".join(part for part in parts if part)


def _get_new_values(fields: tuple[FieldDiff, ...] | None) -> dict[str, str]:
    return {field.name: field.new for field in fields or ()}


def _render_fields(
    depth: int, fields: tuple[FieldDiff, ...] | None, objects: tuple[ObjectDiff, ...] | None
) -> Iterator[DiffLine]:
    """Yield a line for each changed field, then the changed nested objects, indented by `depth`."""
    changed = [field for field in fields or () if field.type != NONE]
    width = max((len(field.name) for field in changed), default=0)
    for field in changed:
        if "\n" in field.old.rstrip("\n") or "\n" in field.new.rstrip("\n"):
            yield from _render_lines(depth, field)
            continue
        match field.type:
            case DiffType.ADDED:
                text = _format_value(field.name, field.new)
            case DiffType.DELETED:
                text = _format_value(field.name, field.old)
            case _:
                text = f"{_format_value(field.name, field.old)} → {_format_value(field.name, field.new)}"
        notes = f" ({', '.join(field.annotations)})" if field.annotations else ""
        yield DiffLine(depth, field.type, f"{field.name:<{width}}  {text}{notes}")
    for object_diff in _pair_objects(objects or ()):
        if object_diff.type != NONE:
            yield DiffLine(depth, object_diff.type, object_diff.name)
            yield from _render_fields(depth + 1, object_diff.fields, object_diff.objects)


def _pair_objects(objects: Sequence[ObjectDiff]) -> list[ObjectDiff]:
    """Return the objects, with a deleted and an added one with similar texts of several lines as one that is edited.

    The API compares the items of a list, such as templates, as wholes.
    """
    paired = list(objects)
    for deleted in [each for each in objects if each.type == DELETED and _has_lines(each, "old")]:
        candidates = [
            each for each in paired if each.type == ADDED and each.name == deleted.name and _has_lines(each, "new")
        ]
        added = max(candidates, key=lambda each: _count_equal_fields(deleted, each), default=None)
        if added is not None and _count_equal_fields(deleted, added):
            paired[paired.index(deleted)] = _join_objects(deleted, added)
            paired.remove(added)
    return paired


def _has_lines(diff: ObjectDiff, side: str) -> bool:
    return any("\n" in getattr(field, side).rstrip("\n") for field in diff.fields or ())


def _count_equal_fields(deleted: ObjectDiff, added: ObjectDiff) -> int:
    new = _get_new_values(added.fields)
    return sum(1 for field in deleted.fields or () if field.old and new.get(field.name) == field.old)


def _join_objects(deleted: ObjectDiff, added: ObjectDiff) -> ObjectDiff:
    """Return the difference between a deleted and an added object."""
    old = {field.name: field.old for field in deleted.fields or ()}
    new = _get_new_values(added.fields)
    fields: list[FieldDiff] = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name, ""), new.get(name, "")
        change = DiffType.EDITED if before and after else DiffType.ADDED if after else DiffType.DELETED
        if before != after:
            fields.append(FieldDiff(type=change, name=name, old=before, new=after))
    inner = [*(deleted.objects or ()), *(added.objects or ())]
    changed = [each for each in inner if not any(_is_reverse(each, other) for other in inner)]
    return ObjectDiff(type=DiffType.EDITED, name=added.name, fields=tuple(fields), objects=tuple(changed))


def _is_reverse(diff: ObjectDiff, other: ObjectDiff) -> bool:
    """Return whether one object was deleted and an equal one was added."""
    old = {field.name: (field.old, field.new) for field in diff.fields or ()}
    new = {field.name: (field.new, field.old) for field in other.fields or ()}
    return diff is not other and diff.name == other.name and diff.type != other.type and old == new


def _render_lines(depth: int, field: FieldDiff) -> Iterator[DiffLine]:
    """Yield the name of a field with a text of several lines, and its changed lines with the lines around them."""
    notes = f" ({', '.join(field.annotations)})" if field.annotations else ""
    yield DiffLine(depth, field.type, f"{field.name}{notes}")
    old, new = field.old.splitlines(), field.new.splitlines()
    if len(old) + len(new) > MAX_COMPARED_LINES:
        yield DiffLine(depth + 1, NONE, f"{len(old):,} lines → {len(new):,} lines")
        return
    changes = list(difflib.unified_diff(old, new, n=CONTEXT_LINES, lineterm=""))[2:]
    if not changes:
        yield DiffLine(depth + 1, NONE, "only the ends of lines differ")
    for line in changes[:MAX_SHOWN_LINES]:
        if line.startswith("@@"):
            yield DiffLine(depth + 1, NONE, line, is_note=True)
        else:
            yield DiffLine(depth + 1, _TYPES_BY_SIGN[line[:1]], line[1:])
    if len(changes) > MAX_SHOWN_LINES:
        yield DiffLine(depth + 1, NONE, f"... and {len(changes) - MAX_SHOWN_LINES:,} more lines")


def _format_value(name: str, value: str) -> str:
    """Return a value in quotes. Durations, which the API has in nanoseconds, become texts such as `1m30s`."""
    is_duration = name in DURATION_FIELDS and value.removeprefix("-").isdecimal()
    if is_duration:
        return f'"{format_duration(int(value))}"'
    return '"' + value.replace("\n", "\\n") + '"'  # A line break at the end of a text would break the line here.
