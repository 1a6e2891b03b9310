"""Tokens: secrets that identify callers. A token is found by the digest of its secret; the secret itself is stored encrypted."""

import datetime
import enum
from typing import NamedTuple

from wharf.contract.model.body_limits import find_name_problem
from wharf.contract.model.names import MAX_DISPLAY_NAME_CHARS
from wharf.contract.model.record import Record
from wharf.contract.model.times import HOUR, MINUTE, format_duration, has_passed, to_ns


class TokenType(enum.StrEnum):
    """Whether a token has the rights of its policies, or all rights."""

    CLIENT = "client"  # Has the rights of its policies and roles.
    MANAGEMENT = "management"  # Has all rights.


class RoleLink(Record):
    """A role of a token. Only the ID is stored; the name is added in replies."""

    id: str = ""
    name: str = ""


class Token(Record):
    """A secret that identifies a caller of the API, with its policies and roles.

    Only a digest and the encrypted secret are stored.
    """

    accessor_id: str  # Public: names the token without revealing its secret.
    secret_digest: str = ""  # SHA-256 of the secret in hex; finds the token of a request; never in a reply.
    secret_sealed: bytes = b""  # The secret, encrypted by the keyring; never in a reply.
    sealed_with: str = ""  # The ID of the keyring key that encrypted `secret_sealed`.
    name: str = ""
    type: str = TokenType.CLIENT  # Not an enum, so that a wrong type is reported together with other problems.
    policies: tuple[str, ...] | None = None
    roles: tuple[RoleLink, ...] | None = None
    global_: bool = False  # Valid in all regions.
    hash: bytes = b""  # A digest of the content.
    create_time: datetime.datetime | None = None
    expiration_time: datetime.datetime | None = None  # Null: the token does not expire.
    expiration_ttl: int = 0  # ns; the requested lifetime of a new token; text like "1h0m0s" on the wire.
    create_index: int = 0
    modify_index: int = 0

    @property
    def is_management(self) -> bool:
        """Whether the token has all rights."""
        return self.type == TokenType.MANAGEMENT

    def is_expired(self, time: datetime.datetime) -> bool:
        """Return whether the token has expired at this time."""
        if self.expiration_time is None:
            return False
        if self.create_time is None:
            return self.expiration_time <= time
        due_ns = to_ns(self.expiration_time)
        return has_passed(due_ns, max(0, due_ns - to_ns(self.create_time)), to_ns(time))


class OneTimeToken(Record):
    """A secret that its holder can exchange once, within ten minutes, for a token. Only a digest of it is stored."""

    secret_digest: str  # SHA-256 in hex.
    accessor_id: str  # The token that it is exchanged for.
    token_digest: str = ""  # The digest of that token's secret. A token with another secret is another token.
    expires_at: datetime.datetime
    create_index: int = 0
    modify_index: int = 0


class AclBootstrap(Record):
    """The record of the creation of the first token.

    A request to create another first token must name its ModifyIndex.
    """

    accessor_id: str  # The first token.
    create_index: int = 0
    modify_index: int = 0


def get_expiration_hour(token: Token) -> int | None:
    """Return the number of the hour, counted from 1970, in which the token expires; `None` if it does not expire."""
    return None if token.expiration_time is None else int(token.expiration_time.timestamp() // 3_600)


class LifetimeLimits(NamedTuple):
    """The shortest and the longest allowed lifetime of a token that expires."""

    min_ns: int = MINUTE
    max_ns: int = 24 * HOUR


def list_new_token_problems(token: Token, *, now: datetime.datetime, limits: LifetimeLimits) -> list[str]:
    """Return an error text for each thing that is wrong with a new token; empty if it is valid.

    `limits` apply to its lifetime.
    """
    return _list_content_problems(token) + _list_lifetime_problems(token, now, limits)


def list_token_update_problems(token: Token, *, stored: Token) -> list[str]:
    """Return an error text for each thing that is wrong with the token that replaces `stored`; empty if it is valid."""
    return _list_content_problems(token) + _list_change_problems(token, stored)


def _list_content_problems(token: Token) -> list[str]:
    """Return an error text for each error in the type, links and name of a submitted token."""
    found = []
    linked = bool(token.policies or token.roles)
    match token.type:
        case TokenType.CLIENT if not linked:
            found.append("client token missing policies or roles")
        case TokenType.MANAGEMENT if linked:
            found.append("management token cannot be associated with policies or roles")
        case TokenType.CLIENT | TokenType.MANAGEMENT:
            pass
        case _:
            found.append("token type must be client or management")
    if len(token.name) > MAX_DISPLAY_NAME_CHARS:
        found.append("token name too long")
    elif name_problem := find_name_problem(token.name):
        found.append(f"token name {name_problem}")
    return found


def _list_change_problems(token: Token, stored: Token) -> list[str]:
    """Return an error text for each changed field that cannot change after creation: global mode and the expiration."""
    found = []
    if token.global_ != stored.global_:
        found.append("cannot toggle global mode")
    if token.expiration_ttl not in (0, stored.expiration_ttl):
        found.append("cannot update expiration TTL")
    if token.expiration_time is not None and token.expiration_time != stored.expiration_time:
        found.append("cannot update expiration time")
    return found


def _list_lifetime_problems(token: Token, now: datetime.datetime, limits: LifetimeLimits) -> list[str]:
    """Return an error text if the lifetime of a new token is outside the limits.

    A token that does not expire is valid.
    """
    if token.expiration_ttl:
        lifetime = token.expiration_ttl
    elif token.expiration_time is not None:
        lifetime = (token.expiration_time - now) // datetime.timedelta(microseconds=1) * 1_000
    else:
        return []
    actual_lifetime = f"in the future (was {format_duration(lifetime)})"
    if lifetime < limits.min_ns:
        return [f"expiration time cannot be less than {format_duration(limits.min_ns)} {actual_lifetime}"]
    if lifetime > limits.max_ns:
        return [f"expiration time cannot be more than {format_duration(limits.max_ns)} {actual_lifetime}"]
    return []
