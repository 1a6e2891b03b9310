"""What people do to login methods and binding rules (reference 5.2, 5.3).

Secrets of a method come in sealed and apart; its configuration holds the word `redacted` where one is.
"""

import hashlib
from collections.abc import Callable

import msgspec

from wharf.access import binding_rule_problems, invalid_record
from wharf.model import auth_method
from wharf.model.auth_method import DEFAULT_NAME_FORMAT, AuthMethod
from wharf.model.binding_rule import BindingRule
from wharf.model.changes import THIS, Cause, CauseKind, Drop, Write
from wharf.model.content import content_hash
from wharf.model.moment import Moment, to_time
from wharf.model.refusal import invalid, unknown
from wharf.model.secret import Sealed
from wharf.model.token import DEFAULT_LIFETIME_BOUNDS, LifetimeBounds
from wharf.operations.decision import Decision
from wharf.state import Replica
from wharf.state.tables import ACL_AUTH_METHODS, ACL_BINDING_RULES, KEYRING, RULES_OF_METHOD

replace = msgspec.structs.replace


class MethodWritten(msgspec.Struct, frozen=True):
    """The method as it stands now."""

    index: int
    method: AuthMethod


class RuleWritten(msgspec.Struct, frozen=True):
    """The rule as it stands now."""

    index: int
    rule: BindingRule


def store_method(
    snapshot: Replica,
    wanted: AuthMethod,
    moment: Moment,
    *,
    sealed: Sealed | None,
    bounds: LifetimeBounds = DEFAULT_LIFETIME_BOUNDS,
) -> Decision[MethodWritten]:
    """Create the method or replace it. Decided by the leader: one method of a type is the default at most.

    `sealed`: its secrets; None keeps those that are stored.
    """
    stored = snapshot.get(ACL_AUTH_METHODS, wanted.name)
    wanted = replace(wanted, token_name_format=wanted.token_name_format or DEFAULT_NAME_FORMAT)
    problems = auth_method.problems(wanted, bounds=bounds)
    if problems:
        raise invalid_record("auth method", problems)
    if wanted.default:
        for other in snapshot.all(ACL_AUTH_METHODS):
            if other.default and other.type == wanted.type and other.name != wanted.name:
                raise invalid(f"default auth method for type {wanted.type} already exists: {other.name}")
    now = to_time(moment.now_ns)
    stamp = hashlib.sha256(sealed.data).digest() if sealed is not None else b""
    if sealed is None and stored is not None:
        sealed, stamp = Sealed(stored.secrets_sealed, stored.sealed_with), stored.secrets_stamp
    wanted = replace(wanted, secrets_stamp=stamp)
    method = replace(
        wanted,
        secrets_sealed=sealed.data if sealed is not None else b"",
        sealed_with=sealed.key_id if sealed is not None else "",
        create_time=now if stored is None else stored.create_time,
        modify_time=now,
        hash=content_hash(replace(wanted, hash=b"")),
        create_index=THIS if stored is None else stored.create_index,
        modify_index=0,
    )
    conditions = [snapshot.as_seen(ACL_AUTH_METHODS, method.name)]
    if method.sealed_with:
        conditions.append(snapshot.as_seen(KEYRING, method.sealed_with))
    write = Write("auth-method-stored", Cause(CauseKind.REQUEST), [ACL_AUTH_METHODS.put(method)], conditions)

    def reply(index: int) -> MethodWritten:
        created = index if method.create_index == THIS else method.create_index
        return MethodWritten(index, replace(method, create_index=created, modify_index=index))

    return Decision(write, reply)


def delete_method(snapshot: Replica, name: str, *, changes_max: int) -> Decision[int]:
    """The method goes with its rules, which mean nothing without it."""
    if snapshot.get(ACL_AUTH_METHODS, name) is None:
        raise unknown("ACL auth method not found")
    rules = snapshot.those_by_key(RULES_OF_METHOD, name)
    if len(rules) >= changes_max:
        raise invalid(f"{len(rules)} binding rules hang on this method, too many for one write: delete some first")
    drops: list[Drop] = [ACL_AUTH_METHODS.drop(name), *(ACL_BINDING_RULES.drop(rule.id) for rule in rules)]
    conditions = [
        snapshot.as_seen(ACL_AUTH_METHODS, name),
        *(snapshot.unchanged(ACL_BINDING_RULES, rule) for rule in rules),
    ]
    return Decision(Write("auth-method-deleted", Cause(CauseKind.REQUEST), drops, conditions), lambda index: index)


def store_rule(
    snapshot: Replica, wanted: BindingRule, moment: Moment, new_id: Callable[[], str]
) -> Decision[RuleWritten]:
    """Create the rule where it names no id, else replace it."""
    stored = snapshot.get(ACL_BINDING_RULES, wanted.id) if wanted.id else None
    if wanted.id and stored is None:
        raise invalid(f"cannot find binding rule {wanted.id}")
    if stored is not None and not wanted.auth_method:
        wanted = replace(wanted, auth_method=stored.auth_method)
    problems = binding_rule_problems(wanted)
    if problems:
        raise invalid_record("binding rule", problems)
    if snapshot.get(ACL_AUTH_METHODS, wanted.auth_method) is None:
        raise invalid(f"ACL auth method {wanted.auth_method} not found")
    if stored is not None and stored.auth_method != wanted.auth_method:
        raise invalid("cannot update auth method for binding rule, create a new rule instead")
    now = to_time(moment.now_ns)
    rule = replace(
        wanted,
        id=wanted.id or new_id(),
        create_time=now if stored is None else stored.create_time,
        modify_time=now,
        create_index=THIS if stored is None else stored.create_index,
        modify_index=0,
        hash=b"",
    )
    rule = replace(rule, hash=content_hash(rule))
    conditions = [
        snapshot.as_seen(ACL_BINDING_RULES, rule.id),
        snapshot.as_seen(ACL_AUTH_METHODS, rule.auth_method),
    ]
    write = Write("binding-rule-stored", Cause(CauseKind.REQUEST), [ACL_BINDING_RULES.put(rule)], conditions)

    def reply(index: int) -> RuleWritten:
        created = index if rule.create_index == THIS else rule.create_index
        return RuleWritten(index, replace(rule, create_index=created, modify_index=index))

    return Decision(write, reply)


def delete_rule(snapshot: Replica, rule_id: str) -> Decision[int]:
    if snapshot.get(ACL_BINDING_RULES, rule_id) is None:
        raise unknown("ACL binding rule not found")
    write = Write(
        "binding-rule-deleted",
        Cause(CauseKind.REQUEST),
        [ACL_BINDING_RULES.drop(rule_id)],
        [snapshot.as_seen(ACL_BINDING_RULES, rule_id)],
    )
    return Decision(write, lambda index: index)
