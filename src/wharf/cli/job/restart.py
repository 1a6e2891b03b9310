"""`wharf job restart`: the allocations of a job are restarted where they are, some at a time."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.server_commands import QuietServerCommand, Session
from wharf.cli.completion import complete_jobs

if TYPE_CHECKING:
    from wharf.contract.model.allocations.allocation import AllocationStub

POLL_WAIT_S: Final = 1.0
NS_PER_SECOND: Final = 1_000_000_000


@click.command(cls=QuietServerCommand)
@click.argument("job_id", metavar="JOB", shell_complete=complete_jobs)
@click.option("--batch-size", type=click.IntRange(1), default=1, show_default=True, help="How many at a time.")
@click.option("--group", "groups", multiple=True, help="Only of this group; may be said again.")
@click.option("--task", default="", help="Only this task of each.")
@click.option("--all-tasks", is_flag=True, help="Also tasks that ended.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="How many seconds each may take to run again.",
)
def restart(
    session: Session, job_id: str, batch_size: int, groups: tuple[str, ...], task: str, all_tasks: bool, wait_s: float
) -> None:
    """Restart the tasks of a job where they are, one allocation after the other.

    The next is restarted when the one before runs again; where it does not, the rest is left alone.

    wharf job restart web
    """
    from wharf.cli.common.lookup import find_job

    if all_tasks and task:
        raise CliError("say one of --task and --all-tasks")
    found = find_job(session, job_id)
    allocations = [
        one
        for one in session.client.jobs.allocations(found.id, namespace=found.namespace).value
        if one.client_status == "running" and one.desired_status == "run" and (not groups or one.task_group in groups)
    ]
    allocations.sort(key=lambda one: (one.task_group, one.name))
    if not allocations:
        raise CliError(f"nothing of {found.id} runs{' in these groups' if groups else ''}: there is nothing to restart")
    done = 0
    for begin in range(0, len(allocations), batch_size):
        batch = allocations[begin : begin + batch_size]
        for one in batch:
            session.client.allocations.restart(one.id, task=task, all_tasks=all_tasks, namespace=one.namespace)
            click.echo(f"{one.name} ({session.shorten_id(one.id)}) is restarted")
        for one in batch:
            _wait_for(session, one, task, wait_s, left=len(allocations) - done)
            done += 1
    click.echo(f"{found.id}: {done} allocation{'' if done == 1 else 's'} restarted")


def _wait_for(session: Session, before: "AllocationStub", task: str, wait_s: float, *, left: int) -> None:
    """Until its tasks run again. Raises CliError."""
    deadline_ns = session.now_ns() + round(wait_s * NS_PER_SECOND)
    states = before.task_states or {}
    restarts = {
        name: state.restarts for name, state in states.items() if state.state == "running" and task in ("", name)
    }
    index = 0
    while True:
        answer = session.client.allocations.read(
            before.id, namespace=before.namespace, index=index, wait_s=POLL_WAIT_S if index else None
        )
        one, index = answer.value, answer.index
        now = one.task_states or {}
        if all(now[name].restarts > count and now[name].state == "running" for name, count in restarts.items()):
            return
        is_over = one.client_status not in ("running", "pending")
        if is_over or session.now_ns() > deadline_ns:
            why = f"it is {one.client_status}" if is_over else f"it did not run again within {wait_s:g} s"
            raise CliError(
                f"{one.name} ({session.shorten_id(one.id)}): {why}; {left} of the allocations are not known to be restarted"
            )
