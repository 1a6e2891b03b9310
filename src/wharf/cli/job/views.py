"""The commands that show jobs: `status`, `inspect`, `history`, `explain`, `allocs`, `deployments`."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.options import job_argument
from wharf.cli.common.record_tables import render_allocations, render_jobs
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.completion import complete_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wharf.cli.job.progress import JobProgress
    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.model.jobs.groups import TaskGroup
    from wharf.contract.model.jobs.job import Job, Periodic
    from wharf.contract.wire.jobs.messages import JobStub

MAX_CHILDREN_SHOWN: Final = 5
"""Children of a periodic or parameterized job that its status lists; keeps the output short."""


@click.command(cls=ServerCommand)
@click.argument("job_id", metavar="[JOB]", required=False, shell_complete=complete_jobs)
@click.option("--filter", "expression", default="", help='Only jobs that match, such as `Status == "running"`.')
@click.option("--all-allocs", is_flag=True, help="Also allocations that were replaced or stopped.")
def status(session: Session, job_id: str | None, expression: str, all_allocs: bool) -> None:
    """List jobs, or show one.

    wharf job status web
    """
    if job_id is None:
        jobs = session.client.jobs.list(filter=expression).value
        session.print_result(jobs, lambda: render_jobs(session, jobs, is_filtered=bool(expression)))
        return
    show_job(session, job_id, is_all_allocations=all_allocs)


@click.command(cls=ServerCommand)
@job_argument
@click.option("--version", type=click.IntRange(0), help="A version of `wharf job history`.  [default: the newest]")
def inspect(session: Session, job_id: str, version: int | None) -> None:
    """Print a job as JSON.

    wharf job inspect web
    """
    from wharf.cli.common.errors import CliError
    from wharf.cli.common.lookup import find_job
    from wharf.cli.common.output import render_json, to_plain

    found = find_job(session, job_id)
    if version is None:
        job = session.client.jobs.read(found.id, namespace=found.namespace).value
    else:
        versions = session.client.jobs.versions(found.id, namespace=found.namespace).value.versions
        matching = [job for job in versions if job.version == version]
        if not matching:
            raise CliError(
                f"job {found.id} has no version {version}; `wharf job history {found.id}` lists its versions"
            )
        job = matching[0]
    if session.template:
        session.print_result(job, str)
        return
    click.echo(render_json({"Job": to_plain(job)}))


@click.command(cls=ServerCommand)
@job_argument
@click.option("-p", "--patch", "diffs", is_flag=True, help="Show what each version changed.")
@click.option("--version", type=click.IntRange(0), help="Only this version.")
def history(session: Session, job_id: str, diffs: bool, version: int | None) -> None:
    """List a job's versions, and what changed between them.

    wharf job history -p web
    """
    from wharf.cli.common.lookup import find_job
    from wharf.cli.common.rendering import render_heading, render_table, style_dim
    from wharf.cli.job.plan import hide_values, render_job_diff

    found = find_job(session, job_id)
    response = session.client.jobs.versions(found.id, diffs=diffs, namespace=found.namespace).value
    versions = [job for job in response.versions if version in (None, job.version)]

    def render_text() -> str:
        """Return a table of the versions, or the changes of each version."""
        equal_versions = _find_equal_versions(response.versions)
        if not diffs:
            titles: tuple[str, ...] = ("Version", "Stable", "Submitted", "Tag", "Description")
            rows = [_build_version_row(session, job) for job in versions]
            if any(job.version in equal_versions for job in versions):
                titles = (*titles[:3], "Same as", *titles[3:])
                rows = [
                    (*row[:3], equal_versions.get(job.version, "-"), *row[3:])
                    for job, row in zip(versions, rows, strict=True)
                ]
            return render_table(titles, rows)
        # The server returns the diff of each version from the one before it, in the order of the versions.
        diffs_of_versions = hide_values(response.diffs or ())
        changes = {response.versions[position].version: diff for position, diff in enumerate(diffs_of_versions)}
        lines: list[str] = []
        for job in versions:
            lines += [f"{render_heading(f'Version {job.version}')}  {style_dim(session.format_time(job.submit_time))}"]
            if job.version in equal_versions:
                lines.append(f"  same as version {equal_versions[job.version]}")
            lines += (
                [f"  {line}" for line in render_job_diff(changes[job.version], is_full=session.is_verbose)]
                if job.version in changes
                else ["  the first version"]
            )
            lines.append("")
        return "\n".join(lines).rstrip()

    session.print_result(versions, render_text)


@click.command(cls=ServerCommand)
@job_argument
def explain(session: Session, job_id: str) -> None:
    """Explain where a job runs, and why parts of it are not placed.

    wharf job explain web
    """
    from wharf.cli.common.explanations import render_job_explanation
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    explanation = session.client.jobs.explain(found.id, namespace=found.namespace).value
    session.print_result(explanation, lambda: render_job_explanation(session, explanation))


@click.command(cls=ServerCommand)
@job_argument
@click.option("--all", "everything", is_flag=True, help="Also allocations of earlier jobs with this id.")
def allocs(session: Session, job_id: str, everything: bool) -> None:
    """List a job's allocations.

    wharf job allocs web
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    records = session.client.jobs.allocations(found.id, all=everything, namespace=found.namespace).value
    session.print_result(records, lambda: render_allocations(session, records))


