"""Finds the caller of a request from its credential (reference 5.1, 5.3).

The time that this takes reveals nothing about secrets, because they are never compared character by character: a
secret's digest is looked up by its hash, so an almost correct secret is found no faster than any other.

Long requests authenticate their caller again, because the caller may have lost rights since they began.
"""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from wharf.cluster.access.caller import Caller, CallerKind
from wharf.cluster.access.identities import WorkloadClaims, find_allocation, list_implicit_paths, list_workload_policies
from wharf.cluster.access.rights import ALL_RIGHTS, Rights, get_rights
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_POLICIES, ACL_ROLES, TOKENS_BY_SECRET
from wharf.contract.model.acl.policies import ANONYMOUS_POLICY, Policy
from wharf.contract.model.acl.roles import Role
from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.times import DecisionContext, to_datetime


class TokenSecret(msgspec.Struct, frozen=True):
    """A text in the format of a secret (a UUID), as the digest that `contract.model` computes."""

    digest: str


class InvalidCredential(msgspec.Struct, frozen=True):
    """A text that is neither in the format of a secret nor a workload identity with a valid signature."""

    reason: str


PresentedCredential: TypeAlias = TokenSecret | WorkloadClaims | InvalidCredential | None
"""The credential of a request; None if it has none."""


def authenticate_caller(
    snapshot: Replica,
    credential: PresentedCredential,
    context: DecisionContext,
    *,
    max_compiled_chars: int | None = None,
) -> Caller:
    """Return the caller that presented this credential.

    Raises `RightsNotCompiled` if its rights are not cached and its policies have more than `max_compiled_chars`.
    """
    match credential:
        case None:
            return _build_anonymous_caller(snapshot, max_compiled_chars)
        case TokenSecret(digest):
            return _build_token_caller(snapshot, find_token_by_secret(snapshot, digest), context, max_compiled_chars)
        case WorkloadClaims():
            return _build_workload_caller(snapshot, credential, max_compiled_chars)
        case InvalidCredential(reason):
            return Caller(kind=CallerKind.UNVERIFIED, reason=reason)


def find_token_by_secret(snapshot: Replica, digest: str) -> Token | None:
    """Return the token whose secret has this digest; `None` if there is none, or if several tokens have it.

    Whatever depends on the token of a request uses this function: its rights, and what the request counts for.
    """
    # The index leaves out tokens without a secret, so an empty digest finds nothing.
    found = snapshot.list_by_index(TOKENS_BY_SECRET, digest)
    # Two regions may import tokens with the same secret. It is unknown which token the caller means, so neither is used.
    return found[0] if len(found) == 1 else None


def _build_anonymous_caller(snapshot: Replica, max_compiled_chars: int | None) -> Caller:
    policies = _list_policies(snapshot, [ANONYMOUS_POLICY])
    return Caller(
        kind=CallerKind.ANONYMOUS,
        rights=_compile_rights(policies, max_compiled_chars),
        policies=_list_policy_names(policies),
    )


def _build_token_caller(
    snapshot: Replica, token: Token | None, context: DecisionContext, max_compiled_chars: int | None = None
) -> Caller:
    """Return the caller of a token: unknown, expired, management, or client with the rights of its policies and roles."""
    if token is None:
        return Caller(kind=CallerKind.UNKNOWN)
    if token.is_expired(to_datetime(context.now_ns)):
        return Caller(kind=CallerKind.EXPIRED, token=token)
    if token.is_management:
        return Caller(kind=CallerKind.MANAGEMENT, rights=ALL_RIGHTS, token=token)
    roles = _list_roles(snapshot, token)
    linked = [link.name for role in roles for link in role.policies or ()]
    policies = _list_policies(snapshot, [*(token.policies or ()), *linked])
    return Caller(
        kind=CallerKind.CLIENT,
        rights=_compile_rights(policies, max_compiled_chars),
        token=token,
        policies=_list_policy_names(policies),
        roles=tuple(roles),
    )


def _build_workload_caller(snapshot: Replica, claims: WorkloadClaims, max_compiled_chars: int | None) -> Caller:
    """Return the caller of a workload identity, if its allocation still runs."""
    allocation = find_allocation(snapshot, claims)
    if allocation is None:
        return Caller(kind=CallerKind.UNVERIFIED, claims=claims, reason="allocation is terminal")
    group = allocation.task_group
    policies = list_workload_policies(snapshot, claims, group)
    rights = _compile_rights(policies, max_compiled_chars).with_implicit_paths(list_implicit_paths(claims, group))
    return Caller(kind=CallerKind.WORKLOAD, rights=rights, claims=claims, policies=_list_policy_names(policies))


def _list_roles(snapshot: Replica, token: Token) -> list[Role]:
    """Return the roles of a token, without deleted ones."""
    found = (snapshot.get(ACL_ROLES, link.id) for link in token.roles or ())
    return [role for role in found if role is not None]


def _list_policies(snapshot: Replica, names: Iterable[str]) -> list[Policy]:
    """Return the policies with these names, each once, without missing ones."""
    found = (snapshot.get(ACL_POLICIES, name) for name in sorted(set(names)))
    return [policy for policy in found if policy is not None]


def _compile_rights(policies: Iterable[Policy], max_compiled_chars: int | None) -> Rights:
    return get_rights((policy.rules for policy in policies), max_compiled_chars=max_compiled_chars)


def _list_policy_names(policies: Iterable[Policy]) -> tuple[str, ...]:
    return tuple(policy.name for policy in policies)


def reauthenticate_caller(snapshot: Replica, caller: Caller, context: DecisionContext) -> Caller:
    """Return the same caller with its current rights."""
    if caller.kind is CallerKind.UNCHECKED:
        return caller
    if caller.token is not None:
        # The secret, not the accessor ID: a token that was created again under that ID has another owner.
        return authenticate_caller(snapshot, TokenSecret(caller.token.secret_digest), context)
    if caller.claims is not None:
        return authenticate_caller(snapshot, caller.claims, context)
    return authenticate_caller(snapshot, None, context)
