"""Binding rules: what those who log in by a method may do, by their claims. All rules that match add up."""

import datetime
import enum

from wharf.contract.model.names import list_description_problems
from wharf.contract.model.record import Record


class BindType(enum.StrEnum):
    ROLE = "role"
    POLICY = "policy"
    MANAGEMENT = "management"


class BindingRule(Record):
    """Gives a role or a policy to whoever logs in by a method and whose claims the selector accepts."""

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
    """Everything that is wrong with a rule somebody wants to write, but for its selector: see `filters`."""
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
