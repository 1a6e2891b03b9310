"""`wharf flow status`: the steps of a run, once or live until its end."""

import shutil
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.options import INTERRUPTED_EXIT_CODE
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.flow.selection import find_run, run_argument
from wharf.contract.model.times import format_rounded_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.model.jobs.run_views import RunView

POLL_WAIT_S: Final = 1.0
"""How long one blocking query waits, so that durations on a terminal move."""
FAILED_EXIT_CODE: Final = 1
"""The exit code for a run that failed without an exit code of a task, or was canceled."""
MAX_ALLOCATIONS_READ: Final = 1_000
"""Allocations, the newest ones, in which the exit code of the failed step is searched."""


@click.command(cls=ServerCommand)
@run_argument
@click.option("--follow", is_flag=True, help="Show changes until the run ends, and exit with its exit code.")
def status(session: Session, run_id: str, follow: bool) -> None:
    """Show the steps of a run in layers, what each waits for or how it ended, and the critical path.

    RUN is a job with steps. If it is a flow, the run with the latest slot of its schedule is shown, or else the newest one.
    Steps of the critical path have a star: they took the time of the run up to now. With --follow, the exit code is that of
    the first step that failed.

    wharf flow status nightly --follow
    """
    found_id, namespace = find_run(session, run_id)
    if follow:
        exit_with(follow_run(session, found_id, namespace))
        return
    from wharf.cli.flow.run_view import render_run

    run = session.client.flows.read_run(found_id, namespace=namespace).value
    session.print_result(run, lambda: render_run(session, run))


def exit_with(code: int) -> None:
    """End the command with this exit code, unless it is 0."""
    if code:
        raise click.exceptions.Exit(code)


def follow_run(session: Session, run_id: str, namespace: str) -> int:
    """Show a run until it has ended; return the exit code of the command."""
    from wharf.cli.common.outages import Outage

    outage = Outage(session, f"run {run_id} continues (`wharf flow status {run_id}` shows its state)")
    view = _LiveView(session) if session.is_terminal and not session.is_machine_readable else _LineView(session)
    with view:
        try:
            response = outage.call(lambda: session.client.flows.read_run(run_id, namespace=namespace))
            view.update(response.value)
            while not response.value.status.has_ended:
                index = response.index
                response = outage.call(
                    lambda index=index: session.client.flows.read_run(  # type: ignore[misc]
                        run_id, namespace=namespace, index=index, wait_s=POLL_WAIT_S
                    )
                )
                view.update(response.value)
        except KeyboardInterrupt:
            view.stop()
            print_notice(f"stopped watching; run {run_id} continues (`wharf flow status {run_id}` shows its state)")
            raise click.exceptions.Exit(INTERRUPTED_EXIT_CODE) from None
    run = response.value
    session.print_text(_describe_outcome(run))
    if session.is_machine_readable:
        session.print_result(run, str)
    return find_exit_code(session, run)


def _describe_outcome(run: "RunView") -> str:
    from wharf.cli.common.terminal import style

    mark = style("✓", fg="green", bold=True) if run.is_success else style("✗", fg="red", bold=True)
    return f"{mark} {run.job_id}: {run.text}{advise_retry(run)}"


def advise_retry(run: "RunView") -> str:
    """Return what runs a run again that has ended, as the end of a sentence; empty if a retry would run nothing."""
    if run.has_unsuccessful_steps and not run.is_success:
        return f"; `wharf flow retry {run.job_id}` runs it again from there"
    if not run.unmet_jobs:
        return ""
    return (
        f"; a retry is skipped again until {', '.join(run.unmet_jobs)} ended as Depends requires: run that first, "
        f"then `wharf flow retry {run.job_id}`"
    )


def find_exit_code(session: Session, run: "RunView") -> int:
    """Return the exit code of a run that has ended: 0, that of the first step that failed, or 1."""
    if run.is_success:
        return 0
    if run.first_failed_step is None:
        return FAILED_EXIT_CODE
    allocations = session.client.jobs.allocations(
        run.job_id, newest=MAX_ALLOCATIONS_READ, namespace=run.namespace
    ).value
    return find_failed_code(run, allocations) or FAILED_EXIT_CODE


def find_failed_code(run: "RunView", allocations: "Iterable[AllocationStub]") -> int:
    """Return the exit code of the first step of a run that failed, from its allocations; 0 if they have none in common."""
    from wharf.cli.common.failures import find_common_exit_code

    first = run.first_failed_step
    return find_common_exit_code(
        each
        for each in allocations
        if first is not None and each.task_group == first.name and each.client_status in ("failed", "lost")
    )


class _LiveView:
    """The display of a run that is updated in place on a terminal."""

    def __init__(self, session: Session) -> None:
        from wharf.cli.common.live_text import LiveText

        self._session = session
        self._live = LiveText()

    def __enter__(self) -> None:
        self._live.__enter__()

    def __exit__(self, *_error: object) -> None:
        self._live.stop()

    def update(self, run: "RunView") -> None:
        from wharf.cli.flow.run_view import MIN_STEP_ROWS, SURROUNDING_LINES, render_run

        rows = max(MIN_STEP_ROWS, shutil.get_terminal_size().lines - SURROUNDING_LINES)
        self._live.update(render_run(self._session, run, max_steps=rows))

    def stop(self) -> None:
        self._live.stop()


class _LineView:
    """Prints a line for each change of a step, for output that is not a terminal."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._previous: RunView | None = None
        self._began_ns = session.now_ns()

    def __enter__(self) -> None:
        return

    def __exit__(self, *_error: object) -> None:
        return

    def update(self, run: "RunView") -> None:
        from wharf.cli.flow.run_view import list_changes, list_questions

        elapsed = format_rounded_duration(self._session.now_ns() - self._began_ns)
        for line in list_changes(self._previous, run):
            self._session.print_text(f"{elapsed:>6}  {line}")
        questions = list_questions(self._session, run)
        former = len(list_questions(self._session, self._previous)) if self._previous is not None else 0
        if len(questions) > former:
            for line in questions:
                self._session.print_text(f"{'':>6}  {line}")
        self._previous = run

    def stop(self) -> None:
        return
