"""`wharf job action`: the commands that a job offers, run beside one of its tasks."""

import sys

import click

from wharf.cli.completing import complete_jobs
from wharf.cli.speaking import Quiet, Talk


@click.command(cls=Quiet)
@click.argument("job_id", metavar="JOB", shell_complete=complete_jobs)
@click.argument("name", metavar="[ACTION]", required=False, default="")
@click.option("--alloc", "alloc_id", default="", help="Beside which allocation.  [default: the newest that runs]")
@click.option("--group", default="", help="Only of this group.")
@click.option("--task", default="", help="Of which task, where several offer it.")
@click.option("-i", "takes_input", is_flag=True, help="Pass on what is typed.  [with -t, or where it is piped in]")
@click.option("-t", "--tty", "is_tty", is_flag=True, help="Give it a terminal.")
def action(
    talk: Talk, job_id: str, name: str, alloc_id: str, group: str, task: str, takes_input: bool, is_tty: bool
) -> None:
    """Run a command that a job offers, or list them.

    The command's exit code is that of this one. It ends when this one ends.

    wharf job action web add-user
    """
    from wharf.cli.finding import find_allocation, find_job

    found = find_job(talk, job_id)
    if not name:
        _list(talk, found.id, found.namespace)
        return
    from wharf.cli.alloc_exec import follow_command
    from wharf.client import open_action

    is_tty = is_tty and sys.stdin.isatty()
    opening = open_action(
        talk.settings,
        found.id,
        name,
        namespace=found.namespace,
        alloc_id=find_allocation(talk, alloc_id).id if alloc_id else "",
        group=group,
        task=task,
        is_tty=is_tty,
    )
    follow_command(talk, opening, is_tty=is_tty, takes_input=takes_input)


def _list(talk: Talk, job_id: str, namespace: str) -> None:
    from wharf.cli.tables import table

    offered = talk.client.jobs.actions(job_id, namespace=namespace).value
    rows = [
        (one.name, f"{one.task_group_name}/{one.task_name}", " ".join((one.command, *(one.args or ()))))
        for one in offered
    ]
    click.echo(table(("Action", "Task", "Command"), rows) if rows else f"{job_id} offers no actions.")
