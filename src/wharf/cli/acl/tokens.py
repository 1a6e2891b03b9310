"""`wharf acl token`."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from wharf.contract.wire.acl import TokenView

MODULE: Final = "wharf.cli.acl.tokens"
COMMANDS: Final = {
    "create": CommandEntry(MODULE, "create", "Make a token."),
    "list": CommandEntry(MODULE, "list_", "List tokens, without their secrets."),
    "info": CommandEntry(MODULE, "info", "Show a token."),
    "self": CommandEntry(MODULE, "self_", "Show the token that is used."),
    "update": CommandEntry(MODULE, "update", "Change what a token may do."),
    "delete": CommandEntry(MODULE, "delete", "Take a token back."),
}
policies_option = click.option(
    "--policy", "policies", multiple=True, help="One that it has. May be given several times."
)
roles_option = click.option("--role-name", "roles", multiple=True, help="One that it has. May be given several times.")


@click.group(cls=LazyGroup, entries=COMMANDS)
def token() -> None:
    """Make tokens, show them and take them back."""


@click.command(cls=ServerCommand)
@click.option("--name", default="", help="For people.")
@click.option("--type", "kind", type=click.Choice(["client", "management"]), default="client", show_default=True)
@policies_option
@roles_option
@click.option("--ttl", default="", help="How long it is good for, as 8h.")
@click.option("--global", "is_global", is_flag=True, help="In all regions.")
def create(
    session: Session, name: str, kind: str, policies: tuple[str, ...], roles: tuple[str, ...], ttl: str, is_global: bool
) -> None:
    """Make a token.

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
    one = session.client.acl.tokens.create(request)
    session.print_result(one, lambda: render_token(session, one))


@click.command("list", cls=ServerCommand)
def list_(session: Session) -> None:
    """List tokens, without their secrets.

    wharf acl token list
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.acl.tokens.list().value
    rows = [
        (
            one.accessor_id, one.name, one.type, ", ".join(one.policies or ()),
            ", ".join(role.name for role in one.roles or ()), session.format_time(one.expiration_time),
        )
        for one in records
    ]  # fmt: skip
    session.print_result(
        records, lambda: render_table(("Accessor", "Name", "Type", "Policies", "Roles", "Expires"), rows)
    )


@click.command(cls=ServerCommand)
@click.argument("accessor_id", metavar="ACCESSOR")
def info(session: Session, accessor_id: str) -> None:
    """Show a token.

    wharf acl token info 1a2b3c4d
    """
    one = session.client.acl.tokens.read(find_accessor_id(session, accessor_id)).value
    session.print_result(one, lambda: render_token(session, one))


@click.command("self", cls=ServerCommand)
def self_(session: Session) -> None:
    """Show the token that is used.

    wharf acl token self
    """
    one = session.client.acl.tokens.read_own().value
    session.print_result(one, lambda: render_token(session, one))


@click.command(cls=ServerCommand)
@click.argument("accessor_id", metavar="ACCESSOR")
@click.option("--name", help="For people.")
@policies_option
@roles_option
def update(
    session: Session, accessor_id: str, name: str | None, policies: tuple[str, ...], roles: tuple[str, ...]
) -> None:
    """Change what a token may do.

    Policies and roles take the place of those that it has; what is not named stays.

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
    one = session.client.acl.tokens.update(found.accessor_id, request)
    session.print_result(one, lambda: render_token(session, one))


@click.command(cls=QuietServerCommand)
@click.argument("accessor_id", metavar="ACCESSOR")
def delete(session: Session, accessor_id: str) -> None:
    """Take a token back.

    wharf acl token delete 1a2b3c4d
    """
    found = find_accessor_id(session, accessor_id)
    session.client.acl.tokens.delete(found)
    click.echo(f"token {found} is good for nothing any more")


def find_accessor_id(session: Session, query: str) -> str:
    """The whole accessor id that is meant."""
    from wharf.cli.common.lookup import FULL_ID_LENGTH, require_single

    if len(query) == FULL_ID_LENGTH:
        return query
    if not query:
        raise CliError("name a token by its accessor id; `wharf acl token list` lists them")
    # Few have tokens by the million, and prefixes are looked for by whole bytes alone.
    known = session.client.acl.tokens.list().value
    return require_single(
        "token",
        query,
        [one for one in known if one.accessor_id.startswith(query)] or [one for one in known if one.name == query],
        get_id=lambda one: one.accessor_id,
        describe=lambda one: one.name,
        list_command="wharf acl token list",
    ).accessor_id


def render_token(session: Session, token: "TokenView") -> str:
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
