"""The command group `wharf acl`, and `wharf acl bootstrap`, which creates the first token."""

from typing import Final

import click

from wharf.cli.common.program import name_variables
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup

TOKENS_MODULE: Final = "wharf.cli.acl.tokens"
POLICIES_MODULE: Final = "wharf.cli.acl.policies"
AUTH_METHODS_MODULE: Final = "wharf.cli.acl.auth_methods"
COMMANDS: Final = {
    "bootstrap": CommandEntry(
        "wharf.cli.acl.group", "bootstrap", "Create the first management token; works only once."
    ),
    "token": CommandEntry(TOKENS_MODULE, "token", "Create, show, change and delete tokens."),
    "policy": CommandEntry(POLICIES_MODULE, "policy", "Create, show and delete policies."),
    "role": CommandEntry(POLICIES_MODULE, "role", "Create, show, change and delete roles, named sets of policies."),
    "auth-method": CommandEntry(
        AUTH_METHODS_MODULE, "auth_method", "Manage the auth methods by which users and programs log in."
    ),
    "binding-rule": CommandEntry(
        AUTH_METHODS_MODULE, "binding_rule", "Manage the rules that give roles or policies to the tokens of logins."
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def acl() -> None:
    """Manage tokens, policies, roles and logins."""


@click.command(cls=ServerCommand)
@click.argument("secret_file", type=click.Path(allow_dash=True), required=False)
def bootstrap(session: Session, secret_file: str | None) -> None:
    """Create the first management token; works only once.

    SECRET_FILE contains a secret of your choice, a UUID; `-` reads standard input. By default the servers generate one.

    wharf acl bootstrap
    """
    from wharf.cli.acl.tokens import render_token
    from wharf.cli.common.documents import read_text

    secret = read_text(secret_file).strip() if secret_file else ""
    token = session.client.acl.bootstrap(secret)
    session.print_result(token, lambda: render_token(session, token))
    session.print_text(
        "\nStore the secret safely: it allows every request. To use it: export "
        f"{name_variables('WHARF_TOKEN')}={token.secret_id}"
    )
