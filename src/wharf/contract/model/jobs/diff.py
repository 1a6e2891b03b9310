"""What differs between two versions of a job, as the reply of a plan tells it.

A pure function of two jobs; one of them may be missing. What a field is (a scalar, an object, a list of either, a map)
is read from the records themselves, so a new field of a job is compared without a word here. Written down are only the
exceptions: what is never compared, what a list's members are known by, and names that differ from the field's.

What the changes of a job make the scheduler do, written into the diff: counts by group, and what forces an update.

A pure function of a diff and a plan's annotations; it neither compares jobs nor schedules.
"""

import base64
import datetime
import enum
import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.plan import (
    DesiredUpdates,
    DiffType,
    FieldDiff,
    JobDiff,
    ObjectDiff,
    PlanAnnotations,
    TaskDiff,
    TaskGroupDiff,
)

# What is never compared, by the record that holds it. Indexes are left out everywhere.
_INDEXES: Final = frozenset({"CreateIndex", "ModifyIndex", "JobModifyIndex"})
_IGNORED: Final[Mapping[str, frozenset[str]]] = {
    "Job": frozenset(
        {"ID", "Status", "StatusDescription", "Version", "Stable", "SubmitTime", "Update", "NomadTokenID", "TaskGroups"}
    ),
    "TaskGroup": frozenset({"Name", "Tasks"}),
    "Task": frozenset({"Name"}),
    "ScalingPolicy": frozenset({"ID", "Target"}),  # The server's own.
}

# By what the members of a list are known to be the same one, where it is not their name or label. Members without any
# are the same only when they are equal.
_KNOWN_BY: Final[Mapping[str, str]] = {
    "SpreadTarget": "value",
    "Template": "dest_path",
    "VolumeMount": "destination",
}

_NAMES: Final[Mapping[str, str]] = {
    "ReservedPorts": "Static Port",
    "DynamicPorts": "Dynamic Port",
    "SpreadTarget": "SpreadTarget",
    "Identities": "Identity",
}

ListMember = TypeVar("ListMember", bound=msgspec.Struct)


def compare_jobs(old: Job | None, new: Job | None) -> JobDiff:
    """How to get from the old job to the new one; a missing one makes the other deleted or added."""
    present = new if new is not None else old
    fields, objects = _members(old, new, contextual=False)
    groups = tuple(
        sorted(
            (_group(one, other) for one, other in _paired(_groups_of(old), _groups_of(new))),
            key=lambda group: group.name,
        )
    )
    return JobDiff(
        type=_type_of(old, new, changed=bool(fields or objects) or any(_differs(group) for group in groups)),
        id=present.id if present is not None else "",
        fields=fields or None,
        objects=objects or None,
        task_groups=groups or None,
    )


def _groups_of(job: Job | None) -> Sequence[TaskGroup]:
    return (job.task_groups or ()) if job is not None else ()


def _group(old: TaskGroup | None, new: TaskGroup | None) -> TaskGroupDiff:
    fields, objects = _members(old, new, contextual=False)
    old_tasks = (old.tasks or ()) if old is not None else ()
    new_tasks = (new.tasks or ()) if new is not None else ()
    tasks = tuple(
        sorted((_task(one, other) for one, other in _paired(old_tasks, new_tasks)), key=lambda task: task.name)
    )
    return TaskGroupDiff(
        type=_type_of(old, new, changed=bool(fields or objects) or any(_differs(task) for task in tasks)),
        name=_name_of(old, new),
        fields=fields or None,
        objects=objects or None,
        tasks=tasks or None,
    )


def _task(old: Task | None, new: Task | None) -> TaskDiff:
    fields, objects = _members(old, new, contextual=False)
    return TaskDiff(
        type=_type_of(old, new, changed=bool(fields or objects)),
        name=_name_of(old, new),
        fields=fields or None,
        objects=objects or None,
    )


def _name_of(old: TaskGroup | Task | None, new: TaskGroup | Task | None) -> str:
    present = new if new is not None else old
    return present.name if present is not None else ""


def _differs(part: TaskGroupDiff | TaskDiff | ObjectDiff | FieldDiff) -> bool:
    return part.type is not DiffType.NONE


def _type_of(old: object, new: object, *, changed: bool) -> DiffType:
    if old is None and new is not None:
        return DiffType.ADDED
    if new is None and old is not None:
        return DiffType.DELETED
    return DiffType.EDITED if changed else DiffType.NONE


# -- what a field is -----------------------------------------------------------------------------------------------


class _Kind(enum.Enum):
    SCALAR = enum.auto()
    OBJECT = enum.auto()
    SCALARS = enum.auto()
    OBJECTS = enum.auto()
    SCALAR_MAP = enum.auto()
    OBJECT_MAP = enum.auto()
    OPAQUE = enum.auto()  # Whatever a driver or an autoscaler understands: compared leaf by leaf.


