"""Endpoints of auth methods and binding rules. The secrets of an auth method are stored encrypted and never sent."""

from typing import Final

import msgspec

from wharf.cluster.api.lists.listing import Listing, list_by_name
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.values import parse_duration_field
from wharf.cluster.api.results import ActionHandler, ActionResult, MissingRecord, ReadHandler, find_record
from wharf.cluster.operations.acl import auth_methods, binding_rules
from wharf.cluster.operations.keyring import make_auth_method_context
from wharf.cluster.operations.references import DELETION_ATTEMPTS
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.handlers.acl import STORE_AUTH_METHOD, StoreAuthMethodRequest
from wharf.cluster.server.security.logins import LoginVerifier, MethodSecrets
from wharf.cluster.server.security.sealed_messages import seal_message
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_AUTH_METHODS, ACL_BINDING_RULES
from wharf.contract.model.acl.auth_methods import REDACTED_TEXT, AuthMethod, AuthMethodConfig
from wharf.contract.model.acl.binding_rules import BindingRule
from wharf.contract.model.refusal import invalid_request, not_found
from wharf.contract.model.secrets import SealedData
from wharf.contract.model.times import format_duration
from wharf.contract.wire import acl as acl_wire

replace = msgspec.structs.replace

METHOD_NOT_FOUND_TEXT: Final = "ACL auth-method not found"
RULE_NOT_FOUND_TEXT: Final = "ACL binding rule not found"
LEEWAY_FIELDS: Final = ("expiration_leeway", "not_before_leeway", "clock_skew_leeway")


def list_auth_methods(replica: Replica, _request: Request, options: QueryOptions) -> Listing[AuthMethod]:
    return list_by_name(replica, ACL_AUTH_METHODS, options, build_view=build_auth_method_stub)


