"""The caller of a request: its kind, its rights and where they come from; and the refusal if a right is missing.

The text of a refusal depends on the kind of caller and on the endpoint (reference 5.1). The status is always 403.
"""

import enum
from typing import Final

import msgspec

from wharf.cluster.access.identities import WorkloadClaims
from wharf.cluster.access.rights import ALL_RIGHTS, NO_RIGHTS, Rights
from wharf.contract.model.acl.permissions import DenialDetail
from wharf.contract.model.acl.roles import Role
from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.refusal import PERMISSION_DENIED, Refusal, RefusalCode


class CallerKind(enum.Enum):
    """How a caller was identified, or why it was not."""

    UNCHECKED = "unchecked"  # Access control is off.
    ANONYMOUS = "anonymous"  # The request has no token.
    CLIENT = "client"
    MANAGEMENT = "management"
    WORKLOAD = "workload"  # A task, by its signed identity.
    UNKNOWN = "unknown"  # The secret of no existing token.
    EXPIRED = "expired"
    UNVERIFIED = "unverified"  # Neither a secret nor a valid identity.


_REFUSED_KINDS = frozenset({CallerKind.UNKNOWN, CallerKind.EXPIRED, CallerKind.UNVERIFIED})


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A caller with its rights. `policies`: names of its existing policies, in order. `reason`: why its identity is not
    valid."""

    kind: CallerKind
    rights: Rights = NO_RIGHTS
    token: Token | None = None
    claims: WorkloadClaims | None = None
    policies: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ()
    reason: str = ""

    @property
    def is_refused(self) -> bool:
        """Whether the credential is invalid: the caller may only use endpoints that need no token."""
        return self.kind in _REFUSED_KINDS

    @property
    def accessor_id(self) -> str:
        """The token's accessor id, which names the caller in the audit log; empty without a token."""
        return self.token.accessor_id if self.token is not None else ""

    @property
    def owner_key(self) -> tuple[str, str]:
        """The owner whose share of a limited resource the caller uses: its job if it is a task, otherwise its token."""
        if self.claims is not None:
            return self.claims.namespace, self.claims.job_id
        return "", self.accessor_id


UNCHECKED_CALLER = Caller(kind=CallerKind.UNCHECKED, rights=ALL_RIGHTS)
"""Every caller while access control is off."""


TOKEN_NOT_FOUND: Final = "ACL token not found"
TOKEN_EXPIRED: Final = "ACL token expired"


def build_denial(caller: Caller, manner: DenialDetail = DenialDetail.GENERIC, *, detail: str) -> Refusal:
    """Build the refusal for a caller without the required rights. `detail` says what is missing, for people."""
    return Refusal(RefusalCode.FORBIDDEN, _build_denial_text(caller, manner), detail=detail)


def _build_denial_text(caller: Caller, detail: DenialDetail) -> str:
    """Return the text of a refusal. Clients match these texts."""
    match caller.kind:
        case CallerKind.EXPIRED:
            reason = TOKEN_EXPIRED
        case CallerKind.UNVERIFIED:
            reason = caller.reason
        case _:
            return PERMISSION_DENIED
    match detail:
        case DenialDetail.GENERIC:
            return PERMISSION_DENIED
        case DenialDetail.AGENT:
            return f"{TOKEN_NOT_FOUND} or invalid workload identity: {reason}"
        case DenialDetail.TOKEN | DenialDetail.AGENT_SHORT:
            return reason
