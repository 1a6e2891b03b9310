"""`wharf node meta`: what is said about a node, for jobs to choose by, while it runs."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.completing import complete_nodes
from wharf.cli.failing import Failed
from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Quiet, Speaking, Talk

if TYPE_CHECKING:
    from wharf.wire.client_shapes import NodeMetaResponse

HERE: Final = "wharf.cli.node_meta"
COMMANDS: Final = {
    "read": Entry(HERE, "read", "Show a node's metadata."),
    "apply": Entry(HERE, "apply", "Set or take away metadata of a node."),
}
a_node = click.argument("node_id", metavar="NODE", shell_complete=complete_nodes)


@click.group(cls=LazyGroup, entries=COMMANDS)
def meta() -> None:
    """What is said about nodes, for jobs to choose by. What is changed here lasts over their restarts."""


@click.command(cls=Speaking)
@a_node
def read(talk: Talk, node_id: str) -> None:
    """Show a node's metadata.

    wharf node meta read gpu-7
    """
    from wharf.cli.finding import find_node

    one = talk.client.nodes.metadata(find_node(talk, node_id).id)
    talk.show(one, lambda: _told(one))


@click.command(cls=Quiet)
@a_node
@click.argument("changes", metavar="KEY=VALUE...", nargs=-1)
@click.option("--unset", multiple=True, metavar="KEY", help="Take this one away. May be given more than once.")
def apply(talk: Talk, node_id: str, changes: tuple[str, ...], unset: tuple[str, ...]) -> None:
    """Set or take away metadata of a node.

    wharf node meta apply gpu-7 rack=12 --unset owner
    """
    from wharf.cli.finding import find_node

    wanted: dict[str, str | None] = dict.fromkeys(unset)
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key:
            raise Failed(f"{change}: expected KEY=VALUE")
        wanted[key] = value
    if not wanted:
        raise Failed("say what to change: KEY=VALUE, or --unset KEY")
    found = find_node(talk, node_id)
    talk.client.nodes.apply_metadata(wanted, node_id=found.id)
    click.echo(f"the metadata of {found.name} is changed")


def _told(one: "NodeMetaResponse") -> str:
    from wharf.cli.tables import table

    dynamic = one.dynamic or {}
    rows = [
        (key, value, "set" if key in dynamic else "configuration") for key, value in sorted((one.meta or {}).items())
    ]
    rows += [(key, "-", "taken away") for key in sorted(dynamic) if dynamic[key] is None]
    return table(("Key", "Value", "From"), rows) if rows else "It has no metadata."
