"""The default of each field, as canonicalization fills it in: found by canonicalizing a job of each type that sets no field."""

import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from wharf.contract.model.decoding import convert_object
from wharf.contract.model.jobs import defaults
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.group_policies import MigratePolicy, ReschedulePolicy, UpdatePolicy
from wharf.contract.model.jobs.job import Job

JOB_TYPES: Final = ("service", "batch", "system", "sysbatch")
JOB_TYPES_BY_POLICY: Final[Mapping[type, tuple[str, ...]]] = {
    UpdatePolicy: tuple(defaults.UPDATE_POLICIES),
    MigratePolicy: tuple(defaults.MIGRATE_POLICIES),
    ReschedulePolicy: tuple(defaults.RESCHEDULE_POLICIES),
}
"""Policies that only some job types have."""
SAMPLE_SETTINGS: Final = JobSettings(
    region="here", node_pool="pool-of-namespace", default_priority=50, max_priority=100, max_count=50_000,
    memory_oversubscription=True, max_source_bytes=1_000_000, versions_kept=6,
)  # fmt: skip
"""The settings of a server for the sample jobs. The default priority and the limits are those of a new cluster."""
SAMPLE_ID: Final = "job-id"
_SAMPLE_VALUES: Final[Mapping[str, Mapping[str, object]]] = {
    "Job": {"ID": SAMPLE_ID},
    "VolumeRequest": {"Type": "host"},  # A request of another type is dropped.
    "DNS": {"Servers": ["10.0.0.1"]},  # Blocks that set nothing are dropped.
    "CNI": {"Args": {"a": "b"}},
    "MountOptions": {"FSType": "ext4"},
}
"""Fields without which the sample would lose a block."""


def iterate_record_types(field_type: Any) -> Iterator[type[msgspec.Struct]]:  # Any type annotation.
    """Yield the record classes that the type of a field contains, such as `Task` in `tuple[Task, ...] | None`."""
    if isinstance(field_type, type) and issubclass(field_type, msgspec.Struct):
        yield field_type
    for argument in typing.get_args(field_type):
        yield from iterate_record_types(argument)


@cache
def list_fields(record_type: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a record. msgspec evaluates all annotations of the class at each call, which takes a millisecond."""
    return msgspec.structs.fields(record_type)


@cache
def list_field_types(record_type: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Return the type of each field that a submission of this record may have, by wire name."""
    fields: dict[str, Any] = {field.encode_name: field.type for field in list_fields(record_type)}
    return types.MappingProxyType(fields | dict(getattr(record_type, "only_when_submitted", {})))


def build_sample(record_type: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON of a record that has each of its blocks, but sets no field."""
    sample: dict[str, Any] = dict(_SAMPLE_VALUES.get(record_type.__name__, {}))
    for name, field_type in list_field_types(record_type).items():
        inner_type = next(iterate_record_types(field_type), None)
        if inner_type is None or name in ("Multiregion", "VersionTag", "ScalingPolicies", "Retry"):
            continue
        inner = build_sample(inner_type)
        origins = {typing.get_origin(part) for part in _list_union_members(field_type)}
        sample[name] = [inner] if tuple in origins else {"name": inner} if dict in origins else inner
    return sample


def _list_union_members(field_type: Any) -> tuple[Any, ...]:  # Any type annotation.
    is_union = typing.get_origin(field_type) in (typing.Union, types.UnionType)
    return typing.get_args(field_type) if is_union else (field_type,)


@cache
def _get_sample_job(job_type: str) -> Job:
    """Return the canonical form of the sample job of this type."""
    sample = build_sample(Job) | {"Type": job_type}
    return canonicalize_job(convert_object(Job, sample).value, SAMPLE_SETTINGS)


@cache
def find_defaults(record_type: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    """Return the default of each field of a record, by wire name and job type.

    Job types for which the record is not allowed are left out. A record that no job has, such as the options of a driver, has
    the defaults of its class, under the type `""`.
    """
    found: dict[str, dict[str, Any]] = {}
    for job_type in JOB_TYPES_BY_POLICY.get(record_type, JOB_TYPES):
        record = next(_iterate_records(_get_sample_job(job_type), record_type), None)
        if record is None:
            return {field.encode_name: {"": _get_class_default(field)} for field in list_fields(record_type)}
        for field in list_fields(record_type):
            found.setdefault(field.encode_name, {})[job_type] = getattr(record, field.name)
    return found


def _get_class_default(field: msgspec.structs.FieldInfo) -> Any:  # Any value.
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None if field.default is msgspec.NODEFAULT else field.default


def _iterate_records(value: object, record_type: type) -> Iterator[msgspec.Struct]:
    """Yield the records of a type inside a value, the outermost first.

    The update block of a job is left out, because it has only two of the fields.
    """
    if isinstance(value, record_type) and isinstance(value, msgspec.Struct):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            if not (isinstance(value, Job) and name == "update"):
                yield from _iterate_records(getattr(value, name), record_type)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _iterate_records(item, record_type)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _iterate_records(item, record_type)
