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
    SMALL_BODY_BYTES,
    Endpoint,
    EndpointKind,
    ListFeatures,
    define_leader_write,
    define_read,
    define_write,
    duration,
    flag,
    text,
    text_list,
)
from wharf.contract.wire.times import DurationText


class BootstrapRequest(Record):
    """An optional body for the creation of the first management token."""

    bootstrap_secret: str = ""  # The secret of the token, a UUID; empty: the server generates one.


class TokenRequest(Record):
    """A request to create or update an ACL token."""

    accessor_id: str = ""  # The token's public ID.
    secret_id: str = ""  # Chosen by the caller, as a UUID; empty: the server generates it.
    name: str = ""
    type: str = ""  # `client` or `management`.
    policies: tuple[str, ...] | None = None  # Names of policies.
    roles: tuple[RoleLink, ...] | None = None  # The roles that the token has.
    global_: bool = False  # Whether other regions copy the token.
    expiration_time: datetime.datetime | None = None
    expiration_ttl: DurationText = ""  # Lifetime after the creation; an alternative to `expiration_time`.

    # Fields that a caller may send back from a reply; they are dropped.
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"Hash", "CreateTime", "CreateIndex", "ModifyIndex"})


class TokenStub(Record):
    """An ACL token in a list, without its secret."""

    accessor_id: str  # The token's public ID.
    name: str = ""
    type: str = ""  # `client` or `management`.
    policies: tuple[str, ...] | None = None  # Names of policies.
    roles: tuple[RoleLink, ...] | None = None  # The roles that the token has.
    global_: bool = False  # Whether other regions copy the token.
    hash: bytes = b""  # SHA-256 digest of the content; see `hash_content`.
    create_time: datetime.datetime | None = None
    expiration_time: datetime.datetime | None = None  # None: it does not expire.
    create_index: int = 0  # Log index of its creation.
    modify_index: int = 0  # Log index of its last change.


class TokenView(Record):
    """An ACL token with its secret."""

    expiration_ttl: str = ""  # Lifetime after the creation, such as `8h0m0s`; empty without a limit.
    accessor_id: str  # The token's public ID.
    secret_id: str = ""  # The secret that callers send to authenticate.
    name: str = ""
    type: str = ""  # `client` or `management`.
    policies: tuple[str, ...] | None = None  # Names of policies.
    roles: tuple[RoleLink, ...] | None = None  # The roles that the token has.
    global_: bool = False  # Whether other regions copy the token.
    hash: bytes = b""  # SHA-256 digest of the content; see `hash_content`.
    create_time: datetime.datetime | None = None
    expiration_time: datetime.datetime | None = None  # None: it does not expire.
    create_index: int = 0  # Log index of its creation.
    modify_index: int = 0  # Log index of its last change.


class OneTimeTokenView(Record):
    """A one-time secret that can be exchanged once for an ACL token; shown only when it is created."""

    one_time_secret_id: str  # The one-time secret itself.
    accessor_id: str  # The public ID of the token for which it can be exchanged.
    expires_at: datetime.datetime
    create_index: int = 0  # Log index of its creation.
    modify_index: int = 0  # Log index of its last change.


class OneTimeTokenReply(Record):
    """The reply to the creation of a one-time secret."""

    one_time_token: OneTimeTokenView
    index: int = 0  # Log index of the write.


MAX_CHECKED_ENDPOINTS: Final = 100
"""Limits the work of one request."""


class AccessCheck(Record):
    """Which of the endpoints that a request names its caller may use."""

    allowed: tuple[str, ...] = ()  # Their names, such as `job.scale`.


class SessionCreateRequest(Record):
    """A request to sign a browser in with the caller's token."""

    address: str = ""  # The address of the browser; empty: that of the request.
    browser: str = ""  # What the browser says that it is.


class SessionView(Record):
    """A browser that is signed in."""

    id: str  # Names the session; it is not its secret.
    accessor_id: str  # The public ID of the token with which it is signed in.
    created_at: datetime.datetime
    expires_at: datetime.datetime
    address: str = ""  # The address of the browser when it signed in.
    browser: str = ""  # What the browser says that it is.
    create_index: int = 0  # Log index of its creation.
    modify_index: int = 0  # Log index of its last change.


class SessionCreateReply(Record):
    """The reply to a sign-in."""

    secret_id: str  # The secret of the browser's cookie; shown only here, and valid only for pages.
    session: SessionView
    index: int = 0  # Log index of the write.


class OneTimeTokenExchangeRequest(Record):
    """A request to exchange a one-time secret for its ACL token."""

    one_time_secret_id: str = ""  # The one-time secret itself.


class OneTimeTokenExchangeReply(Record):
    """The ACL token for which a one-time secret was exchanged."""

    token: TokenView
    index: int = 0  # Log index of the write.


class PolicyRequest(Record):
    """A request to create or replace an ACL policy."""

    name: str = ""
    description: str = ""
    rules: str = ""  # The policy document as text, in HCL or JSON.
    job_acl: JobACL | None = None  # Attaches the policy to the workload identities of a job.

    # Fields that a caller may send back from a reply; they are dropped.
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"Hash", "RulesJSON", "CreateIndex", "ModifyIndex"})


