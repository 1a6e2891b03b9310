"""Commands about the cluster as a whole: its servers, its logs, what it no longer needs, and where an id leads."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from collections.abc import Callable

MODULE: Final = "wharf.cli.cluster"
SERVER_COMMANDS: Final = {"members": CommandEntry(MODULE, "members", "List the servers, and which of them leads.")}
SYSTEM_COMMANDS: Final = {
    "gc": CommandEntry(MODULE, "gc", "Have everything forgotten that nobody needs any more."),
    "reconcile": CommandEntry(MODULE, "reconcile", "Count again what is counted."),
}
RECONCILE_COMMANDS: Final = {"summaries": CommandEntry(MODULE, "summaries", "Count the summaries of all jobs again.")}


@click.group(cls=LazyGroup, entries=SERVER_COMMANDS)
def server() -> None:
    """Show servers."""


@click.group(cls=LazyGroup, entries=SYSTEM_COMMANDS)
def system() -> None:
    """Tidy up."""


@click.group(cls=LazyGroup, entries=RECONCILE_COMMANDS)
def reconcile() -> None:
    """Count again what is counted."""


@click.command(cls=ServerCommand)
def members(session: Session) -> None:
    """List the servers, and which of them leads.

    wharf server members
    """
    from wharf.cli.common.rendering import render_table

    told = session.client.agent.members()
    leader = session.client.status.leader()

    def text() -> str:
        rows = [
            (
                one.name, f"{one.addr}:{one.port}", one.status, "yes" if leader == f"{one.addr}:{one.port}" else "no",
                one.tags.get("build", "-"), one.tags.get("region", "-"),
            )
            for one in told.members
        ]  # fmt: skip
        return render_table(("Name", "Address", "Status", "Leads", "Build", "Region"), rows)

    session.print_result(told.members, text)


@click.command(cls=QuietServerCommand)
def gc(session: Session) -> None:
    """Have everything forgotten that nobody needs any more.

    wharf system gc
    """
    session.client.system.collect()
    click.echo("the servers are tidying up")


@click.command(cls=QuietServerCommand)
def summaries(session: Session) -> None:
    """Count the summaries of all jobs again.

    wharf system reconcile summaries
    """
    session.client.system.reconcile_summaries()
    click.echo("the summaries are counted again")


@click.command(cls=QuietServerCommand)
@click.option("--log-level", default="info", show_default=True, help="trace, debug, info, warn or error.")
@click.option("--log-json", is_flag=True, help="As JSON.")
@click.option("--server-id", default="", help="Of this server, or `leader`.")
@click.option("--node-id", default="", help="Of this node.")
def monitor(session: Session, log_level: str, log_json: bool, server_id: str, node_id: str) -> None:
    """Follow the log of an agent.

    Ctrl-C ends it.

    wharf monitor --log-level debug
    """
    import sys

    if session.is_terminal:
        click.echo("following the log from now on; Ctrl-C ends it", err=True)
    try:
        for piece in session.client.agent.monitor(
            log_level=log_level, log_json=log_json, server_id=server_id, node_id=node_id
        ):
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        return


@click.command(cls=ServerCommand)
@click.argument("id", required=False)
def status(session: Session, id: str | None) -> None:
    """Show what an id leads to, of whatever kind, or how the cluster stands.

    wharf status 1a2b3c4d
    """
    if id is None:
        _show_cluster(session)
        return
    matches = session.client.search.prefix(id).matches
    found = [(kind, one) for kind, ids in matches.items() if kind in _SHOWN for one in ids or ()]
    exact = [entry for entry in found if entry[1] == id]
    if len(exact) == 1:
        found = exact
    found = found or [("nodes", node_id) for node_id in _nodes_called(session, id)]
    if not found:
        raise CliError(f"nothing begins with {id}: no job, node, allocation, evaluation, deployment or namespace")
    if len(found) > 1:
        raise CliError("\n".join([f"{id} could be {len(found)} things:", *(f"  {kind}  {one}" for kind, one in found)]))
    kind, one = found[0]
    _SHOWN[kind](session, one)


@click.command(cls=ServerCommand)
@click.argument("text")
@click.option("--context", default="all", show_default=True, help="Only jobs, nodes, allocs, evals, ...")
def search(session: Session, text: str, context: str) -> None:
    """Find everything whose name has TEXT in it.

    wharf search web
    """
    from wharf.cli.common.rendering import render_table

    told = session.client.search.fuzzy(text, context=context)
    rows = [
        (kind, one.id, " / ".join(one.scope or ())) for kind, matches in sorted(told.matches.items()) for one in matches
    ]
    session.print_result(
        told.matches, lambda: render_table(("Kind", "Name", "In"), rows) if rows else f"Nothing has {text} in its name."
    )


def _nodes_called(session: Session, name: str) -> list[str]:
    """Ids; search knows nodes by these alone, and people by their names."""
    from wharf.contract.client.errors import Forbidden

    try:
        return [node.id for node in session.client.nodes.list().value if node.name == name]
    except Forbidden:
        return []


def _show_cluster(session: Session) -> None:
    from wharf.cli.common.record_tables import render_jobs
    from wharf.cli.common.rendering import render_pairs, render_section

    leader = session.client.status.leader()
    jobs = session.client.jobs.list().value
    nodes = _nodes_told(session)

    def text() -> str:
        head = render_pairs([("Leader", leader or "none just now"), ("Nodes", nodes)])
        return head + "\n" + render_section("Jobs", render_jobs(session, jobs))

    session.print_result(jobs, text)


def _nodes_told(session: Session) -> str:
    """Whoever may see jobs alone sees them."""
    from wharf.contract.client.errors import Forbidden

    try:
        nodes = session.client.nodes.list().value
    except Forbidden:
        return "not for this token to see"
    return f"{sum(one.status == 'ready' for one in nodes)} of {len(nodes)} ready"


def _show_job(session: Session, id: str) -> None:
    from wharf.cli.job.views import show_job

    show_job(session, id, is_all_allocations=False)


def _show_node(session: Session, id: str) -> None:
    from wharf.cli.node.group import show_node

    show_node(session, id)


def _show_allocation(session: Session, id: str) -> None:
    from wharf.cli.alloc.group import show_allocation

    show_allocation(session, id)


def _show_evaluation(session: Session, id: str) -> None:
    from wharf.cli.evaluation import show_evaluation

    show_evaluation(session, id)


def _show_deployment(session: Session, id: str) -> None:
    from wharf.cli.deployment import show_deployment

    show_deployment(session, id)


def _show_namespace(session: Session, id: str) -> None:
    from wharf.cli.namespace import show_namespace

    show_namespace(session, id)


_SHOWN: "Final[dict[str, Callable[[Session, str], None]]]" = {
    "jobs": _show_job,
    "nodes": _show_node,
    "allocs": _show_allocation,
    "evals": _show_evaluation,
    "deployment": _show_deployment,
    "namespaces": _show_namespace,
}
