"""Create, replace and delete ACL roles."""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from wharf.cluster.access import build_invalid_record
from wharf.cluster.operations.decision import Decision, build_delete_decision, build_store_decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_POLICIES, ACL_ROLES, ROLES_BY_NAME
from wharf.contract.model.acl import roles
from wharf.contract.model.acl.roles import PolicyLink, Role
from wharf.contract.model.log import Cause, CauseKind
from wharf.contract.model.refusal import invalid_request, not_found


class RoleWriteResult(msgspec.Struct, frozen=True):
    """The result of a request to store a role."""

    index: int  # The log index of the write; of the stored role if nothing was written.
    role: Role  # As stored, with its indexes.


def store_role(snapshot: Replica, requested: Role, new_id: Callable[[], str]) -> Decision[RoleWriteResult]:
    """Return the decision that creates the role if the request has no id; otherwise replaces the role with that id.

    Raises if that role or one of its policies does not exist, or if another role has the name. Only the leader decides
    this, so that no two roles get the same name.
    """
    stored = snapshot.get(ACL_ROLES, requested.id) if requested.id else None
    if requested.id and stored is None:
        raise invalid_request(f"cannot find role {requested.id}")
    problems = roles.list_role_problems(requested)
    if problems:
        raise build_invalid_record("role", problems)
    if any(role.id != requested.id for role in snapshot.list_by_index(ROLES_BY_NAME, requested.name)):
        raise invalid_request(f"role with name {requested.name} already exists")
    names = list(dict.fromkeys(link.name for link in requested.policies or ()))
    for name in names:
        if snapshot.get(ACL_POLICIES, name) is None:
            raise invalid_request(f"cannot find policy {name}")
    return build_store_decision(
        snapshot,
        ACL_ROLES,
        replace(requested, id=requested.id or new_id(), policies=tuple(PolicyLink(name=name) for name in names)),
        stored,
        "role-stored",
        Cause(CauseKind.REQUEST),
        build_reply=RoleWriteResult,
        conditions=[snapshot.build_key_condition(ACL_POLICIES, name) for name in names],
    )


def delete_role(snapshot: Replica, role_id: str) -> Decision[int]:
    """Return the decision that deletes the role. Raises not-found if it does not exist."""
    if snapshot.get(ACL_ROLES, role_id) is None:
        raise not_found("ACL role not found")
    return build_delete_decision(
        snapshot, ACL_ROLES, role_id, write_kind="role-deleted", cause=Cause(CauseKind.REQUEST)
    )
