"""Roles: named sets of policies that tokens carry."""

from wharf.model.naming import description_problems, is_name
from wharf.model.record import Record


class PolicyLink(Record):
    name: str = ""


class Role(Record):
    id: str
    name: str = ""
    description: str = ""
    policies: tuple[PolicyLink, ...] | None = None
    hash: bytes = b""
    create_index: int = 0
    modify_index: int = 0


def problems(role: Role) -> list[str]:
    """Everything that is wrong with a role somebody wants to write. Whether its policies exist is looked up elsewhere."""
    found = []
    if not is_name(role.name):
        found.append(f"invalid name '{role.name}'")
    found += description_problems(role.description)
    if not role.policies:
        found.append("at least one policy should be specified")
    return found
