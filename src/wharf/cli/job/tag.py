"""`wharf job tag`: names for versions of a job."""

from typing import Final

import click

from wharf.cli.common.options import job_argument
from wharf.cli.common.server_commands import QuietServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup

MODULE: Final = "wharf.cli.job.tag"
COMMANDS: Final = {
    "apply": CommandEntry(MODULE, "apply", "Name a version, the newest if none is told."),
    "unset": CommandEntry(MODULE, "unset", "Take a name away; the version stays."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def tag() -> None:
    """Name versions of a job, so that they are kept and found."""


@click.command(cls=QuietServerCommand)
@job_argument
@click.option("--name", required=True, help="How it is called from now on.")
@click.option("--version", type=click.IntRange(0), help="Which one; without, the newest.")
@click.option("--description", default="", help="What is about it.")
def apply(session: Session, job_id: str, name: str, version: int | None, description: str) -> None:
    """Name a version, the newest if none is told.

    wharf job tag apply --name golden --version 3 web
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    if version is None:
        version = session.client.jobs.read(found.id, namespace=found.namespace).value.version
    session.client.jobs.tag(found.id, name, version=version, description=description, namespace=found.namespace)
    click.echo(
        f"version {version} of {found.id} is called {name}; `wharf job revert {found.id} {name}` goes back to it"
    )


@click.command(cls=QuietServerCommand)
@job_argument
@click.option("--name", required=True, help="Which name.")
def unset(session: Session, job_id: str, name: str) -> None:
    """Take a name away; the version stays.

    wharf job tag unset --name golden web
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    session.client.jobs.untag(found.id, name, namespace=found.namespace)
    click.echo(f"no version of {found.id} is called {name} any more")
