"""The difference between two versions of a job, for the reply of a plan.

A pure function of two jobs, of which one may be missing. Whether a field is a scalar, an object, a list or a map is derived from
the record types, so new fields are compared without changes here. Only exceptions are declared: fields that are not compared, the
key of list members, and irregular names.

`annotate_job_diff` adds what the scheduler would do, from the annotations of a plan.
"""

import base64
import datetime
import enum
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from wharf.contract.model.jobs.arrays import GroupArray
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
from wharf.contract.model.jobs.sensitive_fields import HiddenFields, hide_text
from wharf.languages.hcl.diagnostics import HIDDEN

# Fields that are never compared, by record type. Indexes are ignored in all records.
_INDEXES: Final = frozenset({"CreateIndex", "ModifyIndex", "JobModifyIndex"})
_IGNORED: Final[Mapping[str, frozenset[str]]] = {
    "Job": frozenset(
        {"ID", "Status", "StatusDescription", "Version", "Stable", "SubmitTime", "Update", "NomadTokenID", "TaskGroups"}
    ),
    "TaskGroup": frozenset({"Name", "Tasks"}),
    "Task": frozenset({"Name"}),
    "ScalingPolicy": frozenset({"ID", "Target"}),  # Set by the server.
}

# Values that count as not set, by record type: the canonical form fills them in, and Nomad has no such fields.
_UNSET: Final[Mapping[str, Mapping[str, object]]] = {
    "TaskGroup": {"Array": GroupArray(size=1), "MayFail": False, "Final": False},
}

# The field that identifies a list member, if it is not `name` or `label`. Members without such a field are matched only if
# they are equal.
_KEY_FIELD_BY_TYPE: Final[Mapping[str, str]] = {
    "Need": "on",
    "SpreadTarget": "value",
    "Template": "dest_path",
    "VolumeMount": "destination",
}

_IRREGULAR_NAMES: Final[Mapping[str, str]] = {
    "ReservedPorts": "Static Port",
    "DynamicPorts": "Dynamic Port",
    "SpreadTarget": "SpreadTarget",
    "Depends": "Depends",
    "Identities": "Identity",
}

ListMember = TypeVar("ListMember", bound=msgspec.Struct)


def compare_jobs(
    old: Job | None,
    new: Job | None,
    should_stop: Callable[[], bool] = lambda: False,
    hidden: HiddenFields | None = None,
) -> JobDiff:
    """Return the difference from the old job to the new one.

    If `old` is `None`, all of the new job is added; if `new` is `None`, all of the old job is deleted. Once `should_stop`
    returns true, the remaining groups and tasks are left out. Of `hidden` fields, the difference says only how they changed.
    """
    present = new if new is not None else old
    fields, objects = _compare_members(old, new, hidden, include_unchanged=False)
    hidden_groups = _find_hidden(hidden, "TaskGroups")
    groups = tuple(
        sorted(
            (
                _compare_groups(old_group, new_group, should_stop, hidden_groups)
                for old_group, new_group in _pair_members(_list_groups(old), _list_groups(new))
                if not should_stop()
            ),
            key=lambda group: group.name,
        )
    )
    return JobDiff(
        type=_get_diff_type(old, new, changed=bool(fields or objects) or any(_is_changed(group) for group in groups)),
        id=present.id if present is not None else "",
        fields=fields or None,
        objects=objects or None,
        task_groups=groups or None,
    )


def _list_groups(job: Job | None) -> Sequence[TaskGroup]:
    """Return the groups of a job; empty if the job is `None`."""
    return (job.task_groups or ()) if job is not None else ()


def _find_hidden(hidden: HiddenFields | None, step: str) -> HiddenFields | None:
    """Return the hidden fields inside a field, group, task or entry of a map."""
    return hidden.find(step) if hidden is not None else None


