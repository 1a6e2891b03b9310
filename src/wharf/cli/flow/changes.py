"""`wharf flow cancel|approve|retry|backfill`: changes of runs, and launches of runs for past slots."""

import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.completion import complete_jobs
from wharf.cli.flow.selection import RunChoice, find_run_to_change, run_argument, yes_option
from wharf.cli.flow.status import exit_with, follow_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wharf.contract.wire.flows import FlowBackfillResponse, RunRetryResponse

RETRIED_STATUSES: Final = frozenset({"failed", "canceled"})
"""States of a run of a flow that `retry` chooses by the name of the flow."""
MAX_NAMED_OPEN_STEPS: Final = 3
"""Steps that have not ended and that one message names; limits its length."""

follow_run_option = click.option(
    "--follow", is_flag=True, help="Then show the run until its end; exit with its exit code."
)


@click.command(cls=ServerCommand)
@run_argument
@click.option("--text", default="", help="Why; stored with each step that is canceled.")
@click.option("--now", "at_once", is_flag=True, help="Stop the final steps too, as a second cancellation does.")
@yes_option
def cancel(session: Session, run_id: str, text: str, at_once: bool, is_confirmed: bool) -> None:
    """Cancel a run: its tasks stop, steps that wait end, and final steps run.

    A second cancellation stops the final steps too. RUN may be a flow with exactly one run that has not ended.

    wharf flow cancel nightly --text "wrong input"
    """
    choice = RunChoice("cancel", "waits or runs", lambda run: not run.status.has_ended)
    found_id, namespace = find_run_to_change(session, run_id, choice, is_confirmed=is_confirmed)
    response = session.client.flows.cancel(found_id, text=text, at_once=at_once, namespace=namespace)
    message = f"stopped run {found_id} with its final steps" if response.is_stopped else f"canceled run {found_id}"
    session.print_change(
        message, JobID=found_id, Namespace=namespace, EvalID=response.eval_id, IsStopped=response.is_stopped
    )


@click.command(cls=ServerCommand)
@run_argument
@click.argument("step", metavar="STEP", required=False, default="")
@click.option("--reject", is_flag=True, help="Reject it instead: the step fails.")
@click.option("--text", default="", help="What to store with the answer.")
@yes_option
def approve(session: Session, run_id: str, step: str, reject: bool, text: str, is_confirmed: bool) -> None:
    """Approve or reject the gate of a step.

    The gate names the ACL policy that your token needs. If it names none, you need the permission to submit jobs. RUN may be a
    flow with exactly one run that waits at this gate.

    wharf flow approve release ship --text "checked with QA"
    """
    from wharf.contract.wire.flows import AnswerKind

    if not step:
        raise CliError(f"missing step: `wharf flow status {run_id}` shows which step waits for approval")
    choice = RunChoice(
        "reject" if reject else "approve",
        f"waits for the approval of {step}",
        lambda run: run.counts.gated > 0,
        step,
    )
    found_id, namespace = find_run_to_change(session, run_id, choice, is_confirmed=is_confirmed)
    answer = AnswerKind.REJECT if reject else AnswerKind.APPROVE
    response = session.client.flows.answer(found_id, step, answer, text=text, namespace=namespace)
    verb = "rejected" if reject else "approved"
    session.print_change(
        f"{verb} step {step} of run {found_id}",
        JobID=found_id,
        Namespace=namespace,
        Step=step,
        Answer=answer.value,
        EvalID=response.eval_id,
    )


@click.command(cls=ServerCommand)
@run_argument
@click.option(
    "--from",
    "steps",
    multiple=True,
    metavar="STEP",
    help="Run this step again and all that follow it; may be repeated.",
)
@click.option("--plan", is_flag=True, help="Only show what would run again and what is kept.")
@yes_option
@follow_run_option
def retry(session: Session, run_id: str, steps: "Sequence[str]", plan: bool, is_confirmed: bool, follow: bool) -> None:
    """Run steps of a run again, in a new attempt: those that failed or were canceled, and all that follow them.

    Other steps keep their results. The run keeps its ID, and earlier attempts remain readable. RUN may be a flow
    with exactly one run that failed or was canceled.

    wharf flow retry nightly --plan

    wharf flow retry nightly --from test
    """
    choice = RunChoice("retry", "has failed or was canceled", lambda run: str(run.status) in RETRIED_STATUSES)
    found_id, namespace = find_run_to_change(session, run_id, choice, is_confirmed=is_confirmed or plan)
    response = session.client.flows.retry(found_id, steps=steps, plan=plan, namespace=namespace)
    session.print_text(_render_plan(found_id, response, is_plan=plan))
    if session.is_machine_readable and not follow:
        session.print_change("", **_build_document(found_id, namespace, response))
    if follow and response.attempt:
        exit_with(follow_run(session, found_id, namespace))


def _build_document(run_id: str, namespace: str, response: "RunRetryResponse") -> dict[str, Any]:
    return {
        "JobID": run_id,
        "Namespace": namespace,
        "Attempt": response.attempt,
        "EvalID": response.eval_id,
        "Steps": [
            {"Name": each.name, "Reason": each.reason, "ElementCount": each.element_count, "Size": each.size}
            for each in response.steps
        ],
        "KeptSteps": [
            {"Name": each.name, "Reason": each.reason, "Outcome": each.outcome} for each in response.kept_steps
        ],
    }


