"""`wharf acl policy` and `wharf acl role`: documents of capabilities, and named sets of them."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from wharf.contract.model.acl.roles import Role

MODULE: Final = "wharf.cli.acl.policies"
POLICY_COMMANDS: Final = {
    "apply": CommandEntry(MODULE, "apply_policy", "Create or change a policy from a file of rules."),
    "list": CommandEntry(MODULE, "list_policies", "List policies."),
    "info": CommandEntry(MODULE, "policy_info", "Show a policy with its rules."),
    "self": CommandEntry(MODULE, "own_policies", "List the policies of your own token."),
    "delete": CommandEntry(MODULE, "delete_policy", "Delete a policy."),
}
ROLE_COMMANDS: Final = {
    "create": CommandEntry(MODULE, "create_role", "Create a role."),
    "list": CommandEntry(MODULE, "list_roles", "List roles."),
    "info": CommandEntry(MODULE, "role_info", "Show a role."),
    "update": CommandEntry(MODULE, "update_role", "Change a role."),
    "delete": CommandEntry(MODULE, "delete_role", "Delete a role."),
}
policies_option = click.option("--policy", "policies", multiple=True, help="A policy of the role; may be repeated.")


@click.group(cls=LazyGroup, entries=POLICY_COMMANDS)
def policy() -> None:
    """Create, show and delete policies."""


@click.group(cls=LazyGroup, entries=ROLE_COMMANDS)
def role() -> None:
    """Create, show, change and delete roles, named sets of policies."""


@click.command("apply", cls=ServerCommand)
@click.argument("name")
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--description", default="", help="A description of the policy.")
def apply_policy(session: Session, name: str, file: str, description: str) -> None:
    """Create or change a policy from a file of rules.

    FILE is HCL or JSON; see the documentation page Access control.

    wharf acl policy apply reader reader.hcl
    """
    from wharf.cli.common.documents import read_text
    from wharf.contract.wire.acl import PolicyRequest

    session.client.acl.policies.store(PolicyRequest(name=name, description=description, rules=read_text(file)))
    session.print_change(f"stored policy {name}", Name=name)


@click.command("list", cls=ServerCommand)
def list_policies(session: Session) -> None:
    """List policies.

    wharf acl policy list
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.acl.policies.list().value
    rows = [(policy.name, policy.description) for policy in records]
    session.print_result(records, lambda: render_table(("Name", "Description"), rows) if rows else "No policies.")


@click.command("info", cls=ServerCommand)
@click.argument("name")
def policy_info(session: Session, name: str) -> None:
    """Show a policy with its rules.

    wharf acl policy info reader
    """
    from wharf.cli.common.rendering import render_pairs, render_section

    policy = session.client.acl.policies.read(name).value
    head = render_pairs([("Name", policy.name), ("Description", policy.description)])
    session.print_result(policy, lambda: head + "\n" + render_section("Rules", policy.rules.strip()))


@click.command("self", cls=ServerCommand)
def own_policies(session: Session) -> None:
    """List the policies of your own token.

    wharf acl policy self
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.acl.policies.read_own().value or ()
    rows = [(policy.name, policy.description) for policy in records]
    session.print_result(
        records, lambda: render_table(("Name", "Description"), rows) if rows else "The token has no policies."
    )


@click.command("delete", cls=ServerCommand)
@click.argument("name")
def delete_policy(session: Session, name: str) -> None:
    """Delete a policy.

    wharf acl policy delete reader
    """
    session.client.acl.policies.read(name)  # Servers accept the deletion of a policy that does not exist.
    session.client.acl.policies.delete(name)
    session.print_change(f"deleted policy {name}", Name=name)


@click.command("create", cls=ServerCommand)
@click.option("--name", required=True, help="Name of the role.")
@click.option("--description", default="", help="A description of the role.")
@policies_option
def create_role(session: Session, name: str, description: str, policies: tuple[str, ...]) -> None:
    """Create a role.

    wharf acl role create --name web-team --policy reader --policy deployer
    """
    from wharf.contract.model.acl.roles import PolicyLink
    from wharf.contract.wire.acl import RoleRequest

    links = tuple(PolicyLink(name=policy) for policy in policies)
    role = session.client.acl.roles.create(RoleRequest(name=name, description=description, policies=links))
    session.print_result(role, lambda: _render_role(role))


@click.command("list", cls=ServerCommand)
def list_roles(session: Session) -> None:
    """List roles.

    wharf acl role list
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.acl.roles.list().value
    rows = [(session.shorten_id(role.id), role.name, _join_policy_names(role), role.description) for role in records]
    session.print_result(
        records,
        lambda: render_table(("ID", "Name", "Policies", "Description"), rows) if rows else "No roles.",
    )


@click.command("info", cls=ServerCommand)
@click.argument("role_id", metavar="ROLE")
def role_info(session: Session, role_id: str) -> None:
    """Show a role.

    ROLE is an id, a unique prefix of an id, or a name.

    wharf acl role info web-team
    """
    role = _find_role(session, role_id)
    session.print_result(role, lambda: _render_role(role))


@click.command("update", cls=ServerCommand)
@click.argument("role_id", metavar="ROLE")
@click.option("--name", help="The new name.")
@click.option("--description", help="A description of the role.")
@policies_option
def update_role(
    session: Session, role_id: str, name: str | None, description: str | None, policies: tuple[str, ...]
) -> None:
    """Change a role.

    The given policies replace the current ones. Settings that are not given stay as they are.

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
    role = session.client.acl.roles.update(found.id, request)
    session.print_result(role, lambda: _render_role(role))


@click.command("delete", cls=ServerCommand)
@click.argument("role_id", metavar="ROLE")
def delete_role(session: Session, role_id: str) -> None:
    """Delete a role.

    wharf acl role delete web-team
    """
    found = _find_role(session, role_id)
    session.client.acl.roles.delete(found.id)
    session.print_change(f"deleted role {found.name}", ID=found.id, Name=found.name)


def _find_role(session: Session, query: str) -> "Role":
    """Find a role by name or by a unique prefix of its id. Raises CliError."""
    from wharf.cli.common.lookup import require_single

    records = session.client.acl.roles.list().value
    by_name = [role for role in records if role.name == query]
    found = by_name or [role for role in records if role.id.startswith(query)]
    return require_single(
        "role",
        query,
        found,
        get_id=lambda role: role.id,
        describe=lambda role: role.name,
        list_command="wharf acl role list",
    )


def _join_policy_names(role: "Role") -> str:
    return ", ".join(link.name for link in role.policies or ())


def _render_role(role: "Role") -> str:
    """Return a role as a list."""
    from wharf.cli.common.rendering import render_pairs

    return render_pairs(
        [
            ("ID", role.id),
            ("Name", role.name),
            ("Description", role.description),
            ("Policies", _join_policy_names(role)),
        ]
    )
