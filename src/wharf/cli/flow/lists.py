"""`wharf flow list`: flows and runs."""

import json
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.completion import complete_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wharf.contract.model.jobs.run_views import FlowStub, RunStub

DEFAULT_RUNS: Final = 20
"""Runs that the list shows without `--all`, the first ones in its order; keeps the output short."""
STATES: Final = (
    "gated", "active", "waiting", "running", "canceling", "succeeded", "failed", "canceled", "skipped",
)  # fmt: skip
"""The words of `RunState`, whose module takes long to load."""
SORTS: Final = {"newest": "newest", "changed": "changed", "name": ""}
"""The orders of runs, each with that of the API: by namespace and ID it needs no parameter."""


@click.command("list", cls=ServerCommand)
@click.argument("flow_id", metavar="[FLOW]", required=False, shell_complete=complete_jobs)
@click.option("--all", "is_all", is_flag=True, help=f"All runs, not only the first {DEFAULT_RUNS}.")
@click.option(
    "--state",
    type=click.Choice(STATES),
    help="Only runs in this state. gated: a step waits for approval; active: the run has not ended.",
)
@click.option(
    "--sort",
    type=click.Choice(tuple(SORTS)),
    default="newest",
    help="newest (default): the run that was launched last first; changed: the run that changed last first; name: by ID.",
)
@click.option("--filter", "expression", default="", help="Only runs whose job matches this expression.")
def list_(session: Session, flow_id: str | None, is_all: bool, state: str | None, sort: str, expression: str) -> None:
    """List flows, and the newest runs: those that were launched last, or as --sort has it. With FLOW, list the runs of this flow.

    A flow is a periodic or parameterized job with steps. Each launch of it is a run; so is each other job with steps.
    A run begins with its first step; until then it may wait in a queue. A retry does not change when a run began.

    wharf flow list nightly

    wharf flow list --state gated
    """
    is_overview = flow_id is None and not state and not expression
    flows = session.client.flows.list().value if is_overview else []
    if flow_id is not None:
        flow_id = _require_flow(session, flow_id)
        if expression:  # The server takes either of them.
            expression = f"ParentID == {json.dumps(flow_id)} and ({expression})"
    reply = session.client.flows.list_runs(
        flow="" if expression else flow_id or "",
        state=state or "",
        sort=SORTS[sort],
        filter=expression,
        per_page=0 if is_all else DEFAULT_RUNS,
    )
    runs, has_more = reply.value, bool(reply.next_token)
    if not is_overview:
        empty = "No such runs." if state or expression else "No runs yet."
        session.print_result(runs, lambda: render_runs(session, runs, has_more=has_more) or empty)
        return
    if not flows and not runs:
        session.require_namespace()
    document = {"Flows": flows, "Runs": runs}
    session.print_result(document, lambda: _render_overview(session, flows, runs, has_more=has_more))


def _require_flow(session: Session, query: str) -> str:
    """Return the ID of the flow that the user means. Raises CliError."""
    from wharf.cli.common.lookup import find_job

    found = find_job(session, query)
    if not found.periodic and not found.parameterized_job:
        raise CliError(f"{found.id} is no flow, but a single job; `wharf flow status {found.id}` shows its steps")
    return found.id


def _render_overview(
    session: Session, flows: "Sequence[FlowStub]", runs: "Sequence[RunStub]", *, has_more: bool
) -> str:
    from wharf.cli.common.rendering import render_section

    if not flows and not runs:
        return "No flows and no runs yet; `wharf job run FILE` submits a job with steps."
    parts = [render_section("Flows", render_flows(session, flows))] if flows else []
    parts.append(render_section("Runs", render_runs(session, runs, has_more=has_more) or "No runs yet."))
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


def render_runs(session: Session, runs: "Sequence[RunStub]", *, has_more: bool) -> str:
    """Return the table of runs; empty if there are none. `has_more`: there are further ones."""
    from wharf.cli.common.rendering import render_table, style_dim

    if not runs:
        return ""
    rows = [
        (run.job_id, run.status, _format_steps(run), session.format_time(run.began_at) if run.began_at else "-", _format_duration(session, run), _format_message(run))
        for run in runs
    ]  # fmt: skip
    table = render_table(
        ("Run", "State", "Steps ended", "Begun", "Took", "Message"),
        rows,
        optional_columns=("Took", "Steps ended"),
        shortenable_columns=("Run",),
    )
    return f"{table}\n{style_dim('… and more; --all lists them')}" if has_more else table


def _format_steps(run: "RunStub") -> str:
    """Return how many steps have ended, such as `3/5`."""
    counts = run.counts
    return f"{counts.succeeded + counts.failed + counts.skipped + counts.canceled}/{run.step_count}"


def _format_duration(session: Session, run: "RunStub") -> str:
    from wharf.contract.model.times import format_rounded_duration

    end = run.ended_at if run.status.has_ended else session.now_ns()
    return format_rounded_duration(max(0, end - run.began_at)) if run.began_at and end else "-"


def _format_message(run: "RunStub") -> str:
    """Return the text of a run, unless its state says the same."""
    return "" if run.text == run.status else run.text.removeprefix(f"{run.status}: ")
