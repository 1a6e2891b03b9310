"""`wharf deployment`: the rollouts of jobs' versions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.completing import complete_deployments
from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Quiet, Speaking, Talk

if TYPE_CHECKING:
    from wharf.model.deployment import Deployment

HERE: Final = "wharf.cli.deployment"
COMMANDS: Final = {
    "list": Entry(HERE, "list_", "List deployments."),
    "status": Entry(HERE, "status", "Show a deployment, or follow it."),
    "promote": Entry(HERE, "promote", "Let the canaries be followed by the rest."),
    "fail": Entry(HERE, "fail", "End a deployment as failed."),
    "pause": Entry(HERE, "pause", "Let a deployment rest."),
    "resume": Entry(HERE, "resume", "Let a deployment that rests go on."),
}
a_deployment = click.argument("deployment_id", metavar="DEPLOYMENT", shell_complete=complete_deployments)
detachable = click.option("--detach", is_flag=True, help="Return as soon as the servers have it.")


MISSING: Final = {"unblock": "only jobs of several regions wait for this, and jobs here are of one"}


@click.group(cls=LazyGroup, entries=COMMANDS, missing=MISSING)
def deployment() -> None:
    """Watch rollouts, promote canaries, pause and end rollouts."""


@click.command("list", cls=Speaking)
@click.option("--filter", "expression", default="", help='Only those that match, as `Status == "running"`.')
def list_(talk: Talk, expression: str) -> None:
    """List deployments.

    wharf deployment list
    """
    records = talk.client.deployments.list(filter=expression).value
    talk.show(records, lambda: deployments_told(talk, records, is_chosen=bool(expression)))


@click.command(cls=Speaking)
@click.argument("deployment_id", metavar="[DEPLOYMENT]", required=False, shell_complete=complete_deployments)
@click.option("--monitor", is_flag=True, help="Follow it to its end.")
def status(talk: Talk, deployment_id: str | None, monitor: bool) -> None:
    """Show a deployment, or follow it.

    DEPLOYMENT is an id, the beginning of one, or a job: then it is the job's latest.

    wharf deployment status web
    """
    from wharf.cli.finding import find_deployment

    if deployment_id is None:
        records = talk.client.deployments.list().value
        talk.show(records, lambda: deployments_told(talk, records))
        return
    found = find_deployment(talk, deployment_id)
    if monitor:
        _follow(talk, found)
        return
    talk.show(found, lambda: _told(talk, found))


def show_deployment(talk: Talk, deployment_id: str) -> None:
    from wharf.cli.finding import find_deployment

    found = find_deployment(talk, deployment_id)
    talk.show(found, lambda: _told(talk, found))


@click.command(cls=Quiet)
@a_deployment
@click.option("--group", "groups", multiple=True, help="Only this group. May be given several times.")
@detachable
def promote(talk: Talk, deployment_id: str, groups: tuple[str, ...], detach: bool) -> None:
    """Let the canaries be followed by the rest.

    wharf deployment promote web
    """
    from wharf.cli.finding import find_deployment

    found = find_deployment(talk, deployment_id)
    talk.client.deployments.promote(found.id, groups, namespace=found.namespace)
    click.echo(f"the canaries of {found.job_id} are promoted")
    if not detach and talk.is_terminal:
        _follow(talk, found)


@click.command(cls=Quiet)
@a_deployment
@detachable
def fail(talk: Talk, deployment_id: str, detach: bool) -> None:
    """End a deployment as failed.

    With auto_revert the job goes back to its last stable version.

    wharf deployment fail web
    """
    from wharf.cli.finding import find_deployment
    from wharf.cli.job_changes import see_evaluation

    found = find_deployment(talk, deployment_id)
    answer = talk.client.deployments.fail(found.id, namespace=found.namespace)
    back = answer.reverted_job_version
    said = "" if back is None else f"; {found.job_id} goes back to version {back}"
    click.echo(f"deployment {talk.short(found.id)} of {found.job_id} has failed{said}")
    if not detach:
        see_evaluation(talk, answer.eval_id, found.namespace)


@click.command(cls=Quiet)
@a_deployment
def pause(talk: Talk, deployment_id: str) -> None:
    """Let a deployment rest.

    wharf deployment pause web
    """
    _rest(talk, deployment_id, rests=True)


@click.command(cls=Quiet)
@a_deployment
def resume(talk: Talk, deployment_id: str) -> None:
    """Let a deployment that rests go on.

    wharf deployment resume web
    """
    _rest(talk, deployment_id, rests=False)


def _rest(talk: Talk, deployment_id: str, *, rests: bool) -> None:
    from wharf.cli.finding import find_deployment

    found = find_deployment(talk, deployment_id)
    talk.client.deployments.pause(found.id, pause=rests, namespace=found.namespace)
    click.echo(f"deployment {talk.short(found.id)} of {found.job_id} {'rests' if rests else 'goes on'}")


def _follow(talk: Talk, found: "Deployment") -> None:
    from wharf.cli.following import LeftRunning, follow

    try:
        code = follow(talk, found.job_id, found.namespace, found.job_version)
    except LeftRunning:
        click.echo(f"the deployment of {found.job_id} goes on without you", err=True)
        raise click.exceptions.Exit(130) from None
    if code:
        raise click.exceptions.Exit(code)


# -- what is told


def deployments_told(talk: Talk, records: "Sequence[Deployment]", *, is_chosen: bool = False) -> str:
    from wharf.cli.tables import nothing, table

    if not records:
        return nothing("deployments", is_chosen=is_chosen)
    titles = ("ID", "Job", "Version", "Status", "Healthy", "Begun", "Description")
    rows = [
        (
            talk.short(one.id), one.job_id, one.job_version, one.status, _healthy(one), talk.when(one.create_time),
            one.status_description,
        )
        for one in sorted(records, key=lambda one: -one.create_index)
    ]  # fmt: skip
    return table(titles, rows, names=() if talk.verbose else ("Job",))


def _healthy(one: "Deployment") -> str:
    groups = (one.task_groups or {}).values()
    return f"{sum(group.healthy_allocs for group in groups)}/{sum(group.desired_total for group in groups)}"


def _told(talk: Talk, one: "Deployment") -> str:
    from wharf.cli.job_views import allocations_told
    from wharf.cli.tables import pairs, section

    allocations = talk.client.deployments.allocations(one.id, namespace=one.namespace).value
    parts = [
        pairs(
            [
                ("ID", one.id),
                ("Job", f"{one.job_id}, version {one.job_version}"),
                ("Namespace", one.namespace),
                ("Status", one.status),
                ("Description", one.status_description),
                ("Begun", talk.when(one.create_time)),
            ]
        ),
        section("Groups", groups_told(talk, one)),
    ]
    if allocations:
        parts.append(section("Allocations", allocations_told(talk, allocations)))
    return "\n".join(parts)


def groups_told(talk: Talk, one: "Deployment") -> str:
    from wharf.cli.tables import table

    groups = sorted((one.task_groups or {}).items())
    has_canaries = any(group.desired_canaries for _, group in groups)
    titles = ["Group", "Wanted", "Placed", "Healthy", "Unhealthy", "Progress due"]
    rows: list[list[object]] = [
        [
            name, group.desired_total, group.placed_allocs, group.healthy_allocs, group.unhealthy_allocs,
            talk.when(group.require_progress_by) if one.is_active else "-",
        ]
        for name, group in groups
    ]  # fmt: skip
    if has_canaries:
        titles[1:1] = ["Promoted", "Canaries"]
        for (_, group), row in zip(groups, rows, strict=True):
            row[1:1] = [
                "yes" if group.promoted else "no",
                f"{len(group.placed_canaries or ())}/{group.desired_canaries}",
            ]
    return table(titles, rows)
