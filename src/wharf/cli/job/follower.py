"""Follows a change of a job: waits for its evaluation, shows progress until the outcome, and sets the exit code.

Following has an end (decision 161): the outcome, a time without progress, or an outage of the servers.
"""

from functools import partial
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.options import INTERRUPTED_EXIT_CODE, FollowOptions
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import Session
from wharf.cli.common.times import NS_PER_SECOND
from wharf.cli.job.change_report import ChangeReport
from wharf.cli.job.progress import (
    DELETED_TEXT,
    ExitCode,
    JobDeleted,
    JobOutcome,
    fetch_next_progress,
    fetch_progress,
    find_outcome,
    read_job,
)
from wharf.contract.model.times import format_rounded_duration

if TYPE_CHECKING:
    from collections.abc import Hashable

    from wharf.cli.common.outages import Outage
    from wharf.cli.job.progress import JobProgress
    from wharf.contract.model.evaluations import Evaluation

OUTCOME_NAMES: Final = {
    ExitCode.SUCCESS: "success",
    ExitCode.FAILED: "failed",
    ExitCode.NOT_PLACED: "not-placed",
    ExitCode.NO_PROGRESS: "no-progress",
}
"""Exit codes of commands that follow a job, with the field `Outcome` of their reports."""
POLL_WAIT_S: Final = 1.0
"""How long one blocking query waits, so that the display is updated at least this often."""
EVALUATION_NOTICE_S: Final = 1.0
"""A command that has waited for an evaluation for this long says why it is pending."""
EVALUATION_WAIT_S: Final = 10.0
"""How long one later blocking query for an evaluation waits."""
DEFAULT_PROGRESS_TIMEOUT_S: Final = 900.0
"""How long commands without the option `--progress-timeout` wait for a pending evaluation; equal to its default."""
EXPLAIN_AFTER_S: Final = 10.0
"""A job that has made no progress for this long is explained. Most jobs need less for each step."""
EXPLAIN_INTERVAL_S: Final = 30.0
"""How often it is explained again. Protects servers, which examine all nodes for an explanation."""


def follow_job(
    session: "Session", job_id: str, namespace: str, version: int, report: ChangeReport, *, progress_timeout_s: float
) -> int:
    """Show a job's progress until it succeeds or fails; return the exit code. Raises FollowInterrupted on Ctrl-C.

    On a terminal the display is updated in place; otherwise each change is a line. The outcome is added to the report. Ends also
    after the time without progress; 0 is no limit. Raises CliError if the servers do not reply for too long.
    """
    from wharf.cli.common.outages import Outage
    from wharf.cli.job.progress_view import LineProgressView, LiveProgressView

    is_live = session.is_terminal and not session.is_machine_readable
    view = LiveProgressView(session) if is_live else LineProgressView(session)
    outage = Outage(session, _format_continuation(job_id))
    standstill = Standstill(session, job_id, namespace, progress_timeout_s)
    start_ns = session.now_ns()
    progress: JobProgress | None = None
    with view:
        try:
            progress = outage.call(lambda: fetch_progress(session, job_id, namespace, version))
            while (outcome := find_outcome(progress) or standstill.find_outcome(progress)) is None:
                view.update(progress, session.now_ns() - start_ns, standstill.explain(progress))
                progress = outage.call(partial(fetch_next_progress, session, progress, wait_s=POLL_WAIT_S))
            view.update(progress, session.now_ns() - start_ns)
        except JobDeleted:
            outcome = JobOutcome(ExitCode.FAILED, DELETED_TEXT)
        except KeyboardInterrupt:
            view.stop()
            raise FollowInterrupted(job_id) from None
    view.report_outcome(outcome.exit == ExitCode.SUCCESS, f"{job_id}: {outcome.text}")
    code = outcome.task_exit_code or outcome.exit
    report.add_outcome(OUTCOME_NAMES[outcome.exit], outcome.text, code)
    if progress is not None:
        report.failures = [failure.text for failure in progress.failures]
        report.deployment_id = progress.deployment.id if progress.deployment is not None else ""
    return code


