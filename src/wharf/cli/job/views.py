"""The commands that show jobs."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.options import job_argument
from wharf.cli.common.record_tables import render_allocations, render_jobs
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.completion import complete_jobs

if TYPE_CHECKING:
    from wharf.cli.job.progress import JobProgress
    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.model.jobs.job import Job, Periodic
    from wharf.contract.wire.jobs.messages import JobStub

MAX_CHILDREN_SHOWN: Final = 5


@click.command(cls=ServerCommand)
@click.argument("job_id", metavar="[JOB]", required=False, shell_complete=complete_jobs)
@click.option("--filter", "expression", default="", help='Only jobs that match, as `Status == "running"`.')
@click.option("--all-allocs", is_flag=True, help="Also those that ended long ago.")
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
@click.option("--version", type=click.IntRange(0), help="That of history; without, the newest.")
def inspect(session: Session, job_id: str, version: int | None) -> None:
    """Print a job as servers keep it.

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
        matching = [one for one in versions if one.version == version]
        if not matching:
            raise CliError(f"{found.id} has no version {version}; `wharf job history {found.id}` lists them")
        job = matching[0]
    if session.template:
        session.print_result(job, str)
        return
    click.echo(render_json({"Job": to_plain(job)}))


@click.command(cls=ServerCommand)
@job_argument
@click.option("-p", "--patch", "diffs", is_flag=True, help="What each version changed.")
@click.option("--version", type=click.IntRange(0), help="Only this one.")
def history(session: Session, job_id: str, diffs: bool, version: int | None) -> None:
    """List a job's versions, and what changed between them.

    wharf job history -p web
    """
    from wharf.cli.common.lookup import find_job
    from wharf.cli.common.rendering import render_heading, render_table, style_dim
    from wharf.cli.job.plan import render_job_diff

    found = find_job(session, job_id)
    told = session.client.jobs.versions(found.id, diffs=diffs, namespace=found.namespace).value
    kept = [job for job in told.versions if version in (None, job.version)]

    def text() -> str:
        if not diffs:
            titles = ("Version", "Stable", "Submitted", "Tag", "Description")
            return render_table(titles, [_version(session, job) for job in kept])
        changes = {told.versions[at].version: diff for at, diff in enumerate(told.diffs or ())}
        lines: list[str] = []
        for job in kept:
            lines += [f"{render_heading(f'Version {job.version}')}  {style_dim(session.format_time(job.submit_time))}"]
            lines += (
                [f"  {line}" for line in render_job_diff(changes[job.version], is_full=session.is_verbose)]
                if job.version in changes
                else ["  the first"]
            )
            lines.append("")
        return "\n".join(lines).rstrip()

    session.print_result(kept, text)


@click.command(cls=ServerCommand)
@job_argument
def explain(session: Session, job_id: str) -> None:
    """Say where a job's work is, and why the rest of it is nowhere.

    wharf job explain web
    """
    from wharf.cli.common.explanations import render_job_explanation
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    explanation = session.client.jobs.explain(found.id, namespace=found.namespace).value
    session.print_result(explanation, lambda: render_job_explanation(session, explanation))


@click.command(cls=ServerCommand)
@job_argument
@click.option("--all", "everything", is_flag=True, help="Also of earlier jobs of that id.")
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
@click.option("--all", "everything", is_flag=True, help="Also of earlier jobs of that id.")
def deployments(session: Session, job_id: str, everything: bool) -> None:
    """List a job's deployments.

    wharf job deployments web
    """
    from wharf.cli.common.lookup import find_job
    from wharf.cli.common.record_tables import render_deployments

    found = find_job(session, job_id)
    records = session.client.jobs.deployments(found.id, all=everything, namespace=found.namespace).value
    session.print_result(records, lambda: render_deployments(session, records))


# -- what is told


def show_job(session: Session, job_id: str, *, is_all_allocations: bool) -> None:
    from wharf.cli.common.lookup import find_job
    from wharf.cli.job.progress import fetch_progress

    found = find_job(session, job_id)
    job = session.client.jobs.read(found.id, namespace=found.namespace).value
    sight = fetch_progress(session, found.id, found.namespace, job.version)
    if session.is_machine_readable:
        session.print_result([sight.job], str)
        return
    children = _newest_children(session, sight.job)
    session.print_result(sight, lambda: _job_told(session, found, sight, children, all_allocs=is_all_allocations))


