"""Client methods for access control: policies, tokens, roles, auth methods, binding rules and logins."""

from collections.abc import Sequence
from typing import Unpack

from wharf.contract.client.calls import CallSpec, ListOptions, ListSpec, ReadOptions, ReadSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method, read_method
from wharf.contract.model.acl.binding_rules import BindingRule
from wharf.contract.model.acl.roles import Role
from wharf.contract.wire import acl
from wharf.contract.wire.nodes import messages


class PolicyMethods(MethodGroup[M]):
    """The methods of `client.acl.policies`. Each describes a call, which the client then sends."""

    @list_method("acl.policy.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[acl.PolicyStub]:
        """List ACL policies: all with a management token, otherwise those of the caller's token."""
        return ListSpec(options)

    @read_method("acl.policy.self")
    def read_own(self, **options: Unpack[ReadOptions]) -> ReadSpec["tuple[acl.PolicyView, ...] | None"]:
        """Read the ACL policies of the caller's token."""
        return ReadSpec(options)

    @read_method("acl.policy.read")
    def read(self, name: str, **options: Unpack[ReadOptions]) -> ReadSpec[acl.PolicyView]:
        """Read the ACL policy with this name."""
        return ReadSpec(options, name)

    @call_method("acl.policy.store")
    def store(self, policy: acl.PolicyRequest, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Create the ACL policy, or replace the one with its name."""
        return CallSpec(options, policy.name, body=policy)

    @call_method("acl.policy.delete")
    def delete(self, name: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Delete the ACL policy with this name."""
        return CallSpec(options, name)


class TokenMethods(MethodGroup[M]):
    """The methods of `client.acl.tokens`. Each describes a call, which the client then sends."""

    @list_method("acl.token.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[acl.TokenStub]:
        """List ACL tokens, without their secrets."""
        return ListSpec(options)

    @call_method("acl.token.create")
    def create(self, token: acl.TokenRequest, **options: Unpack[WriteOptions]) -> CallSpec[acl.TokenView]:
        """Create an ACL token. The result contains its secret."""
        return CallSpec(options, body=token)

    @read_method("acl.token.self")
    def read_own(self, **options: Unpack[ReadOptions]) -> ReadSpec[acl.TokenView]:
        """Read the caller's own ACL token."""
        return ReadSpec(options)

    @call_method("acl.token.one-time")
    def create_one_time(self, *, ttl: str = "", **options: Unpack[WriteOptions]) -> CallSpec[acl.OneTimeTokenReply]:
        """Create a one-time secret that can be exchanged for the caller's token, within `ttl`, such as `1m`."""
        return CallSpec(options, ttl=ttl)

    @call_method("acl.token.exchange")
    def exchange_one_time(
        self, secret_id: str, **options: Unpack[WriteOptions]
    ) -> CallSpec[acl.OneTimeTokenExchangeReply]:
        """Exchange the one-time secret `secret_id` for the ACL token of the caller that created it."""
        return CallSpec(options, body=acl.OneTimeTokenExchangeRequest(one_time_secret_id=secret_id))

    @read_method("acl.token.read")
    def read(self, accessor_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[acl.TokenView]:
        """Read an ACL token by its public ID. A caller without a management token may read only its own."""
        return ReadSpec(options, accessor_id)

    @call_method("acl.token.update")
    def update(
        self, accessor_id: str, token: acl.TokenRequest, **options: Unpack[WriteOptions]
    ) -> CallSpec[acl.TokenView]:
        """Update the ACL token with this public ID."""
        return CallSpec(options, accessor_id, body=token)

    @call_method("acl.token.delete")
    def delete(self, accessor_id: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Delete the ACL token with this public ID."""
        return CallSpec(options, accessor_id)


class RoleMethods(MethodGroup[M]):
    """The methods of `client.acl.roles`. Each describes a call, which the client then sends."""

    @list_method("acl.role.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[Role]:
        """List ACL roles: all with a management token, otherwise those of the caller's token."""
        return ListSpec(options)

    @call_method("acl.role.create")
    def create(self, role: acl.RoleRequest, **options: Unpack[WriteOptions]) -> CallSpec[Role]:
        """Create an ACL role."""
        return CallSpec(options, body=role)

    @read_method("acl.role.read")
    def read(self, role_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[Role]:
        """Read the ACL role with this ID."""
        return ReadSpec(options, role_id)

    @read_method("acl.role.read-by-name")
    def read_by_name(self, name: str, **options: Unpack[ReadOptions]) -> ReadSpec[Role]:
        """Read the ACL role with this name."""
        return ReadSpec(options, name)

    @call_method("acl.role.update")
    def update(self, role_id: str, role: acl.RoleRequest, **options: Unpack[WriteOptions]) -> CallSpec[Role]:
        """Update the ACL role with this ID."""
        return CallSpec(options, role_id, body=role)

    @call_method("acl.role.delete")
    def delete(self, role_id: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Delete the ACL role with this ID."""
        return CallSpec(options, role_id)


class AuthMethodMethods(MethodGroup[M]):
    """The methods of `client.acl.auth_methods`. Each describes a call, which the client then sends."""

    @list_method("acl.method.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[acl.AuthMethodStub]:
        """List auth methods (ways to log in). Needs no token, because users call it before they log in."""
        return ListSpec(options)

    @call_method("acl.method.create")
    def create(self, method: acl.AuthMethodRequest, **options: Unpack[WriteOptions]) -> CallSpec[acl.AuthMethodView]:
        """Create an auth method, that is, a way to log in through an identity provider."""
        return CallSpec(options, body=method)

    @read_method("acl.method.read")
    def read(self, name: str, **options: Unpack[ReadOptions]) -> ReadSpec[acl.AuthMethodView]:
        """Read the auth method with this name, without its secrets."""
        return ReadSpec(options, name)

    @call_method("acl.method.update")
    def update(
        self, name: str, method: acl.AuthMethodRequest, **options: Unpack[WriteOptions]
    ) -> CallSpec[acl.AuthMethodView]:
        """Update the auth method with this name."""
        return CallSpec(options, name, body=method)

    @call_method("acl.method.secrets")
    def read_sealed_secrets(
        self, name: str, public_key: bytes, **options: Unpack[WriteOptions]
    ) -> CallSpec[acl.SealedSecretsReply]:
        """Read the secrets of an auth method, encrypted for the owner of this public key (X25519)."""
        return CallSpec(options, name, body=acl.SealedSecretsRequest(public_key=public_key))

    @call_method("acl.method.delete")
    def delete(self, name: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Delete an auth method and its binding rules."""
        return CallSpec(options, name)


class BindingRuleMethods(MethodGroup[M]):
    """The methods of `client.acl.binding_rules`. Each describes a call, which the client then sends."""

    @list_method("acl.rule.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[BindingRule]:
        """List binding rules, which give roles or policies to tokens from logins."""
        return ListSpec(options)

    @call_method("acl.rule.create")
    def create(self, rule: acl.BindingRuleRequest, **options: Unpack[WriteOptions]) -> CallSpec[BindingRule]:
        """Create a binding rule, which gives a role or policy to tokens from logins."""
        return CallSpec(options, body=rule)

    @read_method("acl.rule.read")
    def read(self, rule_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[BindingRule]:
        """Read the binding rule with this ID."""
        return ReadSpec(options, rule_id)

    @call_method("acl.rule.update")
    def update(
        self, rule_id: str, rule: acl.BindingRuleRequest, **options: Unpack[WriteOptions]
    ) -> CallSpec[BindingRule]:
        """Update the binding rule with this ID."""
        return CallSpec(options, rule_id, body=rule)

    @call_method("acl.rule.delete")
    def delete(self, rule_id: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Delete the binding rule with this ID."""
        return CallSpec(options, rule_id)


class AclMethods(MethodGroup[M]):
    """The methods of `client.acl`, and its method groups, such as `client.acl.tokens`."""

    def __init__(self, client: M) -> None:
        super().__init__(client)
        self.policies = PolicyMethods(client)
        self.tokens = TokenMethods(client)
        self.sessions = SessionMethods(client)
        self.roles = RoleMethods(client)
        self.auth_methods = AuthMethodMethods(client)
        self.binding_rules = BindingRuleMethods(client)

    @read_method("acl.check")
    def check(
        self, endpoints: Sequence[str], *, path: str = "", anywhere: bool = False, **options: Unpack[ReadOptions]
    ) -> ReadSpec[acl.AccessCheck]:
        """Check which of these endpoints, such as `job.scale`, the caller may use in the namespace.

        `path` is the path of a variable, or the name of a node pool. `anywhere`: check for any namespace, path and pool instead.
        """
        return ReadSpec(options, endpoint=tuple(endpoints), path=path, anywhere=anywhere)

    @call_method("acl.bootstrap")
    def bootstrap(self, secret: str = "", **options: Unpack[WriteOptions]) -> CallSpec[acl.TokenView]:
        """Create the first management token; works only once. `secret` is its secret, or empty to generate one."""
        return CallSpec(options, body=acl.BootstrapRequest(bootstrap_secret=secret) if secret else None)

    @call_method("acl.login")
    def login(self, auth_method: str, login_token: str, **options: Unpack[WriteOptions]) -> CallSpec[acl.TokenView]:
        """Log in with `login_token`, a signed JWT of an identity provider. The result is an ACL token."""
        return CallSpec(options, body=acl.LoginRequest(auth_method_name=auth_method, login_token=login_token))

    @call_method("acl.oidc.auth-url")
    def create_oidc_auth_url(
        self, auth_method: str, redirect_uri: str, client_nonce: str, **options: Unpack[WriteOptions]
    ) -> CallSpec[acl.AuthUrlReply]:
        """Create the URL of the identity provider's login page, for the user's browser.

        The provider sends the browser to `redirect_uri`. `client_nonce` is random text, to be repeated in
        `complete_oidc_login`.
        """
        body = acl.AuthUrlRequest(auth_method_name=auth_method, redirect_uri=redirect_uri, client_nonce=client_nonce)
        return CallSpec(options, body=body)

    @call_method("acl.oidc.complete")
    def complete_oidc_login(
        self, request: acl.CompleteAuthRequest, **options: Unpack[WriteOptions]
    ) -> CallSpec[acl.TokenView]:
        """Complete a login with the code that the identity provider returned. The result is an ACL token."""
        return CallSpec(options, body=request)

    @call_method("acl.identity.introduction")
    def create_introduction(
        self, request: messages.IntroductionRequest, **options: Unpack[WriteOptions]
    ) -> CallSpec[messages.IntroductionReply]:
        """Create an introduction token, with which a new node may register."""
        return CallSpec(options, body=request)


class SessionMethods(MethodGroup[M]):
    """The methods of `client.acl.sessions`. Each describes a call, which the client then sends."""

    @list_method("acl.session.list")
    def list(self, **options: Unpack[ReadOptions]) -> ListSpec[acl.SessionView]:
        """List the browsers that are signed in with the caller's token, the newest first."""
        return ListSpec(options)

    @call_method("acl.session.create")
    def create(
        self, *, address: str = "", browser: str = "", **options: Unpack[WriteOptions]
    ) -> CallSpec[acl.SessionCreateReply]:
        """Sign a browser in with the caller's token. The result contains the secret of its cookie."""
        return CallSpec(options, body=acl.SessionCreateRequest(address=address, browser=browser))

    @call_method("acl.session.end")
    def end(self, session_id: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Sign a browser out."""
        return CallSpec(options, session_id)
