"""The commands that show jobs: `inspect`, `history`, `explain`, `allocs`, `deployments`."""

from typing import TYPE_CHECKING

import click

from wharf.cli.common.options import job_argument
from wharf.cli.common.record_tables import render_allocations
from wharf.cli.common.rendering import natural_sort_key
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.contract.model.allocations.allocation import ClientStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.model.jobs.job import Job


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
    from wharf.cli.job.plan import render_job_diff
    from wharf.job_files.secret_values import hide_values

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
@click.option("--status", "status", type=click.Choice(list(map(str, ClientStatus))), help="Only those in this state.")
@click.option("--limit", type=click.IntRange(1), help="Only the newest allocations.")
def allocs(session: Session, job_id: str, everything: bool, status: str | None, limit: int | None) -> None:
    """List a job's allocations.

    wharf job allocs --status failed web
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    records = session.client.jobs.allocations(found.id, all=everything, namespace=found.namespace).value
    shown = select_allocations(records, status=status, limit=limit)
    session.print_result(shown, lambda: render_allocations(session, shown))


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


def select_allocations(
    records: "Sequence[AllocationStub]", *, status: str | None, limit: int | None
) -> "Sequence[AllocationStub]":
    """Return the allocations with this client status, or all, and of these the newest `limit`, or all."""
    matching = [allocation for allocation in records if status in (None, allocation.client_status)]
    if limit is None:
        return matching
    newest_first = sorted(matching, key=lambda each: (-each.create_index, natural_sort_key(each.name)))
    return newest_first[:limit]


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
