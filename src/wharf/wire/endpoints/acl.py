"""Endpoints of tokens, policies, roles, auth methods and binding rules."""

from typing import Final

from wharf.model import need
from wharf.model.auth_method import AuthMethod
from wharf.model.binding_rule import BindingRule
from wharf.model.policy import Policy
from wharf.model.role import Role
from wharf.model.token import Token
from wharf.wire import access as shapes
from wharf.wire.endpoints.endpoint import Endpoint, Kind, Lists, asks, reads, writes

SECRETS_OF_TOKENS: Final = frozenset({"SecretDigest", "SecretSealed", "SealedWith"})

TOKENS: Final = Lists(record=Token, hidden=SECRETS_OF_TOKENS)
POLICIES: Final = Lists(record=Policy, filters=False, pages=False, reverses=False)
ROLES: Final = Lists(record=Role, filters=False, pages=False, reverses=False, prefix=False)
METHODS: Final = Lists(
    record=AuthMethod, hidden=frozenset({"SecretsSealed", "SealedWith"}), filters=False, pages=False, reverses=False,
    prefix=False,
)  # fmt: skip
RULES: Final = Lists(record=BindingRule, filters=False, pages=False, reverses=False, prefix=False)

ROWS: Final[tuple[Endpoint, ...]] = (
    writes(
        "acl.bootstrap", "/v1/acl/bootstrap", need=need.NOTHING, summary="Make the first token.",
        body=shapes.BootstrapRequest, body_optional=True, returns=shapes.TokenShown,
    ),
    # -- policies
    reads(
        "acl.policy.list", "/v1/acl/policies", need=need.ANY_TOKEN,
        summary="List policies: all for management, else those that the caller carries.", lists=POLICIES,
        returns=list[shapes.PolicyStub],
    ),
    reads(
        "acl.policy.self", "/v1/acl/policy/self", need=need.ANY_TOKEN, summary="Read the policies of the caller.",
        returns=list[shapes.PolicyShown] | None,
    ),
    reads(
        "acl.policy.read", "/v1/acl/policy/{name...}", need=need.ANY_TOKEN, summary="Read a policy.",
        returns=shapes.PolicyShown,
    ),
    writes(
        "acl.policy.store", "/v1/acl/policy/{name...}", need=need.MANAGEMENT, summary="Create or replace a policy.",
        body=shapes.PolicyRequest,
    ),
    writes(
        "acl.policy.delete", "/v1/acl/policy/{name...}", method="DELETE", need=need.MANAGEMENT,
        summary="Delete a policy.",
    ),
    # -- tokens
    reads(
        "acl.token.list", "/v1/acl/tokens", need=need.MANAGEMENT, summary="List tokens, without their secrets.",
        lists=TOKENS, returns=list[shapes.TokenStub],
    ),
    writes(
        "acl.token.create", "/v1/acl/token", need=need.MANAGEMENT, summary="Create a token.",
        body=shapes.TokenRequest, returns=shapes.TokenShown,
    ),
    reads(
        "acl.token.self", "/v1/acl/token/self", need=need.ANY_TOKEN, manner=need.Manner.TOKEN,
        summary="Read the caller's own token, with its secret.", returns=shapes.TokenShown,
    ),
    writes(
        "acl.token.one-time", "/v1/acl/token/onetime", need=need.ANY_TOKEN,
        summary="Make a secret that stands for the caller's token once.", returns=shapes.OneTimeReply,
    ),
    writes(
        "acl.token.exchange", "/v1/acl/token/onetime/exchange", need=need.NOTHING,
        summary="Get the token that a one-time secret stands for.",
        body=shapes.ExchangeRequest, returns=shapes.ExchangeReply,
    ),
    reads(
        "acl.token.read", "/v1/acl/token/{accessor_id}", need=need.ANY_TOKEN, manner=need.Manner.TOKEN,
        summary="Read a token, with its secret: any for management, else one's own.", returns=shapes.TokenShown,
    ),
    writes(
        "acl.token.update", "/v1/acl/token/{accessor_id}", need=need.MANAGEMENT, summary="Change a token.",
        body=shapes.TokenRequest, returns=shapes.TokenShown,
    ),
    writes(
        "acl.token.delete", "/v1/acl/token/{accessor_id}", method="DELETE", need=need.MANAGEMENT,
        summary="Delete a token.",
    ),
    # -- roles
    reads(
        "acl.role.list", "/v1/acl/roles", need=need.ANY_TOKEN,
        summary="List roles: all for management, else those that the caller carries.", lists=ROLES,
        returns=list[Role],
    ),
    asks(
        "acl.role.create", "/v1/acl/role", need=need.MANAGEMENT, summary="Create a role.",
        body=shapes.RoleRequest, returns=Role,
    ),
    reads("acl.role.read", "/v1/acl/role/{role_id}", need=need.ANY_TOKEN, summary="Read a role.", returns=Role),
    reads(
        "acl.role.read-by-name", "/v1/acl/role/name/{name}", need=need.ANY_TOKEN, summary="Read a role by its name.",
        returns=Role,
    ),
    asks(
        "acl.role.update", "/v1/acl/role/{role_id}", need=need.MANAGEMENT, summary="Change a role.",
        body=shapes.RoleRequest, returns=Role,
    ),
    writes(
        "acl.role.delete", "/v1/acl/role/{role_id}", method="DELETE", need=need.MANAGEMENT, summary="Delete a role.",
    ),
    # -- ways to log in
    reads(
        "acl.method.list", "/v1/acl/auth-methods", need=need.NOTHING,
        summary="List the ways to log in, for whoever wants to.", lists=METHODS,
        returns=list[shapes.AuthMethodStub],
    ),
    asks(
        "acl.method.create", "/v1/acl/auth-method", need=need.MANAGEMENT, summary="Create a login method.",
        body=shapes.AuthMethodRequest, returns=shapes.AuthMethodShown,
    ),
    reads(
        "acl.method.read", "/v1/acl/auth-method/{name}", need=need.MANAGEMENT, summary="Read a login method.",
        returns=shapes.AuthMethodShown,
    ),
    asks(
        "acl.method.update", "/v1/acl/auth-method/{name}", need=need.MANAGEMENT, summary="Change a login method.",
        body=shapes.AuthMethodRequest, returns=shapes.AuthMethodShown,
    ),
    writes(
        "acl.method.delete", "/v1/acl/auth-method/{name}", method="DELETE", need=need.MANAGEMENT,
        summary="Delete a login method, with its binding rules.",
    ),
    Endpoint(
        name="acl.method.secrets", method="PUT", path="/v1/acl/auth-method/{name}/secrets", kind=Kind.LOCAL,
        need=need.MANAGEMENT, audited=True,
        summary="Get the secrets of a login method, sealed for a region that copies it.",
        body=shapes.SecretsForRegion, returns=shapes.SecretsSealed, refuses=(404,),
    ),
    reads(
        "acl.rule.list", "/v1/acl/binding-rules", need=need.MANAGEMENT, summary="List binding rules.", lists=RULES,
        returns=list[BindingRule],
    ),
    writes(
        "acl.rule.create", "/v1/acl/binding-rule", need=need.MANAGEMENT, summary="Create a binding rule.",
        body=shapes.BindingRuleRequest, returns=BindingRule,
    ),
    reads(
        "acl.rule.read", "/v1/acl/binding-rule/{rule_id}", need=need.MANAGEMENT, summary="Read a binding rule.",
        returns=BindingRule,
    ),
    writes(
        "acl.rule.update", "/v1/acl/binding-rule/{rule_id}", need=need.MANAGEMENT, summary="Change a binding rule.",
        body=shapes.BindingRuleRequest, returns=BindingRule,
    ),
    writes(
        "acl.rule.delete", "/v1/acl/binding-rule/{rule_id}", method="DELETE", need=need.MANAGEMENT,
        summary="Delete a binding rule.",
    ),
    # -- logging in
    writes(
        "acl.oidc.auth-url", "/v1/acl/oidc/auth-url", need=need.NOTHING,
        summary="Get the address of the provider's page where somebody logs in.",
        body=shapes.AuthUrlRequest, returns=shapes.AuthUrlReply,
    ),
    writes(
        "acl.oidc.complete", "/v1/acl/oidc/complete-auth", need=need.NOTHING,
        summary="Get a token for what the provider's page gave back.",
        body=shapes.CompleteAuthRequest, returns=shapes.TokenShown,
    ),
    writes(
        "acl.login", "/v1/acl/login", need=need.NOTHING, summary="Get a token for a signed token of somebody else.",
        body=shapes.LoginRequest, returns=shapes.TokenShown,
    ),
)  # fmt: skip
