"""Roles: named sets of policies that tokens carry."""

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
