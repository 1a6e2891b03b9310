"""What people do to policies and roles (reference 5.2, 5.3)."""

from collections.abc import Callable

import msgspec

from wharf.access import invalid_record, policy_problems
from wharf.model import role as roles
from wharf.model.changes import THIS, Cause, CauseKind, Write
from wharf.model.content import content_hash
from wharf.model.policy import Policy
from wharf.model.refusal import invalid, unknown
from wharf.model.role import PolicyLink, Role
from wharf.operations.decision import Decision
from wharf.state import Replica
from wharf.state.tables import ACL_POLICIES, ACL_ROLES, ROLES_BY_NAME

replace = msgspec.structs.replace


class RoleWritten(msgspec.Struct, frozen=True):
    """The role as it stands now."""

    index: int
    role: Role


def store_policy(snapshot: Replica, wanted: Policy) -> Decision[int]:
    """Create the policy, or replace it. The same again writes nothing."""
    problems = policy_problems(wanted)
    if problems:
        raise invalid_record("policy", problems)
    stored = snapshot.get(ACL_POLICIES, wanted.name)
    policy = replace(
        wanted, hash=content_hash(wanted), create_index=THIS if stored is None else stored.create_index, modify_index=0
    )
    if stored is not None and stored.hash == policy.hash:
        return Decision(None, lambda _index: stored.modify_index)
    write = Write(
        "policy-stored",
        Cause(CauseKind.REQUEST),
        [ACL_POLICIES.put(policy)],
        [snapshot.as_seen(ACL_POLICIES, policy.name)],
    )
    return Decision(write, lambda index: index)


def delete_policy(snapshot: Replica, name: str) -> Decision[int]:
    """Deleting what is not there is no mistake. Whoever carries the name has no right by it from now on."""
    if snapshot.get(ACL_POLICIES, name) is None:
        return Decision(None, lambda index: index)
    write = Write(
        "policy-deleted",
        Cause(CauseKind.REQUEST),
        [ACL_POLICIES.drop(name)],
        [snapshot.as_seen(ACL_POLICIES, name)],
    )
    return Decision(write, lambda index: index)


def store_role(snapshot: Replica, wanted: Role, new_id: Callable[[], str]) -> Decision[RoleWritten]:
    """Create the role where it names no id, else replace it. Decided by the leader: no two roles share a name."""
    stored = snapshot.get(ACL_ROLES, wanted.id) if wanted.id else None
    if wanted.id and stored is None:
        raise invalid(f"cannot find role {wanted.id}")
    problems = roles.problems(wanted)
    if problems:
        raise invalid_record("role", problems)
    if any(other.id != wanted.id for other in snapshot.those(ROLES_BY_NAME, wanted.name)):
        raise invalid(f"role with name {wanted.name} already exists")
    names = list(dict.fromkeys(link.name for link in wanted.policies or ()))
    for name in names:
        if snapshot.get(ACL_POLICIES, name) is None:
            raise invalid(f"cannot find policy {name}")
    role = replace(
        wanted,
        id=wanted.id or new_id(),
        policies=tuple(PolicyLink(name=name) for name in names),
        create_index=THIS if stored is None else stored.create_index,
        modify_index=0,
        hash=b"",
    )
    role = replace(role, hash=content_hash(role))
    if stored is not None and stored.hash == role.hash:
        return Decision(None, lambda _index: RoleWritten(stored.modify_index, stored))
    conditions = [snapshot.as_seen(ACL_ROLES, role.id), *(snapshot.as_seen(ACL_POLICIES, name) for name in names)]
    write = Write("role-stored", Cause(CauseKind.REQUEST), [ACL_ROLES.put(role)], conditions)

    def reply(index: int) -> RoleWritten:
        created = index if role.create_index == THIS else role.create_index
        return RoleWritten(index, replace(role, create_index=created, modify_index=index))

    return Decision(write, reply)


def delete_role(snapshot: Replica, role_id: str) -> Decision[int]:
    if snapshot.get(ACL_ROLES, role_id) is None:
        raise unknown("ACL role not found")
    write = Write(
        "role-deleted", Cause(CauseKind.REQUEST), [ACL_ROLES.drop(role_id)], [snapshot.as_seen(ACL_ROLES, role_id)]
    )
    return Decision(write, lambda index: index)
