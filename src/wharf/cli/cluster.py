"""Commands about the cluster as a whole: `status`, `search`, `monitor`, `server` and `system`."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.common.terminal import write_bytes
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from wharf.contract.wire.nodes.messages import NodeListStub

MODULE: Final = "wharf.cli.cluster"
SERVER_COMMANDS: Final = {
    "members": CommandEntry(MODULE, "members", "List the servers, with the leader and failed ones."),
    "force-leave": CommandEntry(MODULE, "force_leave", "Remove a failed server from the list of servers."),
}
SYSTEM_COMMANDS: Final = {
    "gc": CommandEntry(MODULE, "gc", "Delete finished jobs, evaluations and nodes that are no longer needed."),
    "reconcile": CommandEntry(MODULE, "reconcile", "Recompute derived records."),
}
RECONCILE_COMMANDS: Final = {"summaries": CommandEntry(MODULE, "summaries", "Recompute the summaries of all jobs.")}
NO_LEADER_TEXT: Final = (
    "no server is the leader now, so the list is as the server last knew it; "
    "`wharf operator api /v1/operator/autopilot/health` shows why"
)


@click.group(cls=LazyGroup, entries=SERVER_COMMANDS)
def server() -> None:
    """Show servers."""


@click.group(cls=LazyGroup, entries=SYSTEM_COMMANDS)
def system() -> None:
    """Run garbage collection and other maintenance."""


@click.group(cls=LazyGroup, entries=RECONCILE_COMMANDS)
def reconcile() -> None:
    """Recompute derived records."""


@click.command(cls=ServerCommand)
def members(session: Session) -> None:
    """List the servers, with the leader and failed ones.

    A server that ended without leaving is listed as failed for 72 hours.

    wharf server members
    """
    from wharf.cli.common.rendering import render_table

    reply = session.client.agent.members()
    leader = session.client.status.leader()

    def render_text() -> str:
        """Return the table of servers."""
        rows = [
            (
                member.name, f"{member.addr}:{member.port}", member.status,
                "yes" if leader == f"{member.addr}:{member.port}" else "no",
                member.tags.get("build", "-"), member.tags.get("region", "-"),
                _format_last_contact(session, member.tags),
            )
            for member in reply.members
        ]  # fmt: skip
        titles = ("Name", "Address", "Status", "Leader", "Build", "Region", "Last contact")
        return render_table(titles, rows, optional_columns=("Region", "Build", "Last contact"))

    session.print_result(reply.members, render_text)
    if not leader:
        print_notice(NO_LEADER_TEXT)
    else:
        print_server_warning(session)


def print_server_warning(session: Session) -> None:
    """Print what the replying server warns of, such as a lost member of etcd."""
    from wharf.cli.common.server_health import describe_warning

    if not session.is_machine_readable and (warning := describe_warning(session.client)):
        print_notice(f"warning: {warning}")


@click.command("force-leave", cls=ServerCommand)
@click.argument("name")
@click.option("--prune", is_flag=True, hidden=True)
def force_leave(session: Session, name: str, prune: bool) -> None:
    """Remove a failed server from the list of servers.

    NAME is the name or the ID of the server. A server that is alive is not removed: stop it instead.

    wharf server force-leave server-3
    """
    session.client.agent.force_leave(name, prune=prune)
    session.print_change(f"removed server {name}", Name=name)


def _format_last_contact(session: Session, tags: "Mapping[str, str]") -> str:
    """Return when a failed server was last known to run; `now` for one that runs."""
    if not (text := tags.get("last_contact", "")):
        return "now"
    from datetime import datetime

    return session.format_time(datetime.fromisoformat(text))


@click.command(cls=ServerCommand)
def gc(session: Session) -> None:
    """Delete finished jobs, evaluations and nodes that are no longer needed.

    wharf system gc
    """
    session.client.system.collect()
    session.print_change("garbage collection started")


@click.command(cls=ServerCommand)
def summaries(session: Session) -> None:
    """Recompute the summaries of all jobs.

    wharf system reconcile summaries
    """
    session.client.system.reconcile_summaries()
    session.print_change("recomputed the job summaries")


@click.command(cls=QuietServerCommand)
@click.option("--log-level", default="info", show_default=True, help="trace, debug, info, warn or error.")
@click.option("--log-json", is_flag=True, help="Print JSON.")
@click.option("--server-id", default="", help="The agent of this server, or `leader`.")
@click.option("--node-id", default="", help="The agent of this node.")
def monitor(session: Session, log_level: str, log_json: bool, server_id: str, node_id: str) -> None:
    """Follow the log of an agent.

    Ctrl-C ends it.

    wharf monitor --log-level debug
    """

    if session.is_terminal:
        print_notice("following the log from now on; Ctrl-C ends it")
    for chunk in session.client.agent.monitor(
        log_level=log_level, log_json=log_json, server_id=server_id, node_id=node_id
    ):
        write_bytes(chunk)


@click.command(cls=ServerCommand)
@click.argument("id", required=False)
def status(session: Session, id: str | None) -> None:
    """Show the status of the cluster, or the job, node, allocation or other object whose id begins with ID.

    wharf status 1a2b3c4d
    """
    if id is None:
        _show_cluster(session)
        return
    kind, full_id = find_object(session, id, _SHOW_BY_CONTEXT)
    _SHOW_BY_CONTEXT[kind](session, full_id)


def find_object(session: Session, query: str, contexts: "Container[str]") -> tuple[str, str]:
    """Return the search context and the id of the object whose id begins with `query`, or of the node with this name.

    Objects of other contexts are ignored. Raises CliError if there is no such object, or if there are several.
    """
    from wharf.cli.common.lookup import (
        is_allocation_name,
        list_namespaces_of_job,
        match_allocation_name,
        require_no_other_namespace,
    )

    matches = session.client.search.prefix(query).matches
    found = [(kind, match_id) for kind, ids in matches.items() if kind in contexts for match_id in ids or ()]
    exact = [entry for entry in found if entry[1] == query]
    if len(exact) == 1:
        found = exact
    found = found or [("nodes", node_id) for node_id in _list_nodes_by_name(session, query)]
    if not found and is_allocation_name(query):
        found = [("allocs", each.id) for each in match_allocation_name(session, query) if each.name == query]
    if not found:
        require_no_other_namespace(session, "job", query, lambda: list_namespaces_of_job(session, query))
        kinds = [noun for context, noun in _NOUN_BY_CONTEXT.items() if context in contexts]
        raise CliError(f"no {', '.join(kinds[:-1])} or {kinds[-1]} has an id that begins with {query}")
    if len(found) > 1:
        lines = [f"{query} matches {len(found)} objects:", *(f"  {kind}  {match_id}" for kind, match_id in found)]
        raise CliError("\n".join(lines))
    return found[0]


@click.command(cls=ServerCommand)
@click.argument("text")
@click.option("--context", default="all", show_default=True, help="Kind of objects: jobs, nodes, allocs, evals, ...")
def search(session: Session, text: str, context: str) -> None:
    """Find jobs, nodes and other objects by a part of their name.

    wharf search web
    """
    from wharf.cli.common.rendering import render_table

    reply = session.client.search.fuzzy(text, context=context)
    rows = [
        (kind, match.id, " / ".join(match.scope or ()))
        for kind, matches in sorted(reply.matches.items())
        for match in matches
    ]
    session.print_result(
        reply.matches, lambda: render_table(("Kind", "Name", "Scope"), rows) if rows else f"No name contains {text}."
    )


def _list_nodes_by_name(session: Session, name: str) -> list[str]:
    """Return the ids of the nodes with this name: the search by prefix finds nodes by id only."""
    from wharf.contract.client.errors import Forbidden

    try:
        return [node.id for node in session.client.nodes.list().value if node.name == name]
    except Forbidden:
        return []


def _show_cluster(session: Session) -> None:
    """Print the leader, the number of ready nodes, and the jobs."""
    from wharf.cli.common.record_tables import render_jobs
    from wharf.cli.common.rendering import render_pairs, render_section

    leader = session.client.status.leader()
    jobs = session.client.jobs.list(progress=not session.is_machine_readable).value
    if not jobs:
        session.require_namespace()
    nodes = _list_nodes(session)

    def render_text() -> str:
        ready = sum(node.status == "ready" for node in nodes or ())
        count = "not visible to this token" if nodes is None else f"{ready} of {len(nodes)} ready"
        head = render_pairs([("Leader", leader or "none"), ("Nodes", count)])
        listed = [job for job in jobs if not job.parent_id]
        return head + "\n" + render_section("Jobs", render_jobs(session, listed))

    session.print_result({"Leader": leader, "Nodes": nodes, "Jobs": jobs}, render_text)


def _list_nodes(session: Session) -> "list[NodeListStub] | None":
    """Return the nodes; None for a token that may only read jobs, which still gets the rest of the status."""
    from wharf.contract.client.errors import Forbidden

    try:
        return session.client.nodes.list().value
    except Forbidden:
        return None


def _show_job(session: Session, id: str) -> None:
    from wharf.cli.job.status import show_job

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


_SHOW_BY_CONTEXT: "Final[dict[str, Callable[[Session, str], None]]]" = {
    "jobs": _show_job,
    "nodes": _show_node,
    "allocs": _show_allocation,
    "evals": _show_evaluation,
    "deployment": _show_deployment,
    "namespaces": _show_namespace,
}
"""Search contexts of the API, with the function that prints an object of that kind."""
_NOUN_BY_CONTEXT: Final = {
    "jobs": "job", "nodes": "node", "allocs": "allocation", "evals": "evaluation", "deployment": "deployment",
    "namespaces": "namespace",
}  # fmt: skip
"""Search contexts of the API, with the word for an object of that kind."""