def _newest_children(session: Session, job: "Job") -> "list[JobStub]":
    """Their ids begin with that of their parent, and how it launches them."""
    if not job.is_periodic and job.parameterized_job is None:
        return []
    how = "periodic" if job.is_periodic else "dispatch"
    launched = session.client.jobs.list(prefix=f"{job.id}/{how}-", namespace=job.namespace).value
    return sorted(launched, key=lambda one: -one.submit_time)[:MAX_CHILDREN_SHOWN]


def _launches_told(session: Session, job: "Job", periodic: "Periodic") -> str:
    from wharf.cli.common.times import format_relative_time, format_utc_time
    from wharf.contract.model.jobs.cron import find_next_time, load_zone
    from wharf.contract.model.times import to_datetime

    specs = periodic.specs or (periodic.spec,)
    said = f"{', '.join(specs)}  {periodic.time_zone}"
    if job.stop or not periodic.enabled:
        return f"{said}\nnothing is launched: it is {'stopped' if job.stop else 'not enabled'}"
    now, zone = to_datetime(session.now_ns()), load_zone(periodic.time_zone or "UTC")
    ahead = [time for spec in specs if (time := find_next_time(spec, now, zone)) is not None]
    if not ahead:
        return f"{said}\nnothing is launched any more: its times are over"
    return f"{said}\nnext  {format_utc_time(min(ahead))}  {format_relative_time(min(ahead), session.now_ns())}"


def _job_told(
    session: Session, stub: "JobStub", progress: "JobProgress", children: "list[JobStub]", *, all_allocs: bool
) -> str:
    from wharf.cli.common.failures import render_unplaced_groups
    from wharf.cli.common.record_tables import render_deployment_groups
    from wharf.cli.common.rendering import colour_state, render_pairs, render_section, render_table

    job = progress.job
    parts = [
        render_pairs(
            [
                ("ID", job.id),
                ("Name", job.name if job.name != job.id else ""),
                ("Status", "dead (stopped)" if job.stop else job.status),
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
        parts.append(render_section("Periodic", _launches_told(session, job, job.periodic)))
    counted_children = stub.job_summary.children if stub.job_summary else None
    is_parent = job.is_periodic or job.parameterized_job is not None
    if counted_children is not None and is_parent:
        rows = [(counted_children.pending, counted_children.running, counted_children.dead)]
        parts.append(render_section("Children", render_table(("Pending", "Running", "Dead"), rows)))
    if children:
        parts.append(render_section("The newest of them", render_jobs(session, children)))
    if summary and not is_parent:
        titles = ("Group", "Queued", "Starting", "Running", "Complete", "Failed", "Lost", "Unknown")
        counted = [
            (name, one.queued, one.starting, one.running, one.complete, one.failed, one.lost, one.unknown)
            for name, one in sorted(summary.items())
        ]
        parts.append(
            render_section("Groups", render_table(titles, counted, optional_columns=("Unknown", "Lost", "Queued")))
        )
    if progress.unplaced:
        parts.append(
            render_section("Not placed, until there is room", "\n".join(render_unplaced_groups(progress.unplaced)))
        )
    if progress.deployment is not None:
        one = progress.deployment
        said = f"{session.shorten_id(one.id)}  {colour_state(one.status)}  {one.status_description}\n{render_deployment_groups(session, one)}"
        parts.append(render_section("Latest deployment", said))
    records = [one for one in progress.allocations if all_allocs or not _is_long_over(one)]
    if records:
        parts.append(render_section("Allocations", render_allocations(session, records)))
    return "\n".join(parts)


def _is_long_over(one: "AllocationStub") -> bool:
    """Nobody misses it: it was replaced, or stopped in good order."""
    return bool(one.next_allocation) or (one.desired_status != "run" and one.client_status == "complete")


def _version(session: Session, job: "Job") -> tuple[object, ...]:
    tag = job.version_tag
    return (
        job.version,
        "yes" if job.stable else "no",
        session.format_time(job.submit_time),
        tag.name if tag else "-",
        tag.description if tag else "",
    )
