"""`wharf acl token`: creates, shows, changes and deletes tokens."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.program import name_variables
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wharf.contract.wire.acl import TokenStub, TokenView

SIGNED_TOKEN_DOTS: Final = 2
"""How many dots a signed token (a JWT) has. The secret of any other token has none."""
MODULE: Final = "wharf.cli.acl.tokens"
COMMANDS: Final = {
    "create": CommandEntry(MODULE, "create", "Create a token."),
    "list": CommandEntry(MODULE, "list_", "List tokens, without their secrets."),
    "info": CommandEntry(MODULE, "info", "Show a token."),
    "self": CommandEntry(MODULE, "self_", "Show your own token."),
    "update": CommandEntry(MODULE, "update", "Change the policies, roles or name of a token."),
    "delete": CommandEntry(MODULE, "delete", "Delete a token, so that it is rejected from now on."),
}
policies_option = click.option("--policy", "policies", multiple=True, help="A policy of the token; may be repeated.")
roles_option = click.option("--role-name", "roles", multiple=True, help="A role of the token; may be repeated.")


@click.group(cls=LazyGroup, entries=COMMANDS)
def token() -> None:
    """Create, show, change and delete tokens."""


@click.command(cls=ServerCommand)
@click.option("--name", default="", help="A name for people; it has no meaning for access.")
@click.option(
    "--type",
    "kind",
    type=click.Choice(["client", "management"]),
    default="client",
    show_default=True,
    help="A management token allows every request.",
)
@policies_option
@roles_option
@click.option("--ttl", default="", help="Lifetime, such as 8h.  [default: unlimited]")
@click.option("--global", "is_global", is_flag=True, help="Valid in all regions.")
def create(
    session: Session, name: str, kind: str, policies: tuple[str, ...], roles: tuple[str, ...], ttl: str, is_global: bool
) -> None:
    """Create a token.

    wharf acl token create --name deploy --policy deployer --ttl 8h
    """
    from wharf.contract.model.acl.tokens import RoleLink
    from wharf.contract.wire.acl import TokenRequest

    request = TokenRequest(
        name=name,
        type=kind,
        policies=policies or None,
        roles=tuple(RoleLink(name=role) for role in roles) or None,
        expiration_ttl=ttl,
        global_=is_global,
    )
    token = session.client.acl.tokens.create(request)
    session.print_result(token, lambda: render_token(session, token))


@click.command("list", cls=ServerCommand)
def list_(session: Session) -> None:
    """List tokens, without their secrets.

    wharf acl token list
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.acl.tokens.list().value
    rows = [
        (
            token.accessor_id, token.name or "-", token.type, ", ".join(token.policies or ()) or "-",
            ", ".join(role.name for role in token.roles or ()) or "-", session.format_time(token.expiration_time),
        )
        for token in records
    ]  # fmt: skip
    session.print_result(
        records,
        lambda: render_table(
            ("Accessor", "Name", "Type", "Policies", "Roles", "Expires"), rows, optional_columns=("Roles", "Policies")
        ),
    )


@click.command(cls=ServerCommand)
@click.argument("accessor_id", metavar="ACCESSOR")
def info(session: Session, accessor_id: str) -> None:
    """Show a token.

    wharf acl token info 1a2b3c4d
    """
    token = session.client.acl.tokens.read(find_accessor_id(session, accessor_id)).value
    session.print_result(token, lambda: render_token(session, token))


@click.command("self", cls=ServerCommand)
def self_(session: Session) -> None:
    """Show your own token.

    wharf acl token self
    """
    from wharf.contract.client.errors import Forbidden

    try:
        token = session.client.acl.tokens.read_own().value
    except Forbidden as error:
        if not session.settings.token:
            raise
        # Only a signed token has a problem of its own, such as a wrong signature.
        problem = f" ({error.text})" if session.settings.token.count(".") == SIGNED_TOKEN_DOTS else ""
        raise CliError(
            f"no such token: it does not exist, was deleted or has expired{problem}; "
            + name_variables("set another one with --token or WHARF_TOKEN")
        ) from error
    session.print_result(token, lambda: render_token(session, token))


