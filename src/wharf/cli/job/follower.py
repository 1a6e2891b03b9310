"""."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.options import INTERRUPTED_EXIT_CODE
from wharf.cli.common.server_commands import Session
from wharf.cli.job.progress import ExitCode, fetch_progress, find_outcome

if TYPE_CHECKING:
    from wharf.cli.common.server_commands import Session
    from wharf.contract.model.evaluations import Evaluation


POLL_WAIT_S: Final = 1.0


EVALUATION_WAIT_S: Final = 10.0


def follow_job(session: "Session", job_id: str, namespace: str, version: int) -> int:
    """To the end. On a terminal as a picture that changes in place, else line by line."""
    from wharf.cli.common.failures import read_last_line, summarize_failures
    from wharf.cli.job.progress_view import LineProgressView, LiveProgressView

    view = LiveProgressView(session) if session.is_terminal else LineProgressView(session)
    began_ns = session.now_ns()
    with view:
        try:
            sight = fetch_progress(session, job_id, namespace, version)
            while (end := find_outcome(sight)) is None:
                view.update(sight, session.now_ns() - began_ns)
                session.client.jobs.allocations(
                    job_id, namespace=namespace, index=sight.snapshot_index, wait_s=POLL_WAIT_S
                )
                sight = fetch_progress(session, job_id, namespace, version)
            view.update(sight, session.now_ns() - began_ns)
        except KeyboardInterrupt:
            view.stop()
            raise FollowInterrupted(job_id) from None
    if end.exit == ExitCode.FAILED and not session.is_machine_readable:
        view.stop()
        for each in summarize_failures(sight.current_allocations):
            session.print_text(f"  {each.text}")
            if each.ended_task and (last := read_last_line(session, each.newest_allocation, each.ended_task)):
                session.print_text(f"    {last}")
    view.report_outcome(end.exit == ExitCode.SUCCESS, f"{job_id}: {end.text}")
    return end.task_exit_code or end.exit


class FollowInterrupted(Exception):
    """Whoever followed has had enough."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


def wait_for_evaluation(session: "Session", eval_id: str, namespace: str) -> "Evaluation":
    """Until it is decided."""
    answer = session.client.evaluations.read(eval_id, namespace=namespace)
    while answer.value.status == "pending":
        answer = session.client.evaluations.read(
            eval_id, namespace=namespace, index=answer.index, wait_s=EVALUATION_WAIT_S
        )
    return answer.value


def follow_submission(
    session: Session, job_id: str, eval_id: str, *, namespace: str, should_detach: bool, should_follow: bool
) -> None:
    """Ends the command with the code that tells how it went."""

    if should_detach:
        if eval_id:
            click.echo(f"evaluation {session.shorten_id(eval_id)}")
        return
    if not should_follow and not session.is_terminal:
        report_evaluation(session, eval_id, namespace)
        return
    version = session.client.jobs.read(job_id, namespace=namespace).value.version
    try:
        code = follow_job(session, job_id, namespace, version)
    except FollowInterrupted:
        click.echo(f"{job_id} goes on without you; `wharf job status {job_id}` shows how it stands", err=True)
        raise click.exceptions.Exit(INTERRUPTED_EXIT_CODE) from None
    if code:
        raise click.exceptions.Exit(code)


def report_evaluation(session: Session, eval_id: str, namespace: str) -> None:
    """Until the scheduler has decided. What it could not place is told, and is exit code 2."""
    from wharf.cli.common.failures import render_unplaced_groups
    from wharf.cli.job.progress import ExitCode

    if not eval_id:
        return
    try:
        evaluation = wait_for_evaluation(session, eval_id, namespace)
    except KeyboardInterrupt:
        click.echo(f"evaluation {session.shorten_id(eval_id)} goes on without you", err=True)
        raise click.exceptions.Exit(INTERRUPTED_EXIT_CODE) from None
    click.echo(f"evaluation {session.shorten_id(eval_id)} is {evaluation.status}")
    if evaluation.failed_tg_allocs:
        click.echo("Not placed, until there is room:")
        for line in render_unplaced_groups(evaluation.failed_tg_allocs):
            click.echo(f"  {line}")
        raise click.exceptions.Exit(ExitCode.NOT_PLACED)
    if evaluation.status == "failed":
        raise CliError(f"evaluation {session.shorten_id(eval_id)} failed: {evaluation.status_description}")
