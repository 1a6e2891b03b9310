"""`wharf node meta`: what is said about a node, for jobs to choose by, while it runs."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.completion import complete_nodes
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from wharf.contract.wire.nodes.messages import NodeMetaResponse

MODULE: Final = "wharf.cli.node.meta"
COMMANDS: Final = {
    "read": CommandEntry(MODULE, "read", "Show a node's metadata."),
    "apply": CommandEntry(MODULE, "apply", "Set or take away metadata of a node."),
}
node_argument = click.argument("node_id", metavar="NODE", shell_complete=complete_nodes)


@click.group(cls=LazyGroup, entries=COMMANDS)
def meta() -> None:
    """What is said about nodes, for jobs to choose by. What is changed here lasts over their restarts."""


@click.command(cls=ServerCommand)
@node_argument
def read(session: Session, node_id: str) -> None:
    """Show a node's metadata.

    wharf node meta read gpu-7
    """
    from wharf.cli.common.lookup import find_node

    one = session.client.nodes.metadata(find_node(session, node_id).id)
    session.print_result(one, lambda: _told(one))


@click.command(cls=QuietServerCommand)
@node_argument
@click.argument("changes", metavar="KEY=VALUE...", nargs=-1)
@click.option("--unset", multiple=True, metavar="KEY", help="Take this one away. May be given more than once.")
def apply(session: Session, node_id: str, changes: tuple[str, ...], unset: tuple[str, ...]) -> None:
    """Set or take away metadata of a node.

    wharf node meta apply gpu-7 rack=12 --unset owner
    """
    from wharf.cli.common.lookup import find_node

    wanted: dict[str, str | None] = dict.fromkeys(unset)
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key:
            raise CliError(f"{change}: expected KEY=VALUE")
        wanted[key] = value
    if not wanted:
        raise CliError("say what to change: KEY=VALUE, or --unset KEY")
    found = find_node(session, node_id)
    session.client.nodes.apply_metadata(wanted, node_id=found.id)
    click.echo(f"the metadata of {found.name} is changed")


def _told(one: "NodeMetaResponse") -> str:
    from wharf.cli.common.rendering import render_table

    dynamic = one.dynamic or {}
    rows = [
        (key, value, "set" if key in dynamic else "configuration") for key, value in sorted((one.meta or {}).items())
    ]
    rows += [(key, "-", "taken away") for key in sorted(dynamic) if dynamic[key] is None]
    return render_table(("Key", "Value", "From"), rows) if rows else "It has no metadata."
