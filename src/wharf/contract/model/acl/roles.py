"""Roles: named sets of policies that tokens carry."""

from wharf.contract.model.names import NAME_RULE_TEXT, is_valid_name, list_description_problems
from wharf.contract.model.record import Record


class PolicyLink(Record):
    """The name of a policy that belongs to a role."""

    name: str = ""


class Role(Record):
    """A named set of policies that tokens can carry."""

    id: str
    name: str = ""
    description: str = ""
    policies: tuple[PolicyLink, ...] | None = None
    hash: bytes = b""  # A digest of the content.
    create_index: int = 0
    modify_index: int = 0


def list_role_problems(role: Role) -> list[str]:
    """Return an error text for each thing that is wrong with a submitted role; empty if it is valid.

    Whether its policies exist is not checked.
    """
    found = []
    if not is_valid_name(role.name):
        found.append(f"invalid name '{role.name}': {NAME_RULE_TEXT}")
    found += list_description_problems(role.description)
    if not role.policies:
        found.append("at least one policy should be specified")
    return found
