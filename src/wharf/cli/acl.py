"""`wharf acl`: who may do what. The first token, and the groups of commands for the rest."""

from typing import Final

import click

from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Speaking, Talk

TOKENS: Final = "wharf.cli.acl_tokens"
POLICIES: Final = "wharf.cli.acl_policies"
LOGINS: Final = "wharf.cli.acl_logins"
COMMANDS: Final = {
    "bootstrap": Entry("wharf.cli.acl", "bootstrap", "Make the first token, which may do everything. Once."),
    "token": Entry(TOKENS, "token", "Make tokens, show them and take them back."),
    "policy": Entry(POLICIES, "policy", "Write policies, and show them."),
    "role": Entry(POLICIES, "role", "Bundle policies under a name."),
    "auth-method": Entry(LOGINS, "auth_method", "Say how people and programs prove who they are."),
    "binding-rule": Entry(LOGINS, "binding_rule", "Say what those who log in may do."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def acl() -> None:
    """Say who may do what."""


@click.command(cls=Speaking)
@click.argument("secret_file", type=click.Path(allow_dash=True), required=False)
def bootstrap(talk: Talk, secret_file: str | None) -> None:
    """Make the first token, which may do everything. Once.

    SECRET_FILE holds a secret of your own choice, a UUID; `-` reads it. Without it the servers choose one.

    wharf acl bootstrap
    """
    from wharf.cli.acl_tokens import token_told
    from wharf.cli.records import read_text

    secret = read_text(secret_file).strip() if secret_file else ""
    one = talk.client.acl.bootstrap(secret)
    talk.show(one, lambda: token_told(talk, one))
    talk.say(f"\nKeep the secret: whoever has it may do everything. Use it: export WHARF_TOKEN={one.secret_id}")
