"""What can be asked about who may do what: tokens, policies, roles, logins, identities, keys."""

from typing import Unpack

from wharf.contract.client.calls import CallSpec, ListOptions, ListSpec, ReadOptions, ReadSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method, read_method
from wharf.contract.model.acl.binding_rules import BindingRule
from wharf.contract.model.acl.roles import Role
from wharf.contract.wire import acl
from wharf.contract.wire.nodes import messages


class PolicyMethods(MethodGroup[M]):
    @list_method("acl.policy.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[acl.PolicyStub]:
        return ListSpec(options)

    @read_method("acl.policy.self")
    def read_own(self, **options: Unpack[ReadOptions]) -> ReadSpec["tuple[acl.PolicyView, ...] | None"]:
        """Those of the caller's token."""
        return ReadSpec(options)

    @read_method("acl.policy.read")
    def read(self, name: str, **options: Unpack[ReadOptions]) -> ReadSpec[acl.PolicyView]:
        return ReadSpec(options, name)

    @call_method("acl.policy.store")
    def store(self, policy: acl.PolicyRequest, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        return CallSpec(options, policy.name, body=policy)

    @call_method("acl.policy.delete")
    def delete(self, name: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        return CallSpec(options, name)


class TokenMethods(MethodGroup[M]):
    @list_method("acl.token.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[acl.TokenStub]:
        return ListSpec(options)

    @call_method("acl.token.create")
    def create(self, token: acl.TokenRequest, **options: Unpack[WriteOptions]) -> CallSpec[acl.TokenView]:
        return CallSpec(options, body=token)

    @read_method("acl.token.self")
    def read_own(self, **options: Unpack[ReadOptions]) -> ReadSpec[acl.TokenView]:
        """The caller's."""
        return ReadSpec(options)

    @call_method("acl.token.one-time")
    def create_one_time(self, **options: Unpack[WriteOptions]) -> CallSpec[acl.OneTimeTokenReply]:
        return CallSpec(options)

    @call_method("acl.token.exchange")
    def exchange_one_time(
        self, secret_id: str, **options: Unpack[WriteOptions]
    ) -> CallSpec[acl.OneTimeTokenExchangeReply]:
        return CallSpec(options, body=acl.OneTimeTokenExchangeRequest(one_time_secret_id=secret_id))

    @read_method("acl.token.read")
    def read(self, accessor_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[acl.TokenView]:
        return ReadSpec(options, accessor_id)

    @call_method("acl.token.update")
    def update(
        self, accessor_id: str, token: acl.TokenRequest, **options: Unpack[WriteOptions]
    ) -> CallSpec[acl.TokenView]:
        return CallSpec(options, accessor_id, body=token)

    @call_method("acl.token.delete")
    def delete(self, accessor_id: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        return CallSpec(options, accessor_id)


class RoleMethods(MethodGroup[M]):
    @list_method("acl.role.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[Role]:
        return ListSpec(options)

    @call_method("acl.role.create")
    def create(self, role: acl.RoleRequest, **options: Unpack[WriteOptions]) -> CallSpec[Role]:
        return CallSpec(options, body=role)

    @read_method("acl.role.read")
    def read(self, role_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[Role]:
        return ReadSpec(options, role_id)

    @read_method("acl.role.read-by-name")
    def read_by_name(self, name: str, **options: Unpack[ReadOptions]) -> ReadSpec[Role]:
        return ReadSpec(options, name)

    @call_method("acl.role.update")
    def update(self, role_id: str, role: acl.RoleRequest, **options: Unpack[WriteOptions]) -> CallSpec[Role]:
        return CallSpec(options, role_id, body=role)

    @call_method("acl.role.delete")
    def delete(self, role_id: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        return CallSpec(options, role_id)


class AuthMethodMethods(MethodGroup[M]):
    @list_method("acl.method.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[acl.AuthMethodStub]:
        return ListSpec(options)

    @call_method("acl.method.create")
    def create(self, method: acl.AuthMethodRequest, **options: Unpack[WriteOptions]) -> CallSpec[acl.AuthMethodView]:
        return CallSpec(options, body=method)

    @read_method("acl.method.read")
    def read(self, name: str, **options: Unpack[ReadOptions]) -> ReadSpec[acl.AuthMethodView]:
        return ReadSpec(options, name)

    @call_method("acl.method.update")
    def update(
        self, name: str, method: acl.AuthMethodRequest, **options: Unpack[WriteOptions]
    ) -> CallSpec[acl.AuthMethodView]:
        return CallSpec(options, name, body=method)

    @call_method("acl.method.secrets")
    def read_sealed_secrets(
        self, name: str, public_key: bytes, **options: Unpack[WriteOptions]
    ) -> CallSpec[acl.SealedSecretsReply]:
        """What is secret of a method, sealed for whoever has the other half of the key."""
        return CallSpec(options, name, body=acl.SealedSecretsRequest(public_key=public_key))

    @call_method("acl.method.delete")
    def delete(self, name: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        return CallSpec(options, name)


class BindingRuleMethods(MethodGroup[M]):
    @list_method("acl.rule.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[BindingRule]:
        return ListSpec(options)

    @call_method("acl.rule.create")
    def create(self, rule: acl.BindingRuleRequest, **options: Unpack[WriteOptions]) -> CallSpec[BindingRule]:
        return CallSpec(options, body=rule)

    @read_method("acl.rule.read")
    def read(self, rule_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[BindingRule]:
        return ReadSpec(options, rule_id)

    @call_method("acl.rule.update")
    def update(
        self, rule_id: str, rule: acl.BindingRuleRequest, **options: Unpack[WriteOptions]
    ) -> CallSpec[BindingRule]:
        return CallSpec(options, rule_id, body=rule)

    @call_method("acl.rule.delete")
    def delete(self, rule_id: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        return CallSpec(options, rule_id)


class AclMethods(MethodGroup[M]):
    def __init__(self, client: M) -> None:
        super().__init__(client)
        self.policies = PolicyMethods(client)
        self.tokens = TokenMethods(client)
        self.roles = RoleMethods(client)
        self.auth_methods = AuthMethodMethods(client)
        self.binding_rules = BindingRuleMethods(client)

    @call_method("acl.bootstrap")
    def bootstrap(self, secret: str = "", **options: Unpack[WriteOptions]) -> CallSpec[acl.TokenView]:
        """The first management token, once. Its secret may be chosen."""
        return CallSpec(options, body=acl.BootstrapRequest(bootstrap_secret=secret) if secret else None)

    @call_method("acl.login")
    def login(self, auth_method: str, login_token: str, **options: Unpack[WriteOptions]) -> CallSpec[acl.TokenView]:
        return CallSpec(options, body=acl.LoginRequest(auth_method_name=auth_method, login_token=login_token))

    @call_method("acl.oidc.auth-url")
    def create_oidc_auth_url(
        self, auth_method: str, redirect_uri: str, client_nonce: str, **options: Unpack[WriteOptions]
    ) -> CallSpec[acl.AuthUrlReply]:
        body = acl.AuthUrlRequest(auth_method_name=auth_method, redirect_uri=redirect_uri, client_nonce=client_nonce)
        return CallSpec(options, body=body)

    @call_method("acl.oidc.complete")
    def complete_oidc_login(
        self, request: acl.CompleteAuthRequest, **options: Unpack[WriteOptions]
    ) -> CallSpec[acl.TokenView]:
        return CallSpec(options, body=request)

    @call_method("acl.identity.introduction")
    def create_introduction(
        self, request: messages.IntroductionRequest, **options: Unpack[WriteOptions]
    ) -> CallSpec[messages.IntroductionReply]:
        """A token by which a new node is let in."""
        return CallSpec(options, body=request)
