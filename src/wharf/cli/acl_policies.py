"""`wharf acl policy` and `wharf acl role`."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Quiet, Speaking, Talk

if TYPE_CHECKING:
    from wharf.model.role import Role

HERE: Final = "wharf.cli.acl_policies"
POLICY: Final = {
    "apply": Entry(HERE, "apply_policy", "Write a policy from a file of rules."),
    "list": Entry(HERE, "list_policies", "List policies."),
    "info": Entry(HERE, "policy_info", "Show a policy with its rules."),
    "self": Entry(HERE, "own_policies", "List the policies of the token that is used."),
    "delete": Entry(HERE, "delete_policy", "Delete a policy."),
}
ROLE: Final = {
    "create": Entry(HERE, "create_role", "Make a role."),
    "list": Entry(HERE, "list_roles", "List roles."),
    "info": Entry(HERE, "role_info", "Show a role."),
    "update": Entry(HERE, "update_role", "Change a role."),
    "delete": Entry(HERE, "delete_role", "Delete a role."),
}
policies_option = click.option(
    "--policy", "policies", multiple=True, help="One of its policies. May be given several times."
)


@click.group(cls=LazyGroup, entries=POLICY)
def policy() -> None:
    """Write policies, and show them."""


@click.group(cls=LazyGroup, entries=ROLE)
def role() -> None:
    """Bundle policies under a name."""


@click.command("apply", cls=Quiet)
@click.argument("name")
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--description", default="", help="What it is for.")
def apply_policy(talk: Talk, name: str, file: str, description: str) -> None:
    """Write a policy from a file of rules.

    FILE is HCL or JSON, as docs/access.md tells.

    wharf acl policy apply reader reader.hcl
    """
    from wharf.cli.records import read_text
    from wharf.wire.access import PolicyRequest

    talk.client.acl.policies.store(PolicyRequest(name=name, description=description, rules=read_text(file)))
    click.echo(f"policy {name} is written")


@click.command("list", cls=Speaking)
def list_policies(talk: Talk) -> None:
    """List policies.

    wharf acl policy list
    """
    from wharf.cli.tables import table

    records = talk.client.acl.policies.list().value
    rows = [(one.name, one.description) for one in records]
    talk.show(records, lambda: table(("Name", "Description"), rows) if rows else "There are no policies.")


@click.command("info", cls=Speaking)
@click.argument("name")
def policy_info(talk: Talk, name: str) -> None:
    """Show a policy with its rules.

    wharf acl policy info reader
    """
    from wharf.cli.tables import pairs, section

    one = talk.client.acl.policies.read(name).value
    head = pairs([("Name", one.name), ("Description", one.description)])
    talk.show(one, lambda: head + "\n" + section("Rules", one.rules.strip()))


@click.command("self", cls=Speaking)
def own_policies(talk: Talk) -> None:
    """List the policies of the token that is used.

    wharf acl policy self
    """
    from wharf.cli.tables import table

    records = talk.client.acl.policies.own().value or ()
    rows = [(one.name, one.description) for one in records]
    talk.show(records, lambda: table(("Name", "Description"), rows) if rows else "It has no policies.")


@click.command("delete", cls=Quiet)
@click.argument("name")
def delete_policy(talk: Talk, name: str) -> None:
    """Delete a policy.

    wharf acl policy delete reader
    """
    talk.client.acl.policies.delete(name)
    click.echo(f"policy {name} is deleted")


@click.command("create", cls=Speaking)
@click.option("--name", required=True)
@click.option("--description", default="", help="What it is for.")
@policies_option
def create_role(talk: Talk, name: str, description: str, policies: tuple[str, ...]) -> None:
    """Make a role.

    wharf acl role create --name web-team --policy reader --policy deployer
    """
    from wharf.model.role import PolicyLink
    from wharf.wire.access import RoleRequest

    links = tuple(PolicyLink(name=policy) for policy in policies)
    one = talk.client.acl.roles.create(RoleRequest(name=name, description=description, policies=links))
    talk.show(one, lambda: _role_told(one))


@click.command("list", cls=Speaking)
def list_roles(talk: Talk) -> None:
    """List roles.

    wharf acl role list
    """
    from wharf.cli.tables import table

    records = talk.client.acl.roles.list().value
    rows = [(talk.short(one.id), one.name, _names(one), one.description) for one in records]
    talk.show(
        records, lambda: table(("ID", "Name", "Policies", "Description"), rows) if rows else "There are no roles."
    )


@click.command("info", cls=Speaking)
@click.argument("role_id", metavar="ROLE")
def role_info(talk: Talk, role_id: str) -> None:
    """Show a role.

    ROLE is an id, the beginning of one, or a name.

    wharf acl role info web-team
    """
    one = _find_role(talk, role_id)
    talk.show(one, lambda: _role_told(one))


@click.command("update", cls=Speaking)
@click.argument("role_id", metavar="ROLE")
@click.option("--name")
@click.option("--description", help="What it is for.")
@policies_option
def update_role(talk: Talk, role_id: str, name: str | None, description: str | None, policies: tuple[str, ...]) -> None:
    """Change a role.

    Policies take the place of those that it has; what is not named stays.

    wharf acl role update --policy reader web-team
    """
    from wharf.model.role import PolicyLink
    from wharf.wire.access import RoleRequest

    found = _find_role(talk, role_id)
    request = RoleRequest(
        id=found.id,
        name=found.name if name is None else name,
        description=found.description if description is None else description,
        policies=tuple(PolicyLink(name=policy) for policy in policies) or found.policies,
    )
    one = talk.client.acl.roles.update(found.id, request)
    talk.show(one, lambda: _role_told(one))


@click.command("delete", cls=Quiet)
@click.argument("role_id", metavar="ROLE")
def delete_role(talk: Talk, role_id: str) -> None:
    """Delete a role.

    wharf acl role delete web-team
    """
    found = _find_role(talk, role_id)
    talk.client.acl.roles.delete(found.id)
    click.echo(f"role {found.name} is deleted")


def _find_role(talk: Talk, given: str) -> "Role":
    from wharf.cli.finding import the_one

    records = talk.client.acl.roles.list().value
    found = [one for one in records if one.name == given] or [one for one in records if one.id.startswith(given)]
    return the_one(
        "role", given, found, id_of=lambda one: one.id, about=lambda one: one.name, list_by="wharf acl role list"
    )


def _names(one: "Role") -> str:
    return ", ".join(link.name for link in one.policies or ())


def _role_told(one: "Role") -> str:
    from wharf.cli.tables import pairs

    return pairs([("ID", one.id), ("Name", one.name), ("Description", one.description), ("Policies", _names(one))])
