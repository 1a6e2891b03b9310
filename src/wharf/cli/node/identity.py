"""`wharf node identity` and `wharf node intro`: signed node identities, and introduction tokens for new nodes."""

from typing import Any, Final

import click

from wharf.cli.common.options import node_argument
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup

MODULE: Final = "wharf.cli.node.identity"
IDENTITY_COMMANDS: Final = {
    "get": CommandEntry(MODULE, "get", "Show the claims of a node's identity."),
    "renew": CommandEntry(MODULE, "renew", "Issue a new identity to a node."),
}


@click.group(cls=LazyGroup, entries=IDENTITY_COMMANDS)
def identity() -> None:
    """Show and renew the signed identities of nodes."""


@click.command(cls=ServerCommand)
@node_argument
def get(session: Session, node_id: str) -> None:
    """Show the claims of a node's identity.

    wharf node identity get gpu-7
    """
    from wharf.cli.common.lookup import find_node

    response = session.client.nodes.identity(find_node(session, node_id).id)
    session.print_result(response, lambda: _render_claims(session, response))


@click.command(cls=ServerCommand)
@node_argument
def renew(session: Session, node_id: str) -> None:
    """Issue a new identity to a node. The previous one stays valid until it expires.

    wharf node identity renew gpu-7
    """
    from wharf.cli.common.lookup import find_node

    response = session.client.nodes.renew_identity(find_node(session, node_id).id)
    session.print_result(response, lambda: _render_claims(session, response))


def _render_claims(session: Session, response: dict[str, Any]) -> str:
    """Return the claims of a node identity as a list."""
    from wharf.cli.common.rendering import render_pairs
    from wharf.cli.common.times import NS_PER_SECOND, format_relative_time

    claims = response["Claims"]
    return render_pairs(
        [
            ("Subject", claims.get("sub", "")),
            ("Node", claims.get("nomad_node_id", "")),
            ("Pool", claims.get("nomad_node_pool", "")),
            ("Datacenter", claims.get("nomad_node_datacenter", "")),
            ("Class", claims.get("nomad_node_class", "")),
            ("Audience", claims.get("aud", "")),
            ("Issued", format_relative_time(int(claims.get("iat", 0)) * NS_PER_SECOND, session.now_ns())),
            ("Expires", format_relative_time(int(claims.get("exp", 0)) * NS_PER_SECOND, session.now_ns())),
        ]
    )


INTRO_COMMANDS: Final = {
    "create": CommandEntry("wharf.cli.node.identity", "create", "Create an introduction token for new nodes.")
}


@click.group(cls=LazyGroup, entries=INTRO_COMMANDS)
def intro() -> None:
    """Create introduction tokens, with which new nodes register while access control is on."""


@click.command(cls=ServerCommand)
@click.option("--node-name", default="", help="Valid only for the node of this name.  [default: any name]")
@click.option("--node-pool", default="", help="Valid for nodes of this pool.  [default: default]")
@click.option("--ttl", default="", help="Lifetime of the token, at most 30m.  [default: 5m]")
def create(session: Session, node_name: str, node_pool: str, ttl: str) -> None:
    """Create an introduction token for new nodes.

    A registered node has a secret of its own and needs no further token.

    wharf node intro create --node-name gpu-7 --node-pool gpu
    """
    from wharf.contract.wire.nodes.messages import IntroductionRequest

    introduction = session.client.acl.create_introduction(
        IntroductionRequest(ttl=ttl, node_name=node_name, node_pool=node_pool)
    )
    session.print_result(introduction, lambda: introduction.jwt)
    if session.is_terminal:
        session.print_text('\nGive it to the node: client.intro_token = "…" in its configuration, or')
        session.print_text(
            "WHARF_CONFIG__CLIENT__INTRO_TOKEN in its environment. Anyone with it can add a node: keep it secret."
        )
