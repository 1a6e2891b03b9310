"""`wharf node pool`: which nodes belong together, and what is told of a pool."""

from typing import Final

import click

from wharf.cli.completing import complete_pools
from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Quiet, Speaking, Talk

HERE: Final = "wharf.cli.node_pool"
COMMANDS: Final = {
    "list": Entry(HERE, "list_", "List node pools."),
    "info": Entry(HERE, "info", "Show a node pool."),
    "apply": Entry(HERE, "apply", "Make or change a node pool."),
    "delete": Entry(HERE, "delete", "Delete a node pool that is empty."),
    "nodes": Entry(HERE, "nodes", "List the nodes of a pool."),
    "jobs": Entry(HERE, "jobs", "List the jobs of a pool."),
}
a_pool = click.argument("name", metavar="POOL", shell_complete=complete_pools)


@click.group(cls=LazyGroup, entries=COMMANDS)
def pool() -> None:
    """Show and make the pools that nodes are in."""


@click.command("list", cls=Speaking)
@click.option("--filter", "expression", default="", help="Only those that match.")
def list_(talk: Talk, expression: str) -> None:
    """List node pools.

    wharf node pool list
    """
    from wharf.cli.tables import table

    records = talk.client.node_pools.list(filter=expression).value
    rows = [(one.name, one.description) for one in records]
    talk.show(records, lambda: table(("Name", "Description"), rows))


@click.command(cls=Speaking)
@a_pool
def info(talk: Talk, name: str) -> None:
    """Show a node pool.

    wharf node pool info gpu
    """
    from wharf.cli.tables import pairs

    one = talk.client.node_pools.read(name).value
    settings = one.scheduler_configuration
    entries = [
        ("Name", one.name),
        ("Description", one.description),
        ("Algorithm", settings.scheduler_algorithm if settings else ""),
        ("Meta", ", ".join(f"{key}={value}" for key, value in sorted((one.meta or {}).items()))),
    ]
    talk.show(one, lambda: pairs(entries))


@click.command(cls=Quiet)
@click.argument("name_or_file", metavar="NAME|FILE")
@click.option("--description", help="What it is for.")
def apply(talk: Talk, name_or_file: str, description: str | None) -> None:
    """Make or change a node pool.

    FILE is JSON or YAML with the fields that `info --json` prints. With a name, what no option says stays as it is.

    wharf node pool apply --description "machines with cards" gpu
    """
    from wharf.cli.records import record_changed
    from wharf.model.node_pool import NodePool

    one = record_changed(name_or_file, NodePool, talk.client.node_pools.read, description=description)
    talk.client.node_pools.store(one)
    click.echo(f"node pool {one.name} is there")


@click.command(cls=Quiet)
@a_pool
def delete(talk: Talk, name: str) -> None:
    """Delete a node pool that is empty.

    wharf node pool delete gpu
    """
    talk.client.node_pools.delete(name)
    click.echo(f"node pool {name} is deleted")


@click.command(cls=Speaking)
@a_pool
def nodes(talk: Talk, name: str) -> None:
    """List the nodes of a pool.

    wharf node pool nodes gpu
    """
    from wharf.cli.node import nodes_told

    records = talk.client.node_pools.nodes(name).value
    talk.show(records, lambda: nodes_told(talk, records) if records else f"There are no nodes in pool {name}.")


@click.command(cls=Speaking)
@a_pool
def jobs(talk: Talk, name: str) -> None:
    """List the jobs of a pool.

    wharf node pool jobs gpu
    """
    from wharf.cli.job_views import jobs_told

    records = talk.client.node_pools.jobs(name).value
    talk.show(records, lambda: jobs_told(talk, records) if records else f"There are no jobs in pool {name}.")
