"""The list of jobs and the page of one job."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec.structs import astuple, replace

from wharf.contract.model.allocations.allocation import AllocationStub, ClientStatus
from wharf.contract.model.allocations.names import parse_index
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.explanations import JobExplanation, WaitReason
from wharf.contract.model.jobs.job import GroupSummary, Job, JobStatus
from wharf.contract.model.jobs.run_views import ElementProgress, RunStatus
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.wire.jobs.messages import JobStub
from wharf.contract.wire.jobs.states import (
    ENDED_STATES,
    AllocationCounts,
    JobState,
    count_allocations,
    describe_children,
    describe_job_state,
    get_listed_name,
)
from wharf.web.rendering import build_link, format_age, quote_for_filter, split_clauses
from wharf.web.views.actions import Repetition, find_repetition
from wharf.web.views.allocations import AllocationRow, build_allocation_row
from wharf.web.views.arrays import JobArraysView, describe_counts
from wharf.web.views.logs import LineView
from wharf.web.views.runs import RunRow, RunSection, describe_run
from wharf.web.views.services import InstanceRow, build_instance_row
from wharf.web.views.states import State, Tone, describe_job


class JobRow(msgspec.Struct, frozen=True):
    """A job in the list."""

    key: str
    url: str
    name: str
    """Its ID."""
    namespace: str
    type: str
    state: State
    counts: AllocationCounts
    total: int
    """How many allocations it should have; 0 if it has ended."""
    children: str
    """How many children it has in which state; empty for other jobs."""
    elements: str
    """How many elements of its arrays and steps have which state; empty for other jobs."""
    priority: int
    age: str
    submitted_ns: int
    title: str = ""
    """Its name, unless its ID begins with it: jobs of `wharf sbatch` have numbers as IDs."""


class GroupRow(msgspec.Struct, frozen=True):
    """A group of a job, with the reason why it is not complete."""

    name: str
    total: int
    """How many allocations it should have; 0 if the job has ended."""
    counts: GroupSummary
    array_text: str
    """How many of its elements have each state; empty if it is no array."""
    text: str
    advice: str


class DeploymentView(msgspec.Struct, frozen=True):
    """The newest rollout of a job."""

    id: str
    state: State
    text: str
    version: int
    healthy: int
    total: int
    is_active: bool
    is_paused: bool
    awaits_promotion: bool


class FailureRow(msgspec.Struct, frozen=True):
    """Why one or more allocations failed."""

    name: str
    url: str
    text: str
    more: int
    """How many others failed for the same reason."""


class JobView(msgspec.Struct, frozen=True):
    """The page of one job."""

    job: Job
    state: State
    sentence: str
    clauses: tuple[str, ...]
    """What follows the sentence: details, and what else the job waits for."""
    advice: tuple[str, ...]
    """What would help."""
    failures: tuple[FailureRow, ...]
    """Why allocations of the current version failed."""
    groups: tuple[GroupRow, ...]
    deployment: DeploymentView | None
    services: tuple[InstanceRow, ...]
    """The instances of the services that its allocations registered."""
    allocations: tuple[AllocationRow, ...]
    has_older_allocations: bool
    failed: AllocationRow | None
    """The newest allocation that failed and has no replacement."""
    last_lines: tuple[LineView, ...]
    """What it printed last."""
    last_lines_problem: str
    """Why that could not be read; empty if it could, or if it printed nothing."""
    arrays: JobArraysView
    repetition: Repetition | None
    """How it can run again, if it is a batch job that has failed."""
    is_ended: bool
    """Whether the job has ended by itself, so that there is nothing to stop."""
    age: str
    submitted_ns: int
    runs_url: str
    """The list of the jobs that this one has created; empty if it creates none."""
    run: RunSection | None
    """Its steps, if it is a run."""
    newest_runs: tuple[RunRow, ...]
    """If it is a flow."""


MORE_REASONS: Final = re.compile(r" \(\S+ also waits for [^()]*\)")
EVERY_NODE_TYPES: Final = ("system", "sysbatch")
"""The types of jobs whose number of allocations depends on the nodes."""
MAX_ALLOCATIONS = 100
"""How many allocations the page of a job shows, the newest first."""


def build_job_row(job: JobStub, now_ns: int) -> JobRow:
    """Return the job as the list shows it."""
    counts = count_allocations(job)
    progress = job.progress if isinstance(job.progress, ElementProgress) else ElementProgress()
    return JobRow(
        key=f"{job.namespace}/{job.id}",
        url=build_link("jobs", job.id, namespace=job.namespace if job.namespace != "default" else ""),
        name=job.id,
        title=get_listed_name(job.id, job.name),
        namespace=job.namespace,
        type=job.type,
        state=_describe_listed(job, progress),
        counts=counts._replace(failed=0, lost=0) if _is_complete(job) else counts,
        total=0 if _has_ended(job) or job.type in EVERY_NODE_TYPES else job.group_count_sum,
        children=describe_children(job),
        elements=describe_counts(progress.elements, size) if (size := sum(astuple(progress.elements))) else "",
        priority=job.priority,
        age=format_age(job.submitted_ns, now_ns),
        submitted_ns=job.submitted_ns,
    )


def _describe_listed(job: JobStub, progress: ElementProgress) -> State:
    """Return the state of a job in words; of a run that of its page, unless it hides that steps failed which may fail."""
    if not progress.run_status or describe_job_state(job) is JobState.WITH_FAILURES:
        return describe_job(job)
    return describe_run(RunStatus(progress.run_status), is_gated=progress.is_gated)


def build_job_view(
    job: Job,
    stub: JobStub,
    explanation: JobExplanation | None,
    deployment: Deployment | None,
    services: Sequence[ServiceRegistration],
    allocations: list[AllocationStub],
    failed: AllocationStub | None,
    last_lines: Sequence[LineView],
    arrays: JobArraysView,
    run: RunSection | None,
    newest_runs: tuple[RunRow, ...],
    now_ns: int,
    *,
    last_lines_problem: str = "",
) -> JobView:
    """Return the page of a job: the explanation first, then what failed, groups, rollout and the newest allocations.

    `failed` is the result of `find_failed`; `last_lines` is what it printed last.
    """
    # Those of one plan have the same index, so their names decide.
    newest = sorted(allocations, key=lambda each: (-each.create_index, each.task_group, parse_index(each.name)))
    explained = {group.group: group for group in (explanation.groups if explanation else ())}
    summary = stub.job_summary.summary if stub.job_summary else {}
    if _is_complete(stub):
        summary = {name: replace(counts, failed=0, lost=0) for name, counts in summary.items()}
    has_ended = _has_ended(stub)
    # What these parentheses name is listed below the sentence.
    text = MORE_REASONS.sub("", explanation.text) if explanation else ""
    sentence, *clauses = split_clauses(text) or ("",)
    further = _list_further_waits(explanation) if explanation else ()
    waits = explanation.waits if explanation else ()
    is_promotion_due = any(each.waits_for is WaitReason.PROMOTION for each in waits)  # The page has a button for it.
    advice = tuple(dict.fromkeys(text for each in waits for text in each.advice))
    advised = {part for text in advice for part in split_clauses(text)}

    def is_advice(clause: str) -> bool:
        return clause in advised or clause.removesuffix(".") in advised

    groups = tuple(
        GroupRow(
            name=group.name,
            total=0 if has_ended or job.type in EVERY_NODE_TYPES else group.total_count,
            array_text=array.text if (array := arrays.find(group.name)) is not None else "",
            counts=summary.get(group.name, GroupSummary()),
            text=_leave_out(explained[group.name].text, text) if group.name in explained else "",
            advice=_leave_out(explained[group.name].smallest_change, text) if group.name in explained else "",
        )
        for group in job.task_groups or ()
    )
    return JobView(
        job=job,
        state=describe_job(stub),
        sentence=sentence,
        clauses=tuple(each for each in (*clauses, *further) if not is_advice(each)),
        advice=advice if not is_promotion_due else (),
        failures=_list_failures(explanation),
        # An array has a section of its own.
        groups=tuple(row for row in groups if not row.array_text or row.text or row.advice),
        deployment=None if deployment is None else _build_deployment_view(deployment),
        services=tuple(build_instance_row(each) for each in services),
        allocations=tuple(build_allocation_row(each, now_ns) for each in newest[:MAX_ALLOCATIONS]),
        has_older_allocations=len(newest) > MAX_ALLOCATIONS,
        failed=None if failed is None else build_allocation_row(failed, now_ns),
        last_lines=tuple(last_lines),
        last_lines_problem=last_lines_problem,
        arrays=arrays,
        repetition=find_repetition(job, describe_job_state(stub)),
        is_ended=job.status is JobStatus.DEAD,
        age=format_age(stub.submitted_ns, now_ns),
        submitted_ns=stub.submitted_ns,
        runs_url=build_link("jobs", filter=f"ParentID == {quote_for_filter(job.id)}", namespace=job.namespace)
        if job.is_periodic or job.is_parameterized
        else "",
        run=run,
        newest_runs=newest_runs,
    )


def find_failed(allocations: Iterable[AllocationStub]) -> AllocationStub | None:
    """Return the newest allocation that failed and has no replacement; `None` if there is none.

    An element of an array that runs again has a newer allocation of the same name, which is not linked.
    """
    newest: dict[str, AllocationStub] = {}
    for each in sorted(allocations, key=lambda each: each.create_index):
        newest[each.name or each.id] = each
    failed = [
        each for each in newest.values() if each.client_status is ClientStatus.FAILED and not each.next_allocation
    ]
    return max(failed, key=lambda each: each.create_index, default=None)


def _is_complete(job: JobStub) -> bool:
    """Return whether the job is complete: then allocations that failed or were lost were replaced, and need nobody."""
    return describe_job_state(job) is JobState.COMPLETE


def _has_ended(job: JobStub) -> bool:
    """Return whether nothing of a job runs any more, and nothing should."""
    return describe_job_state(job) in ENDED_STATES


def _list_failures(explanation: JobExplanation | None) -> tuple[FailureRow, ...]:
    return tuple(
        FailureRow(each.name, build_link("allocations", each.alloc_id), each.text, each.count - 1)
        for each in (explanation.failures if explanation else ())
    )


def _leave_out(text: str, sentence: str) -> str:
    """Return a text, or nothing if the sentence of the page says it already."""
    return "" if text in sentence else text


def _list_further_waits(explanation: JobExplanation) -> tuple[str, ...]:
    """Return what the job waits for, as far as its sentence does not say it already."""
    return tuple(condition.text for condition in explanation.waits if condition.text not in explanation.text)


_TONES = {"running": Tone.BUSY, "paused": Tone.WAIT, "failed": Tone.BAD, "successful": Tone.GOOD, "blocked": Tone.WAIT}


def _build_deployment_view(deployment: Deployment) -> DeploymentView:
    groups = (deployment.task_groups or {}).values()
    return DeploymentView(
        id=deployment.id,
        state=State(str(deployment.status), _TONES.get(str(deployment.status), Tone.IDLE)),
        text=deployment.status_description,
        version=deployment.job_version,
        healthy=sum(group.healthy_allocs for group in groups),
        total=sum(group.desired_total for group in groups),
        is_active=deployment.is_active,
        is_paused=deployment.status is DeploymentStatus.PAUSED,
        awaits_promotion=deployment.is_active and deployment.is_awaiting_promotion,
    )
