"""Finds the record that a user means by an id, a unique prefix of an id or a name; also the task of an allocation."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from wharf.cli.common.errors import CliError

if TYPE_CHECKING:
    from wharf.cli.common.server_commands import Session
    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.model.deployments import Deployment
    from wharf.contract.model.evaluations import Evaluation
    from wharf.contract.wire.jobs.messages import JobStub
    from wharf.contract.wire.nodes.messages import NodeListStub

R = TypeVar("R")
MAX_LISTED_MATCHES: Final = 12
"""Limit of the candidates that the error for an ambiguous id lists."""
FULL_ID_LENGTH: Final = 36
MAX_DOTS_IN_NAME: Final = 8
"""Limit of the places at which the name of an allocation is divided into job and group; each is a request."""


def require_single(
    kind: str,
    query: str,
    records: Sequence[R],
    *,
    get_id: Callable[[R], str],
    describe: Callable[[R], str],
    list_command: str,
) -> R:
    """Return the only record, or the one whose id is exactly `query`. Raises CliError, which lists the candidates.

    `kind` is the noun for such records in error texts, such as "job". `describe` returns the text shown beside an id.
    """
    if not query:
        raise CliError(f"missing {kind}: `{list_command}` lists all")
    exact = [record for record in records if get_id(record) == query]
    if len(exact) == 1:
        return exact[0]
    if not records:
        raise CliError(f"{kind} {query} does not exist; `{list_command}` lists all")
    if len(records) == 1:
        return records[0]
    lines = [f"{query} matches {len(records)} {kind}s; enter more characters of the id:"]
    lines += [f"  {get_id(record)}  {describe(record)}".rstrip() for record in records[:MAX_LISTED_MATCHES]]
    if len(records) > MAX_LISTED_MATCHES:
        lines.append(f"  … and {len(records) - MAX_LISTED_MATCHES} more")
    raise CliError("\n".join(lines))


def find_job(session: "Session", query: str) -> "JobStub":
    """Find a job by its id or a unique prefix of it. Raises CliError."""
    found = session.client.jobs.list(prefix=query, per_page=200).value
    if not found and query:
        session.require_namespace()
        require_no_other_namespace(session, "job", query, lambda: list_namespaces_of_job(session, query))
        _require_no_element(session, query)
        _require_no_allocation_name(session, query)
    return require_single(
        "job",
        query,
        found,
        get_id=lambda job: job.id,
        describe=lambda job: (
            f"{job.type}, {job.status}" + (f", in {job.namespace}" if session.is_all_namespaces else "")
        ),
        list_command="wharf job status",
    )


def _require_no_allocation_name(session: "Session", query: str) -> None:
    """Raise CliError if the text is the name of an allocation, such as `web.api[0]`."""
    if query.endswith("]") and is_allocation_name(query) and match_allocation_name(session, query):
        raise CliError(f"{query} is an allocation, not a job: `wharf alloc status '{query}'` shows it")


def _require_no_element(session: "Session", query: str) -> None:
    """Raise CliError if the text is an element of an array as Slurm writes it, such as `4711_3`."""
    from wharf.contract.client import Unreachable
    from wharf.contract.client.errors import NotFound
    from wharf.contract.model.refusal import Refusal

    job_id, _, label = query.rpartition("_")
    if not job_id or not (label.isascii() and label.isdecimal()) or session.is_all_namespaces:
        return
    try:
        job = session.client.jobs.read(job_id).value
    except (NotFound, Refusal, Unreachable):
        return
    arrays = [group.array for group in job.groups if group.array is not None]
    if len(arrays) != 1 or len(job.groups) != 1:
        return
    items = [*(arrays[0].items or ())]
    index = items.index(label) if label in items else int(label) if not items else arrays[0].element_count
    if index >= arrays[0].element_count:
        raise CliError(f"job {job_id} has no element {label}: `wharf sacct -j {job_id}` lists its elements")
    raise CliError(f"{query} is an element of the array {job_id}: write {job_id} --index {index}")


def require_no_other_namespace(
    session: "Session", kind: str, name: str, list_namespaces: Callable[[], Iterable[str]]
) -> None:
    """Raise CliError if a record that was not found is in another namespace, which the caller can read.

    `list_namespaces` returns the namespaces with a record of this name.
    """
    from wharf.contract.client import Unreachable
    from wharf.contract.model.refusal import Refusal

    if session.is_all_namespaces:
        return
    try:
        names = sorted(set(list_namespaces()))
    except (Refusal, Unreachable):
        return  # Nothing is known about other namespaces.
    if names and session.namespace not in names:
        listed = ", ".join(names[:MAX_LISTED_MATCHES])
        raise CliError(
            f"{kind} {name} does not exist in namespace {session.namespace}, but in {listed}: add --namespace {names[0]}"
        )


def list_namespaces_of_job(session: "Session", job_id: str) -> list[str]:
    """Return the namespaces that the caller can read and that have a job of this id."""
    jobs = session.client.jobs.list(prefix=job_id, per_page=200, namespace="*").value
    return [job.namespace for job in jobs if job.id == job_id]


def find_node(session: "Session", query: str) -> "NodeListStub":
    """Find a node by id, unique id prefix or name; `self` is the node of the agent that replies. Raises CliError."""
    if query == "self":
        query = session.client.agent.read_self().stats.get("client", {}).get("node_id", "self")
    found = match_id_prefix(query, lambda prefix: session.client.nodes.list(prefix=prefix).value)
    if not found:
        found = [node for node in session.client.nodes.list().value if node.name == query]
    return require_single(
        "node",
        query,
        found,
        get_id=lambda node: node.id,
        describe=lambda node: node.name,
        list_command="wharf node status",
    )


def find_allocation(session: "Session", query: str) -> "AllocationStub":
    """Find an allocation by its id, its name such as `web.api[3]`, or a unique prefix of either.

    Of several allocations of the same name, this is the newest. Raises CliError, with a hint if `query` is a job.
    """
    found = match_id_prefix(query, lambda prefix: session.client.allocations.list(prefix=prefix, namespace="*").value)
    if not found and is_allocation_name(query):
        found = match_allocation_name(session, query)
        for job_id in [] if found else _list_job_ids_in_name(query):
            require_no_other_namespace(session, "job", job_id, partial(list_namespaces_of_job, session, job_id))
    if not found and query and list_namespaces_of_job(session, query):
        raise CliError(
            f"{query} is a job, not an allocation: `wharf job status {query}` lists its allocations, "
            f"`wharf job logs {query}` prints their logs"
        )
    is_name = any(allocation.name == query for allocation in found)
    return require_single(
        "allocation",
        query,
        found,
        get_id=lambda allocation: allocation.id,
        describe=lambda allocation: (
            f"{allocation.name}  {allocation.client_status}" + (f"  on {allocation.node_name}" if is_name else "")
        ),
        list_command="wharf job status JOB",
    )


def is_allocation_name(query: str) -> bool:
    """Return whether a text can be the beginning of an allocation's name, such as `web.api` or `web.api[3]`."""
    return "." in query.strip(".")