class PolicyStub(Record):
    """An ACL policy in a list, without its rules."""

    name: str
    description: str = ""
    job_acl: JobACL | None = None  # Attaches the policy to the workload identities of a job.
    hash: bytes = b""  # SHA-256 digest of the content; see `hash_content`.
    create_index: int = 0  # Log index of its creation.
    modify_index: int = 0  # Log index of its last change.


class PolicyView(Record):
    """An ACL policy with its rules, as text and as JSON."""

    name: str
    description: str = ""
    rules: str = ""  # The policy document as it was submitted.
    rules_json: Any = msgspec.field(name="RulesJSON", default=None)  # Any JSON value: the rules are nested.
    job_acl: JobACL | None = None  # Attaches the policy to the workload identities of a job.
    hash: bytes = b""  # SHA-256 digest of the content; see `hash_content`.
    create_index: int = 0  # Log index of its creation.
    modify_index: int = 0  # Log index of its last change.


class RoleRequest(Record):
    """A request to create or update an ACL role."""

    id: str = ""  # Empty for a new role.
    name: str = ""
    description: str = ""
    policies: tuple[PolicyLink, ...] | None = None  # The policies that the role grants.

    # Fields that a caller may send back from a reply; they are dropped.
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"Hash", "CreateIndex", "ModifyIndex"})


class AuthMethodConfigView(AuthMethodConfigBase):
    """The configuration of an auth method, with its leeways as text."""

    expiration_leeway: DurationText = ""  # Tolerance for the expiry time (`exp`) of a JWT.
    not_before_leeway: DurationText = ""  # Tolerance for the start of validity (`nbf`) of a JWT.
    clock_skew_leeway: DurationText = ""  # Tolerance for different clocks, for all times in a JWT.


class AuthMethodRequest(Record):
    """A request to create or update an auth method: a way to log in through an identity provider."""

    name: str = ""
    type: str = ""  # `OIDC` or `JWT`.
    token_locality: str = ""  # `local` or `global`.
    token_name_format: str = DEFAULT_TOKEN_NAME_FORMAT  # Template for the names of tokens from logins.
    max_token_ttl: DurationText = ""  # Lifetime of tokens from logins.
    default: bool = False  # Whether logins without the name of a method use this one.
    config: AuthMethodConfigView | None = None

    # Fields that a caller may send back from a reply; they are dropped.
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset(
        {"Hash", "CreateTime", "ModifyTime", "CreateIndex", "ModifyIndex"}
    )


class AuthMethodView(Record):
    """An auth method (a way to log in), with its secrets replaced by `redacted`."""

    max_token_ttl: str = ""  # Lifetime of tokens from logins.
    name: str
    type: str = ""  # `OIDC` or `JWT`.
    token_locality: str = ""  # `local` or `global`.
    token_name_format: str = ""  # Template for the names of tokens from logins.
    default: bool = False  # Whether logins without the name of a method use this one.
    config: AuthMethodConfigView | None = None
    hash: bytes = b""  # SHA-256 digest of the content; see `hash_content`.
    create_time: datetime.datetime | None = None
    modify_time: datetime.datetime | None = None
    create_index: int = 0  # Log index of its creation.
    modify_index: int = 0  # Log index of its last change.


class SealedSecretsRequest(Record):
    """A request for the secrets of an auth method, encrypted so that another region can copy the method."""

    public_key: bytes = b""  # X25519 key of the receiver; only its private key can decrypt the reply.


class SealedSecretsReply(Record):
    """The secrets of an auth method, encrypted for the public key in the request."""

    sender: bytes  # X25519 public key, generated for this reply only; needed to decrypt it.
    sealed: bytes  # The encrypted secrets.


class AuthMethodStub(Record):
    """An auth method (a way to log in), as lists show it."""

    name: str
    type: str = ""  # `OIDC` or `JWT`.
    default: bool = False  # Whether logins without the name of a method use this one.
    hash: bytes = b""  # SHA-256 digest of the content; see `hash_content`.
    create_index: int = 0  # Log index of its creation.
    modify_index: int = 0  # Log index of its last change.


class BindingRuleRequest(Record):
    """A request to create or update a binding rule, which gives roles or policies to tokens from logins."""

    id: str = ""  # Empty for a new rule.
    description: str = ""
    auth_method: str = ""  # The auth method to whose logins the rule applies.
    selector: str = ""  # Condition on the claims of the login; empty: every login.
    bind_type: str = ""  # What the rule binds, such as `role`, `policy` or `management`.
    bind_name: str = ""  # Name of the role or policy; may be a template with claims.

    # Fields that a caller may send back from a reply; they are dropped.
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset(
        {"Hash", "CreateTime", "ModifyTime", "CreateIndex", "ModifyIndex"}
    )


class AuthUrlRequest(Record):
    """A request for the URL of an identity provider's login page (OIDC)."""

    auth_method_name: str = ""
    redirect_uri: str = msgspec.field(name="RedirectURI", default="")
    """Where the provider sends the browser after the login."""
    client_nonce: str = ""  # Random text of the client, which it repeats to complete the login.


