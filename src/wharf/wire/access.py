"""Bodies of access control that are no records: tokens and methods as they are shown and asked for, logins, identities.

Durations are text like `1h0m0s` here, and may be submitted as nanoseconds too. Secrets are only in the few bodies that
exist to show one.
"""

import datetime
from typing import Any, ClassVar

import msgspec

from wharf.model.auth_method import DEFAULT_NAME_FORMAT, MethodConfig
from wharf.model.policy import JobACL
from wharf.model.record import Record
from wharf.model.role import PolicyLink
from wharf.model.token import RoleLink

Lasting = str | int
"""A duration as text, or nanoseconds."""


class BootstrapRequest(Record):
    bootstrap_secret: str = ""


class TokenRequest(Record):
    accessor_id: str = ""
    secret_id: str = ""
    name: str = ""
    type: str = ""
    policies: tuple[str, ...] | None = None
    roles: tuple[RoleLink, ...] | None = None
    global_: bool = False
    expiration_time: datetime.datetime | None = None
    expiration_ttl: Lasting = ""

    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"Hash", "CreateTime", "CreateIndex", "ModifyIndex"})


class TokenStub(Record):
    """A token as lists show it: without its secret."""

    accessor_id: str
    name: str = ""
    type: str = ""
    policies: tuple[str, ...] | None = None
    roles: tuple[RoleLink, ...] | None = None
    global_: bool = False
    hash: bytes = b""
    create_time: datetime.datetime | None = None
    expiration_time: datetime.datetime | None = None
    create_index: int = 0
    modify_index: int = 0


class TokenShown(Record):
    """A token with its secret."""

    expiration_ttl: str = ""
    accessor_id: str
    secret_id: str = ""
    name: str = ""
    type: str = ""
    policies: tuple[str, ...] | None = None
    roles: tuple[RoleLink, ...] | None = None
    global_: bool = False
    hash: bytes = b""
    create_time: datetime.datetime | None = None
    expiration_time: datetime.datetime | None = None
    create_index: int = 0
    modify_index: int = 0


class OneTimeShown(Record):
    one_time_secret_id: str
    accessor_id: str
    expires_at: datetime.datetime
    create_index: int = 0
    modify_index: int = 0


class OneTimeReply(Record):
    one_time_token: OneTimeShown
    index: int = 0


class ExchangeRequest(Record):
    one_time_secret_id: str = ""


class ExchangeReply(Record):
    token: TokenShown
    index: int = 0


class PolicyRequest(Record):
    name: str = ""
    description: str = ""
    rules: str = ""
    job_acl: JobACL | None = None

    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"Hash", "RulesJSON", "CreateIndex", "ModifyIndex"})


class PolicyStub(Record):
    name: str
    description: str = ""
    job_acl: JobACL | None = None
    hash: bytes = b""
    create_index: int = 0
    modify_index: int = 0


class PolicyShown(Record):
    """A policy with its rules, also as JSON."""

    name: str
    description: str = ""
    rules: str = ""
    rules_json: Any = msgspec.field(name="RulesJSON", default=None)  # As deep as the rules are.
    job_acl: JobACL | None = None
    hash: bytes = b""
    create_index: int = 0
    modify_index: int = 0


class RoleRequest(Record):
    id: str = ""
    name: str = ""
    description: str = ""
    policies: tuple[PolicyLink, ...] | None = None

    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"Hash", "CreateIndex", "ModifyIndex"})


class AuthMethodConfigShown(MethodConfig):
    """The configuration of a method, with its leeways as text."""

    expiration_leeway: Lasting = ""
    not_before_leeway: Lasting = ""
    clock_skew_leeway: Lasting = ""


class AuthMethodRequest(Record):
    name: str = ""
    type: str = ""
    token_locality: str = ""
    token_name_format: str = DEFAULT_NAME_FORMAT
    max_token_ttl: Lasting = ""
    default: bool = False
    config: AuthMethodConfigShown | None = None

    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset(
        {"Hash", "CreateTime", "ModifyTime", "CreateIndex", "ModifyIndex"}
    )


class AuthMethodShown(Record):
    """A method; what is secret in it reads `redacted`."""

    max_token_ttl: str = ""
    name: str
    type: str = ""
    token_locality: str = ""
    token_name_format: str = ""
    default: bool = False
    config: AuthMethodConfigShown | None = None
    hash: bytes = b""
    create_time: datetime.datetime | None = None
    modify_time: datetime.datetime | None = None
    create_index: int = 0
    modify_index: int = 0


class SecretsForRegion(Record):
    """Asks for the secrets of a method, sealed for `PublicKey` (X25519): a region copies it."""

    public_key: bytes = b""


class SecretsSealed(Record):
    """`Sender`: the public key of whoever sealed, made for this reply alone."""

    sender: bytes
    sealed: bytes


class AuthMethodStub(Record):
    name: str
    type: str = ""
    default: bool = False
    hash: bytes = b""
    create_index: int = 0
    modify_index: int = 0


class BindingRuleRequest(Record):
    id: str = ""
    description: str = ""
    auth_method: str = ""
    selector: str = ""
    bind_type: str = ""
    bind_name: str = ""

    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset(
        {"Hash", "CreateTime", "ModifyTime", "CreateIndex", "ModifyIndex"}
    )


class AuthUrlRequest(Record):
    auth_method_name: str = ""
    redirect_uri: str = msgspec.field(name="RedirectURI", default="")
    client_nonce: str = ""


class AuthUrlReply(Record):
    auth_url: str = msgspec.field(name="AuthURL")


class CompleteAuthRequest(Record):
    auth_method_name: str = ""
    client_nonce: str = ""
    state: str = ""
    code: str = ""
    iss: str = ""
    redirect_uri: str = msgspec.field(name="RedirectURI", default="")


class LoginRequest(Record):
    auth_method_name: str = ""
    login_token: str = ""


class IntroductionRequest(Record):
    ttl: Lasting = ""
    node_name: str = ""
    node_pool: str = ""


class IntroductionReply(Record):
    jwt: str


class KeyShown(Record):
    """A key of the ring, without the key itself."""

    key_id: str
    algorithm: str = ""
    create_time: int = 0
    create_index: int = 0
    modify_index: int = 0
    state: str = ""
    publish_time: int = 0


class KeyRotated(Record):
    key: KeyShown
    index: int = 0


class KeyDeleted(Record):
    index: int = 0


class KeySetShown(msgspec.Struct, frozen=True):
    """The public halves of our keys, as JSON Web Keys (RFC 7517)."""

    keys: list[dict[str, Any]]  # What a key says depends on its kind.


class IssuerShown(msgspec.Struct, frozen=True):
    """Where our keys are, in the form of OpenID providers."""

    issuer: str
    jwks_uri: str
    response_types_supported: list[str]
    subject_types_supported: list[str]
    id_token_signing_alg_values_supported: list[str]
