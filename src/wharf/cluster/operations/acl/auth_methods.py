"""Create, replace and delete auth methods (reference 5.2, 5.3).

The secrets of a method arrive encrypted and separate from it; in its configuration each secret is replaced by the word
`redacted`.
"""

import hashlib
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.access import build_invalid_record
from wharf.cluster.operations.decision import Decision, set_written_index
from wharf.cluster.operations.references import build_child_conditions
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_AUTH_METHODS, ACL_BINDING_RULES, BINDING_RULES_OF_METHOD, KEYRING
from wharf.contract.model.acl import auth_methods
from wharf.contract.model.acl.auth_methods import DEFAULT_TOKEN_NAME_FORMAT, AuthMethod
from wharf.contract.model.acl.tokens import LifetimeLimits
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, DeleteRecord, PutRecord, Write
from wharf.contract.model.record import hash_content
from wharf.contract.model.refusal import invalid_request, not_found
from wharf.contract.model.secrets import SealedData
from wharf.contract.model.times import DecisionContext, to_datetime

MAX_ORPHANED_RULES: Final = 64
"""Limits the size of a write: a new method deletes at most this many rules that an earlier method of its name left. Further
ones have no effect, because they are older than the method."""


class AuthMethodWriteResult(msgspec.Struct, frozen=True):
    """The result of a request to store an auth method."""

    index: int  # The log index of the write.
    method: AuthMethod  # As stored, with its indexes.


def store_auth_method(
    snapshot: Replica,
    requested: AuthMethod,
    context: DecisionContext,
    *,
    sealed_secrets: SealedData | None,
    limits: LifetimeLimits,
) -> Decision[AuthMethodWriteResult]:
    """Return the decision that creates the auth method, or replaces the one of the same name.

    Raises if it is invalid, or if it is a default and its type has another default method already. Only the leader
    decides this, so that two requests cannot both create a default. `sealed_secrets` are the encrypted secrets of the
    method; `None` keeps the stored ones.
    """
    stored = snapshot.get(ACL_AUTH_METHODS, requested.name)
    requested = replace(requested, token_name_format=requested.token_name_format or DEFAULT_TOKEN_NAME_FORMAT)
    problems = auth_methods.list_auth_method_problems(requested, limits=limits)
    if problems:
        raise build_invalid_record("auth method", problems)
    if requested.default:
        for method in snapshot.iter_all(ACL_AUTH_METHODS):
            if method.default and method.type == requested.type and method.name != requested.name:
                raise invalid_request(f"default auth method for type {requested.type} already exists: {method.name}")
    now = to_datetime(context.now_ns)
    stamp = hashlib.sha256(sealed_secrets.data).digest() if sealed_secrets is not None else b""
    if sealed_secrets is None and stored is not None:
        sealed_secrets, stamp = SealedData(stored.secrets_sealed, stored.sealed_with), stored.secrets_stamp
    requested = replace(requested, secrets_stamp=stamp)
    method = replace(
        requested,
        secrets_sealed=sealed_secrets.data if sealed_secrets is not None else b"",
        sealed_with=sealed_secrets.key_id if sealed_secrets is not None else "",
        create_time=now if stored is None else stored.create_time,
        modify_time=now,
        hash=hash_content(requested),
        create_index=WRITE_INDEX if stored is None else stored.create_index,
        modify_index=0,
    )
    conditions = [snapshot.build_key_condition(ACL_AUTH_METHODS, method.name)]
    if method.sealed_with:
        conditions.append(snapshot.build_key_condition(KEYRING, method.sealed_with))
    changes: list[PutRecord | DeleteRecord] = [ACL_AUTH_METHODS.build_put(method)]
    if stored is None:
        # Rules of an earlier method of this name, which an earlier release could leave behind, must not get effect again.
        for rule in snapshot.list_by_index_sorted(BINDING_RULES_OF_METHOD, method.name)[:MAX_ORPHANED_RULES]:
            changes.append(ACL_BINDING_RULES.build_delete(rule.id))
            conditions.append(snapshot.build_record_condition(ACL_BINDING_RULES, rule))
    write = Write("auth-method-stored", Cause(CauseKind.REQUEST), changes, conditions)
    return Decision(write, lambda index: AuthMethodWriteResult(index, set_written_index(method, index)))


def delete_auth_method(snapshot: Replica, name: str, *, max_changes: int) -> Decision[int]:
    """Return the decision that deletes the auth method and its binding rules, which have no effect without it.

    Raises if it does not exist, or if it has too many rules for one write (`max_changes`).
    """
    if snapshot.get(ACL_AUTH_METHODS, name) is None:
        raise not_found("ACL auth method not found")
    rules = snapshot.list_by_index_sorted(BINDING_RULES_OF_METHOD, name)
    if len(rules) >= max_changes:
        raise invalid_request(
            f"{len(rules)} binding rules belong to this auth method, too many for one write: delete some of them first"
        )
    deletions: list[DeleteRecord] = [
        ACL_AUTH_METHODS.build_delete(name),
        *(ACL_BINDING_RULES.build_delete(rule.id) for rule in rules),
    ]
    conditions = [
        snapshot.build_key_condition(ACL_AUTH_METHODS, name),
        *(snapshot.build_record_condition(ACL_BINDING_RULES, rule) for rule in rules),
        *build_child_conditions(snapshot, ACL_AUTH_METHODS, name),
    ]
    return Decision(Write("auth-method-deleted", Cause(CauseKind.REQUEST), deletions, conditions), lambda index: index)
