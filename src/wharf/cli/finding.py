"""Which record an id means: the whole id, or a beginning of it that only one has."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from wharf.cli.failing import Failed

if TYPE_CHECKING:
    from wharf.cli.speaking import Talk
    from wharf.model.allocation import AllocationStub
    from wharf.model.deployment import Deployment
    from wharf.model.evaluation import Evaluation
    from wharf.wire.node_shapes import NodeListStub
    from wharf.wire.shapes import JobStub

R = TypeVar("R")
SHOWN: Final = 12
WHOLE: Final = 36


def the_one(
    what: str, given: str, records: Sequence[R], *, id_of: Callable[[R], str], about: Callable[[R], str], list_by: str
) -> R:
    """The record that is meant. Raises `Failed`, which lists what could be meant."""
    if not given:
        raise Failed(f"which {what}? `{list_by}` lists all")
    exact = [record for record in records if id_of(record) == given]
    if len(exact) == 1:
        return exact[0]
    if not records:
        raise Failed(f"there is no {what} {given}; `{list_by}` lists all")
    if len(records) == 1:
        return records[0]
    lines = [f"{given} could be {len(records)} {what}s; give more of the id:"]
    lines += [f"  {id_of(record)}  {about(record)}".rstrip() for record in records[:SHOWN]]
    if len(records) > SHOWN:
        lines.append(f"  … and {len(records) - SHOWN} more")
    raise Failed("\n".join(lines))


def find_job(talk: "Talk", given: str) -> "JobStub":
    found = talk.client.jobs.list(prefix=given, per_page=200).value
    return the_one(
        "job",
        given,
        found,
        id_of=lambda job: job.id,
        about=lambda job: f"{job.type}, {job.status}" + (f", in {job.namespace}" if talk.in_all_namespaces else ""),
        list_by="wharf job status",
    )


def find_node(talk: "Talk", given: str) -> "NodeListStub":
    """By id or, as people know them, by name."""
    if given == "self":
        given = talk.client.agent.self().stats.get("client", {}).get("node_id", "self")
    found = beginning_so(given, lambda prefix: talk.client.nodes.list(prefix=prefix).value)
    if not found:
        found = [node for node in talk.client.nodes.list().value if node.name == given]
    return the_one(
        "node", given, found, id_of=lambda node: node.id, about=lambda node: node.name, list_by="wharf node status"
    )


def find_allocation(talk: "Talk", given: str) -> "AllocationStub":
    found = beginning_so(given, lambda prefix: talk.client.allocations.list(prefix=prefix, namespace="*").value)
    if not found and given and any(job.id == given for job in talk.client.jobs.list(prefix=given).value):
        raise Failed(
            f"{given} is a job: `wharf job status {given}` lists its allocations, and `wharf job logs {given}` writes out "
            "what all of them print"
        )
    return the_one(
        "allocation",
        given,
        found,
        id_of=lambda allocation: allocation.id,
        about=lambda allocation: f"{allocation.name}  {allocation.client_status}",
        list_by="wharf job status JOB",
    )


def find_evaluation(talk: "Talk", given: str) -> "Evaluation":
    found = beginning_so(given, lambda prefix: talk.client.evaluations.list(prefix=prefix, namespace="*").value)
    return the_one(
        "evaluation",
        given,
        found,
        id_of=lambda evaluation: evaluation.id,
        about=lambda evaluation: f"{evaluation.job_id}  {evaluation.status}",
        list_by="wharf eval list",
    )


def find_deployment(talk: "Talk", given: str) -> "Deployment":
    """By its id, or by the job whose latest one it is."""
    found = beginning_so(given, lambda prefix: talk.client.deployments.list(prefix=prefix, namespace="*").value)
    if not found:
        found = [one for one in talk.client.deployments.list().value if one.job_id == given]
        found = sorted(found, key=lambda one: one.create_index)[-1:]
    return the_one(
        "deployment",
        given,
        found,
        id_of=lambda deployment: deployment.id,
        about=lambda deployment: f"{deployment.job_id}  {deployment.status}",
        list_by="wharf deployment list",
    )


class _Known(Protocol):
    @property
    def id(self) -> str: ...


K = TypeVar("K", bound=_Known)


def beginning_so(given: str, look: Callable[[str], Sequence[K]]) -> list[K]:
    """Those whose id begins so. Servers look by whole bytes, of two letters each, and refuse to look for anything else."""
    if not (0 < len(given) <= WHOLE and all(letter in "0123456789abcdef-" for letter in given)):
        return []
    asked = given[:-1] if len(given.replace("-", "")) % 2 else given
    return [record for record in look(asked) if record.id.startswith(given)]
