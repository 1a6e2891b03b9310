"""Decides what an import from Nomad changes: compares the records of both clusters and returns a list of changes.

Pure: `source` reads Nomad, and `importing` reads Wharf, writes the changes and prints the result.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from wharf.contract.model.acl.roles import Role
from wharf.contract.model.namespaces import DEFAULT_NAMESPACE, Namespace
from wharf.contract.model.node_pools import BUILT_IN_NODE_POOLS, NodePool
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.quotas import Quota
from wharf.contract.wire.acl import PolicyView
from wharf.contract.wire.jobs.messages import JobSource
from wharf.contract.wire.variables import VariableView


class ImportKind(enum.StrEnum):
    """A kind of record that is imported, in the order of the import: records come after those that they refer to."""

    QUOTA = "quotas"
    NODE_POOL = "node pools"
    NAMESPACE = "namespaces"
    SCHEDULER = "scheduler settings"
    POLICY = "policies"
    ROLE = "roles"
    VARIABLE = "variables"
    JOB = "jobs"


class Action(enum.StrEnum):
    """What the import does with a record of Nomad."""

    CREATE = "create"
    REPLACE = "replace"
    SAME = "same"  # Wharf has the same record.
    KEEP = "keep"  # Wharf has another record, which stays.
    SKIP = "skip"  # Wharf cannot have this record, or needs none.
    FAIL = "fail"  # Wharf refused the change.


WRITING_ACTIONS: Final = (Action.CREATE, Action.REPLACE)
KEPT_TEXT: Final = "Wharf has another one, which stays; --overwrite replaces it"
SCHEDULER_NAME: Final = "configuration"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What the import does with one record of Nomad. `name` includes the namespace, if the record has one.

    `record` is the record to write. It can contain secrets, so it is never printed.
    """

    kind: ImportKind
    name: str
    action: Action
    reason: str = ""
    record: Any = None  # The type of the record depends on the kind.
    version: int = 0
    """The ModifyIndex that the record must still have in Wharf when it is written; 0: it must not exist."""

    def __repr__(self) -> str:
        """Return a text without the record."""
        return f"Change({self.action} {self.kind} {self.name})"


class SourceJob(msgspec.Struct, frozen=True):
    """A job of Nomad: the newest version as the API returns it, and the text that a user submitted."""

    namespace: str
    id: str
    document: dict[str, Any]
    submission: JobSource | None = None


class JobComparison(msgspec.Struct, frozen=True):
    """What Wharf reports about a job of Nomad that it may import."""

    exists: bool = False
    is_same: bool = False
    version: int = 0  # The JobModifyIndex of the job in Wharf.
    errors: str = ""  # Why Wharf cannot have the job; empty if it can.
    warnings: str = ""


