"""From what came with a request to who is calling (reference 5.1, 5.3).

How long it takes tells nothing of secrets: they are never compared character by character. A secret is known by its
digest, and the digest is looked up by its hash, so one that is almost right is as far from being found as any other.
"""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from wharf.access.caller import Caller, CallerKind
from wharf.access.compiled import rights_of
from wharf.access.rights import EVERY_RIGHT, Rights
from wharf.access.workload import WorkloadClaims, find_allocation, implicit_paths, policies_of_workload
from wharf.model.moment import Moment, to_time
from wharf.model.policy import ANONYMOUS, Policy
from wharf.model.role import Role
from wharf.model.token import Token
from wharf.state import Replica
from wharf.state.tables import ACL_POLICIES, ACL_ROLES, ACL_TOKENS, TOKENS_BY_SECRET


class Secret(msgspec.Struct, frozen=True):
    """A text in the form of a secret (a UUID), as `model.secret` digests it."""

    digest: str


class Unverified(msgspec.Struct, frozen=True):
    """A text that is neither in the form of a secret nor an identity that its signature proves."""

    reason: str


Presented: TypeAlias = Secret | WorkloadClaims | Unverified | None
"""What came with a request. None: nothing did."""


def who_is(snapshot: Replica, presented: Presented, moment: Moment) -> Caller:
    match presented:
        case None:
            return _anonymous(snapshot)
        case Secret(digest):
            return _of_token(snapshot, _token_with(snapshot, digest), moment)
        case WorkloadClaims():
            return _workload(snapshot, presented)
        case Unverified(reason):
            return Caller(kind=CallerKind.UNVERIFIED, reason=reason)


def whose_token(snapshot: Replica, accessor_id: str, moment: Moment) -> Caller:
    """The caller behind a token that was found before: streams and blocked queries ask again when they are woken."""
    return _of_token(snapshot, snapshot.get(ACL_TOKENS, accessor_id), moment)


def _token_with(snapshot: Replica, digest: str) -> Token | None:
    # The index leaves out tokens without a secret, so no digest finds nobody.
    found = snapshot.those(TOKENS_BY_SECRET, digest)
    return found[0] if found else None


def _anonymous(snapshot: Replica) -> Caller:
    policies = _existing(snapshot, [ANONYMOUS])
    return Caller(kind=CallerKind.ANONYMOUS, rights=_rights(policies), policies=_names(policies))


def _of_token(snapshot: Replica, token: Token | None, moment: Moment) -> Caller:
    if token is None:
        return Caller(kind=CallerKind.UNKNOWN)
    if token.is_expired(to_time(moment.now_ns)):
        return Caller(kind=CallerKind.EXPIRED, token=token)
    if token.is_management:
        return Caller(kind=CallerKind.MANAGEMENT, rights=EVERY_RIGHT, token=token)
    roles = _roles_of(snapshot, token)
    linked = [link.name for role in roles for link in role.policies or ()]
    policies = _existing(snapshot, [*(token.policies or ()), *linked])
    return Caller(
        kind=CallerKind.CLIENT, rights=_rights(policies), token=token, policies=_names(policies), roles=tuple(roles)
    )


def _workload(snapshot: Replica, claims: WorkloadClaims) -> Caller:
    allocation = find_allocation(snapshot, claims)
    if allocation is None:
        return Caller(kind=CallerKind.UNVERIFIED, claims=claims, reason="allocation is terminal")
    group = allocation.task_group
    policies = policies_of_workload(snapshot, claims, group)
    rights = _rights(policies).with_implicit(implicit_paths(claims, group))
    return Caller(kind=CallerKind.WORKLOAD, rights=rights, claims=claims, policies=_names(policies))


def _roles_of(snapshot: Replica, token: Token) -> list[Role]:
    """Roles that were deleted since are passed over."""
    found = (snapshot.get(ACL_ROLES, link.id) for link in token.roles or ())
    return [role for role in found if role is not None]


def _existing(snapshot: Replica, names: Iterable[str]) -> list[Policy]:
    """Policies by name, each once; names of none are passed over."""
    found = (snapshot.get(ACL_POLICIES, name) for name in sorted(set(names)))
    return [policy for policy in found if policy is not None]


def _rights(policies: Iterable[Policy]) -> Rights:
    return rights_of(policy.rules for policy in policies)


def _names(policies: Iterable[Policy]) -> tuple[str, ...]:
    return tuple(policy.name for policy in policies)
