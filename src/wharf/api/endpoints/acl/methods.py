"""Endpoints of login methods and binding rules. Secrets of a method come in clear, are kept sealed, and never go out."""

import msgspec

from wharf.api.answers import Act, Done, Missing, Reading
from wharf.api.durations import read_duration_ns
from wharf.api.listing import Listing, by_name
from wharf.api.request import ReadOptions, Request
from wharf.model.auth_method import REDACTED, AuthMethod, AuthMethodConfig
from wharf.model.binding_rule import BindingRule
from wharf.model.durations import say_duration
from wharf.model.refusal import invalid, unknown
from wharf.model.secret import Sealed
from wharf.operations import auth_methods
from wharf.operations.keyring import about_method
from wharf.server.answering.access import STORE_METHOD, MethodToStore
from wharf.server.letters import write_letter
from wharf.server.logins import Logins, MethodSecrets
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state import watches as watch
from wharf.state.tables import ACL_AUTH_METHODS, ACL_BINDING_RULES
from wharf.wire import access as shapes

replace = msgspec.structs.replace

METHOD_NOT_FOUND = "ACL auth-method not found"
RULE_NOT_FOUND = "ACL binding rule not found"
LEEWAYS = ("expiration_leeway", "not_before_leeway", "clock_skew_leeway")


def method_list(replica: Replica, _request: Request, options: ReadOptions) -> Listing[AuthMethod]:
    return by_name(replica, ACL_AUTH_METHODS, options, shown=method_stub)


def method_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    name = request.value("name")
    method = replica.get(ACL_AUTH_METHODS, name)
    watched = [watch.one(ACL_AUTH_METHODS, name)]
    if method is None:
        return Found(Missing(METHOD_NOT_FOUND), replica.last_change(ACL_AUTH_METHODS), watched)
    return Found(method_shown(method), method.modify_index, watched)


def rule_list(replica: Replica, _request: Request, options: ReadOptions) -> Listing[BindingRule]:
    return by_name(replica, ACL_BINDING_RULES, options)


def rule_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    rule_id = request.value("rule_id")
    rule = replica.get(ACL_BINDING_RULES, rule_id)
    watched = [watch.one(ACL_BINDING_RULES, rule_id)]
    if rule is None:
        return Found(Missing(RULE_NOT_FOUND), replica.last_change(ACL_BINDING_RULES), watched)
    return Found(rule, rule.modify_index, watched)


class MethodWrites:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._logins = Logins(server.world, server.access.keyring, server.access.providers)

    async def create(self, request: Request) -> Done:
        return await self._store(request.read_body(shapes.AuthMethodRequest))

    async def update(self, request: Request) -> Done:
        asked = request.read_body(shapes.AuthMethodRequest)
        if asked.name != request.value("name"):
            raise invalid("ACL auth method name does not match request path")
        return await self._store(asked)

    async def _store(self, asked: shapes.AuthMethodRequest) -> Done:
        access, replica = self._server.access, self._server.replica
        await access.begin_ring(replica, self._server.leader)
        wanted, given = _split(asked)
        sealed = self._sealed(replica, wanted, given)
        question = MethodToStore(wanted, sealed, access.settings.bounds)
        written = await self._server.leader.ask(STORE_METHOD, question)
        return Done(method_shown(written.method), written.index)

    def _sealed(self, replica: Replica, wanted: AuthMethod, given: MethodSecrets) -> Sealed | None:
        """None where nothing changes: what is submitted as it was shown is what is stored."""
        stored = replica.get(ACL_AUTH_METHODS, wanted.name)
        kept = self._logins.secrets_of(replica, stored) if stored is not None else MethodSecrets()
        secrets = MethodSecrets(
            client_secret=kept.client_secret if given.client_secret == REDACTED else given.client_secret,
            assertion_key=kept.assertion_key if given.assertion_key == REDACTED else given.assertion_key,
        )
        if stored is not None and secrets == kept:
            return None
        plain = msgspec.json.encode(secrets)
        return self._server.access.keyring.seal(replica, plain, about=about_method(wanted.name))

    async def secrets(self, request: Request) -> Done:
        """For a region that copies the method; nobody else can read them."""
        asked = request.read_body(shapes.SecretsForRegion)
        replica = self._server.replica
        method = replica.get(ACL_AUTH_METHODS, request.value("name"))
        if method is None:
            raise unknown(METHOD_NOT_FOUND)
        plain = msgspec.json.encode(self._logins.secrets_of(replica, method))
        letter = write_letter(self._server.world, asked.public_key, plain, about=about_method(method.name))
        return Done(shapes.SecretsSealed(sender=letter.sender, sealed=letter.sealed))

    async def delete(self, request: Request) -> Done:
        name = request.value("name")
        bounds = self._server.engine.bounds
        most = min(bounds.changes, bounds.conditions)
        index = await self._server.writer.write(
            lambda snapshot, _moment: auth_methods.delete_method(snapshot, name, changes_max=most)
        )
        return Done(None, index)

    async def create_rule(self, request: Request) -> Done:
        return await self._store_rule(request.read_body(shapes.BindingRuleRequest))

    async def update_rule(self, request: Request) -> Done:
        asked = request.read_body(shapes.BindingRuleRequest)
        if asked.id != request.value("rule_id"):
            raise invalid("ACL binding rule ID does not match request path")
        return await self._store_rule(asked)

    async def _store_rule(self, asked: shapes.BindingRuleRequest) -> Done:
        wanted = BindingRule(**msgspec.structs.asdict(asked))
        written = await self._server.writer.write(
            lambda snapshot, moment: auth_methods.store_rule(snapshot, wanted, moment, moment.new_id)
        )
        return Done(written.rule, written.index)

    async def delete_rule(self, request: Request) -> Done:
        rule_id = request.value("rule_id")
        index = await self._server.writer.write(lambda snapshot, _moment: auth_methods.delete_rule(snapshot, rule_id))
        return Done(None, index)


