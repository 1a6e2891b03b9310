"""What people do to namespaces: write them, and delete those that nothing lives in any more."""

from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica, Table
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, HOST_VOLUMES, JOBS, NAMESPACES, QUOTAS, VARIABLES
from wharf.contract.model import namespaces
from wharf.contract.model.jobs.validation.findings import ValidationProblem, format_problems
from wharf.contract.model.log import KEY_SEPARATOR, WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.record import hash_content
from wharf.contract.model.refusal import invalid_request, not_found

STORED_WRITE_KIND: Final = "namespace-stored"
DELETED_WRITE_KIND: Final = "namespace-deleted"


def store_namespace(snapshot: Replica, requested: Namespace, *, cause: str = "") -> Decision[int]:
    """Create the namespace, or replace what is written of it. The same again writes nothing."""
    problems = namespaces.list_namespace_problems(requested)
    if requested.quota and snapshot.get(QUOTAS, requested.quota) is None:
        problems.append(f'quota "{requested.quota}" not found')
    if problems:
        found = format_problems([ValidationProblem("", problem) for problem in problems])
        raise invalid_request(f'Invalid namespace "{requested.name}": {found.rstrip()}')
    stored = snapshot.get(NAMESPACES, requested.name)
    namespace = replace(
        requested,
        hash=hash_content(requested),
        create_index=WRITE_INDEX if stored is None else stored.create_index,
        modify_index=0,
    )
    if stored is not None and stored.hash == namespace.hash:
        return Decision(None, lambda _index: stored.modify_index)
    conditions = [snapshot.build_key_condition(NAMESPACES, requested.name)]
    if requested.quota:
        conditions.append(snapshot.build_key_condition(QUOTAS, requested.quota))
    write = Write(STORED_WRITE_KIND, Cause(CauseKind.REQUEST, cause), [NAMESPACES.build_put(namespace)], conditions)
    return Decision(write, lambda index: index)


def delete_namespace(snapshot: Replica, name: str, *, region: str, cause: str = "") -> Decision[int]:
    """Take the namespace away. Refused while anything lives in it: that would be in no namespace then."""
    if name == namespaces.DEFAULT_NAMESPACE:
        raise invalid_request("can not delete default namespace")
    stored = snapshot.get(NAMESPACES, name)
    if stored is None:
        raise not_found("namespace not found")
    standing = list(_what_stands_in_the_way(snapshot, stored))
    if standing:
        found = "; ".join(f'namespace "{name}" has {what} in regions: [{region}]' for what in standing)
        raise invalid_request(found)
    write = Write(
        DELETED_WRITE_KIND,
        Cause(CauseKind.REQUEST, cause),
        [NAMESPACES.build_delete(name)],
        [snapshot.build_key_condition(NAMESPACES, name)],
    )
    return Decision(write, lambda index: index)


def _what_stands_in_the_way(snapshot: Replica, namespace: Namespace) -> Iterator[str]:
    jobs = list(snapshot.iter_by_key(JOBS, prefix=namespace.name + KEY_SEPARATOR))
    if any(not job.stop and job.status != "dead" for job in jobs):
        yield "non-terminal jobs"
    if any(
        not allocation.is_client_terminal
        for job in jobs
        for allocation in snapshot.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id)
    ):
        yield "non-terminal allocations"
    if _holds_any(snapshot, HOST_VOLUMES, namespace):
        yield "volumes"
    if _holds_any(snapshot, VARIABLES, namespace):
        yield "variables"
    if namespace.quota:
        yield f'the quota "{namespace.quota}"'


def _holds_any(snapshot: Replica, table: Table[Any], namespace: Namespace) -> bool:
    return next(snapshot.iter_by_key(table, prefix=namespace.name + KEY_SEPARATOR), None) is not None
