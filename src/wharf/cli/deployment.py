"""`wharf deployment`: the rollouts of jobs' versions."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.record_tables import render_deployment_groups, render_deployments
from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.completion import complete_deployments
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from wharf.contract.model.deployments import Deployment

MODULE: Final = "wharf.cli.deployment"
COMMANDS: Final = {
    "list": CommandEntry(MODULE, "list_", "List deployments."),
    "status": CommandEntry(MODULE, "status", "Show a deployment, or follow it."),
    "promote": CommandEntry(MODULE, "promote", "Let the canaries be followed by the rest."),
    "fail": CommandEntry(MODULE, "fail", "End a deployment as failed."),
    "pause": CommandEntry(MODULE, "pause", "Let a deployment rest."),
    "resume": CommandEntry(MODULE, "resume", "Let a deployment that rests go on."),
}
deployment_argument = click.argument("deployment_id", metavar="DEPLOYMENT", shell_complete=complete_deployments)
detach_option = click.option("--detach", is_flag=True, help="Return as soon as the servers have it.")


UNAVAILABLE_COMMANDS: Final = {"unblock": "only jobs of several regions wait for this, and jobs here are of one"}


@click.group(cls=LazyGroup, entries=COMMANDS, missing=UNAVAILABLE_COMMANDS)
def deployment() -> None:
    """Watch rollouts, promote canaries, pause and end rollouts."""


@click.command("list", cls=ServerCommand)
@click.option("--filter", "expression", default="", help='Only those that match, as `Status == "running"`.')
def list_(session: Session, expression: str) -> None:
    """List deployments.

    wharf deployment list
    """
    records = session.client.deployments.list(filter=expression).value
    session.print_result(records, lambda: render_deployments(session, records, is_filtered=bool(expression)))


@click.command(cls=ServerCommand)
@click.argument("deployment_id", metavar="[DEPLOYMENT]", required=False, shell_complete=complete_deployments)
@click.option("--monitor", is_flag=True, help="Follow it to its end.")
def status(session: Session, deployment_id: str | None, monitor: bool) -> None:
    """Show a deployment, or follow it.

    DEPLOYMENT is an id, the beginning of one, or a job: then it is the job's latest.

    wharf deployment status web
    """
    from wharf.cli.common.lookup import find_deployment

    if deployment_id is None:
        records = session.client.deployments.list().value
        session.print_result(records, lambda: render_deployments(session, records))
        return
    found = find_deployment(session, deployment_id)
    if monitor:
        _follow(session, found)
        return
    session.print_result(found, lambda: _told(session, found))


def show_deployment(session: Session, deployment_id: str) -> None:
    from wharf.cli.common.lookup import find_deployment

    found = find_deployment(session, deployment_id)
    session.print_result(found, lambda: _told(session, found))


@click.command(cls=QuietServerCommand)
@deployment_argument
@click.option("--group", "groups", multiple=True, help="Only this group. May be given several times.")
@detach_option
def promote(session: Session, deployment_id: str, groups: tuple[str, ...], detach: bool) -> None:
    """Let the canaries be followed by the rest.

    wharf deployment promote web
    """
    from wharf.cli.common.lookup import find_deployment

    found = find_deployment(session, deployment_id)
    session.client.deployments.promote(found.id, groups, namespace=found.namespace)
    click.echo(f"the canaries of {found.job_id} are promoted")
    if not detach and session.is_terminal:
        _follow(session, found)


@click.command(cls=QuietServerCommand)
@deployment_argument
@detach_option
def fail(session: Session, deployment_id: str, detach: bool) -> None:
    """End a deployment as failed.

    With auto_revert the job goes back to its last stable version.

    wharf deployment fail web
    """
    from wharf.cli.common.lookup import find_deployment
    from wharf.cli.job.follower import report_evaluation

    found = find_deployment(session, deployment_id)
    answer = session.client.deployments.fail(found.id, namespace=found.namespace)
    back = answer.reverted_job_version
    said = "" if back is None else f"; {found.job_id} goes back to version {back}"
    click.echo(f"deployment {session.shorten_id(found.id)} of {found.job_id} has failed{said}")
    if not detach:
        report_evaluation(session, answer.eval_id, found.namespace)


@click.command(cls=QuietServerCommand)
@deployment_argument
def pause(session: Session, deployment_id: str) -> None:
    """Let a deployment rest.

    wharf deployment pause web
    """
    _rest(session, deployment_id, rests=True)


@click.command(cls=QuietServerCommand)
@deployment_argument
def resume(session: Session, deployment_id: str) -> None:
    """Let a deployment that rests go on.

    wharf deployment resume web
    """
    _rest(session, deployment_id, rests=False)


def _rest(session: Session, deployment_id: str, *, rests: bool) -> None:
    from wharf.cli.common.lookup import find_deployment

    found = find_deployment(session, deployment_id)
    session.client.deployments.pause(found.id, pause=rests, namespace=found.namespace)
    click.echo(f"deployment {session.shorten_id(found.id)} of {found.job_id} {'rests' if rests else 'goes on'}")


def _follow(session: Session, found: "Deployment") -> None:
    from wharf.cli.job.follower import FollowInterrupted, follow_job

    try:
        code = follow_job(session, found.job_id, found.namespace, found.job_version)
    except FollowInterrupted:
        click.echo(f"the deployment of {found.job_id} goes on without you", err=True)
        raise click.exceptions.Exit(130) from None
    if code:
        raise click.exceptions.Exit(code)


# -- what is told


def _told(session: Session, one: "Deployment") -> str:
    from wharf.cli.common.record_tables import render_allocations
    from wharf.cli.common.rendering import render_pairs, render_section

    allocations = session.client.deployments.allocations(one.id, namespace=one.namespace).value
    parts = [
        render_pairs(
            [
                ("ID", one.id),
                ("Job", f"{one.job_id}, version {one.job_version}"),
                ("Namespace", one.namespace),
                ("Status", one.status),
                ("Description", one.status_description),
                ("Begun", session.format_time(one.create_time)),
            ]
        ),
        render_section("Groups", render_deployment_groups(session, one)),
    ]
    if allocations:
        parts.append(render_section("Allocations", render_allocations(session, allocations)))
    return "\n".join(parts)