def _compare_groups(
    old: TaskGroup | None, new: TaskGroup | None, should_stop: Callable[[], bool], hidden_groups: HiddenFields | None
) -> TaskGroupDiff:
    """Return the difference between two versions of a group.

    `None` stands for a group that exists in only one version.
    """
    hidden = _find_hidden(hidden_groups, _get_name(old, new))
    fields, objects = _compare_members(old, new, hidden, include_unchanged=False)
    hidden_tasks = _find_hidden(hidden, "Tasks")
    old_tasks = (old.tasks or ()) if old is not None else ()
    new_tasks = (new.tasks or ()) if new is not None else ()
    tasks = tuple(
        sorted(
            (
                _compare_tasks(old_task, new_task, _find_hidden(hidden_tasks, _get_name(old_task, new_task)))
                for old_task, new_task in _pair_members(old_tasks, new_tasks)
                if not should_stop()
            ),
            key=lambda task: task.name,
        )
    )
    return TaskGroupDiff(
        type=_get_diff_type(old, new, changed=bool(fields or objects) or any(_is_changed(task) for task in tasks)),
        name=_get_name(old, new),
        fields=fields or None,
        objects=objects or None,
        tasks=tasks or None,
    )


def _compare_tasks(old: Task | None, new: Task | None, hidden: HiddenFields | None) -> TaskDiff:
    """Return the difference between two versions of a task.

    `None` stands for a task that exists in only one version.
    """
    fields, objects = _compare_members(old, new, hidden, include_unchanged=False)
    return TaskDiff(
        type=_get_diff_type(old, new, changed=bool(fields or objects)),
        name=_get_name(old, new),
        fields=fields or None,
        objects=objects or None,
    )


def _get_name(old: TaskGroup | Task | None, new: TaskGroup | Task | None) -> str:
    """Return the name of the new version of a group or task, or of the old version if it was deleted."""
    present = new if new is not None else old
    return present.name if present is not None else ""


def _is_changed(diff: TaskGroupDiff | TaskDiff | ObjectDiff | FieldDiff) -> bool:
    """Return whether this difference is a change: the part was added, deleted or edited."""
    return diff.type is not DiffType.NONE


def _get_diff_type(old: object, new: object, *, changed: bool) -> DiffType:
    """Return how a part of the job changed.

    A part that is `None` on one side was added or deleted; otherwise `changed` decides.
    """
    if old is None and new is not None:
        return DiffType.ADDED
    if new is None and old is not None:
        return DiffType.DELETED
    return DiffType.EDITED if changed else DiffType.NONE


# -- kinds of fields -----------------------------------------------------------------------------------------------


class _FieldKind(enum.Enum):
    """The type of a field, which determines how its values are compared."""

    SCALAR = enum.auto()  # A number, a text or another single value.
    OBJECT = enum.auto()  # A record.
    SCALARS = enum.auto()  # A list of single values.
    OBJECTS = enum.auto()  # A list of records.
    SCALAR_MAP = enum.auto()  # A map of texts.
    OBJECT_MAP = enum.auto()  # A map of records.
    OPAQUE = enum.auto()  # Data for a driver or an autoscaler: nested lists and maps of any type.


class _DiffField(NamedTuple):
    """A field of a record type that is compared."""

    attribute: str  # Its Python name.
    wire: str  # Its name in the API.
    kind: _FieldKind  # How its values are compared.


@functools.cache
def _list_compared_fields(record: type[msgspec.Struct]) -> tuple[_DiffField, ...]:
    """Return the fields of a record type that are compared, in the order of their declaration."""
    ignored = _INDEXES | _IGNORED.get(record.__name__, frozenset())
    return tuple(
        _DiffField(field.name, field.encode_name, _get_field_kind(msgspec.inspect.type_info(field.type)))
        for field in msgspec.structs.fields(record)
        if field.encode_name not in ignored
    )


def _get_field_kind(type_: msgspec.inspect.Type) -> _FieldKind:
    """Return the kind of a field from its declared type.

    For an optional type, it is the kind of the type that is not `None`.
    """
    inspect = msgspec.inspect
    if isinstance(type_, inspect.UnionType):
        members = [part for part in type_.types if not isinstance(part, inspect.NoneType)]
        type_ = members[0] if len(members) == 1 else inspect.AnyType()
    if isinstance(type_, inspect.StructType):
        return _FieldKind.OBJECT
    if isinstance(type_, inspect.VarTupleType):
        return _FieldKind.OBJECTS if isinstance(type_.item_type, inspect.StructType) else _FieldKind.SCALARS
    if isinstance(type_, inspect.DictType):
        if isinstance(type_.value_type, inspect.StructType):
            return _FieldKind.OBJECT_MAP
        return _FieldKind.SCALAR_MAP if isinstance(type_.value_type, inspect.StrType) else _FieldKind.OPAQUE
    return _FieldKind.OPAQUE if isinstance(type_, inspect.AnyType | inspect.CustomType) else _FieldKind.SCALAR


