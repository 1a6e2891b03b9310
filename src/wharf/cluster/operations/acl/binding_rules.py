"""Create, replace and delete binding rules, which map the claims of a login to roles and policies."""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from wharf.cluster.access import build_invalid_record, find_binding_rule_problems
from wharf.cluster.operations.decision import Decision, build_delete_decision, set_written_index
from wharf.cluster.operations.references import build_parent_conditions
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_AUTH_METHODS, ACL_BINDING_RULES
from wharf.contract.model.acl.binding_rules import BindingRule
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.record import hash_content
from wharf.contract.model.refusal import invalid_request, not_found
from wharf.contract.model.times import DecisionContext, to_datetime


class BindingRuleWriteResult(msgspec.Struct, frozen=True):
    """The result of a request to store a binding rule."""

    index: int  # The log index of the write.
    rule: BindingRule  # As stored, with its indexes.


def store_binding_rule(
    snapshot: Replica, requested: BindingRule, context: DecisionContext, new_id: Callable[[], str]
) -> Decision[BindingRuleWriteResult]:
    """Return the decision that creates the binding rule if the request has no id; otherwise replaces the rule with that
    id.

    Raises if that rule or its auth method does not exist, if the rule is invalid, or if it would change its auth
    method.
    """
    stored = snapshot.get(ACL_BINDING_RULES, requested.id) if requested.id else None
    if requested.id and stored is None:
        raise invalid_request(f"cannot find binding rule {requested.id}")
    if stored is not None and not requested.auth_method:
        requested = replace(requested, auth_method=stored.auth_method)
    problems = find_binding_rule_problems(requested)
    if problems:
        raise build_invalid_record("binding rule", problems)
    if snapshot.get(ACL_AUTH_METHODS, requested.auth_method) is None:
        raise invalid_request(f"ACL auth method {requested.auth_method} not found")
    if stored is not None and stored.auth_method != requested.auth_method:
        raise invalid_request("cannot update auth method for binding rule, create a new rule instead")
    now = to_datetime(context.now_ns)
    rule = replace(
        requested,
        id=requested.id or new_id(),
        create_time=now if stored is None else stored.create_time,
        modify_time=now,
        create_index=WRITE_INDEX if stored is None else stored.create_index,
        modify_index=0,
        hash=b"",
    )
    rule = replace(rule, hash=hash_content(rule))
    conditions = [
        snapshot.build_key_condition(ACL_BINDING_RULES, rule.id),
        *build_parent_conditions(snapshot, ACL_BINDING_RULES, rule),
    ]
    write = Write("binding-rule-stored", Cause(CauseKind.REQUEST), [ACL_BINDING_RULES.build_put(rule)], conditions)
    return Decision(write, lambda index: BindingRuleWriteResult(index, set_written_index(rule, index)))


def delete_binding_rule(snapshot: Replica, rule_id: str) -> Decision[int]:
    """Return the decision that deletes the binding rule. Raises not-found if it does not exist."""
    if snapshot.get(ACL_BINDING_RULES, rule_id) is None:
        raise not_found("ACL binding rule not found")
    return build_delete_decision(
        snapshot, ACL_BINDING_RULES, rule_id, write_kind="binding-rule-deleted", cause=Cause(CauseKind.REQUEST)
    )