def read_auth_method(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """Return the auth method of the path with redacted secrets, or a missing record."""
    name = request.get_path_value("name")
    method, index, watched = find_record(replica, ACL_AUTH_METHODS, name, missing_text=METHOD_NOT_FOUND_TEXT)
    return ReadResult(method if isinstance(method, MissingRecord) else build_auth_method_view(method), index, watched)


def list_binding_rules(replica: Replica, _request: Request, options: QueryOptions) -> Listing[BindingRule]:
    return list_by_name(replica, ACL_BINDING_RULES, options)


def read_binding_rule(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    rule_id = request.get_path_value("rule_id")
    return ReadResult(*find_record(replica, ACL_BINDING_RULES, rule_id, missing_text=RULE_NOT_FOUND_TEXT))


class AuthMethodActions:
    """Writes auth methods and binding rules."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._logins = LoginVerifier(server.world, server.access.keyring, server.access.providers)

    async def create_method(self, request: Request) -> ActionResult:
        return await self._store(request.decode_body(acl_wire.AuthMethodRequest))

    async def update_method(self, request: Request) -> ActionResult:
        """Replace the auth method of the path. Raises `Refusal` if the body names another method."""
        body = request.decode_body(acl_wire.AuthMethodRequest)
        if body.name != request.get_path_value("name"):
            raise invalid_request("ACL auth method name does not match request path")
        return await self._store(body)

    async def _store(self, body: acl_wire.AuthMethodRequest) -> ActionResult:
        """Store the auth method of the body, with its secrets encrypted. Return it as readers see it."""
        access, replica = self._server.access, self._server.replica
        await access.ensure_active_key(replica, self._server.leader)
        method, submitted = _split_secrets(body)
        sealed = self._seal_secrets(replica, method, submitted)
        store = StoreAuthMethodRequest(method, sealed, access.settings.lifetime_limits)
        result = await self._server.leader.call(STORE_AUTH_METHOD, store)
        return ActionResult(build_auth_method_view(result.method), result.index)

    def _seal_secrets(self, replica: Replica, method: AuthMethod, submitted: MethodSecrets) -> SealedData | None:
        """Return the encrypted secrets of the auth method, or `None` if they equal the stored ones.

        A secret that was submitted as the redacted text, as replies show it, keeps its stored value.
        """
        existing = replica.get(ACL_AUTH_METHODS, method.name)
        stored = self._logins.open_secrets(replica, existing) if existing is not None else MethodSecrets()
        secrets = MethodSecrets(
            client_secret=(
                stored.client_secret if submitted.client_secret == REDACTED_TEXT else submitted.client_secret
            ),
            assertion_key=(
                stored.assertion_key if submitted.assertion_key == REDACTED_TEXT else submitted.assertion_key
            ),
        )
        if existing is not None and secrets == stored:
            return None
        plain = msgspec.json.encode(secrets)
        return self._server.access.keyring.seal(replica, plain, context=make_auth_method_context(method.name))

    async def read_sealed_secrets(self, request: Request) -> ActionResult:
        """Return the secrets of an auth method, encrypted for the public key in the body.

        Servers of other regions use this to copy the auth method.
        """
        body = request.decode_body(acl_wire.SealedSecretsRequest)
        replica = self._server.replica
        method = replica.get(ACL_AUTH_METHODS, request.get_path_value("name"))
        if method is None:
            raise not_found(METHOD_NOT_FOUND_TEXT)
        plain = msgspec.json.encode(self._logins.open_secrets(replica, method))
        message = seal_message(
            self._server.world, body.public_key, plain, context=make_auth_method_context(method.name)
        )
        return ActionResult(acl_wire.SealedSecretsReply(sender=message.sender, sealed=message.sealed))

    async def delete_method(self, request: Request) -> ActionResult:
        """Delete the auth method of the path, with what depends on it, in one write."""
        name = request.get_path_value("name")
        limits = self._server.engine.limits
        max_changes = min(limits.changes, limits.conditions - 1)
        index = await self._server.writer.execute(
            lambda snapshot, _context: auth_methods.delete_auth_method(snapshot, name, max_changes=max_changes),
            max_attempts=DELETION_ATTEMPTS,
        )
        return ActionResult(None, index)

    async def create_rule(self, request: Request) -> ActionResult:
        return await self._store_rule(request.decode_body(acl_wire.BindingRuleRequest))

    async def update_rule(self, request: Request) -> ActionResult:
        """Replace the binding rule of the path. Raises `Refusal` if the body names another rule."""
        body = request.decode_body(acl_wire.BindingRuleRequest)
        if body.id != request.get_path_value("rule_id"):
            raise invalid_request("ACL binding rule ID does not match request path")
        return await self._store_rule(body)

    async def _store_rule(self, body: acl_wire.BindingRuleRequest) -> ActionResult:
        rule = BindingRule(**msgspec.structs.asdict(body))
        result = await self._server.writer.execute(
            lambda snapshot, context: binding_rules.store_binding_rule(snapshot, rule, context, context.new_id)
        )
        return ActionResult(result.rule, result.index)

    async def delete_rule(self, request: Request) -> ActionResult:
        rule_id = request.get_path_value("rule_id")
        index = await self._server.writer.execute(
            lambda snapshot, _context: binding_rules.delete_binding_rule(snapshot, rule_id)
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
    actions = AuthMethodActions(server)
    return {
        "acl.method.create": actions.create_method,
        "acl.method.update": actions.update_method,
        "acl.method.secrets": actions.read_sealed_secrets,
        "acl.method.delete": actions.delete_method,
        "acl.rule.create": actions.create_rule,
        "acl.rule.update": actions.update_rule,
        "acl.rule.delete": actions.delete_rule,
    }


def _split_secrets(body: acl_wire.AuthMethodRequest) -> tuple[AuthMethod, MethodSecrets]:
    """Return the auth method of the body with its secrets replaced by the redacted text, and the secrets themselves."""
    config = _parse_config(body.config) if body.config is not None else None
    secrets = MethodSecrets()
    if config is not None:
        assertion = config.oidc_client_assertion
        key = assertion.private_key if assertion is not None else None
        secrets = MethodSecrets(config.oidc_client_secret, key.pem_key if key is not None else "")
        if assertion is not None and key is not None and key.pem_key:
            redacted = replace(assertion, private_key=replace(key, pem_key=REDACTED_TEXT))
            config = replace(config, oidc_client_assertion=redacted)
        if config.oidc_client_secret:
            config = replace(config, oidc_client_secret=REDACTED_TEXT)
    method = AuthMethod(
        name=body.name,
        type=body.type,
        token_locality=body.token_locality,
        token_name_format=body.token_name_format,
        max_token_ttl=parse_duration_field(body.max_token_ttl, field="MaxTokenTTL"),
        default=body.default,
        config=config,
    )
    return method, secrets


def _parse_config(view: acl_wire.AuthMethodConfigView) -> AuthMethodConfig:
    """Return the stored form of a configuration, with its durations in nanoseconds.

    Raises `Refusal` if one is invalid.
    """
    fields = {name: getattr(view, name) for name in AuthMethodConfig.__struct_fields__}
    fields |= {name: parse_duration_field(fields[name], field=name) for name in LEEWAY_FIELDS}
    return AuthMethodConfig(**fields)


def build_auth_method_stub(method: AuthMethod) -> acl_wire.AuthMethodStub:
    """Return the auth method as lists show it."""
    return acl_wire.AuthMethodStub(
        name=method.name,
        type=method.type,
        default=method.default,
        hash=method.hash,
        create_index=method.create_index,
        modify_index=method.modify_index,
    )


def build_auth_method_view(method: AuthMethod) -> acl_wire.AuthMethodView:
    """Return the auth method with its durations as text. Its secrets are redacted already."""
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
