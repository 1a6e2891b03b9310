"""`wharf node identity`: what a node proves about itself to others.

`wharf node intro`: tokens with which new nodes are let in while access control is on.
"""

from typing import Any, Final

import click

from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.completion import complete_nodes
from wharf.cli.lazy_group import CommandEntry, LazyGroup

MODULE: Final = "wharf.cli.node.identity"
IDENTITY_COMMANDS: Final = {
    "get": CommandEntry(MODULE, "get", "Show what a node's identity says."),
    "renew": CommandEntry(MODULE, "renew", "Have a node get a new identity."),
}
node_argument = click.argument("node_id", metavar="NODE", shell_complete=complete_nodes)


@click.group(cls=LazyGroup, entries=IDENTITY_COMMANDS)
def identity() -> None:
    """What nodes prove about themselves to others, by a token that the keyring signs."""


@click.command(cls=ServerCommand)
@node_argument
def get(session: Session, node_id: str) -> None:
    """Show what a node's identity says.

    wharf node identity get gpu-7
    """
    from wharf.cli.common.lookup import find_node

    one = session.client.nodes.identity(find_node(session, node_id).id)
    session.print_result(one, lambda: _claims_told(session, one))


@click.command(cls=ServerCommand)
@node_argument
def renew(session: Session, node_id: str) -> None:
    """Have a node get a new identity. The one before holds until its end.

    wharf node identity renew gpu-7
    """
    from wharf.cli.common.lookup import find_node

    one = session.client.nodes.renew_identity(find_node(session, node_id).id)
    session.print_result(one, lambda: _claims_told(session, one))


def _claims_told(session: Session, told: dict[str, Any]) -> str:
    from wharf.cli.common.rendering import render_pairs
    from wharf.cli.common.times import NS_PER_SECOND, format_relative_time

    claims = told["Claims"]
    return render_pairs(
        [
            ("Subject", claims.get("sub", "")),
            ("Node", claims.get("nomad_node_id", "")),
            ("Pool", claims.get("nomad_node_pool", "")),
            ("Datacenter", claims.get("nomad_node_datacenter", "")),
            ("Class", claims.get("nomad_node_class", "")),
            ("Audience", claims.get("aud", "")),
            ("Signed", format_relative_time(int(claims.get("iat", 0)) * NS_PER_SECOND, session.now_ns())),
            ("Ends", format_relative_time(int(claims.get("exp", 0)) * NS_PER_SECOND, session.now_ns())),
        ]
    )


INTRO_COMMANDS: Final = {
    "create": CommandEntry("wharf.cli.node.identity", "create", "Make a token with which a new node is let in.")
}


@click.group(cls=LazyGroup, entries=INTRO_COMMANDS)
def intro() -> None:
    """Introduce new nodes, where access control is on."""


@click.command(cls=ServerCommand)
@click.option("--node-name", default="", help="Only for the node of this name; without, for any.")
@click.option("--node-pool", default="", help="For nodes of this pool.  [default: default]")
@click.option("--ttl", default="", help="How long it is good for, 30m at most.  [default: 5m]")
def create(session: Session, node_name: str, node_pool: str, ttl: str) -> None:
    """Make a token with which a new node is let in.

    A node that was let in once is known by its own secret and needs none again.

    wharf node intro create --node-name gpu-7 --node-pool gpu
    """
    from wharf.contract.wire.nodes.messages import IntroductionRequest

    one = session.client.acl.create_introduction(IntroductionRequest(ttl=ttl, node_name=node_name, node_pool=node_pool))
    session.print_result(one, lambda: one.jwt)
    if session.is_terminal:
        session.print_text('\nGive it to the node: client.intro_token = "…" in its configuration, or')
        session.print_text(
            "WHARF_CONFIG__CLIENT__INTRO_TOKEN in its environment. Whoever has it can add a node: keep it safe."
        )
