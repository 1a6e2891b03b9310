"""Endpoints and messages of access control: tokens, policies, roles, auth methods, binding rules and logins.

Durations are text such as `1h0m0s`; requests may also use a number of nanoseconds. Only the few messages that exist to show a
secret contain one.
"""

import datetime
from typing import Any, ClassVar, Final

import msgspec

from wharf.contract.model.acl import permissions
from wharf.contract.model.acl.auth_methods import DEFAULT_TOKEN_NAME_FORMAT, AuthMethod, AuthMethodConfigBase
from wharf.contract.model.acl.binding_rules import BindingRule
from wharf.contract.model.acl.policies import JobACL, Policy
from wharf.contract.model.acl.roles import PolicyLink, Role
from wharf.contract.model.acl.tokens import RoleLink, Token
from wharf.contract.model.record import Record
from wharf.contract.wire.endpoint import (
    Endpoint,
    EndpointKind,
    ListFeatures,
    define_leader_write,
    define_read,
    define_write,
)
from wharf.contract.wire.times import DurationText


class BootstrapRequest(Record):
    bootstrap_secret: str = ""


class TokenRequest(Record):
    """A token to create or update."""

    accessor_id: str = ""
    secret_id: str = ""
    name: str = ""
    type: str = ""
    policies: tuple[str, ...] | None = None
    roles: tuple[RoleLink, ...] | None = None
    global_: bool = False
    expiration_time: datetime.datetime | None = None
    expiration_ttl: DurationText = ""

    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"Hash", "CreateTime", "CreateIndex", "ModifyIndex"})


class TokenStub(Record):
    """A token in a list, without its secret."""

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


class TokenView(Record):
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


class OneTimeTokenView(Record):
    """A one-time secret, when it is created."""

    one_time_secret_id: str
    accessor_id: str
    expires_at: datetime.datetime
    create_index: int = 0
    modify_index: int = 0


class OneTimeTokenReply(Record):
    one_time_token: OneTimeTokenView
    index: int = 0


class OneTimeTokenExchangeRequest(Record):
    one_time_secret_id: str = ""


class OneTimeTokenExchangeReply(Record):
    token: TokenView
    index: int = 0


class PolicyRequest(Record):
    """A policy to create or replace."""

    name: str = ""
    description: str = ""
    rules: str = ""
    job_acl: JobACL | None = None

    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"Hash", "RulesJSON", "CreateIndex", "ModifyIndex"})


class PolicyStub(Record):
    """A policy in a list, without its rules."""

    name: str
    description: str = ""
    job_acl: JobACL | None = None
    hash: bytes = b""
    create_index: int = 0
    modify_index: int = 0


class PolicyView(Record):
    """A policy with its rules, as text and as JSON."""

    name: str
    description: str = ""
    rules: str = ""
    rules_json: Any = msgspec.field(name="RulesJSON", default=None)  # Any JSON value: the rules are nested.
    job_acl: JobACL | None = None
    hash: bytes = b""
    create_index: int = 0
    modify_index: int = 0


class RoleRequest(Record):
    """A role to create or update."""

    id: str = ""
    name: str = ""
    description: str = ""
    policies: tuple[PolicyLink, ...] | None = None

    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"Hash", "CreateIndex", "ModifyIndex"})


class AuthMethodConfigView(AuthMethodConfigBase):
    """The configuration of an auth method, with its leeways as text."""

    expiration_leeway: DurationText = ""
    not_before_leeway: DurationText = ""
    clock_skew_leeway: DurationText = ""


class AuthMethodRequest(Record):
    """An auth method to create or update."""

    name: str = ""
    type: str = ""
    token_locality: str = ""
    token_name_format: str = DEFAULT_TOKEN_NAME_FORMAT
    max_token_ttl: DurationText = ""
    default: bool = False
    config: AuthMethodConfigView | None = None

    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset(
        {"Hash", "CreateTime", "ModifyTime", "CreateIndex", "ModifyIndex"}
    )


class AuthMethodView(Record):
    """An auth method; its secrets are replaced by `redacted`."""

    max_token_ttl: str = ""
    name: str
    type: str = ""
    token_locality: str = ""
    token_name_format: str = ""
    default: bool = False
    config: AuthMethodConfigView | None = None
    hash: bytes = b""
    create_time: datetime.datetime | None = None
    modify_time: datetime.datetime | None = None
    create_index: int = 0
    modify_index: int = 0


class SealedSecretsRequest(Record):
    """Requests the secrets of an auth method, encrypted for `PublicKey` (X25519), so that another region can copy it."""

    public_key: bytes = b""


class SealedSecretsReply(Record):
    """The encrypted secrets. `Sender` is a public key that was generated for this reply only."""

    sender: bytes
    sealed: bytes


class AuthMethodStub(Record):
    """An auth method in a list."""

    name: str
    type: str = ""
    default: bool = False
    hash: bytes = b""
    create_index: int = 0
    modify_index: int = 0


