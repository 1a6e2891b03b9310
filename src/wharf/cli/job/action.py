"""`wharf job action`: the commands that a job offers, run beside one of its tasks."""

import sys

import click

from wharf.cli.common.server_commands import QuietServerCommand, Session
from wharf.cli.completion import complete_jobs


@click.command(cls=QuietServerCommand)
@click.argument("job_id", metavar="JOB", shell_complete=complete_jobs)
@click.argument("name", metavar="[ACTION]", required=False, default="")
@click.option("--alloc", "alloc_id", default="", help="Beside which allocation.  [default: the newest that runs]")
@click.option("--group", default="", help="Only of this group.")
@click.option("--task", default="", help="Of which task, where several offer it.")
@click.option("-i", "takes_input", is_flag=True, help="Pass on what is typed.  [with -t, or where it is piped in]")
@click.option("-t", "--tty", "is_tty", is_flag=True, help="Give it a terminal.")
def action(
    session: Session, job_id: str, name: str, alloc_id: str, group: str, task: str, takes_input: bool, is_tty: bool
) -> None:
    """Run a command that a job offers, or list them.

    The command's exit code is that of this one. It ends when this one ends.

    wharf job action web add-user
    """
    from wharf.cli.common.lookup import find_allocation, find_job

    found = find_job(session, job_id)
    if not name:
        _list(session, found.id, found.namespace)
        return
    from wharf.cli.alloc.exec import run_interactive_command
    from wharf.contract.client import open_action

    is_tty = is_tty and sys.stdin.isatty()
    opening = open_action(
        session.settings,
        found.id,
        name,
        namespace=found.namespace,
        alloc_id=find_allocation(session, alloc_id).id if alloc_id else "",
        group=group,
        task=task,
        is_tty=is_tty,
    )
    run_interactive_command(session, opening, is_tty=is_tty, should_forward_input=takes_input)


def _list(session: Session, job_id: str, namespace: str) -> None:
    from wharf.cli.common.rendering import render_table

    offered = session.client.jobs.actions(job_id, namespace=namespace).value
    rows = [
        (one.name, f"{one.task_group_name}/{one.task_name}", " ".join((one.command, *(one.args or ()))))
        for one in offered
    ]
    click.echo(render_table(("Action", "Task", "Command"), rows) if rows else f"{job_id} offers no actions.")
