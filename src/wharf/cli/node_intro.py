"""`wharf node intro`: tokens with which new nodes are let in while access control is on."""

from typing import Final

import click

from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Speaking, Talk

COMMANDS: Final = {"create": Entry("wharf.cli.node_intro", "create", "Make a token with which a new node is let in.")}


@click.group(cls=LazyGroup, entries=COMMANDS)
def intro() -> None:
    """Introduce new nodes, where access control is on."""


@click.command(cls=Speaking)
@click.option("--node-name", default="", help="Only for the node of this name; without, for any.")
@click.option("--node-pool", default="", help="For nodes of this pool.  [default: default]")
@click.option("--ttl", default="", help="How long it is good for, 30m at most.  [default: 5m]")
def create(talk: Talk, node_name: str, node_pool: str, ttl: str) -> None:
    """Make a token with which a new node is let in.

    A node that was let in once is known by its own secret and needs none again.

    wharf node intro create --node-name gpu-7 --node-pool gpu
    """
    from wharf.wire.access import IntroductionRequest

    one = talk.client.acl.introduce_node(IntroductionRequest(ttl=ttl, node_name=node_name, node_pool=node_pool))
    talk.show(one, lambda: one.jwt)
    if talk.is_terminal:
        talk.say('\nGive it to the node: client.intro_token = "…" in its configuration, or')
        talk.say("WHARF_CONFIG__CLIENT__INTRO_TOKEN in its environment. Whoever has it can add a node: keep it safe.")