class BindingRuleRequest(Record):
    """A binding rule to create or update."""

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
    """The parameters with which an identity provider redirected the user, to complete an OIDC login."""

    auth_method_name: str = ""
    client_nonce: str = ""
    state: str = ""
    code: str = ""
    iss: str = ""
    redirect_uri: str = msgspec.field(name="RedirectURI", default="")


class LoginRequest(Record):
    auth_method_name: str = ""
    login_token: str = ""


HIDDEN_TOKEN_FIELDS: Final = frozenset({"SecretDigest", "SecretSealed", "SealedWith"})

TOKEN_LIST: Final = ListFeatures(record=Token, hidden_fields=HIDDEN_TOKEN_FIELDS)
POLICY_LIST: Final = ListFeatures(record=Policy, can_filter=False, has_pages=False, can_reverse=False)
ROLE_LIST: Final = ListFeatures(record=Role, can_filter=False, has_pages=False, can_reverse=False, has_prefix=False)
AUTH_METHOD_LIST: Final = ListFeatures(
    record=AuthMethod, hidden_fields=frozenset({"SecretsSealed", "SealedWith"}), can_filter=False, has_pages=False, can_reverse=False,
    has_prefix=False,
)  # fmt: skip
BINDING_RULE_LIST: Final = ListFeatures(
    record=BindingRule, can_filter=False, has_pages=False, can_reverse=False, has_prefix=False
)