class _Field(NamedTuple):
    attribute: str
    wire: str
    kind: _Kind


@functools.cache
def _fields_of(record: type[msgspec.Struct]) -> tuple[_Field, ...]:
    """The fields of a record that are compared, with what each of them is."""
    ignored = _INDEXES | _IGNORED.get(record.__name__, frozenset())
    return tuple(
        _Field(field.name, field.encode_name, _kind_of(msgspec.inspect.type_info(field.type)))
        for field in msgspec.structs.fields(record)
        if field.encode_name not in ignored
    )


def _kind_of(type_: msgspec.inspect.Type) -> _Kind:
    inspect = msgspec.inspect
    if isinstance(type_, inspect.UnionType):
        given = [part for part in type_.types if not isinstance(part, inspect.NoneType)]
        type_ = given[0] if len(given) == 1 else inspect.AnyType()
    if isinstance(type_, inspect.StructType):
        return _Kind.OBJECT
    if isinstance(type_, inspect.VarTupleType):
        return _Kind.OBJECTS if isinstance(type_.item_type, inspect.StructType) else _Kind.SCALARS
    if isinstance(type_, inspect.DictType):
        if isinstance(type_.value_type, inspect.StructType):
            return _Kind.OBJECT_MAP
        return _Kind.SCALAR_MAP if isinstance(type_.value_type, inspect.StrType) else _Kind.OPAQUE
    return _Kind.OPAQUE if isinstance(type_, inspect.AnyType | inspect.CustomType) else _Kind.SCALAR


# -- members of a record -------------------------------------------------------------------------------------------

_Members = tuple[tuple[FieldDiff, ...], tuple[ObjectDiff, ...]]


def _members(old: msgspec.Struct | None, new: msgspec.Struct | None, *, contextual: bool) -> _Members:
    """The fields and objects in which two records of one type differ; contextual: unchanged fields too."""
    present = new if new is not None else old
    if present is None:
        return (), ()
    fields: list[FieldDiff] = []
    objects: list[ObjectDiff] = []
    for field in _fields_of(type(present)):
        one, other = getattr(old, field.attribute, None), getattr(new, field.attribute, None)
        match field.kind:
            case _Kind.SCALAR:
                fields.append(_field(field.wire, _text(one), _text(other)))
            case _Kind.SCALAR_MAP:
                fields.extend(_leaf_fields(_keys(field.wire, one), _keys(field.wire, other)))
            case _Kind.OBJECT:
                objects.append(_object(field.wire, one, other))
            case _Kind.OBJECTS:
                objects.extend(
                    _list_of_objects(_NAMES.get(field.wire) or singularize(field.wire), one or (), other or ())
                )
            case _Kind.OBJECT_MAP:
                objects.extend(_map_of_objects(singularize(field.wire), one or {}, other or {}))
            case _Kind.SCALARS:
                objects.append(_scalars(field.wire, one or (), other or ()))
            case _Kind.OPAQUE:
                objects.append(_opaque(field.wire, one, other))
    changed = [part for part in objects if _differs(part)]
    shown = [part for part in fields if _differs(part)]
    if contextual and old is not None and new is not None and (shown or changed):
        shown = fields
    return _sorted_fields(shown), _sorted_objects(changed)


def _sorted_fields(fields: Sequence[FieldDiff]) -> tuple[FieldDiff, ...]:
    return tuple(sorted(fields, key=_field_order))


def _field_order(field: FieldDiff) -> tuple[str, str, str]:
    """By name, then by content; the same from both directions."""
    return field.name, max(field.old, field.new), min(field.old, field.new)


def _sorted_objects(objects: Sequence[ObjectDiff]) -> tuple[ObjectDiff, ...]:
    # Members of one list have one name, so that their content decides.
    return tuple(sorted(objects, key=lambda part: (part.name, _content(part))))


def _content(part: ObjectDiff) -> list[tuple[str, str, str]]:
    return [
        *(_field_order(field) for field in part.fields or ()),
        *(text for inner in part.objects or () for text in _content(inner)),
    ]


def _field(name: str, old: str, new: str) -> FieldDiff:
    if old == new:
        type_ = DiffType.NONE
    elif not old:
        type_ = DiffType.ADDED
    elif not new:
        type_ = DiffType.DELETED
    else:
        type_ = DiffType.EDITED
    return FieldDiff(type=type_, name=name, old=old, new=new)


def _object(name: str, old: msgspec.Struct | None, new: msgspec.Struct | None) -> ObjectDiff:
    fields, objects = _members(old, new, contextual=True)
    return ObjectDiff(
        type=_type_of(old, new, changed=bool(fields or objects)),
        name=name,
        fields=fields or None,
        objects=objects or None,
    )


