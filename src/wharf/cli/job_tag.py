"""`wharf job tag`: names for versions of a job."""

from typing import Final

import click

from wharf.cli.job_changes import a_job
from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Quiet, Talk

HERE: Final = "wharf.cli.job_tag"
COMMANDS: Final = {
    "apply": Entry(HERE, "apply", "Name a version, the newest if none is told."),
    "unset": Entry(HERE, "unset", "Take a name away; the version stays."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def tag() -> None:
    """Name versions of a job, so that they are kept and found."""


@click.command(cls=Quiet)
@a_job
@click.option("--name", required=True, help="How it is called from now on.")
@click.option("--version", type=click.IntRange(0), help="Which one; without, the newest.")
@click.option("--description", default="", help="What is about it.")
def apply(talk: Talk, job_id: str, name: str, version: int | None, description: str) -> None:
    """Name a version, the newest if none is told.

    wharf job tag apply --name golden --version 3 web
    """
    from wharf.cli.finding import find_job

    found = find_job(talk, job_id)
    if version is None:
        version = talk.client.jobs.read(found.id, namespace=found.namespace).value.version
    talk.client.jobs.tag(found.id, name, version=version, description=description, namespace=found.namespace)
    click.echo(
        f"version {version} of {found.id} is called {name}; `wharf job revert {found.id} {name}` goes back to it"
    )


@click.command(cls=Quiet)
@a_job
@click.option("--name", required=True, help="Which name.")
def unset(talk: Talk, job_id: str, name: str) -> None:
    """Take a name away; the version stays.

    wharf job tag unset --name golden web
    """
    from wharf.cli.finding import find_job

    found = find_job(talk, job_id)
    talk.client.jobs.untag(found.id, name, namespace=found.namespace)
    click.echo(f"no version of {found.id} is called {name} any more")
