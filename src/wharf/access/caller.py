"""Who is calling, once it is known: what kind of caller, what it may do, and what it was given that by."""

import enum

import msgspec

from wharf.access.rights import EVERY_RIGHT, NO_RIGHTS, Rights
from wharf.access.workload import WorkloadClaims
from wharf.model.role import Role
from wharf.model.token import Token


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


UNCHECKED = Caller(kind=CallerKind.UNCHECKED, rights=EVERY_RIGHT)
"""Everybody, while access control is off."""