def _map_of_objects(
    name: str, old: Mapping[str, msgspec.Struct], new: Mapping[str, msgspec.Struct]
) -> Iterator[ObjectDiff]:
    for key in sorted({*old, *new}):
        yield _object(name, old.get(key), new.get(key))


def _list_of_objects(name: str, old: Sequence[msgspec.Struct], new: Sequence[msgspec.Struct]) -> Iterator[ObjectDiff]:
    for one, other in _paired(old, new):
        yield _object(name, one, other)


def _paired(
    old: Sequence[ListMember], new: Sequence[ListMember]
) -> Iterator[tuple[ListMember | None, ListMember | None]]:
    """The members of two lists, each with its counterpart or with none; in one order from both directions."""
    old_keyed, new_keyed = _keyed(old), _keyed(new)
    for key in sorted({**old_keyed, **new_keyed}):
        yield old_keyed.get(key), new_keyed.get(key)


def _keyed(members: Sequence[ListMember]) -> dict[tuple[str, int], ListMember]:
    """By what each is known, and the how-manieth of that it is."""
    seen: Counter[str] = Counter()
    keyed: dict[tuple[str, int], ListMember] = {}
    for member in members:
        known_by = _identity(member)
        keyed[known_by, seen[known_by]] = member
        seen[known_by] += 1
    return keyed


def _identity(member: msgspec.Struct) -> str:
    attribute = _KNOWN_BY.get(type(member).__name__)
    for candidate in (attribute,) if attribute else ("name", "label"):
        if hasattr(member, candidate):
            return str(getattr(member, candidate))
    return msgspec.json.encode(member, order="deterministic").decode()


# -- lists and maps of plain values --------------------------------------------------------------------------------


def _scalars(name: str, old: Sequence[object], new: Sequence[object]) -> ObjectDiff:
    """A list of plain values: what is in one only. A mere change of order shows as edits, place by place."""
    one, other = [_text(value) for value in old], [_text(value) for value in new]
    gone, come, kept = Counter(one) - Counter(other), Counter(other) - Counter(one), Counter(one) & Counter(other)
    fields = [
        *(FieldDiff(type=DiffType.DELETED, name=name, old=text) for text in gone.elements()),
        *(FieldDiff(type=DiffType.ADDED, name=name, new=text) for text in come.elements()),
    ]
    if not fields:
        fields = [_field(name, before, after) for before, after in zip(one, other, strict=True) if before != after]
    elif one and other:
        fields.extend(FieldDiff(type=DiffType.NONE, name=name, old=text, new=text) for text in kept.elements())
    return ObjectDiff(
        type=_type_of(old or None, new or None, changed=bool(fields)), name=name, fields=_sorted_fields(fields) or None
    )


def _opaque(name: str, old: object, new: object) -> ObjectDiff:
    """A value that only a driver or an autoscaler understands, leaf by leaf: `port_map[0][db]`."""
    fields = _leaf_fields(_leaves("", old), _leaves("", new))
    changed = [field for field in fields if _differs(field)]
    shown = fields if changed and old and new else changed
    return ObjectDiff(
        type=_type_of(old or None, new or None, changed=bool(changed)), name=name, fields=_sorted_fields(shown) or None
    )


def _keys(name: str, values: Mapping[str, str] | None) -> dict[str, str]:
    return {f"{name}[{key}]": value for key, value in (values or {}).items()}


def _leaf_fields(old: Mapping[str, str], new: Mapping[str, str]) -> list[FieldDiff]:
    return [_leaf_field(name, old.get(name), new.get(name)) for name in {**old, **new}]


def _leaf_field(name: str, old: str | None, new: str | None) -> FieldDiff:
    """Unlike a field, a key may be there with an empty text, which differs from its absence."""
    if old is None:
        return FieldDiff(type=DiffType.ADDED, name=name, new=new or "")
    if new is None:
        return FieldDiff(type=DiffType.DELETED, name=name, old=old)
    return FieldDiff(type=DiffType.NONE if old == new else DiffType.EDITED, name=name, old=old, new=new)


def _leaves(name: str, value: object) -> dict[str, str]:
    """All plain values within, by their path."""
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = dict(enumerate(value)).items()
    else:
        return {name: _text(value)} if name else {}
    if not parts and name:
        return {name: ""}  # There, and empty: that differs from its absence.
    return {
        path: text
        for key, inner in parts
        for path, text in _leaves(f"{name}[{key}]" if name else str(key), inner).items()
    }


def _text(value: object) -> str:
    """A plain value as text; null is the empty text, durations are digits of nanoseconds."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return str(value)


def singularize(name: str) -> str:
    """The name of one member of a list: `Constraints` -> `Constraint`, `Affinities` -> `Affinity`."""
    if name.endswith("ies"):
        return f"{name[:-3]}y"
    return name.removesuffix("s")


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


def annotate_job_diff(job: JobDiff, annotations: PlanAnnotations | None) -> JobDiff:
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
