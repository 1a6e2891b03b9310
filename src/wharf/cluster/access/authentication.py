"""From what came with a request to who is calling (reference 5.1, 5.3).

How long it takes tells nothing of secrets: they are never compared character by character. A secret is known by its
digest, and the digest is looked up by its hash, so one that is almost right is as far from being found as any other.

The caller of a request that goes on for long, looked at again: rights may have gone since it came.
"""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from wharf.cluster.access.caller import Caller, CallerKind
from wharf.cluster.access.identities import WorkloadClaims, find_allocation, list_implicit_paths, list_workload_policies
from wharf.cluster.access.rights import ALL_RIGHTS, Rights, get_rights
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_POLICIES, ACL_ROLES, ACL_TOKENS, TOKENS_BY_SECRET
from wharf.contract.model.acl.policies import ANONYMOUS_POLICY, Policy
from wharf.contract.model.acl.roles import Role
from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.times import DecisionContext, to_datetime


class TokenSecret(msgspec.Struct, frozen=True):
    """A text in the form of a secret (a UUID), as `model.secret` digests it."""

    digest: str


class InvalidCredential(msgspec.Struct, frozen=True):
    """A text that is neither in the form of a secret nor an identity that its signature proves."""

    reason: str


PresentedCredential: TypeAlias = TokenSecret | WorkloadClaims | InvalidCredential | None
"""What came with a request. None: nothing did."""


def authenticate_caller(snapshot: Replica, credential: PresentedCredential, moment: DecisionContext) -> Caller:
    match credential:
        case None:
            return _anonymous(snapshot)
        case TokenSecret(digest):
            return _of_token(snapshot, _token_with(snapshot, digest), moment)
        case WorkloadClaims():
            return _workload(snapshot, credential)
        case InvalidCredential(reason):
            return Caller(kind=CallerKind.UNVERIFIED, reason=reason)


def find_token_caller(snapshot: Replica, accessor_id: str, moment: DecisionContext) -> Caller:
    """The caller behind a token that was found before: streams and blocked queries ask again when they are woken."""
    return _of_token(snapshot, snapshot.get(ACL_TOKENS, accessor_id), moment)


def _token_with(snapshot: Replica, digest: str) -> Token | None:
    # The index leaves out tokens without a secret, so no digest finds nobody.
    found = snapshot.list_by_index(TOKENS_BY_SECRET, digest)
    return found[0] if found else None


def _anonymous(snapshot: Replica) -> Caller:
    policies = _existing(snapshot, [ANONYMOUS_POLICY])
    return Caller(kind=CallerKind.ANONYMOUS, rights=_rights(policies), policies=_names(policies))


def _of_token(snapshot: Replica, token: Token | None, moment: DecisionContext) -> Caller:
    if token is None:
        return Caller(kind=CallerKind.UNKNOWN)
    if token.is_expired(to_datetime(moment.now_ns)):
        return Caller(kind=CallerKind.EXPIRED, token=token)
    if token.is_management:
        return Caller(kind=CallerKind.MANAGEMENT, rights=ALL_RIGHTS, token=token)
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
    policies = list_workload_policies(snapshot, claims, group)
    rights = _rights(policies).with_implicit_paths(list_implicit_paths(claims, group))
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
    return get_rights(policy.rules for policy in policies)


def _names(policies: Iterable[Policy]) -> tuple[str, ...]:
    return tuple(policy.name for policy in policies)


def reauthenticate_caller(snapshot: Replica, caller: Caller, moment: DecisionContext) -> Caller:
    """The same caller with the rights of this moment."""
    if caller.kind is CallerKind.UNCHECKED:
        return caller
    if caller.token is not None:
        return find_token_caller(snapshot, caller.token.accessor_id, moment)
    if caller.claims is not None:
        return authenticate_caller(snapshot, caller.claims, moment)
    return authenticate_caller(snapshot, None, moment)
