"""Endpoints of login methods and binding rules. Secrets of a method come in clear, are kept sealed, and never go out."""

import msgspec

from wharf.cluster.api.lists.listing import Listing, list_by_name
from wharf.cluster.api.requests.request import QueryOptions, Request
from wharf.cluster.api.requests.values import parse_duration_field
from wharf.cluster.api.results import ActionHandler, ActionResult, MissingRecord, ReadHandler
from wharf.cluster.operations.acl import auth_methods, binding_rules
from wharf.cluster.operations.keyring import make_auth_method_context
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.handlers.acl import STORE_AUTH_METHOD, StoreAuthMethodRequest
from wharf.cluster.server.security.logins import LoginVerifier, MethodSecrets
from wharf.cluster.server.security.sealed_messages import seal_message
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state import watches as watch
from wharf.cluster.state.tables import ACL_AUTH_METHODS, ACL_BINDING_RULES
from wharf.contract.model.acl.auth_methods import REDACTED_TEXT, AuthMethod, AuthMethodConfig
from wharf.contract.model.acl.binding_rules import BindingRule
from wharf.contract.model.refusal import invalid_request, not_found
from wharf.contract.model.secrets import SealedData
from wharf.contract.model.times import format_duration
from wharf.contract.wire import acl as acl_wire

replace = msgspec.structs.replace

METHOD_NOT_FOUND = "ACL auth-method not found"
RULE_NOT_FOUND = "ACL binding rule not found"
LEEWAY_FIELDS = ("expiration_leeway", "not_before_leeway", "clock_skew_leeway")


def list_auth_methods(replica: Replica, _request: Request, options: QueryOptions) -> Listing[AuthMethod]:
    return list_by_name(replica, ACL_AUTH_METHODS, options, build_view=build_auth_method_stub)