def _render_plan(run_id: str, response: "RunRetryResponse", *, is_plan: bool) -> str:
    """Return what runs again and what is kept, with the reason of each."""
    from wharf.cli.common.rendering import render_table

    count, total = len(response.steps), len(response.steps) + len(response.kept_steps)
    if not count:
        if waiting := _describe_open_steps(response):
            return f"{run_id} has not ended: {waiting}; no step failed or was canceled so far, so nothing runs again"
        return f"every step of {run_id} succeeded or was skipped; nothing to run again (--from STEP selects a step)"
    rows = [
        (each.name, "runs", f"{each.reason}{_describe_elements(each.element_count, each.size)}")
        for each in response.steps
    ]
    rows += [(each.name, "kept", each.reason) for each in response.kept_steps]
    table = render_table(("Step", "Retry", "Message"), rows, shortenable_columns=("Step",))
    verb = "would run" if is_plan else "running"
    head = f"{verb} {count} of {total} steps of {run_id} again"
    return f"{head}{'' if is_plan else f', as attempt {response.attempt}'}:\n{table}"


def _describe_open_steps(response: "RunRetryResponse") -> str:
    """Return what the steps of a run do that have not ended, those that wait for others last; empty if all have ended."""
    texts = [f"{each.name} {each.reason.removeprefix('it ')}" for each in response.kept_steps if each.outcome == "open"]
    texts.sort(key=lambda text: text.endswith(" waits for others"))
    more = len(texts) - MAX_NAMED_OPEN_STEPS
    return ", ".join(texts[:MAX_NAMED_OPEN_STEPS]) + (f" and {more} more" if more > 0 else "")


def _describe_elements(count: int, size: int) -> str:
    return f"; {count} of {size} elements" if count < size else ""


class _TimeType(click.ParamType[datetime.datetime]):
    """The type of an option that takes a time: a date, or a date and a time, in UTC unless it has an offset."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> datetime.datetime:
        """Return the time. Fails for any other text."""
        if isinstance(value, datetime.datetime):
            return value
        try:
            time = datetime.datetime.fromisoformat(value)
        except ValueError:
            self.fail(f'"{value}" is not a time: write it like 2026-11-20 or 2026-11-20T03:00Z', param, context)
        return time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)


@click.command(cls=ServerCommand)
@click.argument("flow_id", metavar="FLOW", shell_complete=complete_jobs)
@click.option("--from", "begin", type=_TimeType(), required=True, help="The first slot is at or after this time.")
@click.option("--to", "end", type=_TimeType(), help="The last slot is before this time.  [default: now]")
@click.option(
    "--max",
    "max_runs",
    type=click.IntRange(1, 200),
    default=50,
    show_default=True,
    help="Create at most this many runs.",
)
@click.option("--again", is_flag=True, help="Also launch slots whose runs garbage collection has deleted.")
@click.option("--plan", is_flag=True, help="Only list the slots, and which of them have no run.")
def backfill(
    session: Session,
    flow_id: str,
    begin: datetime.datetime,
    end: datetime.datetime | None,
    max_runs: int,
    again: bool,
    plan: bool,
) -> None:
    """Launch the runs of past slots of a flow's schedule, such as those before the flow existed.

    A slot that has a run is left alone, also if garbage collection has deleted the run, so the same backfill may be repeated.
    Times are in UTC, unless they have an offset. If
    the flow has Overlap, the runs begin one after the other.

    wharf flow backfill nightly --from 2026-11-01 --to 2026-11-08 --plan
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, flow_id)
    if not found.periodic:
        raise CliError(f"job {found.id} has no schedule, so it has no slots: it is not periodic")
    now = datetime.datetime.fromtimestamp(session.now_ns() // 1_000_000_000, tz=datetime.UTC)
    if begin >= now:
        raise CliError("--from lies in the future: the schedule launches these runs when they are due")
    until = end or now
    response = session.client.flows.backfill(
        found.id, begin, until, max_runs=max_runs, plan=plan, again=again, namespace=found.namespace
    )
    slots = [
        {"Time": each.time.strftime("%Y-%m-%dT%H:%M:%SZ"), "JobID": each.job_id, "Exists": each.exists}
        for each in response.slots
    ]
    session.print_change(
        _render_slots(found.id, response, is_plan=plan),
        JobID=found.id, Namespace=found.namespace, Created=0 if plan else response.created, Slots=slots,
    )  # fmt: skip


def _render_slots(flow_id: str, response: "FlowBackfillResponse", *, is_plan: bool) -> str:
    from wharf.cli.common.rendering import render_table
    from wharf.cli.common.times import format_utc_time

    if not response.slots:
        return f"the schedule of {flow_id} has no slot in this time"
    word = "would be created" if is_plan else "created"
    rows = [(format_utc_time(each.time), each.job_id, "exists" if each.exists else word) for each in response.slots]
    count = "1 run" if response.created == 1 else f"{response.created} runs"
    head = f"would create {count} of {flow_id}" if is_plan else f"created {count} of {flow_id}"
    return f"{head}:\n{render_table(('Slot', 'Run', 'Backfill'), rows)}"
