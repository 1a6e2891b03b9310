"""`wharf acl`: who may do what. The first token, and the groups of commands for the rest."""

from typing import Final

import click

from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup

TOKENS_MODULE: Final = "wharf.cli.acl.tokens"
POLICIES_MODULE: Final = "wharf.cli.acl.policies"
AUTH_METHODS_MODULE: Final = "wharf.cli.acl.auth_methods"
COMMANDS: Final = {
    "bootstrap": CommandEntry(
        "wharf.cli.acl.group", "bootstrap", "Make the first token, which may do everything. Once."
    ),
    "token": CommandEntry(TOKENS_MODULE, "token", "Make tokens, show them and take them back."),
    "policy": CommandEntry(POLICIES_MODULE, "policy", "Write policies, and show them."),
    "role": CommandEntry(POLICIES_MODULE, "role", "Bundle policies under a name."),
    "auth-method": CommandEntry(AUTH_METHODS_MODULE, "auth_method", "Say how people and programs prove who they are."),
    "binding-rule": CommandEntry(AUTH_METHODS_MODULE, "binding_rule", "Say what those who log in may do."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def acl() -> None:
    """Say who may do what."""


@click.command(cls=ServerCommand)
@click.argument("secret_file", type=click.Path(allow_dash=True), required=False)
def bootstrap(session: Session, secret_file: str | None) -> None:
    """Make the first token, which may do everything. Once.

    SECRET_FILE holds a secret of your own choice, a UUID; `-` reads it. Without it the servers choose one.

    wharf acl bootstrap
    """
    from wharf.cli.acl.tokens import render_token
    from wharf.cli.common.documents import read_text

    secret = read_text(secret_file).strip() if secret_file else ""
    one = session.client.acl.bootstrap(secret)
    session.print_result(one, lambda: render_token(session, one))
    session.print_text(
        f"\nKeep the secret: whoever has it may do everything. Use it: export WHARF_TOKEN={one.secret_id}"
    )
