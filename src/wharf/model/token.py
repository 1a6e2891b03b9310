"""Tokens: who a caller is. Found by the digest of their secret; the secret itself is only kept sealed."""

import datetime
import enum

from wharf.model.record import Record


class TokenType(enum.StrEnum):
    CLIENT = "client"
    MANAGEMENT = "management"


class RoleLink(Record):
    """A role that a token carries. The ID is what is stored; the name is filled in for replies."""

    id: str = ""
    name: str = ""


class Token(Record):
    accessor_id: str
    secret_digest: str = ""  # SHA-256 in hex; never in a reply.
    secret_sealed: bytes = b""  # The SecretID, encrypted by the keyring; never in a reply.
    sealed_with: str = ""  # The ID of the key that sealed it.
    name: str = ""
    type: str = TokenType.CLIENT  # Text, so that a wrong one is told together with the other problems.
    policies: tuple[str, ...] | None = None
    roles: tuple[RoleLink, ...] | None = None
    global_: bool = False
    hash: bytes = b""
    create_time: datetime.datetime | None = None
    expiration_time: datetime.datetime | None = None
    expiration_ttl: int = 0  # ns; on the wire text like "1h0m0s".
    create_index: int = 0
    modify_index: int = 0

    @property
    def is_management(self) -> bool:
        return self.type == TokenType.MANAGEMENT

    def is_expired(self, at: datetime.datetime) -> bool:
        return self.expiration_time is not None and self.expiration_time <= at


class OneTimeToken(Record):
    """Stands for a token once, for ten minutes. Its secret is shown when made and kept as a digest."""

    secret_digest: str
    accessor_id: str
    expires_at: datetime.datetime
    create_index: int = 0
    modify_index: int = 0
