"""Binding rules: which roles and policies the tokens of a login get, by the claims of the user. All matching rules apply."""

import datetime
import enum
from typing import Final

from wharf.contract.model.names import list_description_problems
from wharf.contract.model.record import Record

NO_BINDINGS_TEXT: Final = "no role or policy bindings matched"
"""The refusal of a login to which no binding rule grants anything."""


class BindType(enum.StrEnum):
    """What a binding rule grants: a role, a policy or a management token."""

    ROLE = "role"
    POLICY = "policy"
    MANAGEMENT = "management"  # All rights; such a rule names no role or policy.


class BindingRule(Record):
    """A rule that grants a role, a policy or all rights to logins through an auth method whose claims match."""

    id: str
    description: str = ""
    auth_method: str = ""  # The name of the method.
    selector: str = ""  # A filter expression on the claims; empty matches every login.
    bind_type: str = ""  # A `BindType`.
    bind_name: str = ""  # The role or policy; may contain claims, as in `team-${value.team}`.
    hash: bytes = b""  # A digest of the content.
    create_time: datetime.datetime | None = None
    modify_time: datetime.datetime | None = None
    create_index: int = 0
    modify_index: int = 0


def list_binding_rule_problems(rule: BindingRule) -> list[str]:
    """Return an error text for each thing that is wrong with a submitted binding rule; empty if it is valid.

    Its selector is not checked.
    """
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
