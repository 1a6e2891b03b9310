"""`wharf eval`: what the scheduler was asked to look at, and what came of it."""

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
    "status": CommandEntry(MODULE, "status", "Show an evaluation: what it decided, and why work has no place."),
    "explain": CommandEntry(MODULE, "explain", "Say why a job was looked at, what came of it, and what it waits for."),
}


@click.group("eval", cls=LazyGroup, entries=COMMANDS)
def evaluation() -> None:
    """Show evaluations: what the scheduler looked at, and what it decided."""


@click.command("list", cls=ServerCommand)
@click.option("--job", default="", help="Only of this job.")
@click.option(
    "--status", "wanted", default="", help="Only those that are pending, blocked, complete, failed or canceled."
)
@click.option("--filter", "expression", default="", help="Only those that match.")
@click.option("--per-page", type=click.IntRange(1), default=50, show_default=True, help="How many.")
@click.option("--page-token", default="", help="Where to go on.")
def list_(session: Session, job: str, wanted: str, expression: str, per_page: int, page_token: str) -> None:
    """List evaluations, the newest first.

    wharf eval list --job web
    """
    answer = session.client.evaluations.list(
        job=job, status=wanted, filter=expression, per_page=per_page, next_token=page_token, reverse=True
    )
    is_chosen = bool(job or wanted or expression)
    session.print_result(answer.value, lambda: _list_told(session, answer.value, is_chosen=is_chosen))
    if answer.next_token:
        session.print_text(f"There are more: --page-token {answer.next_token}")


@click.command(cls=ServerCommand)
@click.argument("eval_id", metavar="EVAL", shell_complete=complete_evaluations)
def status(session: Session, eval_id: str) -> None:
    """Show an evaluation: what it decided, and why work has no place.

    wharf eval status 1a2b3c4d
    """
    show_evaluation(session, eval_id)


@click.command(cls=ServerCommand)
@click.argument("eval_id", metavar="EVAL", shell_complete=complete_evaluations)
def explain(session: Session, eval_id: str) -> None:
    """Say why a job was looked at, what came of it, and what it waits for.

    wharf eval explain 1a2b3c4d
    """
    from wharf.cli.common.explanations import render_evaluation_explanation
    from wharf.cli.common.lookup import find_evaluation

    found = find_evaluation(session, eval_id)
    explanation = session.client.evaluations.explain(found.id, namespace=found.namespace).value
    session.print_result(explanation, lambda: render_evaluation_explanation(explanation))


def show_evaluation(session: Session, eval_id: str) -> None:
    from wharf.cli.common.lookup import find_evaluation

    found = find_evaluation(session, eval_id)
    one = session.client.evaluations.read(found.id, related=True, namespace=found.namespace).value
    session.print_result(one, lambda: _told(session, one))


def _list_told(session: Session, records: "Sequence[Evaluation]", *, is_chosen: bool) -> str:
    from wharf.cli.common.rendering import render_no_rows, render_table

    if not records:
        return render_no_rows("evaluations", is_filtered=is_chosen)
    titles = ("ID", "Priority", "Because of", "Job", "Status", "Not placed", "Created")
    rows = [
        (
            session.shorten_id(one.id), one.priority, one.triggered_by, one.job_id or session.shorten_id(one.node_id) or "-", one.status,
            _missing(one), session.format_time(one.create_time),
        )
        for one in records
    ]  # fmt: skip
    return render_table(
        titles,
        rows,
        optional_columns=("Priority", "Created"),
        shortenable_columns=() if session.is_verbose else ("Job",),
    )


def _missing(one: "Evaluation") -> int:
    return sum(metric.coalesced_failures + 1 for metric in (one.failed_tg_allocs or {}).values())


def _told(session: Session, one: "Evaluation") -> str:
    from wharf.cli.common.failures import render_unplaced_groups
    from wharf.cli.common.rendering import render_pairs, render_section, render_table

    parts = [
        render_pairs(
            [
                ("ID", one.id),
                ("Status", one.status),
                ("Description", one.status_description),
                ("Type", one.type),
                ("Because of", one.triggered_by),
                ("Job", one.job_id),
                ("Namespace", one.namespace),
                ("Node", session.shorten_id(one.node_id)),
                ("Deployment", session.shorten_id(one.deployment_id)),
                ("Priority", one.priority),
                ("Waits", session.format_time(one.wait_until) if one.wait_until else ""),
                ("Created", session.format_time(one.create_time)),
                ("Modified", session.format_time(one.modify_time)),
            ]
        )
    ]
    if one.failed_tg_allocs:
        parts.append(render_section("Not placed", "\n".join(render_unplaced_groups(one.failed_tg_allocs))))
    placed = session.client.evaluations.allocations(one.id, namespace=one.namespace).value
    if placed:
        from wharf.cli.common.record_tables import render_allocations

        parts.append(render_section("Allocations", render_allocations(session, placed)))
    if one.related_evals:
        parts.append(
            render_section(
                "Related", render_table(("ID", "Because of", "Status", "Created"), _related(session, one.related_evals))
            )
        )
    return "\n".join(parts)


def _related(session: Session, records: "Sequence[EvaluationStub]") -> list[tuple[object, ...]]:
    return [
        (session.shorten_id(one.id), one.triggered_by, one.status, session.format_time(one.create_time))
        for one in records
    ]
