"""`wharf node pool`: shows, changes and deletes node pools."""

from typing import Final

import click

from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.completion import complete_pools
from wharf.cli.lazy_group import CommandEntry, LazyGroup

MODULE: Final = "wharf.cli.node.pool"
COMMANDS: Final = {
    "list": CommandEntry(MODULE, "list_", "List node pools."),
    "info": CommandEntry(MODULE, "info", "Show a node pool."),
    "apply": CommandEntry(MODULE, "apply", "Create or change a node pool."),
    "delete": CommandEntry(MODULE, "delete", "Delete an empty node pool."),
    "nodes": CommandEntry(MODULE, "nodes", "List the nodes of a pool."),
    "jobs": CommandEntry(MODULE, "jobs", "List the jobs of a pool."),
}
pool_argument = click.argument("name", metavar="POOL", shell_complete=complete_pools)


@click.group(cls=LazyGroup, entries=COMMANDS)
def pool() -> None:
    """Show and change node pools."""


@click.command("list", cls=ServerCommand)
@click.option("--filter", "expression", default="", help="Only pools that match.")
def list_(session: Session, expression: str) -> None:
    """List node pools.

    wharf node pool list
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.node_pools.list(filter=expression).value
    rows = [(pool.name, pool.description) for pool in records]
    session.print_result(records, lambda: render_table(("Name", "Description"), rows))


@click.command(cls=ServerCommand)
@pool_argument
def info(session: Session, name: str) -> None:
    """Show a node pool.

    wharf node pool info gpu
    """
    from wharf.cli.common.rendering import render_pairs

    pool = session.client.node_pools.read(name).value
    settings = pool.scheduler_configuration
    pairs = [
        ("Name", pool.name),
        ("Description", pool.description),
        ("Algorithm", settings.scheduler_algorithm if settings else ""),
        ("Meta", ", ".join(f"{key}={value}" for key, value in sorted((pool.meta or {}).items()))),
    ]
    session.print_result(pool, lambda: render_pairs(pairs))


@click.command(cls=ServerCommand)
@click.argument("name_or_file", metavar="NAME|FILE")
@click.option("--description", help="A description of the pool.")
def apply(session: Session, name_or_file: str, description: str | None) -> None:
    """Create or change a node pool.

    FILE is JSON or YAML with the fields that `info --json` prints. With NAME, only the fields given as options change.

    wharf node pool apply --description "machines with cards" gpu
    """
    from wharf.cli.common.documents import read_or_fetch_record
    from wharf.contract.model.node_pools import NodePool

    pool = read_or_fetch_record(name_or_file, NodePool, session.client.node_pools.read, description=description)
    session.client.node_pools.store(pool)
    session.print_change(f"stored node pool {pool.name}", Name=pool.name)


@click.command(cls=ServerCommand)
@pool_argument
def delete(session: Session, name: str) -> None:
    """Delete an empty node pool.

    wharf node pool delete gpu
    """
    session.client.node_pools.delete(name)
    session.print_change(f"deleted node pool {name}", Name=name)


@click.command(cls=ServerCommand)
@pool_argument
def nodes(session: Session, name: str) -> None:
    """List the nodes of a pool.

    wharf node pool nodes gpu
    """
    from wharf.cli.common.record_tables import render_nodes

    records = session.client.node_pools.nodes(name).value
    session.print_result(records, lambda: render_nodes(session, records) if records else f"No nodes in pool {name}.")


@click.command(cls=ServerCommand)
@pool_argument
def jobs(session: Session, name: str) -> None:
    """List the jobs of a pool.

    wharf node pool jobs gpu
    """
    from wharf.cli.common.record_tables import render_jobs

    records = session.client.node_pools.jobs(name).value
    session.print_result(records, lambda: render_jobs(session, records) if records else f"No jobs in pool {name}.")
