"""What people do to namespaces: write them, and delete those that nothing lives in any more."""

from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from wharf.model import namespace as namespaces
from wharf.model.changes import SEPARATOR, THIS, Cause, CauseKind, Write
from wharf.model.content import content_hash
from wharf.model.namespace import Namespace
from wharf.model.refusal import invalid, unknown
from wharf.model.validation.findings import Problem, multi_error
from wharf.operations.decision import Decision
from wharf.state import Replica, Table
from wharf.state.tables import ALLOCATIONS_OF_JOB, HOST_VOLUMES, JOBS, NAMESPACES, QUOTAS, VARIABLES

STORED: Final = "namespace-stored"
DELETED: Final = "namespace-deleted"


def store(snapshot: Replica, wanted: Namespace, *, cause: str = "") -> Decision[int]:
    """Create the namespace, or replace what is written of it. The same again writes nothing."""
    problems = namespaces.problems(wanted)
    if wanted.quota and snapshot.get(QUOTAS, wanted.quota) is None:
        problems.append(f'quota "{wanted.quota}" not found')
    if problems:
        found = multi_error([Problem("", problem) for problem in problems])
        raise invalid(f'Invalid namespace "{wanted.name}": {found.rstrip()}')
    stored = snapshot.get(NAMESPACES, wanted.name)
    namespace = replace(
        wanted, hash=content_hash(wanted), create_index=THIS if stored is None else stored.create_index, modify_index=0
    )
    if stored is not None and stored.hash == namespace.hash:
        return Decision(None, lambda _index: stored.modify_index)
    conditions = [snapshot.as_seen(NAMESPACES, wanted.name)]
    if wanted.quota:
        conditions.append(snapshot.as_seen(QUOTAS, wanted.quota))
    write = Write(STORED, Cause(CauseKind.REQUEST, cause), [NAMESPACES.put(namespace)], conditions)
    return Decision(write, lambda index: index)


def delete(snapshot: Replica, name: str, *, region: str, cause: str = "") -> Decision[int]:
    """Take the namespace away. Refused while anything lives in it: that would be in no namespace then."""
    if name == namespaces.DEFAULT:
        raise invalid("can not delete default namespace")
    stored = snapshot.get(NAMESPACES, name)
    if stored is None:
        raise unknown("namespace not found")
    standing = list(_what_stands_in_the_way(snapshot, stored))
    if standing:
        found = "; ".join(f'namespace "{name}" has {what} in regions: [{region}]' for what in standing)
        raise invalid(found)
    write = Write(
        DELETED,
        Cause(CauseKind.REQUEST, cause),
        [NAMESPACES.drop(name)],
        [snapshot.as_seen(NAMESPACES, name)],
    )
    return Decision(write, lambda index: index)


def _what_stands_in_the_way(snapshot: Replica, namespace: Namespace) -> Iterator[str]:
    jobs = list(snapshot.by_key(JOBS, prefix=namespace.name + SEPARATOR))
    if any(not job.stop and job.status != "dead" for job in jobs):
        yield "non-terminal jobs"
    if any(
        not allocation.is_client_terminal
        for job in jobs
        for allocation in snapshot.those(ALLOCATIONS_OF_JOB, job.namespace, job.id)
    ):
        yield "non-terminal allocations"
    if _holds_any(snapshot, HOST_VOLUMES, namespace):
        yield "volumes"
    if _holds_any(snapshot, VARIABLES, namespace):
        yield "variables"
    if namespace.quota:
        yield f'the quota "{namespace.quota}"'


def _holds_any(snapshot: Replica, table: Table[Any], namespace: Namespace) -> bool:
    return next(snapshot.by_key(table, prefix=namespace.name + SEPARATOR), None) is not None
