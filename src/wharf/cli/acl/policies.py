"""`wharf acl policy` and `wharf acl role`."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from wharf.contract.model.acl.roles import Role

MODULE: Final = "wharf.cli.acl.policies"
POLICY_COMMANDS: Final = {
    "apply": CommandEntry(MODULE, "apply_policy", "Write a policy from a file of rules."),
    "list": CommandEntry(MODULE, "list_policies", "List policies."),
    "info": CommandEntry(MODULE, "policy_info", "Show a policy with its rules."),
    "self": CommandEntry(MODULE, "own_policies", "List the policies of the token that is used."),
    "delete": CommandEntry(MODULE, "delete_policy", "Delete a policy."),
}
ROLE_COMMANDS: Final = {
    "create": CommandEntry(MODULE, "create_role", "Make a role."),
    "list": CommandEntry(MODULE, "list_roles", "List roles."),
    "info": CommandEntry(MODULE, "role_info", "Show a role."),
    "update": CommandEntry(MODULE, "update_role", "Change a role."),
    "delete": CommandEntry(MODULE, "delete_role", "Delete a role."),
}
policies_option = click.option(
    "--policy", "policies", multiple=True, help="One of its policies. May be given several times."
)


@click.group(cls=LazyGroup, entries=POLICY_COMMANDS)
def policy() -> None:
    """Write policies, and show them."""


@click.group(cls=LazyGroup, entries=ROLE_COMMANDS)
def role() -> None:
    """Bundle policies under a name."""


@click.command("apply", cls=QuietServerCommand)
@click.argument("name")
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--description", default="", help="What it is for.")
def apply_policy(session: Session, name: str, file: str, description: str) -> None:
    """Write a policy from a file of rules.

    FILE is HCL or JSON, as docs/access.md tells.

    wharf acl policy apply reader reader.hcl
    """
    from wharf.cli.common.documents import read_text
    from wharf.contract.wire.acl import PolicyRequest

    session.client.acl.policies.store(PolicyRequest(name=name, description=description, rules=read_text(file)))
    click.echo(f"policy {name} is written")


@click.command("list", cls=ServerCommand)
def list_policies(session: Session) -> None:
    """List policies.

    wharf acl policy list
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.acl.policies.list().value
    rows = [(one.name, one.description) for one in records]
    session.print_result(
        records, lambda: render_table(("Name", "Description"), rows) if rows else "There are no policies."
    )


@click.command("info", cls=ServerCommand)
@click.argument("name")
def policy_info(session: Session, name: str) -> None:
    """Show a policy with its rules.

    wharf acl policy info reader
    """
    from wharf.cli.common.rendering import render_pairs, render_section

    one = session.client.acl.policies.read(name).value
    head = render_pairs([("Name", one.name), ("Description", one.description)])
    session.print_result(one, lambda: head + "\n" + render_section("Rules", one.rules.strip()))


@click.command("self", cls=ServerCommand)
def own_policies(session: Session) -> None:
    """List the policies of the token that is used.

    wharf acl policy self
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.acl.policies.read_own().value or ()
    rows = [(one.name, one.description) for one in records]
    session.print_result(
        records, lambda: render_table(("Name", "Description"), rows) if rows else "It has no policies."
    )


@click.command("delete", cls=QuietServerCommand)
@click.argument("name")
def delete_policy(session: Session, name: str) -> None:
    """Delete a policy.

    wharf acl policy delete reader
    """
    session.client.acl.policies.delete(name)
    click.echo(f"policy {name} is deleted")


@click.command("create", cls=ServerCommand)
@click.option("--name", required=True)
@click.option("--description", default="", help="What it is for.")
@policies_option
def create_role(session: Session, name: str, description: str, policies: tuple[str, ...]) -> None:
    """Make a role.

    wharf acl role create --name web-team --policy reader --policy deployer
    """
    from wharf.contract.model.acl.roles import PolicyLink
    from wharf.contract.wire.acl import RoleRequest

    links = tuple(PolicyLink(name=policy) for policy in policies)
    one = session.client.acl.roles.create(RoleRequest(name=name, description=description, policies=links))
    session.print_result(one, lambda: _role_told(one))


@click.command("list", cls=ServerCommand)
def list_roles(session: Session) -> None:
    """List roles.

    wharf acl role list
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.acl.roles.list().value
    rows = [(session.shorten_id(one.id), one.name, _names(one), one.description) for one in records]
    session.print_result(
        records,
        lambda: render_table(("ID", "Name", "Policies", "Description"), rows) if rows else "There are no roles.",
    )


@click.command("info", cls=ServerCommand)
@click.argument("role_id", metavar="ROLE")
def role_info(session: Session, role_id: str) -> None:
    """Show a role.

    ROLE is an id, the beginning of one, or a name.

    wharf acl role info web-team
    """
    one = _find_role(session, role_id)
    session.print_result(one, lambda: _role_told(one))


@click.command("update", cls=ServerCommand)
@click.argument("role_id", metavar="ROLE")
@click.option("--name")
@click.option("--description", help="What it is for.")
@policies_option
def update_role(
    session: Session, role_id: str, name: str | None, description: str | None, policies: tuple[str, ...]
) -> None:
    """Change a role.

    Policies take the place of those that it has; what is not named stays.

    wharf acl role update --policy reader web-team
    """
    from wharf.contract.model.acl.roles import PolicyLink
    from wharf.contract.wire.acl import RoleRequest

    found = _find_role(session, role_id)
    request = RoleRequest(
        id=found.id,
        name=found.name if name is None else name,
        description=found.description if description is None else description,
        policies=tuple(PolicyLink(name=policy) for policy in policies) or found.policies,
    )
    one = session.client.acl.roles.update(found.id, request)
    session.print_result(one, lambda: _role_told(one))


@click.command("delete", cls=QuietServerCommand)
@click.argument("role_id", metavar="ROLE")
def delete_role(session: Session, role_id: str) -> None:
    """Delete a role.

    wharf acl role delete web-team
    """
    found = _find_role(session, role_id)
    session.client.acl.roles.delete(found.id)
    click.echo(f"role {found.name} is deleted")


def _find_role(session: Session, given: str) -> "Role":
    from wharf.cli.common.lookup import require_single

    records = session.client.acl.roles.list().value
    found = [one for one in records if one.name == given] or [one for one in records if one.id.startswith(given)]
    return require_single(
        "role",
        given,
        found,
        get_id=lambda one: one.id,
        describe=lambda one: one.name,
        list_command="wharf acl role list",
    )


def _names(one: "Role") -> str:
    return ", ".join(link.name for link in one.policies or ())


def _role_told(one: "Role") -> str:
    from wharf.cli.common.rendering import render_pairs

    return render_pairs(
        [("ID", one.id), ("Name", one.name), ("Description", one.description), ("Policies", _names(one))]
    )
