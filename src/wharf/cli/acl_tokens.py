"""`wharf acl token`."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.failing import Failed
from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Quiet, Speaking, Talk

if TYPE_CHECKING:
    from wharf.wire.access import TokenShown

HERE: Final = "wharf.cli.acl_tokens"
COMMANDS: Final = {
    "create": Entry(HERE, "create", "Make a token."),
    "list": Entry(HERE, "list_", "List tokens, without their secrets."),
    "info": Entry(HERE, "info", "Show a token."),
    "self": Entry(HERE, "self_", "Show the token that is used."),
    "update": Entry(HERE, "update", "Change what a token may do."),
    "delete": Entry(HERE, "delete", "Take a token back."),
}
policies_option = click.option(
    "--policy", "policies", multiple=True, help="One that it has. May be given several times."
)
roles_option = click.option("--role-name", "roles", multiple=True, help="One that it has. May be given several times.")


@click.group(cls=LazyGroup, entries=COMMANDS)
def token() -> None:
    """Make tokens, show them and take them back."""


@click.command(cls=Speaking)
@click.option("--name", default="", help="For people.")
@click.option("--type", "kind", type=click.Choice(["client", "management"]), default="client", show_default=True)
@policies_option
@roles_option
@click.option("--ttl", default="", help="How long it is good for, as 8h.")
@click.option("--global", "is_global", is_flag=True, help="In all regions.")
def create(
    talk: Talk, name: str, kind: str, policies: tuple[str, ...], roles: tuple[str, ...], ttl: str, is_global: bool
) -> None:
    """Make a token.

    wharf acl token create --name deploy --policy deployer --ttl 8h
    """
    from wharf.model.token import RoleLink
    from wharf.wire.access import TokenRequest

    request = TokenRequest(
        name=name,
        type=kind,
        policies=policies or None,
        roles=tuple(RoleLink(name=role) for role in roles) or None,
        expiration_ttl=ttl,
        global_=is_global,
    )
    one = talk.client.acl.tokens.create(request)
    talk.show(one, lambda: token_told(talk, one))


@click.command("list", cls=Speaking)
def list_(talk: Talk) -> None:
    """List tokens, without their secrets.

    wharf acl token list
    """
    from wharf.cli.tables import table

    records = talk.client.acl.tokens.list().value
    rows = [
        (
            one.accessor_id, one.name, one.type, ", ".join(one.policies or ()),
            ", ".join(role.name for role in one.roles or ()), talk.when(one.expiration_time),
        )
        for one in records
    ]  # fmt: skip
    talk.show(records, lambda: table(("Accessor", "Name", "Type", "Policies", "Roles", "Expires"), rows))


@click.command(cls=Speaking)
@click.argument("accessor_id", metavar="ACCESSOR")
def info(talk: Talk, accessor_id: str) -> None:
    """Show a token.

    wharf acl token info 1a2b3c4d
    """
    one = talk.client.acl.tokens.read(find_accessor(talk, accessor_id)).value
    talk.show(one, lambda: token_told(talk, one))


@click.command("self", cls=Speaking)
def self_(talk: Talk) -> None:
    """Show the token that is used.

    wharf acl token self
    """
    one = talk.client.acl.tokens.own().value
    talk.show(one, lambda: token_told(talk, one))


@click.command(cls=Speaking)
@click.argument("accessor_id", metavar="ACCESSOR")
@click.option("--name", help="For people.")
@policies_option
@roles_option
def update(talk: Talk, accessor_id: str, name: str | None, policies: tuple[str, ...], roles: tuple[str, ...]) -> None:
    """Change what a token may do.

    Policies and roles take the place of those that it has; what is not named stays.

    wharf acl token update --policy reader 1a2b3c4d
    """
    from wharf.model.token import RoleLink
    from wharf.wire.access import TokenRequest

    found = talk.client.acl.tokens.read(find_accessor(talk, accessor_id)).value
    request = TokenRequest(
        accessor_id=found.accessor_id,
        name=found.name if name is None else name,
        type=found.type,
        global_=found.global_,
        policies=policies or found.policies,
        roles=tuple(RoleLink(name=role) for role in roles) or found.roles,
    )
    one = talk.client.acl.tokens.update(found.accessor_id, request)
    talk.show(one, lambda: token_told(talk, one))


@click.command(cls=Quiet)
@click.argument("accessor_id", metavar="ACCESSOR")
def delete(talk: Talk, accessor_id: str) -> None:
    """Take a token back.

    wharf acl token delete 1a2b3c4d
    """
    found = find_accessor(talk, accessor_id)
    talk.client.acl.tokens.delete(found)
    click.echo(f"token {found} is good for nothing any more")


def find_accessor(talk: Talk, given: str) -> str:
    """The whole accessor id that is meant."""
    from wharf.cli.finding import WHOLE, the_one

    if len(given) == WHOLE:
        return given
    if not given:
        raise Failed("name a token by its accessor id; `wharf acl token list` lists them")
    # Few have tokens by the million, and prefixes are looked for by whole bytes alone.
    known = talk.client.acl.tokens.list().value
    return the_one(
        "token",
        given,
        [one for one in known if one.accessor_id.startswith(given)] or [one for one in known if one.name == given],
        id_of=lambda one: one.accessor_id,
        about=lambda one: one.name,
        list_by="wharf acl token list",
    ).accessor_id


def token_told(talk: Talk, one: "TokenShown") -> str:
    from wharf.cli.tables import pairs

    return pairs(
        [
            ("Accessor", one.accessor_id),
            ("Secret", one.secret_id),
            ("Name", one.name),
            ("Type", one.type),
            ("Global", "yes" if one.global_ else ""),
            ("Policies", ", ".join(one.policies or ())),
            ("Roles", ", ".join(role.name for role in one.roles or ())),
            ("Created", talk.when(one.create_time)),
            ("Expires", talk.when(one.expiration_time) if one.expiration_time else "never"),
        ]
    )
