"""`wharf deployment`: shows, follows, promotes, pauses and fails deployments."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.options import INTERRUPTED_EXIT_CODE, detach_option, progress_timeout_option
from wharf.cli.common.record_tables import render_deployment_groups, render_deployments
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.completion import complete_deployments
from wharf.cli.job.change_report import ChangeReport
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from wharf.contract.model.deployments import Deployment
    from wharf.contract.wire.deployments import DeploymentUpdateResponse

MODULE: Final = "wharf.cli.deployment"
COMMANDS: Final = {
    "list": CommandEntry(MODULE, "list_", "List deployments."),
    "status": CommandEntry(MODULE, "status", "Show a deployment, or follow it."),
    "promote": CommandEntry(MODULE, "promote", "Promote the canaries: replace the remaining old allocations."),
    "fail": CommandEntry(MODULE, "fail", "Mark a deployment as failed."),
    "pause": CommandEntry(MODULE, "pause", "Pause a deployment."),
    "resume": CommandEntry(MODULE, "resume", "Resume a paused deployment."),
}
deployment_argument = click.argument("deployment_id", metavar="DEPLOYMENT", shell_complete=complete_deployments)


UNAVAILABLE_COMMANDS: Final = {"unblock": "only jobs of several regions need it, and Wharf does not have such jobs"}


@click.group(cls=LazyGroup, entries=COMMANDS, unavailable=UNAVAILABLE_COMMANDS)
def deployment() -> None:
    """Watch deployments; promote, pause or fail them."""


@click.command("list", cls=ServerCommand)
@click.option("--filter", "expression", default="", help='Only deployments that match, such as `Status == "running"`.')
def list_(session: Session, expression: str) -> None:
    """List deployments.

    wharf deployment list
    """
    records = session.client.deployments.list(filter=expression).value
    session.print_result(records, lambda: render_deployments(session, records, is_filtered=bool(expression)))


@click.command(cls=ServerCommand)
@click.argument("deployment_id", metavar="[DEPLOYMENT]", required=False, shell_complete=complete_deployments)
@click.option("--monitor", is_flag=True, help="Follow the deployment to its end.")
@progress_timeout_option
def status(session: Session, deployment_id: str | None, monitor: bool, progress_timeout_s: float) -> None:
    """Show a deployment, or follow it.

    DEPLOYMENT is an id, a unique prefix of an id, or a job, which stands for its latest deployment.

    wharf deployment status web
    """
    from wharf.cli.common.lookup import find_deployment

    if deployment_id is None:
        records = session.client.deployments.list().value
        session.print_result(records, lambda: render_deployments(session, records))
        return
    found = find_deployment(session, deployment_id)
    if monitor:
        report = ChangeReport(found.job_id, found.namespace, deployment_id=found.id)
        _follow_deployment(session, found, report, progress_timeout_s)
        return
    session.print_result(found, lambda: _render_deployment(session, found))


def show_deployment(session: Session, deployment_id: str) -> None:
    """Print the status of one deployment."""
    from wharf.cli.common.lookup import find_deployment

    found = find_deployment(session, deployment_id)
    session.print_result(found, lambda: _render_deployment(session, found))


@click.command(cls=ServerCommand)
@deployment_argument
@click.option("--group", "groups", multiple=True, help="Promote only this group; may be repeated.")
@detach_option
@progress_timeout_option
def promote(
    session: Session, deployment_id: str, groups: tuple[str, ...], detach: bool, progress_timeout_s: float
) -> None:
    """Promote the canaries: replace the remaining old allocations.

    wharf deployment promote web
    """
    from wharf.cli.common.lookup import find_deployment

    found = find_deployment(session, deployment_id)
    response = session.client.deployments.promote(found.id, groups, namespace=found.namespace)
    session.print_text(f"promoted the canaries of job {found.job_id}")
    report = _create_report(found, response)
    if not detach and session.is_terminal:
        _follow_deployment(session, found, report, progress_timeout_s)
        return
    report.print_result(session)


@click.command(cls=ServerCommand)
@deployment_argument
@detach_option
def fail(session: Session, deployment_id: str, detach: bool) -> None:
    """Mark a deployment as failed.

    With auto_revert, the job returns to its last stable version.

    wharf deployment fail web
    """
    from wharf.cli.common.lookup import find_deployment
    from wharf.cli.job.follower import finish_change

    found = find_deployment(session, deployment_id)
    response = session.client.deployments.fail(found.id, namespace=found.namespace)
    version = response.reverted_job_version
    revert_text = "" if version is None else f"; reverting job {found.job_id} to version {version}"
    session.print_text(f"marked deployment {session.shorten_id(found.id)} of job {found.job_id} as failed{revert_text}")
    finish_change(session, _create_report(found, response), should_detach=detach)


@click.command(cls=ServerCommand)
@deployment_argument
def pause(session: Session, deployment_id: str) -> None:
    """Pause a deployment.

    wharf deployment pause web
    """
    _set_paused(session, deployment_id, is_paused=True)


@click.command(cls=ServerCommand)
@deployment_argument
def resume(session: Session, deployment_id: str) -> None:
    """Resume a paused deployment.

    wharf deployment resume web
    """
    _set_paused(session, deployment_id, is_paused=False)


def _set_paused(session: Session, deployment_id: str, *, is_paused: bool) -> None:
    """Pause or resume the deployment and print the result."""
    from wharf.cli.common.lookup import find_deployment

    found = find_deployment(session, deployment_id)
    response = session.client.deployments.pause(found.id, pause=is_paused, namespace=found.namespace)
    verb = "paused" if is_paused else "resumed"
    session.print_text(f"{verb} deployment {session.shorten_id(found.id)} of job {found.job_id}")
    _create_report(found, response).print_result(session)


def _create_report(deployment: "Deployment", response: "DeploymentUpdateResponse") -> ChangeReport:
    """Return the report of a change of a deployment, for programs."""
    more = {
        "DeploymentModifyIndex": response.deployment_modify_index,
        "RevertedJobVersion": response.reverted_job_version,
    }
    return ChangeReport(
        deployment.job_id, deployment.namespace, response.eval_id, deployment_id=deployment.id, more=more
    )


def _follow_deployment(
    session: Session, deployment: "Deployment", report: ChangeReport, progress_timeout_s: float
) -> None:
    """Show the deployment's progress until it ends, print the report, and exit with the code of the outcome.

    Ctrl-C stops only the display.
    """
    from wharf.cli.job.follower import FollowInterrupted, follow_job

    try:
        code = follow_job(
            session,
            deployment.job_id,
            deployment.namespace,
            deployment.job_version,
            report,
            progress_timeout_s=progress_timeout_s,
        )
    except FollowInterrupted:
        print_notice(f"stopped watching; the deployment of job {deployment.job_id} continues")
        raise click.exceptions.Exit(INTERRUPTED_EXIT_CODE) from None
    report.print_result(session)
    if code:
        raise click.exceptions.Exit(code)


def _render_deployment(session: Session, deployment: "Deployment") -> str:
    """Return the status of a deployment: main fields, groups and allocations."""
    from wharf.cli.common.record_tables import render_allocations
    from wharf.cli.common.rendering import render_pairs, render_section
    from wharf.cli.job.status import MAX_ALLOCATIONS_SHOWN

    allocations = session.client.deployments.allocations(deployment.id, namespace=deployment.namespace).value
    parts = [
        render_pairs(
            [
                ("ID", deployment.id),
                ("Job", f"{deployment.job_id}, version {deployment.job_version}"),
                ("Namespace", deployment.namespace),
                ("Status", deployment.status),
                ("Description", deployment.status_description),
                ("Started", session.format_time(deployment.create_time)),
            ]
        ),
        render_section("Groups", render_deployment_groups(session, deployment)),
    ]
    if allocations:
        command = f"wharf job allocs {deployment.job_id}"
        table = render_allocations(session, allocations, max_rows=MAX_ALLOCATIONS_SHOWN, list_command=command)
        parts.append(render_section("Allocations", table))
    return "\n".join(parts)
