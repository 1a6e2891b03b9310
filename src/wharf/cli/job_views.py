"""The commands that show jobs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.completing import complete_jobs
from wharf.cli.job_changes import a_job
from wharf.cli.speaking import Speaking, Talk

if TYPE_CHECKING:
    from wharf.cli.following import Sight
    from wharf.model.allocation import AllocationStub
    from wharf.model.job import Job, Periodic
    from wharf.wire.shapes import JobStub

CHILDREN_TOLD: Final = 5


@click.command(cls=Speaking)
@click.argument("job_id", metavar="[JOB]", required=False, shell_complete=complete_jobs)
@click.option("--filter", "expression", default="", help='Only jobs that match, as `Status == "running"`.')
@click.option("--all-allocs", is_flag=True, help="Also those that ended long ago.")
def status(talk: Talk, job_id: str | None, expression: str, all_allocs: bool) -> None:
    """List jobs, or show one.

    wharf job status web
    """
    if job_id is None:
        jobs = talk.client.jobs.list(filter=expression).value
        talk.show(jobs, lambda: jobs_told(talk, jobs, is_chosen=bool(expression)))
        return
    show_job(talk, job_id, all_allocs=all_allocs)


@click.command(cls=Speaking)
@a_job
@click.option("--version", type=click.IntRange(0), help="That of history; without, the newest.")
def inspect(talk: Talk, job_id: str, version: int | None) -> None:
    """Print a job as servers keep it.

    wharf job inspect web
    """
    from wharf.cli.failing import Failed
    from wharf.cli.finding import find_job
    from wharf.cli.records_shown import in_json, plain

    found = find_job(talk, job_id)
    if version is None:
        job = talk.client.jobs.read(found.id, namespace=found.namespace).value
    else:
        versions = talk.client.jobs.versions(found.id, namespace=found.namespace).value.versions
        matching = [one for one in versions if one.version == version]
        if not matching:
            raise Failed(f"{found.id} has no version {version}; `wharf job history {found.id}` lists them")
        job = matching[0]
    if talk.template:
        talk.show(job, str)
        return
    click.echo(in_json({"Job": plain(job)}))


@click.command(cls=Speaking)
@a_job
@click.option("-p", "--patch", "diffs", is_flag=True, help="What each version changed.")
@click.option("--version", type=click.IntRange(0), help="Only this one.")
def history(talk: Talk, job_id: str, diffs: bool, version: int | None) -> None:
    """List a job's versions, and what changed between them.

    wharf job history -p web
    """
    from wharf.cli.finding import find_job
    from wharf.cli.job_plan import job_diff
    from wharf.cli.tables import dim, heading, table

    found = find_job(talk, job_id)
    told = talk.client.jobs.versions(found.id, diffs=diffs, namespace=found.namespace).value
    kept = [job for job in told.versions if version in (None, job.version)]

    def text() -> str:
        if not diffs:
            titles = ("Version", "Stable", "Submitted", "Tag", "Description")
            return table(titles, [_version(talk, job) for job in kept])
        changes = {told.versions[at].version: diff for at, diff in enumerate(told.diffs or ())}
        lines: list[str] = []
        for job in kept:
            lines += [f"{heading(f'Version {job.version}')}  {dim(talk.when(job.submit_time))}"]
            lines += (
                [f"  {line}" for line in job_diff(changes[job.version], whole=talk.verbose)]
                if job.version in changes
                else ["  the first"]
            )
            lines.append("")
        return "\n".join(lines).rstrip()

    talk.show(kept, text)


@click.command(cls=Speaking)
@a_job
def explain(talk: Talk, job_id: str) -> None:
    """Say where a job's work is, and why the rest of it is nowhere.

    wharf job explain web
    """
    from wharf.cli.explaining import explanation_told
    from wharf.cli.finding import find_job

    found = find_job(talk, job_id)
    explanation = talk.client.jobs.explain(found.id, namespace=found.namespace).value
    talk.show(explanation, lambda: explanation_told(talk, explanation))


@click.command(cls=Speaking)
@a_job
@click.option("--all", "everything", is_flag=True, help="Also of earlier jobs of that id.")
def allocs(talk: Talk, job_id: str, everything: bool) -> None:
    """List a job's allocations.

    wharf job allocs web
    """
    from wharf.cli.finding import find_job

    found = find_job(talk, job_id)
    records = talk.client.jobs.allocations(found.id, all=everything, namespace=found.namespace).value
    talk.show(records, lambda: allocations_told(talk, records))


@click.command(cls=Speaking)
@a_job
@click.option("--all", "everything", is_flag=True, help="Also of earlier jobs of that id.")
def deployments(talk: Talk, job_id: str, everything: bool) -> None:
    """List a job's deployments.

    wharf job deployments web
    """
    from wharf.cli.deployment import deployments_told
    from wharf.cli.finding import find_job

    found = find_job(talk, job_id)
    records = talk.client.jobs.deployments(found.id, all=everything, namespace=found.namespace).value
    talk.show(records, lambda: deployments_told(talk, records))


# -- what is told


def jobs_told(talk: Talk, jobs: "Sequence[JobStub]", *, is_chosen: bool = False) -> str:
    from wharf.cli.tables import nothing, table

    if not jobs and is_chosen:
        return nothing("jobs", is_chosen=True)
    if not jobs and talk.namespace not in ("default", "*"):
        return f"There are no jobs in namespace {talk.namespace}; `wharf namespace list` lists the namespaces."
    if not jobs:
        return "There are no jobs yet; `wharf job run FILE` submits one."
    titles = ["ID", "Type", "Priority", "Status", "Running", "Submitted"]
    rows: list[list[object]] = []
    for job in jobs:
        summary = job.job_summary.summary if job.job_summary else {}
        running = sum(group.running for group in summary.values())
        wanted = sum(group.queued + group.starting + group.running for group in summary.values())
        status = "dead (stopped)" if job.stop else job.status
        kind = f"{job.type}/periodic" if job.periodic else f"{job.type}/template" if job.parameterized_job else job.type
        rows.append([job.id, kind, job.priority, status, f"{running}/{wanted}", talk.when(job.submit_time)])
    if talk.in_all_namespaces:
        titles.insert(1, "Namespace")
        for job, row in zip(jobs, rows, strict=True):
            row.insert(1, job.namespace)
    return table(titles, rows, spare=("Priority", "Submitted"), names=() if talk.verbose else ("ID",))


def show_job(talk: Talk, job_id: str, *, all_allocs: bool) -> None:
    from wharf.cli.finding import find_job
    from wharf.cli.following import look

    found = find_job(talk, job_id)
    job = talk.client.jobs.read(found.id, namespace=found.namespace).value
    sight = look(talk, found.id, found.namespace, job.version)
    if talk.is_for_programs:
        talk.show([sight.job], str)
        return
    children = _newest_children(talk, sight.job)
    talk.show(sight, lambda: _job_told(talk, found, sight, children, all_allocs=all_allocs))


def _newest_children(talk: Talk, job: "Job") -> "list[JobStub]":
    """Their ids begin with that of their parent, and how it launches them."""
    if not job.is_periodic and job.parameterized_job is None:
        return []
    how = "periodic" if job.is_periodic else "dispatch"
    launched = talk.client.jobs.list(prefix=f"{job.id}/{how}-", namespace=job.namespace).value
    return sorted(launched, key=lambda one: -one.submit_time)[:CHILDREN_TOLD]


def _launches_told(talk: Talk, job: "Job", periodic: "Periodic") -> str:
    from wharf.cli.moments import say_date, say_when
    from wharf.model.cron import load_zone, next_after
    from wharf.model.moment import to_time

    specs = periodic.specs or (periodic.spec,)
    said = f"{', '.join(specs)}  {periodic.time_zone}"
    if job.stop or not periodic.enabled:
        return f"{said}\nnothing is launched: it is {'stopped' if job.stop else 'not enabled'}"
    now, zone = to_time(talk.now_ns()), load_zone(periodic.time_zone or "UTC")
    ahead = [time for spec in specs if (time := next_after(spec, now, zone)) is not None]
    if not ahead:
        return f"{said}\nnothing is launched any more: its times are over"
    return f"{said}\nnext  {say_date(min(ahead))}  {say_when(min(ahead), talk.now_ns())}"


def _job_told(talk: Talk, stub: "JobStub", sight: "Sight", children: "list[JobStub]", *, all_allocs: bool) -> str:
    from wharf.cli.deployment import groups_told
    from wharf.cli.reasons import unplaced_lines
    from wharf.cli.tables import coloured, pairs, section, table

    job = sight.job
    parts = [
        pairs(
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
                ("Submitted", talk.when(job.submit_time)),
                ("Description", job.status_description),
            ]
        )
    ]
    summary = stub.job_summary.summary if stub.job_summary else {}
    if job.is_periodic and job.periodic is not None:
        parts.append(section("Periodic", _launches_told(talk, job, job.periodic)))
    counted_children = stub.job_summary.children if stub.job_summary else None
    is_parent = job.is_periodic or job.parameterized_job is not None
    if counted_children is not None and is_parent:
        rows = [(counted_children.pending, counted_children.running, counted_children.dead)]
        parts.append(section("Children", table(("Pending", "Running", "Dead"), rows)))
    if children:
        parts.append(section("The newest of them", jobs_told(talk, children)))
    if summary and not is_parent:
        titles = ("Group", "Queued", "Starting", "Running", "Complete", "Failed", "Lost", "Unknown")
        counted = [
            (name, one.queued, one.starting, one.running, one.complete, one.failed, one.lost, one.unknown)
            for name, one in sorted(summary.items())
        ]
        parts.append(section("Groups", table(titles, counted, spare=("Unknown", "Lost", "Queued"))))
    if sight.unplaced:
        parts.append(section("Not placed, until there is room", "\n".join(unplaced_lines(sight.unplaced))))
    if sight.deployment is not None:
        one = sight.deployment
        said = f"{talk.short(one.id)}  {coloured(one.status)}  {one.status_description}\n{groups_told(talk, one)}"
        parts.append(section("Latest deployment", said))
    records = [one for one in sight.allocations if all_allocs or not _is_long_over(one)]
    if records:
        parts.append(section("Allocations", allocations_told(talk, records)))
    return "\n".join(parts)


def _is_long_over(one: "AllocationStub") -> bool:
    """Nobody misses it: it was replaced, or stopped in good order."""
    return bool(one.next_allocation) or (one.desired_status != "run" and one.client_status == "complete")


def allocations_told(talk: Talk, records: "Sequence[AllocationStub]") -> str:
    from wharf.cli.live import health_of
    from wharf.cli.tables import table

    if not records:
        return "There are no allocations."
    newest = sorted(records, key=lambda one: (-one.create_index, one.name))
    titles = ["ID", "Name", "Node", "Version", "Desired", "Status", "Health", "Created", "Modified"]
    rows = [
        [
            talk.short(one.id), one.name, one.node_name or talk.short(one.node_id), one.job_version, one.desired_status,
            one.client_status, health_of(one), talk.when(one.create_time), talk.when(one.modify_time),
        ]
        for one in newest
    ]  # fmt: skip
    names = () if talk.verbose else ("Name", "Node")
    return table(titles, rows, spare=("Created", "Version", "Desired"), names=names)


def _version(talk: Talk, job: "Job") -> tuple[object, ...]:
    tag = job.version_tag
    return (
        job.version,
        "yes" if job.stable else "no",
        talk.when(job.submit_time),
        tag.name if tag else "-",
        tag.description if tag else "",
    )
