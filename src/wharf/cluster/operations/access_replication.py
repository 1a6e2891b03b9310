"""Replication of access control from the authoritative region: policies, roles, auth methods, binding rules and tokens.

They are applied as one set, so that no caller ever has rights that the authoritative region did not grant at some moment.
Changes that fit in one write are applied at once. Others are applied in steps: each step only removes rights, until the
records with the new rights are complete (ADR 0175). A step can be repeated, and a newer set can follow after any step.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.replication import (
    AUTH_METHODS,
    BINDING_RULES,
    POLICIES,
    RIGHTS_TABLES,
    ROLES,
    TOKENS,
    ReplicatedChange,
    ReplicatedTable,
    build_deletion,
    build_put,
    build_write,
    differs,
    list_records_without_source,
)
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_AUTH_METHODS, ACL_POLICIES, ACL_ROLES, ACL_TOKENS, BINDING_RULES_OF_METHOD
from wharf.contract.model.acl.auth_methods import AuthMethod
from wharf.contract.model.acl.binding_rules import BindingRule
from wharf.contract.model.acl.policies import JobACL, Policy
from wharf.contract.model.acl.roles import PolicyLink, Role
from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.log import PutRecord, Write

MAX_WRITE_BYTES: Final = 512 * 1024
"""The records of one write. Fits the smallest limit of an engine (etcd: 1.5 MB) with encoding, and takes a few milliseconds."""

CLOSED_RULES: Final = "the replication of this policy from the authoritative region is not complete"
"""The rules of a policy while it is replaced. They are invalid, so callers with the policy have no rights at all."""
CLOSED_NAME: Final = "replication not complete"
"""The beginning of the names of closing policies, which exist while the steps are applied. No user can store such a name."""


class WriteSize(msgspec.Struct, frozen=True):
    """How large one write may be."""

    changes: int
    bytes: int = MAX_WRITE_BYTES


class AccessRecords(msgspec.Struct, frozen=True):
    """The access control records of the authoritative region at one moment.

    Secrets in them must already be encrypted with this region's keys.
    """

    by_table: Mapping[str, Sequence[Any]]
    """All records of each table of `RIGHTS_TABLES`, by its name."""
    tokens: Sequence[Token]
    """The global tokens that this region has too, as the source has them; others are deleted. New tokens may follow later,
    because they grant nothing before they exist."""

    @property
    def policies(self) -> Sequence[Policy]:
        return self.by_table[POLICIES.table.name]

    @property
    def roles(self) -> Sequence[Role]:
        return self.by_table[ACL_ROLES.name]

    @property
    def auth_methods(self) -> Sequence[AuthMethod]:
        return self.by_table[AUTH_METHODS.table.name]

    def list_records(self, replicated: ReplicatedTable) -> Sequence[Any]:
        """Return the records of the source for a table of `RIGHTS_TABLES`."""
        return self.by_table[replicated.table.name]


Changes = list[ReplicatedChange]


def list_effective_rules(rules: Iterable[BindingRule], methods: Iterable[Any]) -> list[BindingRule]:
    """Return the binding rules of the source that have an effect there: those that are not older than their auth method.

    In this region a method counts as created before its rules, so the others would get effect.
    """
    created = {method.name: method.create_index for method in methods}
    return [rule for rule in rules if rule.create_index >= created.get(rule.auth_method, rule.create_index + 1)]


def build_access_write(snapshot: Replica, source: AccessRecords, *, region: str, size: WriteSize) -> Write | None:
    """Return the next write towards the records of the source, or `None` if this region has all of them.

    `region` is the name of the source, for the log.
    """
    changes = [
        *_remove_tokens(snapshot, source, is_changed_removed=False),
        *_store_tokens(snapshot, source),
        *_replace_records(snapshot, source, RIGHTS_TABLES),
    ]
    if not changes:
        return None
    if _count_fitting(changes, size) == len(changes):
        return build_write(region, changes)
    changes = next(found for step in _STEPS if (found := step(snapshot, source)))
    return build_write(region, changes[: _count_fitting(changes, size)])


def build_token_write(snapshot: Replica, tokens: Iterable[Token], *, region: str, size: WriteSize) -> Write | None:
    """Return the next write that stores these tokens of the source, or `None` if this region has all of them.

    The policies and roles of the source must be complete.
    """
    changes = _store_differing(snapshot, TOKENS, tokens)
    return build_write(region, changes[: _count_fitting(changes, size)]) if changes else None


def build_revocation_write(
    snapshot: Replica, listed_tokens: Iterable[Any], *, region: str, size: WriteSize
) -> Write | None:
    """Return the next write that deletes tokens which the source deleted, or created again, or `None` if there are none.

    `listed_tokens` are the list items of all global tokens of the source. Deletions need no other records of the source.
    """
    created = {token.accessor_id: token.create_time for token in listed_tokens}
    changes = [
        build_deletion(snapshot, ACL_TOKENS, stored)
        for stored in list_records_without_source(snapshot, TOKENS, ())
        if stored.accessor_id not in created or created[stored.accessor_id] != stored.create_time
    ]
    return build_write(region, changes[: _count_fitting(changes, size)]) if changes else None


def _count_fitting(changes: Changes, size: WriteSize) -> int:
    """Return how many of the changes fit in one write, at least one."""
    conditions: set[tuple[str, str, bool]] = set()
    total_bytes = 0
    for count, item in enumerate(changes):
        conditions |= {(each.table, each.key, each.is_prefix) for each in item.conditions}
        if isinstance(item.change, PutRecord):
            total_bytes += len(msgspec.msgpack.encode(item.change.record))
        if count and (max(count + 1, len(conditions)) > size.changes or total_bytes > size.bytes):
            return count
    return len(changes)


# -- differences ---------------------------------------------------------------------------------------------------


def _store_differing(snapshot: Replica, replicated: ReplicatedTable, records: Iterable[Any]) -> Changes:
    """Return the changes that store the records of the source that differ from those of this region."""
    return [
        build_put(snapshot, replicated.table, record) for record in records if differs(snapshot, replicated, record)
    ]


def _list_excess(snapshot: Replica, source: AccessRecords, replicated: ReplicatedTable) -> list[Any]:
    """Return the records of a table that the source does not have."""
    keys = {replicated.table.get_key(record) for record in source.list_records(replicated)}
    return list_records_without_source(snapshot, replicated, keys)


def _replace_records(snapshot: Replica, source: AccessRecords, tables: Iterable[ReplicatedTable]) -> Changes:
    """Return the changes that make these tables equal to those of the source."""
    changes: Changes = []
    for replicated in tables:
        records = source.list_records(replicated)
        if replicated is AUTH_METHODS:
            changes += _store_methods(snapshot, source)
        else:
            changes += _store_differing(snapshot, replicated, records)
        changes += [
            build_deletion(snapshot, replicated.table, stored) for stored in _list_excess(snapshot, source, replicated)
        ]
    return changes


def _store_methods(snapshot: Replica, source: AccessRecords) -> Changes:
    """Return the changes that store the differing auth methods, and those that are newer than one of their rules.

    Such a rule would have no effect. It arrived before its method.
    """
    changes: Changes = []
    for method in source.auth_methods:
        stored = snapshot.get(ACL_AUTH_METHODS, method.name)
        rules = snapshot.list_by_index(BINDING_RULES_OF_METHOD, method.name)
        created = min((rule.create_index for rule in rules), default=None)
        if stored is not None and (created is None or created > stored.create_index):
            created = stored.create_index
        if differs(snapshot, AUTH_METHODS, method) or (stored is not None and created != stored.create_index):
            changes.append(build_put(snapshot, ACL_AUTH_METHODS, method, create_index=created))
    return changes


# -- steps ---------------------------------------------------------------------------------------------------------


def _remove_tokens(snapshot: Replica, source: AccessRecords, *, is_changed_removed: bool = True) -> Changes:
    """Return the deletions of tokens that the source does not have, or has with another content that is not known yet.

    `is_changed_removed`: also those whose new content is known.
    """
    unchanged = {
        token.accessor_id for token in source.tokens if not (is_changed_removed and differs(snapshot, TOKENS, token))
    }
    return [
        build_deletion(snapshot, ACL_TOKENS, stored)
        for stored in list_records_without_source(snapshot, TOKENS, unchanged)
    ]


def _remove_methods(snapshot: Replica, source: AccessRecords) -> Changes:
    """Return the deletions of all auth methods while policies, roles or binding rules differ: no login is possible then.

    A login would create a token with a part of its roles and policies only, and a missing policy could deny something.
    """
    if not _replace_records(snapshot, source, (POLICIES, ROLES, BINDING_RULES)):
        return []
    return [build_deletion(snapshot, ACL_AUTH_METHODS, method) for method in snapshot.iter_all(ACL_AUTH_METHODS)]


def _add_closing_policies(snapshot: Replica, source: AccessRecords) -> Changes:
    """Return the changes that store closing policies: one for roles, and one for the jobs of each differing policy.

    A job whose policies change then has no rights even while a former policy is no longer attached to it, and a later one
    is not attached yet.
    """
    job_acls = [policy.job_acl for policy in source.policies if differs(snapshot, POLICIES, policy)]
    has_differing_roles = any(differs(snapshot, ROLES, role) for role in source.roles)
    if has_differing_roles or _list_excess(snapshot, source, ROLES):
        job_acls.append(None)
    closing = {policy.name: policy for policy in map(build_closing_policy, job_acls)}
    return [
        build_put(snapshot, ACL_POLICIES, policy)
        for policy in closing.values()
        if snapshot.get(ACL_POLICIES, policy.name) is None
    ]


def build_closing_policy(job_acl: JobACL | None) -> Policy:
    """Return the policy that leaves no rights to roles with it and, with `job_acl`, to these jobs."""
    suffix = hashlib.sha256(msgspec.json.encode(job_acl)).hexdigest()[:16]
    return Policy(name=f"{CLOSED_NAME} {suffix}", rules=CLOSED_RULES, job_acl=job_acl)


def _close_policies(snapshot: Replica, source: AccessRecords) -> Changes:
    """Return the changes that close all policies that differ. New ones are stored closed, because tokens may name them."""
    changed = [policy for policy in source.policies if differs(snapshot, POLICIES, policy)]
    pending = [snapshot.get(ACL_POLICIES, policy.name) or policy for policy in changed]
    pending += _list_excess(snapshot, source, POLICIES)
    return [
        build_put(snapshot, ACL_POLICIES, replace(policy, rules=CLOSED_RULES, hash=b""))
        for policy in pending
        if policy.rules != CLOSED_RULES
    ]


def _close_roles(snapshot: Replica, source: AccessRecords) -> Changes:
    """Return the changes that close the roles that differ, also new ones, which tokens may name already."""
    pending = [role for role in source.roles if differs(snapshot, ROLES, role)] + _list_excess(snapshot, source, ROLES)
    links = (PolicyLink(name=build_closing_policy(None).name),)
    return [
        build_put(snapshot, ACL_ROLES, replace(role, policies=links, hash=b""))
        for role in pending
        if (stored := snapshot.get(ACL_ROLES, role.id)) is None or stored.policies != links
    ]


def _open_records(snapshot: Replica, source: AccessRecords) -> Changes:
    """Return the changes that store the new rights. A caller has no rights until the last of its records is stored."""
    changes = _replace_records(snapshot, source, (BINDING_RULES, POLICIES, ROLES))
    others = [item for item in changes if not item.change.key.startswith(CLOSED_NAME)]
    return others or changes  # The closing policies are needed until all others are stored.


def _open_methods(snapshot: Replica, source: AccessRecords) -> Changes:
    return _replace_records(snapshot, source, (AUTH_METHODS,))


def _store_tokens(snapshot: Replica, source: AccessRecords) -> Changes:
    return _store_differing(snapshot, TOKENS, source.tokens)


_STEPS: Final[tuple[Callable[[Replica, AccessRecords], Changes], ...]] = (
    _remove_tokens,
    _remove_methods,
    _add_closing_policies,
    _close_policies,
    _close_roles,
    _open_records,
    _open_methods,
    _store_tokens,
)
"""The steps for a set that does not fit in one write. Each is complete before the next one begins."""
