"""`wharf eval`: lists, shows and explains evaluations."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.completion import complete_evaluations
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from wharf.contract.model.evaluations import Evaluation, EvaluationStub

MODULE: Final = "wharf.cli.evaluation"
COMMANDS: Final = {
    "list": CommandEntry(MODULE, "list_", "List evaluations, the newest first."),
    "status": CommandEntry(MODULE, "status", "Show an evaluation: its result, and why groups were not placed."),
    "explain": CommandEntry(MODULE, "explain", "Explain why an evaluation was created, and what it waits for."),
}


@click.group("eval", cls=LazyGroup, entries=COMMANDS)
def evaluation() -> None:
    """Show evaluations and the decisions of the scheduler."""


@click.command("list", cls=ServerCommand)
@click.option("--job", default="", help="Only evaluations of this job.")
@click.option(
    "--status", "status", default="", help="Only this status: pending, blocked, complete, failed or canceled."
)
@click.option("--filter", "expression", default="", help="Only evaluations that match.")
@click.option("--per-page", type=click.IntRange(1), default=50, show_default=True, help="Evaluations on one page.")
@click.option("--page-token", default="", help="Begin of the page, as printed below the previous page.")
def list_(session: Session, job: str, status: str, expression: str, per_page: int, page_token: str) -> None:
    """List evaluations, the newest first.

    wharf eval list --job web
    """
    response = session.client.evaluations.list(
        job=job, status=status, filter=expression, per_page=per_page, next_token=page_token, reverse=True
    )
    is_filtered = bool(job or status or expression)
    session.print_result(response.value, lambda: _render_evaluations(session, response.value, is_filtered=is_filtered))
    if response.next_token:
        session.print_text(f"Next page: --page-token {response.next_token}")


@click.command(cls=ServerCommand)
@click.argument("eval_id", metavar="EVAL", shell_complete=complete_evaluations)
def status(session: Session, eval_id: str) -> None:
    """Show an evaluation: its result, and why groups were not placed.

    wharf eval status 1a2b3c4d
    """
    show_evaluation(session, eval_id)


@click.command(cls=ServerCommand)
@click.argument("eval_id", metavar="EVAL", shell_complete=complete_evaluations)
def explain(session: Session, eval_id: str) -> None:
    """Explain why an evaluation was created, and what it waits for.

    wharf eval explain 1a2b3c4d
    """
    from wharf.cli.common.explanations import render_evaluation_explanation
    from wharf.cli.common.lookup import find_evaluation

    found = find_evaluation(session, eval_id)
    explanation = session.client.evaluations.explain(found.id, namespace=found.namespace).value
    session.print_result(explanation, lambda: render_evaluation_explanation(explanation))


def show_evaluation(session: Session, eval_id: str) -> None:
    """Print the status of one evaluation."""
    from wharf.cli.common.lookup import find_evaluation

    found = find_evaluation(session, eval_id)
    evaluation = session.client.evaluations.read(found.id, related=True, namespace=found.namespace).value
    session.print_result(evaluation, lambda: _render_evaluation(session, evaluation))


def _render_evaluations(session: Session, records: "Sequence[Evaluation]", *, is_filtered: bool) -> str:
    """Return a table of evaluations in the given order."""
    from wharf.cli.common.rendering import render_no_rows, render_table

    if not records:
        return render_no_rows("evaluations", is_filtered=is_filtered)
    titles = ("ID", "Priority", "Triggered by", "Job", "Status", "Not placed", "Created")
    rows = [
        (
            session.shorten_id(evaluation.id), evaluation.priority, evaluation.triggered_by,
            evaluation.job_id or session.shorten_id(evaluation.node_id) or "-", evaluation.status,
            _count_unplaced(evaluation), session.format_time(evaluation.create_time),
        )
        for evaluation in records
    ]  # fmt: skip
    return render_table(
        titles,
        rows,
        optional_columns=("Priority", "Created"),
        shortenable_columns=() if session.is_verbose else ("Job",),
    )


def _count_unplaced(evaluation: "Evaluation") -> int:
    """Return the number of allocations that the evaluation could not place."""
    return sum(metric.coalesced_failures + 1 for metric in (evaluation.failed_tg_allocs or {}).values())


def _render_evaluation(session: Session, evaluation: "Evaluation") -> str:
    """Return the status of an evaluation: main fields, unplaced groups, allocations and related evaluations."""
    from wharf.cli.common.failures import describe_unplaced, fetch_explanations, render_unplaced_groups
    from wharf.cli.common.rendering import render_pairs, render_section, render_table

    parts = [
        render_pairs(
            [
                ("ID", evaluation.id),
                ("Status", evaluation.status),
                ("Description", evaluation.status_description),
                ("Type", evaluation.type),
                ("Triggered by", evaluation.triggered_by),
                ("Job", evaluation.job_id),
                ("Namespace", evaluation.namespace),
                ("Node", session.shorten_id(evaluation.node_id)),
                ("Deployment", session.shorten_id(evaluation.deployment_id)),
                ("Priority", evaluation.priority),
                ("Waits until", session.format_time(evaluation.wait_until) if evaluation.wait_until else ""),
                ("Created", session.format_time(evaluation.create_time)),
                ("Modified", session.format_time(evaluation.modify_time)),
            ]
        )
    ]
    if evaluation.failed_tg_allocs:
        blocked = {stub.id for stub in evaluation.related_evals or () if stub.status == "blocked"}
        is_waiting = evaluation.status == "blocked" or evaluation.blocked_eval in blocked
        title, explanations = "Not placed", {}
        if is_waiting:  # The current reasons name the drivers. Those of the placement are the words of Nomad.
            title = describe_unplaced(evaluation.failed_tg_allocs)
            explanations = fetch_explanations(session, evaluation.job_id, evaluation.namespace)
        unplaced_lines = render_unplaced_groups(evaluation.failed_tg_allocs, explanations)
        parts.append(render_section(title, "\n".join(unplaced_lines)))
    allocations = session.client.evaluations.allocations(evaluation.id, namespace=evaluation.namespace).value
    if allocations:
        from wharf.cli.common.record_tables import render_allocations

        parts.append(render_section("Allocations", render_allocations(session, allocations)))
    if evaluation.related_evals:
        rows = _build_related_rows(session, evaluation.related_evals)
        parts.append(
            render_section(
                "Related",
                render_table(("ID", "Triggered by", "Status", "Created"), rows, optional_columns=("Created",)),
            )
        )
    return "\n".join(parts)


def _build_related_rows(session: Session, records: "Sequence[EvaluationStub]") -> list[tuple[object, ...]]:
    return [
        (session.shorten_id(stub.id), stub.triggered_by, stub.status, session.format_time(stub.create_time))
        for stub in records
    ]