def _list_job_ids_in_name(name: str) -> list[str]:
    """Return the ids that the job of an allocation with this name can have: the text before each dot."""
    dots = [position for position, letter in enumerate(name) if letter == "." and position]
    return [name[:dot] for dot in dots[:MAX_DOTS_IN_NAME]]


def match_allocation_name(session: "Session", query: str) -> "list[AllocationStub]":
    """Return the newest allocation with this name, or else those whose names begin with it.

    Ids of jobs and names of groups may contain dots, so each dot may be the one between them.
    """
    from wharf.cli.common.allocation_selection import get_natural_order, select_newest

    for job_id in _list_job_ids_in_name(query):
        namespaces = list_namespaces_of_job(session, job_id) if session.is_all_namespaces else [session.namespace]
        allocations = select_newest(
            allocation
            for namespace in namespaces
            for allocation in session.client.jobs.allocations(job_id, namespace=namespace).value
            if allocation.name.startswith(query)
        )
        if found := [allocation for allocation in allocations if allocation.name == query] or allocations:
            return sorted(found, key=get_natural_order)
    return []


def find_evaluation(session: "Session", query: str) -> "Evaluation":
    """Find an evaluation by its id or a unique prefix of it. Raises CliError."""
    found = match_id_prefix(query, lambda prefix: session.client.evaluations.list(prefix=prefix, namespace="*").value)
    return require_single(
        "evaluation",
        query,
        found,
        get_id=lambda evaluation: evaluation.id,
        describe=lambda evaluation: f"{evaluation.job_id}  {evaluation.status}",
        list_command="wharf eval list",
    )


def find_deployment(session: "Session", query: str) -> "Deployment":
    """Find a deployment by id or unique id prefix, or the newest deployment of the job `query`. Raises CliError."""
    found = match_id_prefix(query, lambda prefix: session.client.deployments.list(prefix=prefix, namespace="*").value)
    if not found:
        found = [deployment for deployment in session.client.deployments.list().value if deployment.job_id == query]
        found = sorted(found, key=lambda deployment: deployment.create_index)[-1:]
    if not found and query:
        require_no_other_namespace(session, "job", query, lambda: list_namespaces_of_job(session, query))
    return require_single(
        "deployment",
        query,
        found,
        get_id=lambda deployment: deployment.id,
        describe=lambda deployment: f"{deployment.job_id}  {deployment.status}",
        list_command="wharf deployment list",
    )


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


K = TypeVar("K", bound=_HasId)


def match_id_prefix(query: str, fetch: Callable[[str], Sequence[K]]) -> list[K]:
    """Return the records whose id begins with `query`. `fetch` returns the records whose id begins with a prefix.

    Servers accept only prefixes of whole bytes (two hex digits each), so a shorter prefix is sent and the rest is
    compared here.
    """
    if not (0 < len(query) <= FULL_ID_LENGTH and all(letter in "0123456789abcdef-" for letter in query)):
        return []
    even_prefix = query[:-1] if len(query.replace("-", "")) % 2 else query
    return [record for record in fetch(even_prefix) if record.id.startswith(query)]


def list_task_names(allocation: "AllocationStub") -> list[str]:
    return sorted(allocation.task_states or {})


def require_task(allocation: "AllocationStub", name: str) -> str:
    """Return the task `name`, or the only task if `name` is empty. Raises CliError."""
    names = list_task_names(allocation)
    if name:
        if names and name not in names:
            raise CliError(f"{allocation.name} has no task {name}; its tasks are {', '.join(names)}")
        return name
    if len(names) == 1:
        return names[0]
    if not names:
        raise CliError(f"{allocation.name} has no tasks yet: its node has not started it")
    raise CliError(f"{allocation.name} has {len(names)} tasks: choose one of {', '.join(names)}")