class SourceState(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a Nomad cluster."""

    quotas: tuple[Quota, ...] = ()
    node_pools: tuple[NodePool, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    scheduler: SchedulerConfiguration | None = None
    policies: tuple[PolicyView, ...] = ()
    roles: tuple[Role, ...] = ()
    variables: tuple[VariableView, ...] = ()
    jobs: tuple[SourceJob, ...] = ()
    skipped: tuple[Change, ...] = ()  # Records that cannot be read or have no counterpart.
    losses: Mapping[tuple[ImportKind, str], str] = {}  # By kind and name: what a record loses on the way.


class OwnState(msgspec.Struct, frozen=True, kw_only=True):
    """The records of the Wharf cluster that have the names of records in Nomad."""

    quotas: tuple[Quota, ...] = ()
    node_pools: tuple[NodePool, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    scheduler: SchedulerConfiguration
    policies: tuple[PolicyView, ...] | None = ()  # None: access control is off.
    roles: tuple[Role, ...] | None = ()
    variables: tuple[VariableView, ...] = ()
    jobs: Mapping[tuple[str, str], JobComparison] = {}  # By namespace and ID.


class _ComparedKind(NamedTuple):
    """How records of a kind are named and compared."""

    kind: ImportKind
    get_name: Callable[[Any], str]
    unused_fields: frozenset[str] = frozenset()
    """Fields that do not count, in addition to those that servers set."""


_SERVER_FIELDS: Final = frozenset({
    "Hash", "CreateIndex", "ModifyIndex", "CreateTime", "ModifyTime", "ID", "RulesJSON", "Lock"
})  # fmt: skip
_OPERATING_SWITCHES: Final = ("reject_job_registration", "pause_eval_broker")
"""Settings that stop a cluster for a while, such as during the move to Wharf. They are not imported."""
_QUOTA: Final = _ComparedKind(ImportKind.QUOTA, lambda quota: quota.name)
_NODE_POOL: Final = _ComparedKind(ImportKind.NODE_POOL, lambda pool: pool.name)
_NAMESPACE: Final = _ComparedKind(ImportKind.NAMESPACE, lambda namespace: namespace.name, frozenset({"Weight"}))
_POLICY: Final = _ComparedKind(ImportKind.POLICY, lambda policy: policy.name)
_ROLE: Final = _ComparedKind(ImportKind.ROLE, lambda role: role.name)
_VARIABLE: Final = _ComparedKind(ImportKind.VARIABLE, lambda variable: f"{variable.namespace}/{variable.path}")
ACL_OFF_TEXT: Final = (
    "access control is off in Wharf; turn it on (documentation page Access control) and repeat the import"
)


def plan_import(source: SourceState, own: OwnState, *, overwrite: bool, stops_jobs: bool = False) -> list[Change]:
    """Return what the import does with each record, in the order in which changes are written.

    `overwrite`: replace records of Wharf that differ. `stops_jobs`: import every job as stopped.
    """
    changes = [
        *_compare(_QUOTA, source.quotas, own.quotas, overwrite),
        *_compare(_NODE_POOL, _omit_built_in(source.node_pools), own.node_pools, overwrite),
        *_plan_namespaces(source.namespaces, own.namespaces, overwrite),
        *_plan_scheduler(source.scheduler, own.scheduler, overwrite),
        *_plan_access(_POLICY, source.policies, own.policies, overwrite),
        *_plan_access(_ROLE, source.roles, own.roles, overwrite),
        *_compare(_VARIABLE, source.variables, own.variables, overwrite),
        *(
            _plan_job(job, own.jobs.get((job.namespace, job.id), JobComparison()), overwrite, stops_jobs=stops_jobs)
            for job in source.jobs
        ),
        *source.skipped,
    ]
    order = list(ImportKind)
    changes = [_add_reason(change, source.losses.get((change.kind, change.name), "")) for change in changes]
    return sorted(changes, key=lambda change: order.index(change.kind))  # Stable: the order within a kind stays.


def prepare_job(job: SourceJob, *, stops_jobs: bool) -> dict[str, Any]:
    """Return the document of a job as the import registers it.

    A job that is stopped in Nomad stays stopped. So does a batch job that has ended there: it would run again. Its
    versions begin at 0, because only the newest one is imported.
    """
    is_stopped = stops_jobs or bool(job.document.get("Stop")) or has_ended(job.document)
    return {**job.document, "Stop": is_stopped, "Version": 0}


def has_ended(document: Mapping[str, Any]) -> bool:
    """Return whether a batch job has run to its end in Nomad."""
    return (
        document.get("Type") in ("batch", "sysbatch")
        and document.get("Status") == "dead"
        and not document.get("Periodic")
        and not document.get("ParameterizedJob")
    )


def _omit_built_in(pools: Iterable[NodePool]) -> list[NodePool]:
    return [pool for pool in pools if pool.name not in BUILT_IN_NODE_POOLS]


def _compare(
    kind: _ComparedKind,
    records: Iterable[Any],
    own_records: Iterable[Any],
    overwrite: bool,
    *,
    untouched: Collection[str] = (),
) -> Iterator[Change]:
    """Yield the change for each record: created if Wharf has none of the name, else replaced only with `overwrite`.

    The records named in `untouched` are replaced in any case: nobody has changed them in Wharf.
    """
    own_by_name = {kind.get_name(record): record for record in own_records}
    for record in records:
        name = kind.get_name(record)
        own = own_by_name.get(name)
        if own is None:
            yield Change(kind=kind.kind, name=name, action=Action.CREATE, record=record)
        elif _list_content(kind, record) == _list_content(kind, own):
            yield Change(kind=kind.kind, name=name, action=Action.SAME)
        else:
            yield _replace_or_keep(
                kind.kind, name, _keep_identity(record, own), own.modify_index, overwrite or name in untouched
            )


def _keep_identity(record: Any, own: Any) -> Any:
    """Return the record with the values of Wharf's record that Nomad's record does not have: its id and its weight."""
    if isinstance(record, Role):
        return msgspec.structs.replace(record, id=own.id)
    if isinstance(record, Namespace):
        return msgspec.structs.replace(record, weight=own.weight)
    return record


def _replace_or_keep(kind: ImportKind, name: str, record: Any, version: int, overwrite: bool) -> Change:
    if overwrite:
        return Change(kind=kind, name=name, action=Action.REPLACE, record=record, version=version)
    return Change(kind=kind, name=name, action=Action.KEEP, reason=KEPT_TEXT)


def _list_content(kind: _ComparedKind, record: msgspec.Struct) -> Any:
    """Return the content of a record that a user wrote. Unset and empty values count as the same, except empty lists."""
    return _remove_unset(msgspec.to_builtins(record), _SERVER_FIELDS | kind.unused_fields)


def _remove_unset(value: Any, unused_fields: frozenset[str]) -> Any:
    if isinstance(value, dict):
        found = {key: _remove_unset(item, unused_fields) for key, item in value.items() if key not in unused_fields}
        return {key: item for key, item in found.items() if item is not None and item != {}}
    if isinstance(value, list | tuple):
        return [_remove_unset(item, unused_fields) for item in value]
    return value


def _plan_namespaces(
    namespaces: Sequence[Namespace], own_namespaces: Sequence[Namespace], overwrite: bool
) -> Iterator[Change]:
    """Return the changes of namespaces. The namespace `default` exists always: as long as nobody changed it, it is replaced."""
    untouched = [
        each.name
        for each in own_namespaces
        if each.name == DEFAULT_NAMESPACE and each.create_index == each.modify_index
    ]
    return _compare(_NAMESPACE, namespaces, own_namespaces, overwrite, untouched=untouched)


def _plan_scheduler(
    source: SchedulerConfiguration | None, own: SchedulerConfiguration, overwrite: bool
) -> Iterator[Change]:
    """Yield the change of the scheduler settings. As long as nobody changed those of Wharf, they are replaced."""
    if source is None:
        return
    own_switches = {name: getattr(own, name) for name in _OPERATING_SWITCHES}
    imported = msgspec.structs.replace(source, **own_switches)
    kind = _ComparedKind(ImportKind.SCHEDULER, lambda _: SCHEDULER_NAME)
    [change] = _compare(kind, [imported], [own], overwrite or own.create_index == own.modify_index)
    switches = [name for name in _OPERATING_SWITCHES if getattr(source, name) and not getattr(own, name)]
    if switches:
        fields = " and ".join("".join(word.capitalize() for word in name.split("_")) for name in switches)
        note = f"{fields} is set in Nomad and not imported; `wharf operator scheduler set-config` sets it"
        change = msgspec.structs.replace(change, reason="; ".join(filter(None, (change.reason, note))))
    yield change


def _add_reason(change: Change, reason: str) -> Change:
    """Return a change that writes with a further reason, such as what the record loses. Others stay as they are."""
    if not reason or change.action not in WRITING_ACTIONS:
        return change
    return msgspec.structs.replace(change, reason="; ".join(filter(None, (change.reason, reason))))


def _plan_access(
    kind: _ComparedKind, records: Sequence[Any], own_records: Sequence[Any] | None, overwrite: bool
) -> Iterator[Change]:
    """Yield the changes of policies or roles. All are skipped while access control is off in Wharf."""
    if own_records is not None:
        yield from _compare(kind, records, own_records, overwrite)
        return
    for record in records:
        yield Change(kind=kind.kind, name=kind.get_name(record), action=Action.SKIP, reason=ACL_OFF_TEXT)


def _plan_job(job: SourceJob, own: JobComparison, overwrite: bool, *, stops_jobs: bool) -> Change:
    name = f"{job.namespace}/{job.id}"
    if own.errors:
        return Change(kind=ImportKind.JOB, name=name, action=Action.SKIP, reason=own.errors)
    if own.is_same:
        return Change(kind=ImportKind.JOB, name=name, action=Action.SAME)
    record = msgspec.structs.replace(job, document=prepare_job(job, stops_jobs=stops_jobs))
    if own.exists:
        return _replace_or_keep(ImportKind.JOB, name, record, own.version, overwrite)
    notes = [own.warnings] if own.warnings else []
    if has_ended(job.document):
        notes.append("has ended in Nomad, so it is imported as stopped; `wharf job start` runs it again")
    return Change(kind=ImportKind.JOB, name=name, action=Action.CREATE, record=record, reason="; ".join(notes))
