"""`wharf node identity`: what a node proves about itself to others."""

from typing import Any, Final

import click

from wharf.cli.completing import complete_nodes
from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Speaking, Talk

HERE: Final = "wharf.cli.node_identity"
COMMANDS: Final = {
    "get": Entry(HERE, "get", "Show what a node's identity says."),
    "renew": Entry(HERE, "renew", "Have a node get a new identity."),
}
a_node = click.argument("node_id", metavar="NODE", shell_complete=complete_nodes)


@click.group(cls=LazyGroup, entries=COMMANDS)
def identity() -> None:
    """What nodes prove about themselves to others, by a token that the keyring signs."""


@click.command(cls=Speaking)
@a_node
def get(talk: Talk, node_id: str) -> None:
    """Show what a node's identity says.

    wharf node identity get gpu-7
    """
    from wharf.cli.finding import find_node

    one = talk.client.nodes.identity(find_node(talk, node_id).id)
    talk.show(one, lambda: _claims_told(talk, one))


@click.command(cls=Speaking)
@a_node
def renew(talk: Talk, node_id: str) -> None:
    """Have a node get a new identity. The one before holds until its end.

    wharf node identity renew gpu-7
    """
    from wharf.cli.finding import find_node

    one = talk.client.nodes.renew_identity(find_node(talk, node_id).id)
    talk.show(one, lambda: _claims_told(talk, one))


def _claims_told(talk: Talk, told: dict[str, Any]) -> str:
    from wharf.cli.moments import SECOND, say_when
    from wharf.cli.tables import pairs

    claims = told["Claims"]
    return pairs(
        [
            ("Subject", claims.get("sub", "")),
            ("Node", claims.get("nomad_node_id", "")),
            ("Pool", claims.get("nomad_node_pool", "")),
            ("Datacenter", claims.get("nomad_node_datacenter", "")),
            ("Class", claims.get("nomad_node_class", "")),
            ("Audience", claims.get("aud", "")),
            ("Signed", say_when(int(claims.get("iat", 0)) * SECOND, talk.now_ns())),
            ("Ends", say_when(int(claims.get("exp", 0)) * SECOND, talk.now_ns())),
        ]
    )