def reads_of(_server: Server) -> dict[str, Reading]:
    return {
        "acl.method.list": method_list,
        "acl.method.read": method_read,
        "acl.rule.list": rule_list,
        "acl.rule.read": rule_read,
    }


def acts_of(server: Server) -> dict[str, Act]:
    writes = MethodWrites(server)
    return {
        "acl.method.create": writes.create,
        "acl.method.update": writes.update,
        "acl.method.secrets": writes.secrets,
        "acl.method.delete": writes.delete,
        "acl.rule.create": writes.create_rule,
        "acl.rule.update": writes.update_rule,
        "acl.rule.delete": writes.delete_rule,
    }


def _split(asked: shapes.AuthMethodRequest) -> tuple[AuthMethod, MethodSecrets]:
    """The method with `redacted` where a secret was, and the secrets."""
    config = _config_of(asked.config) if asked.config is not None else None
    secrets = MethodSecrets()
    if config is not None:
        assertion = config.oidc_client_assertion
        private = assertion.private_key if assertion is not None else None
        secrets = MethodSecrets(config.oidc_client_secret, private.pem_key if private is not None else "")
        if assertion is not None and private is not None and private.pem_key:
            hidden = replace(assertion, private_key=replace(private, pem_key=REDACTED))
            config = replace(config, oidc_client_assertion=hidden)
        if config.oidc_client_secret:
            config = replace(config, oidc_client_secret=REDACTED)
    method = AuthMethod(
        name=asked.name,
        type=asked.type,
        token_locality=asked.token_locality,
        token_name_format=asked.token_name_format,
        max_token_ttl=read_duration_ns(asked.max_token_ttl, field="MaxTokenTTL"),
        default=asked.default,
        config=config,
    )
    return method, secrets


def _config_of(given: shapes.AuthMethodConfigShown) -> AuthMethodConfig:
    fields = {name: getattr(given, name) for name in AuthMethodConfig.__struct_fields__}
    fields |= {name: read_duration_ns(fields[name], field=name) for name in LEEWAYS}
    return AuthMethodConfig(**fields)


def method_stub(method: AuthMethod) -> shapes.AuthMethodStub:
    return shapes.AuthMethodStub(
        name=method.name,
        type=method.type,
        default=method.default,
        hash=method.hash,
        create_index=method.create_index,
        modify_index=method.modify_index,
    )


def method_shown(method: AuthMethod) -> shapes.AuthMethodShown:
    config = None
    if method.config is not None:
        fields = {name: getattr(method.config, name) for name in AuthMethodConfig.__struct_fields__}
        fields |= {name: say_duration(fields[name]) for name in LEEWAYS}
        config = shapes.AuthMethodConfigShown(**fields)
    return shapes.AuthMethodShown(
        max_token_ttl=say_duration(method.max_token_ttl),
        name=method.name,
        type=method.type,
        token_locality=method.token_locality,
        token_name_format=method.token_name_format,
        default=method.default,
        config=config,
        hash=method.hash,
        create_time=method.create_time,
        modify_time=method.modify_time,
        create_index=method.create_index,
        modify_index=method.modify_index,
    )