@click.command(cls=ServerCommand)
@job_argument
@click.option("--all", "everything", is_flag=True, help="Also deployments of earlier jobs with this id.")
def deployments(session: Session, job_id: str, everything: bool) -> None:
    """List a job's deployments.

    wharf job deployments web
    """
    from wharf.cli.common.lookup import find_job
    from wharf.cli.common.record_tables import render_deployments

    found = find_job(session, job_id)
    records = session.client.jobs.deployments(found.id, all=everything, namespace=found.namespace).value
    session.print_result(records, lambda: render_deployments(session, records))


# -- rendering of `wharf job status JOB`


def show_job(session: Session, job_id: str, *, is_all_allocations: bool) -> None:
    """Print the status of one job."""
    from wharf.cli.common.lookup import find_job
    from wharf.cli.job.progress import fetch_progress

    found = find_job(session, job_id)
    job = session.client.jobs.read(found.id, namespace=found.namespace).value
    progress = fetch_progress(session, found.id, found.namespace, job.version)
    if session.is_machine_readable:
        session.print_result([progress.job], str)
        return
    children = _list_newest_children(session, progress.job)
    shortage = _explain_shortage(session, progress)
    session.print_result(
        progress,
        lambda: _render_job(session, found, progress, children, shortage, is_all_allocations=is_all_allocations),
    )


def _explain_shortage(session: Session, progress: "JobProgress") -> str:
    """Return why a running service job has fewer allocations than it requests; empty if it has all of them.

    Groups that wait for capacity are shown with their reasons in any case, and need no further text.
    """
    from wharf.contract.client import Unreachable
    from wharf.contract.model.refusal import Refusal

    job = progress.job
    if job.type != "service" or job.stop or progress.unplaced or not progress.is_evaluated:
        return ""
    live = [allocation for allocation in progress.allocations if not allocation.client_status.is_terminal]
    short = {
        group.name: f"{count} of {group.count} of {group.name}"
        for group in job.groups
        if (count := sum(allocation.task_group == group.name for allocation in live)) < group.count
    }
    if not short:
        return ""
    counts = f"{', '.join(short.values())} exist"
    try:
        return f"{counts}: {session.client.jobs.explain(job.id, namespace=job.namespace).value.text}"
    except (Refusal, Unreachable):
        return counts


def _list_newest_children(session: Session, job: "Job") -> "list[JobStub]":
    """Return the newest children of a periodic or parameterized job.

    A child's id begins with `PARENT/periodic-` or `PARENT/dispatch-`.
    """
    if not job.is_periodic and job.parameterized_job is None:
        return []
    launch_kind = "periodic" if job.is_periodic else "dispatch"
    children = session.client.jobs.list(prefix=f"{job.id}/{launch_kind}-", namespace=job.namespace).value
    return sorted(children, key=lambda child: -child.submit_time)[:MAX_CHILDREN_SHOWN]


def _render_schedule(session: Session, job: "Job", periodic: "Periodic") -> str:
    """Return the cron expressions of a periodic job and its next launch, or why there is none."""
    from wharf.cli.common.times import format_relative_time, format_utc_time
    from wharf.contract.model.jobs.periodic import MAX_SCHEDULES, find_next_launch, list_cron_specs
    from wharf.contract.model.times import to_datetime

    specs = list_cron_specs(periodic)
    text = f"{', '.join(specs[:MAX_SCHEDULES])}  {periodic.time_zone}"
    if len(specs) > MAX_SCHEDULES:
        text += f"\nonly these {MAX_SCHEDULES} of {len(specs)} cron expressions are used; split the job"
    if job.stop or not periodic.enabled:
        return f"{text}\nno launches: the job is {'stopped' if job.stop else 'disabled'}"
    next_time = find_next_launch(periodic, to_datetime(session.now_ns()))
    if next_time is None:
        return f"{text}\nno more launches: all its times are in the past"
    return f"{text}\nnext  {format_utc_time(next_time)}  {format_relative_time(next_time, session.now_ns())}"


