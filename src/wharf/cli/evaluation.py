"""`wharf eval`: what the scheduler was asked to look at, and what came of it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.completing import complete_evaluations
from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Speaking, Talk

if TYPE_CHECKING:
    from wharf.model.evaluation import Evaluation, EvaluationStub

HERE: Final = "wharf.cli.evaluation"
COMMANDS: Final = {
    "list": Entry(HERE, "list_", "List evaluations, the newest first."),
    "status": Entry(HERE, "status", "Show an evaluation: what it decided, and why work has no place."),
    "explain": Entry(HERE, "explain", "Say why a job was looked at, what came of it, and what it waits for."),
}


@click.group("eval", cls=LazyGroup, entries=COMMANDS)
def evaluation() -> None:
    """Show evaluations: what the scheduler looked at, and what it decided."""


@click.command("list", cls=Speaking)
@click.option("--job", default="", help="Only of this job.")
@click.option(
    "--status", "wanted", default="", help="Only those that are pending, blocked, complete, failed or canceled."
)
@click.option("--filter", "expression", default="", help="Only those that match.")
@click.option("--per-page", type=click.IntRange(1), default=50, show_default=True, help="How many.")
@click.option("--page-token", default="", help="Where to go on.")
def list_(talk: Talk, job: str, wanted: str, expression: str, per_page: int, page_token: str) -> None:
    """List evaluations, the newest first.

    wharf eval list --job web
    """
    answer = talk.client.evaluations.list(
        job=job, status=wanted, filter=expression, per_page=per_page, next_token=page_token, reverse=True
    )
    is_chosen = bool(job or wanted or expression)
    talk.show(answer.value, lambda: _list_told(talk, answer.value, is_chosen=is_chosen))
    if answer.next_token:
        talk.say(f"There are more: --page-token {answer.next_token}")


@click.command(cls=Speaking)
@click.argument("eval_id", metavar="EVAL", shell_complete=complete_evaluations)
def status(talk: Talk, eval_id: str) -> None:
    """Show an evaluation: what it decided, and why work has no place.

    wharf eval status 1a2b3c4d
    """
    show_evaluation(talk, eval_id)


@click.command(cls=Speaking)
@click.argument("eval_id", metavar="EVAL", shell_complete=complete_evaluations)
def explain(talk: Talk, eval_id: str) -> None:
    """Say why a job was looked at, what came of it, and what it waits for.

    wharf eval explain 1a2b3c4d
    """
    from wharf.cli.explaining import evaluation_told
    from wharf.cli.finding import find_evaluation

    found = find_evaluation(talk, eval_id)
    explanation = talk.client.evaluations.explain(found.id, namespace=found.namespace).value
    talk.show(explanation, lambda: evaluation_told(explanation))


def show_evaluation(talk: Talk, eval_id: str) -> None:
    from wharf.cli.finding import find_evaluation

    found = find_evaluation(talk, eval_id)
    one = talk.client.evaluations.read(found.id, related=True, namespace=found.namespace).value
    talk.show(one, lambda: _told(talk, one))


def _list_told(talk: Talk, records: "Sequence[Evaluation]", *, is_chosen: bool) -> str:
    from wharf.cli.tables import nothing, table

    if not records:
        return nothing("evaluations", is_chosen=is_chosen)
    titles = ("ID", "Priority", "Because of", "Job", "Status", "Not placed", "Created")
    rows = [
        (
            talk.short(one.id), one.priority, one.triggered_by, one.job_id or talk.short(one.node_id) or "-", one.status,
            _missing(one), talk.when(one.create_time),
        )
        for one in records
    ]  # fmt: skip
    return table(titles, rows, spare=("Priority", "Created"), names=() if talk.verbose else ("Job",))


def _missing(one: "Evaluation") -> int:
    return sum(metric.coalesced_failures + 1 for metric in (one.failed_tg_allocs or {}).values())


def _told(talk: Talk, one: "Evaluation") -> str:
    from wharf.cli.reasons import unplaced_lines
    from wharf.cli.tables import pairs, section, table

    parts = [
        pairs(
            [
                ("ID", one.id),
                ("Status", one.status),
                ("Description", one.status_description),
                ("Type", one.type),
                ("Because of", one.triggered_by),
                ("Job", one.job_id),
                ("Namespace", one.namespace),
                ("Node", talk.short(one.node_id)),
                ("Deployment", talk.short(one.deployment_id)),
                ("Priority", one.priority),
                ("Waits", talk.when(one.wait_until) if one.wait_until else ""),
                ("Created", talk.when(one.create_time)),
                ("Modified", talk.when(one.modify_time)),
            ]
        )
    ]
    if one.failed_tg_allocs:
        parts.append(section("Not placed", "\n".join(unplaced_lines(one.failed_tg_allocs))))
    placed = talk.client.evaluations.allocations(one.id, namespace=one.namespace).value
    if placed:
        from wharf.cli.job_views import allocations_told

        parts.append(section("Allocations", allocations_told(talk, placed)))
    if one.related_evals:
        parts.append(
            section("Related", table(("ID", "Because of", "Status", "Created"), _related(talk, one.related_evals)))
        )
    return "\n".join(parts)


def _related(talk: Talk, records: "Sequence[EvaluationStub]") -> list[tuple[object, ...]]:
    return [(talk.short(one.id), one.triggered_by, one.status, talk.when(one.create_time)) for one in records]