class AuthUrlReply(Record):
    """The URL of an identity provider's login page, for the user's browser."""

    auth_url: str = msgspec.field(name="AuthURL")


class CompleteAuthRequest(Record):
    """A request to complete an OIDC login, with the parameters of the identity provider's redirect."""

    auth_method_name: str = ""
    client_nonce: str = ""  # The random text with which the client requested the login page.
    state: str = ""  # Links the redirect to the login that the server started.
    code: str = ""  # The provider's authorization code.
    iss: str = ""  # The issuer that the provider names (RFC 9207).
    redirect_uri: str = msgspec.field(name="RedirectURI", default="")
    """Where the provider sent the browser after the login."""


class LoginRequest(Record):
    """A request to log in with a JWT of an identity provider."""

    auth_method_name: str = ""
    login_token: str = ""  # The signed JWT.


HIDDEN_TOKEN_FIELDS: Final = frozenset({"SecretDigest", "SecretSealed", "SealedWith"})
"""Fields that filters must not read, because they depend on the secret."""

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
        max_body_bytes=SMALL_BODY_BYTES, body_type=BootstrapRequest, is_body_optional=True, reply_type=TokenView,
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
        max_body_bytes=SMALL_BODY_BYTES, body_type=TokenRequest, reply_type=TokenView,
    ),
    define_read(
        "acl.token.self", "/v1/acl/token/self", need=permissions.ANY_TOKEN, denial_detail=permissions.DenialDetail.TOKEN,
        summary="Read the caller's own token, with its secret.", reply_type=TokenView,
    ),
    define_write(
        "acl.token.one-time", "/v1/acl/token/onetime", need=permissions.ANY_TOKEN,
        summary="Create a one-time secret that can be exchanged for the caller's token.", reply_type=OneTimeTokenReply,
        parameters=(duration("ttl", "How long the secret can be exchanged; 10m by default, and at most."),),
    ),
    define_write(
        "acl.token.exchange", "/v1/acl/token/onetime/exchange", need=permissions.PUBLIC_ACCESS,
        summary="Exchange a one-time secret for its token.",
        max_body_bytes=SMALL_BODY_BYTES, body_type=OneTimeTokenExchangeRequest, reply_type=OneTimeTokenExchangeReply,
    ),
    define_write(
        "acl.session.create", "/v1/acl/session", need=permissions.ANY_TOKEN, summary="Sign a browser in with the caller's token.",
        max_body_bytes=SMALL_BODY_BYTES, body_type=SessionCreateRequest, reply_type=SessionCreateReply,
    ),
    define_read(
        "acl.session.list", "/v1/acl/sessions", need=permissions.ANY_TOKEN,
        summary="List the browsers that are signed in with the caller's token.", reply_type=list[SessionView],
    ),
    define_write(
        "acl.session.end", "/v1/acl/session/{session_id}", method="DELETE", need=permissions.ANY_TOKEN,
        summary="Sign a browser out: one of the caller's token, or any with a management token.",
    ),
    define_read(
        "acl.check", "/v1/acl/check", need=permissions.ANY_TOKEN, can_block=False, reply_type=AccessCheck,
        summary="Check which of the named endpoints the caller may use in a namespace.",
        parameters=(
            text_list("endpoint", f"The name of an endpoint, such as `job.scale`; up to {MAX_CHECKED_ENDPOINTS} times."),
            text("path", "The path of the variable, or the name of the node pool, that the endpoints are about."),
            flag("anywhere", "Check whether the caller may use them on any object, instead of in the namespace and on the path."),
        ),
    ),
    define_read(
        "acl.token.read", "/v1/acl/token/{accessor_id}", need=permissions.ANY_TOKEN, denial_detail=permissions.DenialDetail.TOKEN,
        summary="Read a token, with its secret: any with a management token, otherwise the caller's own.", reply_type=TokenView,
    ),
    define_write(
        "acl.token.update", "/v1/acl/token/{accessor_id}", need=permissions.MANAGEMENT_TOKEN, summary="Update a token.",
        max_body_bytes=SMALL_BODY_BYTES, body_type=TokenRequest, reply_type=TokenView,
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
        max_body_bytes=SMALL_BODY_BYTES, body_type=AuthUrlRequest, reply_type=AuthUrlReply,
    ),
    define_write(
        "acl.oidc.complete", "/v1/acl/oidc/complete-auth", need=permissions.PUBLIC_ACCESS,
        summary="Complete a login with the code that the identity provider returned, and return a token.",
        max_body_bytes=SMALL_BODY_BYTES, body_type=CompleteAuthRequest, reply_type=TokenView,
    ),
    define_write(
        "acl.login", "/v1/acl/login", need=permissions.PUBLIC_ACCESS, summary="Log in with a signed JWT of an identity provider, and return a token.",
        max_body_bytes=SMALL_BODY_BYTES, body_type=LoginRequest, reply_type=TokenView,
    ),
)  # fmt: skip
