"""Who is calling, once it is known: what kind of caller, what it may do, and what it was given that by.

Saying no: the sentence for each kind of caller and each manner of endpoint (reference 5.1). The status is always 403.
"""

import enum
from typing import Final

import msgspec

from wharf.cluster.access.identities import WorkloadClaims
from wharf.cluster.access.rights import ALL_RIGHTS, NO_RIGHTS, Rights
from wharf.contract.model.acl.permissions import DenialDetail, Permission, PublicAccess
from wharf.contract.model.acl.roles import Role
from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.refusal import Refusal, RefusalCode


class CallerKind(enum.Enum):
    UNCHECKED = "unchecked"  # Access control is off.
    ANONYMOUS = "anonymous"  # No token came.
    CLIENT = "client"
    MANAGEMENT = "management"
    WORKLOAD = "workload"  # A task, by its signed identity.
    UNKNOWN = "unknown"  # A secret that no token has.
    EXPIRED = "expired"
    UNVERIFIED = "unverified"  # No secret and no identity that holds.


_REFUSED = frozenset({CallerKind.UNKNOWN, CallerKind.EXPIRED, CallerKind.UNVERIFIED})


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """`policies` are the names of those that exist, in order; `reason` says why an identity does not hold."""

    kind: CallerKind
    rights: Rights = NO_RIGHTS
    token: Token | None = None
    claims: WorkloadClaims | None = None
    policies: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ()
    reason: str = ""

    @property
    def is_refused(self) -> bool:
        """Came with something that does not hold: nothing is answered, but what needs no token at all."""
        return self.kind in _REFUSED

    @property
    def accessor_id(self) -> str:
        """How the audit log names the caller; empty where no token is behind it."""
        return self.token.accessor_id if self.token is not None else ""


UNCHECKED_CALLER = Caller(kind=CallerKind.UNCHECKED, rights=ALL_RIGHTS)
"""Everybody, while access control is off."""


PERMISSION_DENIED: Final = "Permission denied"
TOKEN_NOT_FOUND: Final = "ACL token not found"
TOKEN_EXPIRED: Final = "ACL token expired"


def build_denial(caller: Caller, manner: DenialDetail = DenialDetail.GENERIC) -> Refusal:
    """Why this caller does not get what it asked for."""
    return Refusal(RefusalCode.FORBIDDEN, _text(caller, manner))


def require_rights(
    caller: Caller, need: Permission, *, manner: DenialDetail = DenialDetail.GENERIC, **about: str
) -> None:
    """Raises unless the caller has what is needed. `about` is told to `Rights.meet`."""
    if isinstance(need, PublicAccess):
        return
    if caller.is_refused or not caller.rights.satisfies(need, **about):
        raise build_denial(caller, manner)


def _text(caller: Caller, manner: DenialDetail) -> str:
    match caller.kind:
        case CallerKind.EXPIRED:
            reason = TOKEN_EXPIRED
        case CallerKind.UNVERIFIED:
            reason = caller.reason
        case _:
            return PERMISSION_DENIED
    match manner:
        case DenialDetail.GENERIC:
            return PERMISSION_DENIED
        case DenialDetail.AGENT:
            return f"{TOKEN_NOT_FOUND} or invalid workload identity: {reason}"
        case DenialDetail.TOKEN | DenialDetail.AGENT_SHORT:
            return reason