# -- members of a record -------------------------------------------------------------------------------------------

_MemberDiffs = tuple[tuple[FieldDiff, ...], tuple[ObjectDiff, ...]]


def _compare_members(
    old: msgspec.Struct | None, new: msgspec.Struct | None, hidden: HiddenFields | None, *, include_unchanged: bool
) -> _MemberDiffs:
    """Return the differences between two records of one type: those of its fields, and those of the objects in it.

    Only changes are returned. With `include_unchanged`, all fields of a record that has changed are returned. `None`
    stands for a missing record.
    """
    present = new if new is not None else old
    if present is None:
        return (), ()
    fields: list[FieldDiff] = []
    objects: list[ObjectDiff] = []
    unset = _UNSET.get(type(present).__name__, {})
    for field in _list_compared_fields(type(present)):
        old_value, new_value = getattr(old, field.attribute, None), getattr(new, field.attribute, None)
        if field.wire in unset:
            old_value, new_value = (None if each == unset[field.wire] else each for each in (old_value, new_value))
        inside = _find_hidden(hidden, field.wire)
        match field.kind:
            case _FieldKind.SCALAR:
                scalar = _compare_texts(field.wire, _format_scalar(old_value), _format_scalar(new_value))
                fields.append(scalar if inside is None else _hide_field(scalar))
            case _FieldKind.SCALAR_MAP:
                leaves = _compare_leaves(_flatten_map(field.wire, old_value), _flatten_map(field.wire, new_value))
                fields.extend(leaves if inside is None else _hide_map(field.wire, leaves, inside))
            case _FieldKind.OBJECT:
                objects.append(_compare_objects(field.wire, old_value, new_value, inside))
            case _FieldKind.OBJECTS:
                objects.extend(
                    _compare_lists(
                        _IRREGULAR_NAMES.get(field.wire) or singularize(field.wire),
                        old_value or (),
                        new_value or (),
                        inside.join_items() if inside is not None else None,
                    )
                )
            case _FieldKind.OBJECT_MAP:
                objects.extend(_compare_maps(singularize(field.wire), old_value or {}, new_value or {}, inside))
            case _FieldKind.SCALARS:
                part = _compare_scalar_lists(field.wire, old_value or (), new_value or ())
                objects.append(part if inside is None else _hide_fields(part))
            case _FieldKind.OPAQUE:
                objects.append(_compare_opaque(field.wire, old_value, new_value, inside))
    changed = [part for part in objects if _is_changed(part)]
    shown_fields = [part for part in fields if _is_changed(part)]
    if include_unchanged and old is not None and new is not None and (shown_fields or changed):
        shown_fields = fields
    return _sort_fields(shown_fields), _sort_objects(changed)


def _hide_field(field: FieldDiff, name: str = "") -> FieldDiff:
    """Return the difference of a field without its texts, and with another name if it is given."""
    return msgspec.structs.replace(field, name=name or field.name, old=hide_text(field.old), new=hide_text(field.new))


def _hide_fields(part: ObjectDiff) -> ObjectDiff:
    return msgspec.structs.replace(part, fields=tuple(map(_hide_field, part.fields)) if part.fields else None)


def _hide_map(name: str, leaves: Sequence[FieldDiff], hidden: HiddenFields) -> Iterator[FieldDiff]:
    """Yield the differences of the entries of a map. If the whole map is hidden, its keys are hidden too."""
    for leaf in leaves:
        if hidden.is_whole:
            yield _hide_field(leaf, f"{name}[{HIDDEN}]")
        else:
            is_hidden = hidden.find(leaf.name.removeprefix(f"{name}[").removesuffix("]")) is not None
            yield _hide_field(leaf) if is_hidden else leaf


def _sort_fields(fields: Sequence[FieldDiff]) -> tuple[FieldDiff, ...]:
    """Return field differences sorted by name, then by content."""
    return tuple(sorted(fields, key=_get_field_sort_key))


