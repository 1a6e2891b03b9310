"""`wharf node meta`: shows and changes the metadata of running nodes, which constraints of jobs may refer to."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.options import node_argument
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from wharf.contract.wire.nodes.messages import NodeMetaResponse

MODULE: Final = "wharf.cli.node.meta"
COMMANDS: Final = {
    "read": CommandEntry(MODULE, "read", "Show the metadata of a node."),
    "apply": CommandEntry(MODULE, "apply", "Set or remove metadata of a node."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def meta() -> None:
    """Show and change the metadata of nodes. Changes survive restarts of the node."""


@click.command(cls=ServerCommand)
@node_argument
def read(session: Session, node_id: str) -> None:
    """Show the metadata of a node.

    wharf node meta read gpu-7
    """
    from wharf.cli.common.lookup import find_node

    response = session.client.nodes.metadata(find_node(session, node_id).id)
    session.print_result(response, lambda: _render_metadata(response))


@click.command(cls=ServerCommand)
@node_argument
@click.argument("changes", metavar="KEY=VALUE...", nargs=-1)
@click.option("--unset", multiple=True, metavar="KEY", help="Remove this key; may be repeated.")
def apply(session: Session, node_id: str, changes: tuple[str, ...], unset: tuple[str, ...]) -> None:
    """Set or remove metadata of a node.

    wharf node meta apply gpu-7 rack=12 --unset owner
    """
    from wharf.cli.common.lookup import find_node
    from wharf.cli.common.options import parse_key_values

    new_values = parse_key_values(changes, "change") or {}
    for key in unset:
        if key in new_values:
            raise CliError(f"--unset {key}: the key also gets a new value: remove one")
    values: dict[str, str | None] = dict.fromkeys(unset) | new_values
    if not values:
        raise CliError("missing change: give KEY=VALUE or --unset KEY")
    found = find_node(session, node_id)
    response = session.client.nodes.apply_metadata(values, node_id=found.id)
    session.print_result(response, lambda: f"changed the metadata of {found.name}")


def _render_metadata(response: "NodeMetaResponse") -> str:
    """Return the metadata of a node with its source: the configuration, or a change by this command."""
    from wharf.cli.common.rendering import render_table

    dynamic = response.dynamic or {}
    rows = [
        (key, value, "set" if key in dynamic else "configuration")
        for key, value in sorted((response.meta or {}).items())
    ]
    rows += [(key, "-", "removed") for key in sorted(dynamic) if dynamic[key] is None]
    return render_table(("Key", "Value", "Source"), rows) if rows else "The node has no metadata."