def _render_job(
    session: Session,
    stub: "JobStub",
    progress: "JobProgress",
    children: "list[JobStub]",
    shortage: str,
    *,
    is_all_allocations: bool,
) -> str:
    """Return the status of a job: main fields, then a section each for children, groups, deployment and allocations."""
    from wharf.cli.common.failures import describe_unplaced, render_unplaced_groups
    from wharf.cli.common.record_tables import format_job_status, render_deployment_groups
    from wharf.cli.common.rendering import colour_state, render_pairs, render_section, render_table

    job = progress.job
    is_waiting = bool(progress.unplaced) and not job.is_periodic and job.parameterized_job is None
    has_no_live = is_waiting and all(allocation.client_status.is_terminal for allocation in progress.allocations)
    parts = [
        render_pairs(
            [
                ("ID", job.id),
                ("Name", job.name if job.name != job.id else ""),
                ("Status", format_job_status(job.status, is_stopped=job.stop, has_no_live=has_no_live)),
                ("Type", job.type),
                ("Version", job.version),
                ("Priority", job.priority),
                ("Namespace", job.namespace),
                ("Node pool", job.node_pool),
                ("Datacenters", ", ".join(job.datacenters or ())),
                ("Submitted", session.format_time(job.submit_time)),
                ("Description", job.status_description),
            ]
        )
    ]
    summary = stub.job_summary.summary if stub.job_summary else {}
    if job.is_periodic and job.periodic is not None:
        parts.append(render_section("Periodic", _render_schedule(session, job, job.periodic)))
    counted_children = stub.job_summary.children if stub.job_summary else None
    is_parent = job.is_periodic or job.parameterized_job is not None
    if counted_children is not None and is_parent:
        rows = [(counted_children.pending, counted_children.running, counted_children.dead)]
        parts.append(render_section("Children", render_table(("Pending", "Running", "Dead"), rows)))
    if children:
        parts.append(render_section("Newest children", render_jobs(session, children)))
    if summary and not is_parent:
        counts_by_group = {group.name: _format_requested_count(job, group) for group in job.groups}
        titles = ("Group", "Requested", "Queued", "Starting", "Running", "Complete", "Failed", "Lost", "Unknown")
        counted = [
            (
                name, counts_by_group.get(name, "0"), counts.queued, counts.starting, counts.running, counts.complete, counts.failed, counts.lost,
                counts.unknown,
            )
            for name, counts in sorted(summary.items())
        ]  # fmt: skip
        parts.append(
            render_section("Groups", render_table(titles, counted, optional_columns=("Unknown", "Lost", "Queued")))
        )
    if progress.unplaced:
        parts.append(
            render_section(
                describe_unplaced(progress.unplaced),
                "\n".join(render_unplaced_groups(progress.unplaced, progress.explanations)),
            )
        )
    if shortage:
        parts.append(render_section("Fewer allocations than requested", shortage))
    if progress.deployment is not None:
        deployment = progress.deployment
        parts.append(
            render_section(
                "Latest deployment",
                f"{session.shorten_id(deployment.id)}  {colour_state(deployment.status)}  "
                f"{deployment.status_description}\n{render_deployment_groups(session, deployment)}",
            )
        )
    records = [
        allocation for allocation in progress.allocations if is_all_allocations or not _is_superseded(allocation)
    ]
    if records:
        parts.append(render_section("Allocations", render_allocations(session, records)))
    return "\n".join(parts)


def _format_requested_count(job: "Job", group: "TaskGroup") -> str:
    """Return how many allocations of the group should run; `-` if this depends on the number of nodes."""
    if job.type in ("system", "sysbatch"):
        return "-"
    return "0" if job.stop else str(group.count)


def _is_superseded(allocation: "AllocationStub") -> bool:
    """Return whether an allocation was replaced, or stopped as desired, so that the status need not list it."""
    return bool(allocation.next_allocation) or (
        allocation.desired_status != "run" and allocation.client_status == "complete"
    )


def _find_equal_versions(versions: "Sequence[Job]") -> dict[int, int]:
    """Return the newest earlier version with an equal specification, by version: a revert adds such a version."""
    from wharf.contract.model.jobs.diff import compare_jobs
    from wharf.contract.model.jobs.plan import DiffType

    equal: dict[int, int] = {}
    ordered = sorted(versions, key=lambda job: job.version, reverse=True)
    for position, job in enumerate(ordered):
        for earlier in ordered[position + 1 :]:
            if compare_jobs(earlier, job).type is DiffType.NONE:
                equal[job.version] = earlier.version
                break
    return equal


def _build_version_row(session: Session, job: "Job") -> tuple[object, ...]:
    """Return the table row of a job version."""
    tag = job.version_tag
    return (
        job.version,
        "yes" if job.stable else "no",
        session.format_time(job.submit_time),
        tag.name if tag else "-",
        tag.description if tag else "",
    )