def _get_field_sort_key(field: FieldDiff) -> tuple[str, str, str]:
    """Return a sort key by name, then by content.

    It stays the same if old and new are exchanged, so that the reverse difference has the same order.
    """
    return field.name, max(field.old, field.new), min(field.old, field.new)


def _sort_objects(objects: Sequence[ObjectDiff]) -> tuple[ObjectDiff, ...]:
    """Return object differences sorted by name, then by content."""
    # The members of a list all have the same name, so their content decides the order.
    return tuple(sorted(objects, key=lambda part: (part.name, _list_content_sort_keys(part))))


def _list_content_sort_keys(diff: ObjectDiff) -> list[tuple[str, str, str]]:
    """Return the sort keys of all field differences in an object difference, including nested ones."""
    return [
        *(_get_field_sort_key(field) for field in diff.fields or ()),
        *(text for nested in diff.objects or () for text in _list_content_sort_keys(nested)),
    ]


def _compare_texts(name: str, old: str, new: str) -> FieldDiff:
    """Return the difference between two scalar values, formatted as text.

    An empty text stands for a value that is not set.
    """
    if old == new:
        type_ = DiffType.NONE
    elif not old:
        type_ = DiffType.ADDED
    elif not new:
        type_ = DiffType.DELETED
    else:
        type_ = DiffType.EDITED
    return FieldDiff(type=type_, name=name, old=old, new=new)


def _compare_objects(
    name: str, old: msgspec.Struct | None, new: msgspec.Struct | None, hidden: HiddenFields | None = None
) -> ObjectDiff:
    """Return the difference between two records. If they differ, it includes their unchanged fields as context.

    `None` stands for a missing record.
    """
    fields, objects = _compare_members(old, new, hidden, include_unchanged=True)
    return ObjectDiff(
        type=_get_diff_type(old, new, changed=bool(fields or objects)),
        name=name,
        fields=fields or None,
        objects=objects or None,
    )


def _compare_maps(
    name: str, old: Mapping[str, msgspec.Struct], new: Mapping[str, msgspec.Struct], hidden: HiddenFields | None
) -> Iterator[ObjectDiff]:
    """Yield the differences between two maps of records, compared by key and in the order of the keys.

    Each has the name `name`.
    """
    for key in sorted({*old, *new}):
        yield _compare_objects(name, old.get(key), new.get(key), _find_hidden(hidden, key))


def _compare_lists(
    name: str, old: Sequence[msgspec.Struct], new: Sequence[msgspec.Struct], hidden: HiddenFields | None
) -> Iterator[ObjectDiff]:
    """Yield the differences between two lists of records.

    Records with the same name or other identity are compared. Each difference has the name `name`.
    """
    for old_member, new_member in _pair_members(old, new):
        yield _compare_objects(name, old_member, new_member, hidden)


def _pair_members(
    old: Sequence[ListMember], new: Sequence[ListMember]
) -> Iterator[tuple[ListMember | None, ListMember | None]]:
    """Yield pairs of an old and a new list member with the same identity.

    A member without a counterpart is paired with `None`. The order is the same if the lists are exchanged.
    """
    old_keyed, new_keyed = _index_members(old), _index_members(new)
    for key in sorted({**old_keyed, **new_keyed}):
        yield old_keyed.get(key), new_keyed.get(key)


def _index_members(members: Sequence[ListMember]) -> dict[tuple[str, int], ListMember]:
    """Return the list members by identity and occurrence.

    For example, the second member with the identity `web` has the key `("web", 1)`.
    """
    seen: Counter[str] = Counter()
    keyed: dict[tuple[str, int], ListMember] = {}
    for member in members:
        identity = _get_identity(member)
        keyed[identity, seen[identity]] = member
        seen[identity] += 1
    return keyed


def _get_identity(member: msgspec.Struct) -> str:
    """Return the text that identifies a list member: its name, label or other identifying field.

    A member without such a field is identified by its whole content as JSON.
    """
    attribute = _KEY_FIELD_BY_TYPE.get(type(member).__name__)
    for candidate in (attribute,) if attribute else ("name", "label"):
        if hasattr(member, candidate):
            return str(getattr(member, candidate))
    return msgspec.json.encode(member, order="deterministic").decode()


# -- lists and maps of plain values --------------------------------------------------------------------------------