class Standstill:
    """The time for which a followed job has made no progress; what it waits for, and when the command gives up."""

    def __init__(self, session: "Session", job_id: str, namespace: str, limit_s: float) -> None:
        """`limit_s`: 0 is no limit."""
        self._session = session
        self._job_id = job_id
        self._namespace = namespace
        self._limit_s = limit_s
        self._steps: Hashable = None
        self._began_s = self._began_counting_s = self._explained_s = session.world.monotonic_s()
        self._explanation = ""

    def find_outcome(self, progress: "JobProgress") -> JobOutcome | None:
        """Return the outcome if the job has made no progress for the limit, else None. Call it for each new progress."""
        now_s = self._session.world.monotonic_s()
        if progress.steps != self._steps:
            self._steps = progress.steps
            self._began_s = self._began_counting_s = self._explained_s = now_s
            self._explanation = ""
        if progress.has_own_deadline(self._session.now_ns()):
            self._began_counting_s = now_s
        if not self._limit_s or now_s - self._began_counting_s < self._limit_s:
            return None
        from wharf.cli.common.failures import describe_waiting_elements
        from wharf.cli.job.progress import describe_way_back

        array_names = {each.group for each in progress.arrays}
        missing = sum(
            metric.coalesced_failures + 1 for name, metric in progress.unplaced.items() if name not in array_names
        )
        elements = sum(each.counts.waiting for each in progress.arrays if each.group in progress.unplaced)
        duration = format_rounded_duration(round(self._limit_s * NS_PER_SECOND))
        counts = f"; {missing} not placed" if missing else ""
        counts += f"; {describe_waiting_elements(elements)}" if elements else ""
        return JobOutcome(
            ExitCode.NOT_PLACED if missing or elements else ExitCode.NO_PROGRESS,
            f"no progress for {duration}{counts}; stopped watching; the job stays submitted: "
            f"`wharf job explain {self._job_id}` shows what it waits for, `wharf job stop {self._job_id}` stops it"
            f"{describe_way_back(progress)}",
        )

    def explain(self, progress: "JobProgress") -> str:
        """Return what the job waits for; empty for the first `EXPLAIN_AFTER_S`, and if the progress shows it."""
        now_s = self._session.world.monotonic_s()
        is_shown = (bool(progress.unplaced) and progress.is_evaluated) or progress.is_awaiting_promotion
        if is_shown or (progress.is_batch and progress.has_own_deadline(self._session.now_ns())):
            return ""
        interval_s = EXPLAIN_INTERVAL_S if self._explanation else EXPLAIN_AFTER_S
        if now_s - self._explained_s >= interval_s:
            self._explained_s = now_s
            self._explanation = fetch_explanation_text(self._session, self._job_id, self._namespace)
        return self._explanation


def fetch_explanation_text(session: "Session", job_id: str, namespace: str) -> str:
    """Return the sentence of `wharf job explain`; empty if the server does not explain."""
    from wharf.contract.client import Unreachable
    from wharf.contract.model.refusal import Refusal

    try:
        return session.client.jobs.explain(job_id, namespace=namespace).value.text
    except (Refusal, Unreachable):
        return ""