def read_auth_method(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    name = request.get_path_value("name")
    method = replica.get(ACL_AUTH_METHODS, name)
    watched = [watch.watch_key(ACL_AUTH_METHODS, name)]
    if method is None:
        return ReadResult(MissingRecord(METHOD_NOT_FOUND), replica.get_last_change(ACL_AUTH_METHODS), watched)
    return ReadResult(build_auth_method_view(method), method.modify_index, watched)


def list_binding_rules(replica: Replica, _request: Request, options: QueryOptions) -> Listing[BindingRule]:
    return list_by_name(replica, ACL_BINDING_RULES, options)


def read_binding_rule(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    rule_id = request.get_path_value("rule_id")
    rule = replica.get(ACL_BINDING_RULES, rule_id)
    watched = [watch.watch_key(ACL_BINDING_RULES, rule_id)]
    if rule is None:
        return ReadResult(MissingRecord(RULE_NOT_FOUND), replica.get_last_change(ACL_BINDING_RULES), watched)
    return ReadResult(rule, rule.modify_index, watched)


class AuthMethodActions:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._logins = LoginVerifier(server.world, server.access.keyring, server.access.providers)

    async def create_method(self, request: Request) -> ActionResult:
        return await self._store(request.decode_body(acl_wire.AuthMethodRequest))

    async def update_method(self, request: Request) -> ActionResult:
        asked = request.decode_body(acl_wire.AuthMethodRequest)
        if asked.name != request.get_path_value("name"):
            raise invalid_request("ACL auth method name does not match request path")
        return await self._store(asked)

    async def _store(self, asked: acl_wire.AuthMethodRequest) -> ActionResult:
        access, replica = self._server.access, self._server.replica
        await access.ensure_active_key(replica, self._server.leader)
        wanted, given = _split(asked)
        sealed = self._sealed(replica, wanted, given)
        question = StoreAuthMethodRequest(wanted, sealed, access.settings.lifetime_limits)
        written = await self._server.leader.call(STORE_AUTH_METHOD, question)
        return ActionResult(build_auth_method_view(written.method), written.index)

    def _sealed(self, replica: Replica, wanted: AuthMethod, given: MethodSecrets) -> SealedData | None:
        """None where nothing changes: what is submitted as it was shown is what is stored."""
        stored = replica.get(ACL_AUTH_METHODS, wanted.name)
        kept = self._logins.open_secrets(replica, stored) if stored is not None else MethodSecrets()
        secrets = MethodSecrets(
            client_secret=kept.client_secret if given.client_secret == REDACTED_TEXT else given.client_secret,
            assertion_key=kept.assertion_key if given.assertion_key == REDACTED_TEXT else given.assertion_key,
        )
        if stored is not None and secrets == kept:
            return None
        plain = msgspec.json.encode(secrets)
        return self._server.access.keyring.seal(replica, plain, context=make_auth_method_context(wanted.name))

    async def read_sealed_secrets(self, request: Request) -> ActionResult:
        """For a region that copies the method; nobody else can read them."""
        asked = request.decode_body(acl_wire.SealedSecretsRequest)
        replica = self._server.replica
        method = replica.get(ACL_AUTH_METHODS, request.get_path_value("name"))
        if method is None:
            raise not_found(METHOD_NOT_FOUND)
        plain = msgspec.json.encode(self._logins.open_secrets(replica, method))
        letter = seal_message(
            self._server.world, asked.public_key, plain, context=make_auth_method_context(method.name)
        )
        return ActionResult(acl_wire.SealedSecretsReply(sender=letter.sender, sealed=letter.sealed))

    async def delete_method(self, request: Request) -> ActionResult:
        name = request.get_path_value("name")
        bounds = self._server.engine.limits
        most = min(bounds.changes, bounds.conditions)
        index = await self._server.writer.execute(
            lambda snapshot, _moment: auth_methods.delete_auth_method(snapshot, name, max_changes=most)
        )
        return ActionResult(None, index)

    async def create_rule(self, request: Request) -> ActionResult:
        return await self._store_rule(request.decode_body(acl_wire.BindingRuleRequest))

    async def update_rule(self, request: Request) -> ActionResult:
        asked = request.decode_body(acl_wire.BindingRuleRequest)
        if asked.id != request.get_path_value("rule_id"):
            raise invalid_request("ACL binding rule ID does not match request path")
        return await self._store_rule(asked)

    async def _store_rule(self, asked: acl_wire.BindingRuleRequest) -> ActionResult:
        wanted = BindingRule(**msgspec.structs.asdict(asked))
        written = await self._server.writer.execute(
            lambda snapshot, moment: binding_rules.store_binding_rule(snapshot, wanted, moment, moment.new_id)
        )
        return ActionResult(written.rule, written.index)

    async def delete_rule(self, request: Request) -> ActionResult:
        rule_id = request.get_path_value("rule_id")
        index = await self._server.writer.execute(
            lambda snapshot, _moment: binding_rules.delete_binding_rule(snapshot, rule_id)
        )
        return ActionResult(None, index)


def build_read_handlers(_server: Server) -> dict[str, ReadHandler]:
    return {
        "acl.method.list": list_auth_methods,
        "acl.method.read": read_auth_method,
        "acl.rule.list": list_binding_rules,
        "acl.rule.read": read_binding_rule,
    }


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    writes = AuthMethodActions(server)
    return {
        "acl.method.create": writes.create_method,
        "acl.method.update": writes.update_method,
        "acl.method.secrets": writes.read_sealed_secrets,
        "acl.method.delete": writes.delete_method,
        "acl.rule.create": writes.create_rule,
        "acl.rule.update": writes.update_rule,
        "acl.rule.delete": writes.delete_rule,
    }


def _split(asked: acl_wire.AuthMethodRequest) -> tuple[AuthMethod, MethodSecrets]:
    """The method with `redacted` where a secret was, and the secrets."""
    config = _config_of(asked.config) if asked.config is not None else None
    secrets = MethodSecrets()
    if config is not None:
        assertion = config.oidc_client_assertion
        private = assertion.private_key if assertion is not None else None
        secrets = MethodSecrets(config.oidc_client_secret, private.pem_key if private is not None else "")
        if assertion is not None and private is not None and private.pem_key:
            hidden = replace(assertion, private_key=replace(private, pem_key=REDACTED_TEXT))
            config = replace(config, oidc_client_assertion=hidden)
        if config.oidc_client_secret:
            config = replace(config, oidc_client_secret=REDACTED_TEXT)
    method = AuthMethod(
        name=asked.name,
        type=asked.type,
        token_locality=asked.token_locality,
        token_name_format=asked.token_name_format,
        max_token_ttl=parse_duration_field(asked.max_token_ttl, field="MaxTokenTTL"),
        default=asked.default,
        config=config,
    )
    return method, secrets


def _config_of(given: acl_wire.AuthMethodConfigView) -> AuthMethodConfig:
    fields = {name: getattr(given, name) for name in AuthMethodConfig.__struct_fields__}
    fields |= {name: parse_duration_field(fields[name], field=name) for name in LEEWAY_FIELDS}
    return AuthMethodConfig(**fields)


def build_auth_method_stub(method: AuthMethod) -> acl_wire.AuthMethodStub:
    return acl_wire.AuthMethodStub(
        name=method.name,
        type=method.type,
        default=method.default,
        hash=method.hash,
        create_index=method.create_index,
        modify_index=method.modify_index,
    )


def build_auth_method_view(method: AuthMethod) -> acl_wire.AuthMethodView:
    config = None
    if method.config is not None:
        fields = {name: getattr(method.config, name) for name in AuthMethodConfig.__struct_fields__}
        fields |= {name: format_duration(fields[name]) for name in LEEWAY_FIELDS}
        config = acl_wire.AuthMethodConfigView(**fields)
    return acl_wire.AuthMethodView(
        max_token_ttl=format_duration(method.max_token_ttl),
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