def _compare_scalar_lists(name: str, old: Sequence[object], new: Sequence[object]) -> ObjectDiff:
    """Return the difference between two lists of plain values, ignoring their order.

    If only the order differs, each changed position is an edit.
    """
    old_texts, new_texts = [_format_scalar(value) for value in old], [_format_scalar(value) for value in new]
    removed, added = Counter(old_texts) - Counter(new_texts), Counter(new_texts) - Counter(old_texts)
    common = Counter(old_texts) & Counter(new_texts)
    fields = [
        *(FieldDiff(type=DiffType.DELETED, name=name, old=text) for text in removed.elements()),
        *(FieldDiff(type=DiffType.ADDED, name=name, new=text) for text in added.elements()),
    ]
    if not fields:
        fields = [
            _compare_texts(name, before, after)
            for before, after in zip(old_texts, new_texts, strict=True)
            if before != after
        ]
    elif old_texts and new_texts:
        fields.extend(FieldDiff(type=DiffType.NONE, name=name, old=text, new=text) for text in common.elements())
    return ObjectDiff(
        type=_get_diff_type(old or None, new or None, changed=bool(fields)),
        name=name,
        fields=_sort_fields(fields) or None,
    )


def _compare_opaque(name: str, old: object, new: object, hidden: HiddenFields | None) -> ObjectDiff:
    """Return the difference between two nested values for a driver or an autoscaler.

    Each plain value in them is compared under its path, such as `port_map[0][db]`.
    """
    fields = _compare_leaves(_flatten_value("", old), _flatten_value("", new))
    if hidden is not None:
        fields = [_hide_leaf(field, hidden) for field in fields]
    changed = [field for field in fields if _is_changed(field)]
    shown = fields if changed and old and new else changed
    return ObjectDiff(
        type=_get_diff_type(old or None, new or None, changed=bool(changed)),
        name=name,
        fields=_sort_fields(shown) or None,
    )


def _hide_leaf(field: FieldDiff, hidden: HiddenFields) -> FieldDiff:
    """Return the difference of a plain value. The path inside a hidden list or map is hidden too: it may have keys of the map."""
    steps = field.name.removesuffix("]").replace("][", "[").split("[")
    for length in range(len(steps) + 1):
        if hidden.hides_part(steps[:length]):
            shown = "".join(f"[{step}]" for step in steps[1:length])
            rest = f"[{HIDDEN}]" if length < len(steps) else ""
            return _hide_field(field, f"{steps[0]}{shown}{rest}" if length else HIDDEN)
    return field


def _flatten_map(name: str, values: Mapping[str, str] | None) -> dict[str, str]:
    """Return the entries of a map under their path: `{"Meta[team]": "a"}` for the map `Meta` with the entry `team`."""
    return {f"{name}[{key}]": value for key, value in (values or {}).items()}


def _compare_leaves(old: Mapping[str, str], new: Mapping[str, str]) -> list[FieldDiff]:
    """Return the differences between two sets of plain values, each given as a map from path to text."""
    return [_compare_leaf(name, old.get(name), new.get(name)) for name in {**old, **new}]


def _compare_leaf(path: str, old: str | None, new: str | None) -> FieldDiff:
    """Return the difference between two plain values at one path.

    Unlike an empty text, `None` stands for a value that does not exist.
    """
    if old is None:
        return FieldDiff(type=DiffType.ADDED, name=path, new=new or "")
    if new is None:
        return FieldDiff(type=DiffType.DELETED, name=path, old=old)
    return FieldDiff(type=DiffType.NONE if old == new else DiffType.EDITED, name=path, old=old, new=new)


def _flatten_value(name: str, value: object) -> dict[str, str]:
    """Return all plain values within nested lists and maps, by path: `{"a[0]": "1"}` for `{"a": [1]}`.

    `name` is the path of `value`; empty for the outermost value.
    """
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = dict(enumerate(value)).items()
    else:
        return {name: _format_scalar(value)} if name else {}
    if not parts and name:
        return {name: ""}  # An empty list or map differs from a missing one.
    return {
        path: text
        for key, inner in parts
        for path, text in _flatten_value(f"{name}[{key}]" if name else str(key), inner).items()
    }


