"""Create, replace and delete namespaces. A namespace is deleted only when nothing is left in it."""

from collections.abc import Iterator
from typing import Any, Final

from wharf.cluster.operations.decision import Decision, build_delete_decision, build_store_decision
from wharf.cluster.state import Replica, Table
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, HOST_VOLUMES, JOBS, NAMESPACES, QUOTAS, VARIABLES
from wharf.contract.model import namespaces
from wharf.contract.model.jobs.validation.findings import ValidationProblem, format_problems
from wharf.contract.model.log import KEY_SEPARATOR, Cause, CauseKind
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.refusal import invalid_request, not_found

STORED_WRITE_KIND: Final = "namespace-stored"
"""The name in the log of a write that stores a namespace."""
DELETED_WRITE_KIND: Final = "namespace-deleted"
"""The name in the log of a write that deletes a namespace."""


def store_namespace(snapshot: Replica, requested: Namespace, *, cause: str = "") -> Decision[int]:
    """Return the decision that creates the namespace or replaces the one of the same name.

    Nothing is written if the stored namespace is identical. Raises if it is invalid or its quota does not exist.
    """
    problems = namespaces.list_namespace_problems(requested)
    if requested.quota and snapshot.get(QUOTAS, requested.quota) is None:
        problems.append(f'quota "{requested.quota}" not found')
    if problems:
        problem_text = format_problems([ValidationProblem("", problem) for problem in problems])
        raise invalid_request(f'Invalid namespace "{requested.name}": {problem_text.rstrip()}')
    stored = snapshot.get(NAMESPACES, requested.name)
    return build_store_decision(
        snapshot,
        NAMESPACES,
        requested,
        stored,
        STORED_WRITE_KIND,
        Cause(CauseKind.REQUEST, cause),
        build_reply=lambda index, _namespace: index,
    )


def delete_namespace(snapshot: Replica, name: str, *, region: str, cause: str = "") -> Decision[int]:
    """Return the decision that deletes the namespace.

    Raises if it does not exist, contains active jobs or allocations, volumes or variables, or has a quota. `region` is
    named in the error text.
    """
    if name == namespaces.DEFAULT_NAMESPACE:
        raise invalid_request("can not delete default namespace")
    stored = snapshot.get(NAMESPACES, name)
    if stored is None:
        raise not_found("namespace not found")
    blockers = list(_iter_deletion_blockers(snapshot, stored))
    if blockers:
        problem_text = "; ".join(f'namespace "{name}" has {blocker} in regions: [{region}]' for blocker in blockers)
        raise invalid_request(problem_text)
    return build_delete_decision(
        snapshot, NAMESPACES, name, write_kind=DELETED_WRITE_KIND, cause=Cause(CauseKind.REQUEST, cause)
    )


def _iter_deletion_blockers(snapshot: Replica, namespace: Namespace) -> Iterator[str]:
    """Yield a text for each reason why the namespace cannot be deleted, such as "variables"."""
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
