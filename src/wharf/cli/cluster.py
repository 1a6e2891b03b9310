"""Commands about the cluster as a whole: its servers, its logs, what it no longer needs, and where an id leads."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.failing import Failed
from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Quiet, Speaking, Talk

if TYPE_CHECKING:
    from collections.abc import Callable

HERE: Final = "wharf.cli.cluster"
SERVER: Final = {"members": Entry(HERE, "members", "List the servers, and which of them leads.")}
SYSTEM: Final = {
    "gc": Entry(HERE, "gc", "Have everything forgotten that nobody needs any more."),
    "reconcile": Entry(HERE, "reconcile", "Count again what is counted."),
}
RECONCILE: Final = {"summaries": Entry(HERE, "summaries", "Count the summaries of all jobs again.")}


@click.group(cls=LazyGroup, entries=SERVER)
def server() -> None:
    """Show servers."""


@click.group(cls=LazyGroup, entries=SYSTEM)
def system() -> None:
    """Tidy up."""


@click.group(cls=LazyGroup, entries=RECONCILE)
def reconcile() -> None:
    """Count again what is counted."""


@click.command(cls=Speaking)
def members(talk: Talk) -> None:
    """List the servers, and which of them leads.

    wharf server members
    """
    from wharf.cli.tables import table

    told = talk.client.agent.members()
    leader = talk.client.status.leader()

    def text() -> str:
        rows = [
            (
                one.name, f"{one.addr}:{one.port}", one.status, "yes" if leader == f"{one.addr}:{one.port}" else "no",
                one.tags.get("build", "-"), one.tags.get("region", "-"),
            )
            for one in told.members
        ]  # fmt: skip
        return table(("Name", "Address", "Status", "Leads", "Build", "Region"), rows)

    talk.show(told.members, text)


@click.command(cls=Quiet)
def gc(talk: Talk) -> None:
    """Have everything forgotten that nobody needs any more.

    wharf system gc
    """
    talk.client.system.collect()
    click.echo("the servers are tidying up")


@click.command(cls=Quiet)
def summaries(talk: Talk) -> None:
    """Count the summaries of all jobs again.

    wharf system reconcile summaries
    """
    talk.client.system.reconcile_summaries()
    click.echo("the summaries are counted again")


@click.command(cls=Quiet)
@click.option("--log-level", default="info", show_default=True, help="trace, debug, info, warn or error.")
@click.option("--log-json", is_flag=True, help="As JSON.")
@click.option("--server-id", default="", help="Of this server, or `leader`.")
@click.option("--node-id", default="", help="Of this node.")
def monitor(talk: Talk, log_level: str, log_json: bool, server_id: str, node_id: str) -> None:
    """Follow the log of an agent.

    Ctrl-C ends it.

    wharf monitor --log-level debug
    """
    import sys

    if talk.is_terminal:
        click.echo("following the log from now on; Ctrl-C ends it", err=True)
    try:
        for piece in talk.client.agent.monitor(
            log_level=log_level, log_json=log_json, server_id=server_id, node_id=node_id
        ):
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        return


@click.command(cls=Speaking)
@click.argument("id", required=False)
def status(talk: Talk, id: str | None) -> None:
    """Show what an id leads to, of whatever kind, or how the cluster stands.

    wharf status 1a2b3c4d
    """
    if id is None:
        _show_cluster(talk)
        return
    matches = talk.client.search.prefix(id).matches
    found = [(kind, one) for kind, ids in matches.items() if kind in _SHOWN for one in ids or ()]
    exact = [entry for entry in found if entry[1] == id]
    if len(exact) == 1:
        found = exact
    found = found or [("nodes", node_id) for node_id in _nodes_called(talk, id)]
    if not found:
        raise Failed(f"nothing begins with {id}: no job, node, allocation, evaluation, deployment or namespace")
    if len(found) > 1:
        raise Failed("\n".join([f"{id} could be {len(found)} things:", *(f"  {kind}  {one}" for kind, one in found)]))
    kind, one = found[0]
    _SHOWN[kind](talk, one)


@click.command(cls=Speaking)
@click.argument("text")
@click.option("--context", default="all", show_default=True, help="Only jobs, nodes, allocs, evals, ...")
def search(talk: Talk, text: str, context: str) -> None:
    """Find everything whose name has TEXT in it.

    wharf search web
    """
    from wharf.cli.tables import table

    told = talk.client.search.fuzzy(text, context=context)
    rows = [
        (kind, one.id, " / ".join(one.scope or ())) for kind, matches in sorted(told.matches.items()) for one in matches
    ]
    talk.show(told.matches, lambda: table(("Kind", "Name", "In"), rows) if rows else f"Nothing has {text} in its name.")


def _nodes_called(talk: Talk, name: str) -> list[str]:
    """Ids; search knows nodes by these alone, and people by their names."""
    from wharf.client.errors import Forbidden

    try:
        return [node.id for node in talk.client.nodes.list().value if node.name == name]
    except Forbidden:
        return []


def _show_cluster(talk: Talk) -> None:
    from wharf.cli.job_views import jobs_told
    from wharf.cli.tables import pairs, section

    leader = talk.client.status.leader()
    jobs = talk.client.jobs.list().value
    nodes = _nodes_told(talk)

    def text() -> str:
        head = pairs([("Leader", leader or "none just now"), ("Nodes", nodes)])
        return head + "\n" + section("Jobs", jobs_told(talk, jobs))

    talk.show(jobs, text)


def _nodes_told(talk: Talk) -> str:
    """Whoever may see jobs alone sees them."""
    from wharf.client.errors import Forbidden

    try:
        nodes = talk.client.nodes.list().value
    except Forbidden:
        return "not for this token to see"
    return f"{sum(one.status == 'ready' for one in nodes)} of {len(nodes)} ready"


def _show_job(talk: Talk, id: str) -> None:
    from wharf.cli.job_views import show_job

    show_job(talk, id, all_allocs=False)


def _show_node(talk: Talk, id: str) -> None:
    from wharf.cli.node import show_node

    show_node(talk, id)


def _show_allocation(talk: Talk, id: str) -> None:
    from wharf.cli.alloc import show_allocation

    show_allocation(talk, id)


def _show_evaluation(talk: Talk, id: str) -> None:
    from wharf.cli.evaluation import show_evaluation

    show_evaluation(talk, id)


def _show_deployment(talk: Talk, id: str) -> None:
    from wharf.cli.deployment import show_deployment

    show_deployment(talk, id)


def _show_namespace(talk: Talk, id: str) -> None:
    from wharf.cli.namespace import show_namespace

    show_namespace(talk, id)


_SHOWN: "Final[dict[str, Callable[[Talk, str], None]]]" = {
    "jobs": _show_job,
    "nodes": _show_node,
    "allocs": _show_allocation,
    "evals": _show_evaluation,
    "deployment": _show_deployment,
    "namespaces": _show_namespace,
}
