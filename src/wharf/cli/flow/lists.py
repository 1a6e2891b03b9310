"""`wharf flow list`: flows and runs."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.completion import complete_jobs
from wharf.cli.flow.selection import sort_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wharf.contract.model.jobs.run_views import FlowStub, RunStub

DEFAULT_RUNS: Final = 20
"""Runs that the list shows without `--all`, the newest ones; keeps the output short."""


@click.command("list", cls=ServerCommand)
@click.argument("flow_id", metavar="[FLOW]", required=False, shell_complete=complete_jobs)
@click.option("--all", "is_all", is_flag=True, help=f"All runs, not only the newest {DEFAULT_RUNS}.")
def list_(session: Session, flow_id: str | None, is_all: bool) -> None:
    """List flows, and the newest runs. With FLOW, list the runs of this flow.

    A flow is a periodic or parameterized job with steps. Each launch of it is a run; so is each other job with steps.

    wharf flow list nightly
    """
    flows = session.client.flows.list().value if flow_id is None else []
    if flow_id is not None:
        flow_id = _require_flow(session, flow_id)
    runs = session.client.flows.list_runs(flow=flow_id or "").value
    newest = sort_runs(runs)
    if not is_all:
        newest = newest[:DEFAULT_RUNS]
    if flow_id is not None:
        session.print_result(newest, lambda: render_runs(session, newest, total=len(runs)))
        return
    if not flows and not runs:
        session.require_namespace()
    session.print_result(
        {"Flows": flows, "Runs": newest}, lambda: _render_overview(session, flows, newest, total=len(runs))
    )


def _require_flow(session: Session, query: str) -> str:
    """Return the ID of the flow that the user means. Raises CliError."""
    from wharf.cli.common.lookup import find_job

    found = find_job(session, query)
    if not found.periodic and not found.parameterized_job:
        raise CliError(f"{found.id} is no flow, but a single job; `wharf flow status {found.id}` shows its steps")
    return found.id


def _render_overview(session: Session, flows: "Sequence[FlowStub]", runs: "Sequence[RunStub]", *, total: int) -> str:
    from wharf.cli.common.rendering import render_section

    if not flows and not runs:
        return "No flows and no runs yet; `wharf job run FILE` submits a job with steps."
    parts = [render_section("Flows", render_flows(session, flows))] if flows else []
    parts.append(render_section("Runs", render_runs(session, runs, total=total)))
    return "\n".join(parts).lstrip("\n")


def render_flows(session: Session, flows: "Sequence[FlowStub]") -> str:
    """Return the table of flows."""
    from wharf.cli.common.rendering import render_table

    rows = [
        (
            flow.job_id,
            "stopped" if flow.stop else "by schedule" if flow.is_periodic else "by dispatch",
            flow.overlap or "-",
            flow.waiting,
            flow.running,
            flow.ended,
            flow.latest.status if flow.latest is not None else "-",
            session.format_time(flow.latest.created_at) if flow.latest is not None else "-",
        )
        for flow in flows
    ]
    titles = ("Flow", "Launched", "Overlap", "Waiting", "Running", "Ended", "Newest", "Launched at")
    return render_table(titles, rows, optional_columns=("Overlap", "Launched at"), shortenable_columns=("Flow",))


def render_runs(session: Session, runs: "Sequence[RunStub]", *, total: int) -> str:
    """Return the table of runs, newest first."""
    from wharf.cli.common.rendering import render_table, style_dim

    if not runs:
        return "No runs yet."
    rows = [
        (run.job_id, run.status, _format_steps(run), session.format_time(run.created_at), _format_duration(session, run), _format_message(run))
        for run in runs
    ]  # fmt: skip
    table = render_table(
        ("Run", "State", "Steps ended", "Begun", "Took", "Message"),
        rows,
        optional_columns=("Took", "Steps ended"),
        shortenable_columns=("Run",),
    )
    more = style_dim(f"… and {total - len(runs)} older ones; --all lists them")
    return f"{table}\n{more}" if total > len(runs) else table


def _format_steps(run: "RunStub") -> str:
    """Return how many steps have ended, such as `3/5`."""
    counts = run.counts
    return f"{counts.succeeded + counts.failed + counts.skipped + counts.canceled}/{run.step_count}"


def _format_duration(session: Session, run: "RunStub") -> str:
    from wharf.contract.model.times import format_rounded_duration

    end = run.ended_at if run.status.has_ended else session.now_ns()
    return format_rounded_duration(max(0, end - run.created_at)) if run.created_at and end else "-"


def _format_message(run: "RunStub") -> str:
    """Return the text of a run, unless its state says the same."""
    return "" if run.text == run.status else run.text.removeprefix(f"{run.status}: ")