class FollowInterrupted(Exception):
    """The user stopped following a job with Ctrl-C. The job itself continues."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


def _format_continuation(job_id: str) -> str:
    return f"job {job_id} keeps running (`wharf job status {job_id}` shows its state)"


def wait_for_evaluation(session: "Session", eval_id: str, namespace: str) -> "Evaluation":
    """Wait until an evaluation is no longer pending, and return it. If it was replaced, wait for the replacement instead.

    After a second, print why it is pending. Raises CliError if it or its replacement is still pending after
    `DEFAULT_PROGRESS_TIMEOUT_S`, or if the servers do not reply for too long.
    """
    deadline_s = session.world.monotonic_s() + DEFAULT_PROGRESS_TIMEOUT_S
    evaluation = _wait_while_pending(session, eval_id, namespace, deadline_s)
    while evaluation.status == "canceled" and (replacement := _find_replacement(session, evaluation)) is not None:
        replaced_id, short_id = session.shorten_id(evaluation.id), session.shorten_id(replacement.id)
        session.print_text(f"evaluation {replaced_id} was replaced by evaluation {short_id}")
        evaluation = _wait_while_pending(session, replacement.id, namespace, deadline_s)
    return evaluation


def _find_replacement(session: "Session", canceled: "Evaluation") -> "Evaluation | None":
    """Return the evaluation that did the work of a canceled one, or None.

    The scheduler processes one evaluation of a job, and cancels the others in the write that stores its result. So the
    replacement existed before this write, and was changed in it.
    """
    outage = _create_outage(session, canceled.id)
    response = outage.call(lambda: session.client.jobs.evaluations(canceled.job_id, namespace=canceled.namespace))
    candidates = [
        each
        for each in response.value
        if each.status != "canceled" and each.create_index < canceled.modify_index <= each.modify_index
    ]
    return min(candidates, key=lambda each: each.modify_index, default=None)


def _create_outage(session: "Session", eval_id: str) -> "Outage":
    """Return an outage whose error says that the evaluation continues."""
    from wharf.cli.common.outages import Outage

    short_id = session.shorten_id(eval_id)
    return Outage(session, f"evaluation {short_id} continues (`wharf eval status {short_id}` shows its state)")


def _wait_while_pending(session: "Session", eval_id: str, namespace: str, deadline_s: float) -> "Evaluation":
    """Wait until an evaluation is no longer pending, and return it. Raises CliError if it is still pending at the deadline."""
    short_id = session.shorten_id(eval_id)
    outage = _create_outage(session, eval_id)
    response = outage.call(lambda: session.client.evaluations.read(eval_id, namespace=namespace))
    wait_s, reason = EVALUATION_NOTICE_S, ""
    while response.value.status == "pending":
        if session.world.monotonic_s() >= deadline_s:
            raise CliError(
                f"evaluation {short_id} is still pending after "
                f"{format_rounded_duration(round(DEFAULT_PROGRESS_TIMEOUT_S * NS_PER_SECOND))}; stopped watching; "
                f"`wharf eval explain {short_id}` shows what it waits for",
                exit_code=ExitCode.NO_PROGRESS,
            )
        response = outage.call(
            partial(session.client.evaluations.read, eval_id, namespace=namespace, index=response.index, wait_s=wait_s)
        )
        wait_s = EVALUATION_WAIT_S
        if response.value.status == "pending":
            new_reason = _fetch_evaluation_reason(session, eval_id, namespace)
            if new_reason != reason:
                print_notice(f"waiting for evaluation {short_id}: {new_reason}; Ctrl-C stops watching")
            reason = new_reason
    return response.value


def _fetch_evaluation_reason(session: "Session", eval_id: str, namespace: str) -> str:
    """Return what an evaluation waits for: the sentence of `wharf eval explain`, or its state if there is none."""
    from wharf.contract.client import Unreachable
    from wharf.contract.model.refusal import Refusal

    try:
        explanation = session.client.evaluations.explain(eval_id, namespace=namespace).value
    except (Refusal, Unreachable):
        return "it is pending"
    return "; ".join(wait.text for wait in explanation.waits) or explanation.text or "it is pending"


def follow_submission(session: Session, report: ChangeReport, following: FollowOptions) -> None:
    """Show a job's progress after a change, print the report if requested, and exit with the code of the outcome.

    With `--detach`, only print the evaluation. Without a terminal and without `--follow`, wait only until the scheduler has
    processed the evaluation. Called as `nomad`, follow services and no other jobs, as Nomad does.
    """
    code = _follow_change(session, report, following)
    report.print_result(session)
    if code:
        raise click.exceptions.Exit(code)


def _follow_change(session: Session, report: ChangeReport, following: FollowOptions) -> int:
    """Follow a change as `follow_submission` describes it, and return the exit code."""
    from wharf.contract.model.jobs.job import JobType

    job_id, namespace = report.job_id, report.namespace
    if following.detach or not report.eval_id:
        if report.eval_id:
            session.print_text(f"evaluation {session.shorten_id(report.eval_id)}")
        return 0
    if not following.follow and not session.is_terminal and not session.is_nomad:
        return await_evaluation(session, report)
    job = read_job(session, job_id, namespace)
    if session.is_nomad and not following.follow and job.type != JobType.SERVICE:
        return await_evaluation(session, report)
    try:
        timeout_s = following.progress_timeout_s
        return follow_job(session, job_id, namespace, job.version, report, progress_timeout_s=timeout_s)
    except FollowInterrupted:
        print_notice(f"stopped watching; {_format_continuation(job_id)}")
        raise click.exceptions.Exit(INTERRUPTED_EXIT_CODE) from None


def finish_change(session: Session, report: ChangeReport, *, should_detach: bool) -> None:
    """Wait until the scheduler has processed the evaluation of a change, if it has one, and print the result.

    With `should_detach`, only print the report for programs. Exits with code 2 if not everything was placed, and raises
    CliError if the evaluation failed.
    """
    code = await_evaluation(session, report) if report.eval_id and not should_detach else 0
    report.print_result(session)
    if code:
        raise click.exceptions.Exit(code)


def await_evaluation(session: Session, report: ChangeReport) -> int:
    """Wait until the scheduler has processed the evaluation of a change, print the result and add it to the report.

    Returns code 2 if not everything was placed, and raises CliError if the evaluation failed.
    """
    from wharf.cli.common.failures import describe_unplaced, fetch_explanations, render_unplaced_groups

    try:
        evaluation = wait_for_evaluation(session, report.eval_id, report.namespace)
    except KeyboardInterrupt:
        print_notice(f"stopped watching; evaluation {session.shorten_id(report.eval_id)} continues")
        raise click.exceptions.Exit(INTERRUPTED_EXIT_CODE) from None
    short_id = session.shorten_id(evaluation.id)
    report.eval_id, report.deployment_id = evaluation.id, evaluation.deployment_id
    session.print_text(f"evaluation {short_id} is {evaluation.status}")
    if evaluation.failed_tg_allocs:
        title = describe_unplaced(evaluation.failed_tg_allocs)
        explanations = fetch_explanations(session, evaluation.job_id, report.namespace)
        lines = render_unplaced_groups(evaluation.failed_tg_allocs, explanations)
        session.print_text("\n".join([f"{title}:", *(f"  {line}" for line in lines)]))
        report.add_outcome(OUTCOME_NAMES[ExitCode.NOT_PLACED], title, ExitCode.NOT_PLACED)
        report.failures = [click.unstyle(line).strip() for line in lines]
        return ExitCode.NOT_PLACED
    if evaluation.status == "failed":
        raise CliError(f"evaluation {short_id} failed: {evaluation.status_description}")
    report.add_outcome("evaluated", f"evaluation {short_id} is {evaluation.status}", 0)
    return 0