def _format_scalar(value: object) -> str:
    """Return a plain value as text. `None` becomes the empty text, and bytes become base64."""
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
    """Return the name of one member of a list: `Constraint` for `Constraints`, `Affinity` for `Affinities`."""
    if name.endswith("ies"):
        return f"{name[:-3]}y"
    return name.removesuffix("s")


# Notes on a changed count or task: what the change does to allocations.
_FORCES_CREATE: Final = "forces create"
_FORCES_DESTROY: Final = "forces destroy"
_FORCES_IN_PLACE: Final = "forces in-place update"
_FORCES_DESTRUCTIVE: Final = "forces create/destroy update"

# Field of `DesiredUpdates` -> the name of this number in the reply.
_UPDATE_LABELS: Final[Mapping[str, str]] = {
    "ignore": "ignore",
    "place": "create",
    "migrate": "migrate",
    "stop": "destroy",
    "in_place_update": "in-place update",
    "destructive_update": "create/destroy update",
    "canary": "canary",
}

# Changes of these fields and objects of a task do not need a new allocation.
_IN_PLACE_FIELDS: Final = frozenset({"KillTimeout"})
_IN_PLACE_OBJECTS: Final = frozenset({"LogConfig", "Service", "Constraint", "Affinity", "Spread"})


def annotate_job_diff(job: JobDiff, annotations: PlanAnnotations | None) -> JobDiff:
    """Return a job difference with the planned effects on each group.

    They are the numbers of allocations that the scheduler would place, stop or update, and notes on what kind of
    update each change forces.
    """
    updates = (annotations.desired_tg_updates if annotations is not None else None) or {}
    groups = tuple(_annotate_group(group, updates.get(group.name)) for group in job.task_groups or ())
    return msgspec.structs.replace(job, task_groups=groups or None)


def _annotate_group(group: TaskGroupDiff, updates: DesiredUpdates | None) -> TaskGroupDiff:
    """Return a group difference with the numbers of allocations to place, stop or update, and with notes.

    The notes concern its count and its tasks. `updates` is `None` if the scheduler planned nothing for the group.
    """
    counts = {label: getattr(updates, name) for name, label in _UPDATE_LABELS.items()} if updates is not None else {}
    return msgspec.structs.replace(
        group,
        fields=tuple(_annotate_count(field) for field in group.fields) if group.fields else None,
        tasks=tuple(_annotate_task(task, group.type) for task in group.tasks) if group.tasks else None,
        updates={label: count for label, count in counts.items() if count} or None,
    )


def _annotate_count(field: FieldDiff) -> FieldDiff:
    """Return the difference of a group's field.

    If it is a changed count, it has a note that allocations are created or destroyed.
    """
    if field.name != "Count" or field.type is DiffType.NONE:
        return field
    if HIDDEN in (field.old, field.new):
        return field
    forces = _FORCES_CREATE if int(field.new or 0) > int(field.old or 0) else _FORCES_DESTROY
    return msgspec.structs.replace(field, annotations=(forces,))


def _annotate_task(task: TaskDiff, group_change: DiffType) -> TaskDiff:
    """Return a task difference with a note on what its change does to allocations.

    `group_change` is how the group of the task changed. An unchanged task gets no note.
    """
    if task.type is DiffType.NONE:
        return task
    if group_change is DiffType.ADDED:
        forces = _FORCES_CREATE
    elif group_change is DiffType.DELETED:
        forces = _FORCES_DESTROY
    else:
        forces = _FORCES_IN_PLACE if _is_in_place(task) else _FORCES_DESTRUCTIVE
    return msgspec.structs.replace(task, annotations=(forces,))


def _is_in_place(task: TaskDiff) -> bool:
    """Return whether a changed task can be updated in running allocations, without replacing them."""
    return (
        task.type is DiffType.EDITED
        and all(field.name in _IN_PLACE_FIELDS for field in task.fields or ())
        and all(
            changed_object.name in _IN_PLACE_OBJECTS and not _toggles_log(changed_object)
            for changed_object in task.objects or ()
        )
    )


def _toggles_log(diff: ObjectDiff) -> bool:
    """Return whether an object difference turns logging on or off, which requires new allocations."""
    return diff.name == "LogConfig" and any(
        field.name == "Disabled" and field.type is not DiffType.NONE for field in diff.fields or ()
    )
