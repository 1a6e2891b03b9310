"""Binding rules: which roles and policies the tokens of a login get, by the claims of the user. All matching rules apply."""

import datetime
import enum

from wharf.contract.model.names import list_description_problems
from wharf.contract.model.record import Record


class BindType(enum.StrEnum):
    """What a binding rule grants: a role, a policy or a management token."""

    ROLE = "role"
    POLICY = "policy"
    MANAGEMENT = "management"


class BindingRule(Record):
    """Grants a role or a policy to logins of an auth method whose claims match the selector."""

    id: str
    description: str = ""
    auth_method: str = ""
    selector: str = ""
    bind_type: str = ""
    bind_name: str = ""
    hash: bytes = b""
    create_time: datetime.datetime | None = None
    modify_time: datetime.datetime | None = None
    create_index: int = 0
    modify_index: int = 0


def list_binding_rule_problems(rule: BindingRule) -> list[str]:
    """Return everything that is wrong with a submitted rule, except for its selector, which `filters` checks."""
    found = []
    if not rule.auth_method:
        found.append("auth method is missing")
    found += list_description_problems(rule.description)
    match rule.bind_type:
        case BindType.ROLE | BindType.POLICY if not rule.bind_name:
            found.append("bind name is missing")
        case BindType.MANAGEMENT if rule.bind_name:
            found.append("bind name should be empty")
        case BindType.ROLE | BindType.POLICY | BindType.MANAGEMENT:
            pass
        case "":
            found.append("bind type is missing")
        case _:
            found.append(f"unsupported bind type: {rule.bind_type}")
    return found
