"""Endpoints by which somebody who is proven elsewhere gets a token here."""

import logging

from wharf.cluster.access import map_claims
from wharf.cluster.api.handlers.acl.tokens import TokenSecrets, build_token_view
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult
from wharf.cluster.operations.acl import logins
from wharf.cluster.server.security.logins import LoginRejected, LoginVerifier, build_login_refusal
from wharf.cluster.server.server import Server
from wharf.contract.model.acl.auth_methods import AuthMethod, AuthMethodType
from wharf.contract.wire import acl as acl_wire

log = logging.getLogger(__name__)


class LoginActions:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._secrets = TokenSecrets(server)
        self._logins: LoginVerifier | None = None

    async def build_auth_url(self, request: Request) -> ActionResult:
        asked = request.decode_body(acl_wire.AuthUrlRequest)
        method = await self._method(asked.auth_method_name, AuthMethodType.OIDC)
        await self._secrets.ensure_sealing_key()
        try:
            url = await self._proving().build_auth_url(
                self._server.replica, method, redirect_uri=asked.redirect_uri, nonce=asked.client_nonce
            )
        except LoginRejected as why:
            raise build_login_refusal(why) from why
        return ActionResult(acl_wire.AuthUrlReply(auth_url=url))

    async def complete_login(self, request: Request) -> ActionResult:
        asked = request.decode_body(acl_wire.CompleteAuthRequest)
        method = await self._method(asked.auth_method_name, AuthMethodType.OIDC)
        try:
            claims = await self._proving().complete_login(
                self._server.replica,
                method,
                state=asked.state,
                code=asked.code,
                nonce=asked.client_nonce,
                redirect_uri=asked.redirect_uri,
                issuer=asked.iss,
            )
        except LoginRejected as why:
            raise build_login_refusal(why) from why
        return await self._log_in(method, claims)

    async def log_in(self, request: Request) -> ActionResult:
        asked = request.decode_body(acl_wire.LoginRequest)
        method = await self._method(asked.auth_method_name, AuthMethodType.JWT)
        try:
            claims = await self._proving().verify_token(method, asked.login_token)
        except LoginRejected as why:
            raise build_login_refusal(why) from why
        return await self._log_in(method, claims)

    async def _method(self, name: str, kind: AuthMethodType) -> AuthMethod:
        await self._server.reader.catch_up()
        return logins.find_login_method(self._server.replica, name, kind)

    def _proving(self) -> LoginVerifier:
        if self._logins is None:
            access = self._server.access
            self._logins = LoginVerifier(self._server.world, access.keyring, access.providers)
        return self._logins

    async def _log_in(self, method: AuthMethod, claims: dict[str, object]) -> ActionResult:
        mapped = map_claims(method.config, claims) if method.config is not None else None
        assert mapped is not None, "a method without a configuration proves nobody"
        if method.config is not None and method.config.verbose_logging:
            names = {"values": sorted(mapped.values), "lists": sorted(mapped.lists)}
            log.info("login by %s maps to %s", method.name, names)
        await self._secrets.ensure_sealing_key()
        world = self._server.world
        accessor_id, secret = world.new_id(), world.new_secret()
        written = await self._server.writer.execute(
            lambda snapshot, moment: logins.create_login_token(
                snapshot, method, mapped, accessor_id, self._secrets.seal_secret(snapshot, accessor_id, secret), moment
            )
        )
        return ActionResult(build_token_view(self._server.replica, written.token, secret_id=secret), written.index)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    acts = LoginActions(server)
    return {
        "acl.oidc.auth-url": acts.build_auth_url,
        "acl.oidc.complete": acts.complete_login,
        "acl.login": acts.log_in,
    }
