"""`wharf job tag`: tags for versions of a job."""

from typing import Final

import click

from wharf.cli.common.options import job_argument
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup

MODULE: Final = "wharf.cli.job.tag"
COMMANDS: Final = {
    "apply": CommandEntry(MODULE, "apply", "Tag a version of a job."),
    "unset": CommandEntry(MODULE, "unset", "Remove a tag; the version stays."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def tag() -> None:
    """Tag versions of a job, so that they are retained."""


@click.command(cls=ServerCommand)
@job_argument
@click.option("--name", required=True, help="The tag.")
@click.option("--version", type=click.IntRange(0), help="The version.  [default: the newest]")
@click.option("--description", default="", help="A description of the version.")
def apply(session: Session, job_id: str, name: str, version: int | None, description: str) -> None:
    """Tag a version of a job.

    wharf job tag apply --name golden --version 3 web
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    if version is None:
        version = session.client.jobs.read(found.id, namespace=found.namespace).value.version
    session.client.jobs.tag(found.id, name, version=version, description=description, namespace=found.namespace)
    session.print_change(
        f"tagged version {version} of job {found.id} as {name}; `wharf job revert {found.id} {name}` returns to it",
        JobID=found.id,
        Namespace=found.namespace,
        Version=version,
        Name=name,
    )


@click.command(cls=ServerCommand)
@job_argument
@click.option("--name", required=True, help="The tag.")
def unset(session: Session, job_id: str, name: str) -> None:
    """Remove a tag; the version stays.

    wharf job tag unset --name golden web
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    session.client.jobs.untag(found.id, name, namespace=found.namespace)
    session.print_change(
        f"removed tag {name} from job {found.id}", JobID=found.id, Namespace=found.namespace, Name=name
    )
