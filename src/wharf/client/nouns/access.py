"""What can be asked about who may do what: tokens, policies, roles, logins, identities, keys."""

from typing import Unpack

from wharf.client.calls import Call, CallOptions, Listing, ListOptions, Read, ReadOptions, WriteOptions
from wharf.client.methods import M, Noun, calls, lists, reads
from wharf.model.binding_rule import BindingRule
from wharf.model.role import Role
from wharf.wire import access


class Policies(Noun[M]):
    @lists("acl.policy.list")
    def list(self, **options: Unpack[ListOptions]) -> Listing[access.PolicyStub]:
        return Listing(options)

    @reads("acl.policy.self")
    def own(self, **options: Unpack[ReadOptions]) -> Read["tuple[access.PolicyShown, ...] | None"]:
        """Those of the caller's token."""
        return Read(options)

    @reads("acl.policy.read")
    def read(self, name: str, **options: Unpack[ReadOptions]) -> Read[access.PolicyShown]:
        return Read(options, name)

    @calls("acl.policy.store")
    def store(self, policy: access.PolicyRequest, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, policy.name, body=policy)

    @calls("acl.policy.delete")
    def delete(self, name: str, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, name)


class Tokens(Noun[M]):
    @lists("acl.token.list")
    def list(self, **options: Unpack[ListOptions]) -> Listing[access.TokenStub]:
        return Listing(options)

    @calls("acl.token.create")
    def create(self, token: access.TokenRequest, **options: Unpack[WriteOptions]) -> Call[access.TokenShown]:
        return Call(options, body=token)

    @reads("acl.token.self")
    def own(self, **options: Unpack[ReadOptions]) -> Read[access.TokenShown]:
        """The caller's."""
        return Read(options)

    @calls("acl.token.one-time")
    def create_one_time(self, **options: Unpack[WriteOptions]) -> Call[access.OneTimeReply]:
        return Call(options)

    @calls("acl.token.exchange")
    def exchange_one_time(self, secret_id: str, **options: Unpack[WriteOptions]) -> Call[access.ExchangeReply]:
        return Call(options, body=access.ExchangeRequest(one_time_secret_id=secret_id))

    @reads("acl.token.read")
    def read(self, accessor_id: str, **options: Unpack[ReadOptions]) -> Read[access.TokenShown]:
        return Read(options, accessor_id)

    @calls("acl.token.update")
    def update(
        self, accessor_id: str, token: access.TokenRequest, **options: Unpack[WriteOptions]
    ) -> Call[access.TokenShown]:
        return Call(options, accessor_id, body=token)

    @calls("acl.token.delete")
    def delete(self, accessor_id: str, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, accessor_id)


class Roles(Noun[M]):
    @lists("acl.role.list")
    def list(self, **options: Unpack[ListOptions]) -> Listing[Role]:
        return Listing(options)

    @calls("acl.role.create")
    def create(self, role: access.RoleRequest, **options: Unpack[WriteOptions]) -> Call[Role]:
        return Call(options, body=role)

    @reads("acl.role.read")
    def read(self, role_id: str, **options: Unpack[ReadOptions]) -> Read[Role]:
        return Read(options, role_id)

    @reads("acl.role.read-by-name")
    def read_by_name(self, name: str, **options: Unpack[ReadOptions]) -> Read[Role]:
        return Read(options, name)

    @calls("acl.role.update")
    def update(self, role_id: str, role: access.RoleRequest, **options: Unpack[WriteOptions]) -> Call[Role]:
        return Call(options, role_id, body=role)

    @calls("acl.role.delete")
    def delete(self, role_id: str, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, role_id)


class AuthMethods(Noun[M]):
    @lists("acl.method.list")
    def list(self, **options: Unpack[ListOptions]) -> Listing[access.AuthMethodStub]:
        return Listing(options)

    @calls("acl.method.create")
    def create(self, method: access.AuthMethodRequest, **options: Unpack[WriteOptions]) -> Call[access.AuthMethodShown]:
        return Call(options, body=method)

    @reads("acl.method.read")
    def read(self, name: str, **options: Unpack[ReadOptions]) -> Read[access.AuthMethodShown]:
        return Read(options, name)

    @calls("acl.method.update")
    def update(
        self, name: str, method: access.AuthMethodRequest, **options: Unpack[WriteOptions]
    ) -> Call[access.AuthMethodShown]:
        return Call(options, name, body=method)

    @calls("acl.method.secrets")
    def secrets(self, name: str, public_key: bytes, **options: Unpack[WriteOptions]) -> Call[access.SecretsSealed]:
        """What is secret of a method, sealed for whoever has the other half of the key."""
        return Call(options, name, body=access.SecretsForRegion(public_key=public_key))

    @calls("acl.method.delete")
    def delete(self, name: str, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, name)


