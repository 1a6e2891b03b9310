"""Create, replace and delete ACL policies (reference 5.2, 5.3)."""

from wharf.cluster.access import build_invalid_record, find_policy_problems
from wharf.cluster.operations.decision import Decision, build_delete_decision, build_store_decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_POLICIES
from wharf.contract.model.acl.policies import Policy
from wharf.contract.model.log import Cause, CauseKind


def store_policy(snapshot: Replica, requested: Policy) -> Decision[int]:
    """Return the decision that creates the policy, or replaces the one of the same name.

    Raises if the policy is invalid.

    Nothing is written if the stored policy is identical.
    """
    problems = find_policy_problems(requested)
    if problems:
        raise build_invalid_record("policy", problems)
    return build_store_decision(
        snapshot,
        ACL_POLICIES,
        requested,
        snapshot.get(ACL_POLICIES, requested.name),
        "policy-stored",
        Cause(CauseKind.REQUEST),
        build_reply=lambda index, _policy: index,
    )


def delete_policy(snapshot: Replica, name: str) -> Decision[int]:
    """Return the decision that deletes the policy; it writes nothing if the policy does not exist.

    Tokens and roles that name the policy lose the rights that it granted.
    """
    if snapshot.get(ACL_POLICIES, name) is None:
        return Decision(None, lambda index: index)
    return build_delete_decision(
        snapshot, ACL_POLICIES, name, write_kind="policy-deleted", cause=Cause(CauseKind.REQUEST)
    )
