"""`wharf job action`: run or list the actions of a job, commands that the job declares for its tasks."""

import sys

import click

from wharf.cli.common.server_commands import QuietServerCommand, Session
from wharf.cli.completion import complete_jobs


@click.command(cls=QuietServerCommand)
@click.argument("job_id", metavar="JOB", shell_complete=complete_jobs)
@click.argument("name", metavar="[ACTION]", required=False, default="")
@click.option("--alloc", "alloc_id", default="", help="Allocation to run it in.  [default: the newest that is running]")
@click.option("--group", default="", help="Only allocations of this group.")
@click.option("--task", default="", help="The task, if several tasks have this action.")
@click.option("-i", "takes_input", is_flag=True, help="Send standard input.  [default with -t, or if input is piped]")
@click.option("-t", "--tty", "is_tty", is_flag=True, help="Allocate a terminal.")
def action(
    session: Session, job_id: str, name: str, alloc_id: str, group: str, task: str, takes_input: bool, is_tty: bool
) -> None:
    """Run an action of a job, or list its actions.

    The exit code is that of the action. The action is stopped if this command is interrupted.

    wharf job action web add-user
    """
    from wharf.cli.common.lookup import find_allocation, find_job

    found = find_job(session, job_id)
    if not name:
        _print_actions(session, found.id, found.namespace)
        return
    from wharf.cli.alloc.exec import run_interactive_command
    from wharf.contract.client import open_action

    is_tty = is_tty and sys.stdin.isatty()
    allocation = find_allocation(session, alloc_id) if alloc_id else None
    opening = open_action(
        session.settings,
        found.id,
        name,
        namespace=found.namespace,
        alloc_id=allocation.id if allocation else "",
        group=group,
        task=task,
        is_tty=is_tty,
    )
    run_interactive_command(
        session,
        opening,
        is_tty=is_tty,
        should_forward_input=takes_input,
        node_name=allocation.node_name if allocation else "",
        namespace=found.namespace,
    )


def _print_actions(session: Session, job_id: str, namespace: str) -> None:
    """Print the actions of the job as a table."""
    from wharf.cli.common.rendering import render_table

    actions = session.client.jobs.actions(job_id, namespace=namespace).value
    rows = [
        (action.name, f"{action.task_group_name}/{action.task_name}", " ".join((action.command, *(action.args or ()))))
        for action in actions
    ]
    click.echo(render_table(("Action", "Task", "Command"), rows) if rows else f"Job {job_id} has no actions.")
