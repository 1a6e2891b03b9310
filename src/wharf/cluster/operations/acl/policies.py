"""Create, replace and delete ACL policies (reference 5.2, 5.3)."""

import msgspec

from wharf.cluster.access import build_invalid_record, find_policy_problems
from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_POLICIES
from wharf.contract.model.acl.policies import Policy
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.record import hash_content

replace = msgspec.structs.replace


def store_policy(snapshot: Replica, requested: Policy) -> Decision[int]:
    """Create the policy or replace it. If the stored policy is identical, nothing is written."""
    problems = find_policy_problems(requested)
    if problems:
        raise build_invalid_record("policy", problems)
    stored = snapshot.get(ACL_POLICIES, requested.name)
    policy = replace(
        requested,
        hash=hash_content(requested),
        create_index=WRITE_INDEX if stored is None else stored.create_index,
        modify_index=0,
    )
    if stored is not None and stored.hash == policy.hash:
        return Decision(None, lambda _index: stored.modify_index)
    write = Write(
        "policy-stored",
        Cause(CauseKind.REQUEST),
        [ACL_POLICIES.build_put(policy)],
        [snapshot.build_key_condition(ACL_POLICIES, policy.name)],
    )
    return Decision(write, lambda index: index)


def delete_policy(snapshot: Replica, name: str) -> Decision[int]:
    """Delete the policy; no error if it does not exist. Tokens and roles that name it lose the rights that it granted."""
    if snapshot.get(ACL_POLICIES, name) is None:
        return Decision(None, lambda index: index)
    write = Write(
        "policy-deleted",
        Cause(CauseKind.REQUEST),
        [ACL_POLICIES.build_delete(name)],
        [snapshot.build_key_condition(ACL_POLICIES, name)],
    )
    return Decision(write, lambda index: index)
