"""`wharf job restart`: restarts the allocations of a job in place, a few at a time."""

from functools import partial
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.common.times import NS_PER_SECOND
from wharf.cli.completion import complete_jobs
from wharf.cli.lazy_group import RenamedOption

if TYPE_CHECKING:
    from wharf.contract.model.allocations.allocation import AllocationStub

POLL_WAIT_S: Final = 1.0
"""How long one blocking query for an allocation waits; the timeout is checked at least this often."""


@click.command(cls=ServerCommand)
@click.argument("job_id", metavar="JOB", shell_complete=complete_jobs)
@click.option(
    "--batch-size", type=click.IntRange(1), default=1, show_default=True, help="Allocations restarted at a time."
)
@click.option("--group", "groups", multiple=True, help="Only this group; may be repeated.")
@click.option("--task", default="", help="Only this task of each allocation.")
@click.option("--all-tasks", is_flag=True, help="Also tasks that have ended.")
@click.option(
    "--timeout",
    "timeout_s",
    cls=RenamedOption,
    former_names=["--wait"],
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds to wait until each allocation runs again.",
)
def restart(
    session: Session,
    job_id: str,
    batch_size: int,
    groups: tuple[str, ...],
    task: str,
    all_tasks: bool,
    timeout_s: float,
) -> None:
    """Restart the tasks of a job in place, a few allocations at a time.

    The next allocations are restarted when the ones before run again. If one does not, the command fails and the rest
    is not restarted.

    wharf job restart web
    """
    from wharf.cli.common.lookup import find_job

    if all_tasks and task:
        raise CliError("--task and --all-tasks exclude each other: give only one")
    found = find_job(session, job_id)
    allocations = [
        allocation
        for allocation in session.client.jobs.allocations(found.id, namespace=found.namespace).value
        if allocation.client_status == "running"
        and allocation.desired_status == "run"
        and (not groups or allocation.task_group in groups)
    ]
    allocations.sort(key=lambda allocation: (allocation.task_group, allocation.name))
    if not allocations:
        raise CliError(
            f"nothing to restart: job {found.id} has no running allocations{' in these groups' if groups else ''}"
        )
    done = 0
    for begin in range(0, len(allocations), batch_size):
        batch = allocations[begin : begin + batch_size]
        for allocation in batch:
            session.client.allocations.restart(
                allocation.id, task=task, all_tasks=all_tasks, namespace=allocation.namespace
            )
            session.print_text(f"restarted {allocation.name} ({session.shorten_id(allocation.id)})")
        for allocation in batch:
            _wait_until_running(session, allocation, task, timeout_s, remaining=len(allocations) - done)
            done += 1
    session.print_change(
        f"restarted {done} allocation{'' if done == 1 else 's'} of job {found.id}",
        JobID=found.id,
        Namespace=found.namespace,
        Allocations=[allocation.id for allocation in allocations],
    )


def _wait_until_running(
    session: Session, before: "AllocationStub", task: str, timeout_s: float, *, remaining: int
) -> None:
    """Wait until the restarted tasks of an allocation run again.

    `before` is the allocation as it was before the restart. Raises CliError if the allocation ends or the time is over.
    `remaining` is the number of allocations that its text reports as not restarted.
    """
    from wharf.cli.common.outages import Outage

    deadline_ns = session.now_ns() + round(timeout_s * NS_PER_SECOND)
    states = before.task_states or {}
    restarts = {
        name: state.restarts for name, state in states.items() if state.state == "running" and task in ("", name)
    }
    index = 0
    outage = Outage(session, f"{remaining} allocation{'' if remaining == 1 else 's'} not confirmed as restarted")
    while True:
        response = outage.call(
            partial(
                session.client.allocations.read,
                before.id,
                namespace=before.namespace,
                index=index,
                wait_s=POLL_WAIT_S if index else None,
            )
        )
        allocation, index = response.value, response.index
        current = allocation.task_states or {}
        if all(current[name].restarts > count and current[name].state == "running" for name, count in restarts.items()):
            return
        has_ended = allocation.client_status not in ("running", "pending")
        if has_ended or session.now_ns() > deadline_ns:
            reason = f"it is {allocation.client_status}" if has_ended else f"not running again after {timeout_s:g} s"
            raise CliError(
                f"restart of {allocation.name} ({session.shorten_id(allocation.id)}) failed: {reason}; "
                f"{remaining} allocation{'' if remaining == 1 else 's'} not confirmed as restarted"
            )
