"""Follows a change of a job: waits for its evaluation, shows progress until the outcome, and sets the exit code."""

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
"""How long one blocking query waits, so that the display is updated at least this often."""
EVALUATION_WAIT_S: Final = 10.0
"""How long one blocking query for an evaluation waits."""


def follow_job(session: "Session", job_id: str, namespace: str, version: int) -> int:
    """Show a job's progress until it succeeds or fails; return the exit code. Raises FollowInterrupted on Ctrl-C.

    On a terminal the display is updated in place; otherwise each change is a line.
    """
    from wharf.cli.common.failures import read_last_line, summarize_failures
    from wharf.cli.job.progress_view import LineProgressView, LiveProgressView

    view = LiveProgressView(session) if session.is_terminal else LineProgressView(session)
    start_ns = session.now_ns()
    with view:
        try:
            progress = fetch_progress(session, job_id, namespace, version)
            while (outcome := find_outcome(progress)) is None:
                view.update(progress, session.now_ns() - start_ns)
                session.client.jobs.allocations(
                    job_id, namespace=namespace, index=progress.snapshot_index, wait_s=POLL_WAIT_S
                )
                progress = fetch_progress(session, job_id, namespace, version, previous=progress)
            view.update(progress, session.now_ns() - start_ns)
        except KeyboardInterrupt:
            view.stop()
            raise FollowInterrupted(job_id) from None
    if outcome.exit == ExitCode.FAILED and not session.is_machine_readable:
        view.stop()
        for failure in summarize_failures(progress.current_allocations):
            session.print_text(f"  {failure.text}")
            if failure.ended_task and (
                last_line := read_last_line(session, failure.newest_allocation, failure.ended_task)
            ):
                session.print_text(f"    {last_line}")
    view.report_outcome(outcome.exit == ExitCode.SUCCESS, f"{job_id}: {outcome.text}")
    return outcome.task_exit_code or outcome.exit


class FollowInterrupted(Exception):
    """The user stopped following a job with Ctrl-C. The job itself continues."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


def wait_for_evaluation(session: "Session", eval_id: str, namespace: str) -> "Evaluation":
    """Wait until an evaluation is no longer pending, and return it."""
    response = session.client.evaluations.read(eval_id, namespace=namespace)
    while response.value.status == "pending":
        response = session.client.evaluations.read(
            eval_id, namespace=namespace, index=response.index, wait_s=EVALUATION_WAIT_S
        )
    return response.value


def follow_submission(
    session: Session, job_id: str, eval_id: str, *, namespace: str, should_detach: bool, should_follow: bool
) -> None:
    """Show a job's progress after a change, and exit with the code of the outcome.

    With `should_detach`, only print the evaluation. Without a terminal and without `should_follow`, wait only until the
    scheduler has processed the evaluation.
    """
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
        click.echo(
            f"stopped watching; job {job_id} keeps running (`wharf job status {job_id}` shows its state)", err=True
        )
        raise click.exceptions.Exit(INTERRUPTED_EXIT_CODE) from None
    if code:
        raise click.exceptions.Exit(code)


def report_evaluation(session: Session, eval_id: str, namespace: str) -> None:
    """Wait until the scheduler has processed an evaluation, and print the result.

    Exits with code 2 if not everything was placed, and raises CliError if the evaluation failed. An empty `eval_id`
    does nothing.
    """
    from wharf.cli.common.failures import fetch_explanations, render_unplaced_groups
    from wharf.cli.job.progress import ExitCode

    if not eval_id:
        return
    try:
        evaluation = wait_for_evaluation(session, eval_id, namespace)
    except KeyboardInterrupt:
        click.echo(f"stopped watching; evaluation {session.shorten_id(eval_id)} continues", err=True)
        raise click.exceptions.Exit(INTERRUPTED_EXIT_CODE) from None
    click.echo(f"evaluation {session.shorten_id(eval_id)} is {evaluation.status}")
    if evaluation.failed_tg_allocs:
        click.echo("Not placed, waiting for capacity:")
        explanations = fetch_explanations(session, evaluation.job_id, namespace)
        for line in render_unplaced_groups(evaluation.failed_tg_allocs, explanations):
            click.echo(f"  {line}")
        raise click.exceptions.Exit(ExitCode.NOT_PLACED)
    if evaluation.status == "failed":
        raise CliError(f"evaluation {session.shorten_id(eval_id)} failed: {evaluation.status_description}")