class BindingRules(Noun[M]):
    @lists("acl.rule.list")
    def list(self, **options: Unpack[ListOptions]) -> Listing[BindingRule]:
        return Listing(options)

    @calls("acl.rule.create")
    def create(self, rule: access.BindingRuleRequest, **options: Unpack[WriteOptions]) -> Call[BindingRule]:
        return Call(options, body=rule)

    @reads("acl.rule.read")
    def read(self, rule_id: str, **options: Unpack[ReadOptions]) -> Read[BindingRule]:
        return Read(options, rule_id)

    @calls("acl.rule.update")
    def update(
        self, rule_id: str, rule: access.BindingRuleRequest, **options: Unpack[WriteOptions]
    ) -> Call[BindingRule]:
        return Call(options, rule_id, body=rule)

    @calls("acl.rule.delete")
    def delete(self, rule_id: str, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, rule_id)


class AccessControl(Noun[M]):
    def __init__(self, client: M) -> None:
        super().__init__(client)
        self.policies = Policies(client)
        self.tokens = Tokens(client)
        self.roles = Roles(client)
        self.auth_methods = AuthMethods(client)
        self.binding_rules = BindingRules(client)

    @calls("acl.bootstrap")
    def bootstrap(self, secret: str = "", **options: Unpack[WriteOptions]) -> Call[access.TokenShown]:
        """The first management token, once. Its secret may be chosen."""
        return Call(options, body=access.BootstrapRequest(bootstrap_secret=secret) if secret else None)

    @calls("acl.login")
    def login(self, auth_method: str, login_token: str, **options: Unpack[WriteOptions]) -> Call[access.TokenShown]:
        return Call(options, body=access.LoginRequest(auth_method_name=auth_method, login_token=login_token))

    @calls("acl.oidc.auth-url")
    def oidc_auth_url(
        self, auth_method: str, redirect_uri: str, client_nonce: str, **options: Unpack[WriteOptions]
    ) -> Call[access.AuthUrlReply]:
        body = access.AuthUrlRequest(auth_method_name=auth_method, redirect_uri=redirect_uri, client_nonce=client_nonce)
        return Call(options, body=body)

    @calls("acl.oidc.complete")
    def oidc_complete(
        self, request: access.CompleteAuthRequest, **options: Unpack[WriteOptions]
    ) -> Call[access.TokenShown]:
        return Call(options, body=request)

    @calls("acl.identity.introduction")
    def introduce_node(
        self, request: access.IntroductionRequest, **options: Unpack[WriteOptions]
    ) -> Call[access.IntroductionReply]:
        """A token by which a new node is let in."""
        return Call(options, body=request)


class Identities(Noun[M]):
    @calls("identity.keys")
    def keys(self, **options: Unpack[CallOptions]) -> Call[access.KeySetShown]:
        return Call(options)

    @calls("identity.issuer")
    def issuer(self, **options: Unpack[CallOptions]) -> Call[access.IssuerShown]:
        return Call(options)


class Keyring(Noun[M]):
    @lists("keyring.list")
    def list(self, **options: Unpack[ListOptions]) -> Listing[access.KeyShown]:
        return Listing(options)

    @calls("keyring.rotate")
    def rotate(
        self,
        *,
        algorithm: str = "",
        full: bool = False,
        publish_time: int | None = None,
        **options: Unpack[WriteOptions],
    ) -> Call[access.KeyRotated]:
        """`full`: also encrypt again what is kept. `publish_time` (ns): use the new key from then on."""
        return Call(options, algo=algorithm, full=full, publish_time=publish_time)

    @calls("keyring.delete")
    def delete(self, key_id: str, *, force: bool = False, **options: Unpack[WriteOptions]) -> Call[access.KeyDeleted]:
        return Call(options, key_id, force=force)