ROWS: Final[tuple[Endpoint, ...]] = (
    define_write(
        "acl.bootstrap", "/v1/acl/bootstrap", need=permissions.PUBLIC_ACCESS, summary="Create the first management token.",
        body_type=BootstrapRequest, is_body_optional=True, reply_type=TokenView,
    ),
    # -- policies
    define_read(
        "acl.policy.list", "/v1/acl/policies", need=permissions.ANY_TOKEN,
        summary="List policies: all with a management token, otherwise those of the caller's token.", list_features=POLICY_LIST,
        reply_type=list[PolicyStub],
    ),
    define_read(
        "acl.policy.self", "/v1/acl/policy/self", need=permissions.ANY_TOKEN, summary="Read the policies of the caller.",
        reply_type=list[PolicyView] | None,
    ),
    define_read(
        "acl.policy.read", "/v1/acl/policy/{name...}", need=permissions.ANY_TOKEN, summary="Read a policy.",
        reply_type=PolicyView,
    ),
    define_write(
        "acl.policy.store", "/v1/acl/policy/{name...}", need=permissions.MANAGEMENT_TOKEN, summary="Create or replace a policy.",
        body_type=PolicyRequest,
    ),
    define_write(
        "acl.policy.delete", "/v1/acl/policy/{name...}", method="DELETE", need=permissions.MANAGEMENT_TOKEN,
        summary="Delete a policy.",
    ),
    # -- tokens
    define_read(
        "acl.token.list", "/v1/acl/tokens", need=permissions.MANAGEMENT_TOKEN, summary="List tokens, without their secrets.",
        list_features=TOKEN_LIST, reply_type=list[TokenStub],
    ),
    define_write(
        "acl.token.create", "/v1/acl/token", need=permissions.MANAGEMENT_TOKEN, summary="Create a token.",
        body_type=TokenRequest, reply_type=TokenView,
    ),
    define_read(
        "acl.token.self", "/v1/acl/token/self", need=permissions.ANY_TOKEN, denial_detail=permissions.DenialDetail.TOKEN,
        summary="Read the caller's own token, with its secret.", reply_type=TokenView,
    ),
    define_write(
        "acl.token.one-time", "/v1/acl/token/onetime", need=permissions.ANY_TOKEN,
        summary="Create a one-time secret that can be exchanged for the caller's token.", reply_type=OneTimeTokenReply,
    ),
    define_write(
        "acl.token.exchange", "/v1/acl/token/onetime/exchange", need=permissions.PUBLIC_ACCESS,
        summary="Exchange a one-time secret for its token.",
        body_type=OneTimeTokenExchangeRequest, reply_type=OneTimeTokenExchangeReply,
    ),
    define_read(
        "acl.token.read", "/v1/acl/token/{accessor_id}", need=permissions.ANY_TOKEN, denial_detail=permissions.DenialDetail.TOKEN,
        summary="Read a token, with its secret: any with a management token, otherwise the caller's own.", reply_type=TokenView,
    ),
    define_write(
        "acl.token.update", "/v1/acl/token/{accessor_id}", need=permissions.MANAGEMENT_TOKEN, summary="Update a token.",
        body_type=TokenRequest, reply_type=TokenView,
    ),
    define_write(
        "acl.token.delete", "/v1/acl/token/{accessor_id}", method="DELETE", need=permissions.MANAGEMENT_TOKEN,
        summary="Delete a token.",
    ),
    # -- roles
    define_read(
        "acl.role.list", "/v1/acl/roles", need=permissions.ANY_TOKEN,
        summary="List roles: all with a management token, otherwise those of the caller's token.", list_features=ROLE_LIST,
        reply_type=list[Role],
    ),
    define_leader_write(
        "acl.role.create", "/v1/acl/role", need=permissions.MANAGEMENT_TOKEN, summary="Create a role.",
        body_type=RoleRequest, reply_type=Role,
    ),
    define_read("acl.role.read", "/v1/acl/role/{role_id}", need=permissions.ANY_TOKEN, summary="Read a role.", reply_type=Role),
    define_read(
        "acl.role.read-by-name", "/v1/acl/role/name/{name}", need=permissions.ANY_TOKEN, summary="Read a role by its name.",
        reply_type=Role,
    ),
    define_leader_write(
        "acl.role.update", "/v1/acl/role/{role_id}", need=permissions.MANAGEMENT_TOKEN, summary="Update a role.",
        body_type=RoleRequest, reply_type=Role,
    ),
    define_write(
        "acl.role.delete", "/v1/acl/role/{role_id}", method="DELETE", need=permissions.MANAGEMENT_TOKEN, summary="Delete a role.",
    ),
    # -- auth methods and binding rules
    define_read(
        "acl.method.list", "/v1/acl/auth-methods", need=permissions.PUBLIC_ACCESS,
        summary="List auth methods. Needs no token, because users call it before they log in.", list_features=AUTH_METHOD_LIST,
        reply_type=list[AuthMethodStub],
    ),
    define_leader_write(
        "acl.method.create", "/v1/acl/auth-method", need=permissions.MANAGEMENT_TOKEN, summary="Create an auth method.",
        body_type=AuthMethodRequest, reply_type=AuthMethodView,
    ),
    define_read(
        "acl.method.read", "/v1/acl/auth-method/{name}", need=permissions.MANAGEMENT_TOKEN, summary="Read an auth method.",
        reply_type=AuthMethodView,
    ),
    define_leader_write(
        "acl.method.update", "/v1/acl/auth-method/{name}", need=permissions.MANAGEMENT_TOKEN, summary="Update an auth method.",
        body_type=AuthMethodRequest, reply_type=AuthMethodView,
    ),
    define_write(
        "acl.method.delete", "/v1/acl/auth-method/{name}", method="DELETE", need=permissions.MANAGEMENT_TOKEN,
        summary="Delete an auth method and its binding rules.",
    ),
    Endpoint(
        name="acl.method.secrets", method="PUT", path="/v1/acl/auth-method/{name}/secrets", kind=EndpointKind.LOCAL,
        need=permissions.MANAGEMENT_TOKEN, is_audited=True,
        summary="Read the secrets of an auth method, encrypted for a region that copies it.",
        body_type=SealedSecretsRequest, reply_type=SealedSecretsReply, refusal_statuses=(404,),
    ),
    define_read(
        "acl.rule.list", "/v1/acl/binding-rules", need=permissions.MANAGEMENT_TOKEN, summary="List binding rules.", list_features=BINDING_RULE_LIST,
        reply_type=list[BindingRule],
    ),
    define_write(
        "acl.rule.create", "/v1/acl/binding-rule", need=permissions.MANAGEMENT_TOKEN, summary="Create a binding rule.",
        body_type=BindingRuleRequest, reply_type=BindingRule,
    ),
    define_read(
        "acl.rule.read", "/v1/acl/binding-rule/{rule_id}", need=permissions.MANAGEMENT_TOKEN, summary="Read a binding rule.",
        reply_type=BindingRule,
    ),
    define_write(
        "acl.rule.update", "/v1/acl/binding-rule/{rule_id}", need=permissions.MANAGEMENT_TOKEN, summary="Update a binding rule.",
        body_type=BindingRuleRequest, reply_type=BindingRule,
    ),
    define_write(
        "acl.rule.delete", "/v1/acl/binding-rule/{rule_id}", method="DELETE", need=permissions.MANAGEMENT_TOKEN,
        summary="Delete a binding rule.",
    ),
    # -- logins
    define_write(
        "acl.oidc.auth-url", "/v1/acl/oidc/auth-url", need=permissions.PUBLIC_ACCESS,
        summary="Return the URL of the identity provider's login page.",
        body_type=AuthUrlRequest, reply_type=AuthUrlReply,
    ),
    define_write(
        "acl.oidc.complete", "/v1/acl/oidc/complete-auth", need=permissions.PUBLIC_ACCESS,
        summary="Complete a login with the code that the identity provider returned, and return a token.",
        body_type=CompleteAuthRequest, reply_type=TokenView,
    ),
    define_write(
        "acl.login", "/v1/acl/login", need=permissions.PUBLIC_ACCESS, summary="Log in with a signed JWT of an identity provider, and return a token.",
        body_type=LoginRequest, reply_type=TokenView,
    ),
)  # fmt: skip