@click.command(cls=ServerCommand)
@click.argument("accessor_id", metavar="ACCESSOR")
@click.option("--name", help="A name for people.")
@policies_option
@roles_option
def update(
    session: Session, accessor_id: str, name: str | None, policies: tuple[str, ...], roles: tuple[str, ...]
) -> None:
    """Change the policies, roles or name of a token.

    The given policies and roles replace the current ones. Settings that are not given stay as they are.

    wharf acl token update --policy reader 1a2b3c4d
    """
    from wharf.contract.model.acl.tokens import RoleLink
    from wharf.contract.wire.acl import TokenRequest

    found = session.client.acl.tokens.read(find_accessor_id(session, accessor_id)).value
    request = TokenRequest(
        accessor_id=found.accessor_id,
        name=found.name if name is None else name,
        type=found.type,
        global_=found.global_,
        policies=policies or found.policies,
        roles=tuple(RoleLink(name=role) for role in roles) or found.roles,
    )
    token = session.client.acl.tokens.update(found.accessor_id, request)
    session.print_result(token, lambda: render_token(session, token))


@click.command(cls=ServerCommand)
@click.argument("accessor_id", metavar="ACCESSOR")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(session: Session, accessor_id: str, yes: bool) -> None:
    """Delete a token, so that it is rejected from now on.

    The command asks for confirmation before it deletes the last management token.

    wharf acl token delete 1a2b3c4d
    """
    from wharf.cli.common.options import confirm

    full_id = find_accessor_id(session, accessor_id)
    if not yes and _is_last_management_token(session, full_id):
        confirm(
            f"Delete {full_id}, the last management token? Then only a reset of the bootstrap on a server lets anyone "
            "manage access (documentation page Access control)."
        )
    session.client.acl.tokens.delete(full_id)
    session.print_change(f"deleted token {full_id}", AccessorID=full_id)


def _is_last_management_token(session: Session, accessor_id: str) -> bool:
    """Return whether no other management token remains that does not expire."""
    managing = [token for token in session.client.acl.tokens.list().value if token.type == "management"]
    return any(token.accessor_id == accessor_id for token in managing) and not any(
        token.accessor_id != accessor_id and token.expiration_time is None for token in managing
    )


def find_accessor_id(session: Session, query: str) -> str:
    """Return the full accessor id of the token with this accessor id, unique prefix or name. Raises CliError.

    The query is neither sent to a server nor repeated in errors, because users mistake the secret for the accessor id.
    """
    if not query:
        raise CliError("missing accessor id: `wharf acl token list` lists the tokens")
    if query == session.settings.token:
        raise CliError(
            "this is the secret of your own token, but the command needs its accessor id: `wharf acl token self` shows it"
        )
    # Prefixes are compared here: servers match only prefixes of whole bytes, and the list of tokens is short.
    known = _list_visible_tokens(session, query)
    matches = [token for token in known if token.accessor_id.startswith(query)] or [
        token for token in known if token.name == query
    ]
    if not matches:
        raise CliError(
            "no token has this accessor id or name: `wharf acl token list` lists the accessor ids; a secret is not accepted"
        )
    from wharf.cli.common.lookup import require_single

    return require_single(
        "token",
        query,
        matches,
        get_id=lambda token: token.accessor_id,
        describe=lambda token: token.name,
        list_command="wharf acl token list",
    ).accessor_id


def _list_visible_tokens(session: Session, query: str) -> "Sequence[TokenStub | TokenView]":
    """Return all tokens, or only the caller's own token if that is what the caller may read and means."""
    from wharf.contract.client.errors import Forbidden

    try:
        return session.client.acl.tokens.list().value
    except Forbidden:
        own = session.client.acl.tokens.read_own().value
        if not own.accessor_id.startswith(query):
            raise
        return [own]


def render_token(session: Session, token: "TokenView") -> str:
    """Return the fields of a token; the secret only if the reply has it."""
    from wharf.cli.common.rendering import render_pairs

    return render_pairs(
        [
            ("Accessor", token.accessor_id),
            ("Secret", token.secret_id),
            ("Name", token.name),
            ("Type", token.type),
            ("Global", "yes" if token.global_ else ""),
            ("Policies", ", ".join(token.policies or ())),
            ("Roles", ", ".join(role.name for role in token.roles or ())),
            ("Created", session.format_time(token.create_time)),
            ("Expires", session.format_time(token.expiration_time) if token.expiration_time else "never"),
        ]
    )
