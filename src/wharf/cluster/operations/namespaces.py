"""Create, replace and delete namespaces. A namespace is deleted only when nothing is left in it."""

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
    """Create the namespace or replace it. If the stored namespace is identical, nothing is written."""
    problems = namespaces.list_namespace_problems(requested)
    if requested.quota and snapshot.get(QUOTAS, requested.quota) is None:
        problems.append(f'quota "{requested.quota}" not found')
    if problems:
        problem_text = format_problems([ValidationProblem("", problem) for problem in problems])
        raise invalid_request(f'Invalid namespace "{requested.name}": {problem_text.rstrip()}')
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
    """Delete the namespace. Refused while it contains jobs, allocations, volumes or variables, or has a quota."""
    if name == namespaces.DEFAULT_NAMESPACE:
        raise invalid_request("can not delete default namespace")
    stored = snapshot.get(NAMESPACES, name)
    if stored is None:
        raise not_found("namespace not found")
    blockers = list(_iter_deletion_blockers(snapshot, stored))
    if blockers:
        problem_text = "; ".join(f'namespace "{name}" has {blocker} in regions: [{region}]' for blocker in blockers)
        raise invalid_request(problem_text)
    write = Write(
        DELETED_WRITE_KIND,
        Cause(CauseKind.REQUEST, cause),
        [NAMESPACES.build_delete(name)],
        [snapshot.build_key_condition(NAMESPACES, name)],
    )
    return Decision(write, lambda index: index)


def _iter_deletion_blockers(snapshot: Replica, namespace: Namespace) -> Iterator[str]:
    """Yield the reasons why the namespace cannot be deleted."""
    jobs = list(snapshot.iter_by_key(JOBS, prefix=namespace.name + KEY_SEPARATOR))
    if any(not job.stop and job.status != "dead" for job in jobs):
        yield "non-terminal jobs"
    if any(
        not allocation.is_client_terminal
        for job in jobs
        for allocation in snapshot.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id)
    ):
        yield "non-terminal allocations"
    if _has_records(snapshot, HOST_VOLUMES, namespace):
        yield "volumes"
    if _has_records(snapshot, VARIABLES, namespace):
        yield "variables"
    if namespace.quota:
        yield f'the quota "{namespace.quota}"'


def _has_records(snapshot: Replica, table: Table[Any], namespace: Namespace) -> bool:
    """Return whether the table has a record in this namespace."""
    return next(snapshot.iter_by_key(table, prefix=namespace.name + KEY_SEPARATOR), None) is not None
