"""Endpoints by which somebody who is proven elsewhere gets a token here."""

import logging

from wharf.access import map_claims
from wharf.api.answers import Act, Done
from wharf.api.endpoints.acl.tokens import TokenSecrets, shown
from wharf.api.request import Request
from wharf.model.auth_method import AuthMethod, AuthMethodType
from wharf.operations import logins
from wharf.server.logins import Logins, Unproven, refused
from wharf.server.server import Server
from wharf.wire import access as shapes

log = logging.getLogger(__name__)


class LoginActs:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._secrets = TokenSecrets(server)
        self._logins: Logins | None = None

    async def auth_url(self, request: Request) -> Done:
        asked = request.read_body(shapes.AuthUrlRequest)
        method = await self._method(asked.auth_method_name, AuthMethodType.OIDC)
        await self._secrets.begin()
        try:
            url = await self._proving().auth_url(
                self._server.replica, method, redirect_uri=asked.redirect_uri, nonce=asked.client_nonce
            )
        except Unproven as why:
            raise refused(why) from why
        return Done(shapes.AuthUrlReply(auth_url=url))

    async def complete(self, request: Request) -> Done:
        asked = request.read_body(shapes.CompleteAuthRequest)
        method = await self._method(asked.auth_method_name, AuthMethodType.OIDC)
        try:
            claims = await self._proving().complete(
                self._server.replica,
                method,
                state=asked.state,
                code=asked.code,
                nonce=asked.client_nonce,
                redirect_uri=asked.redirect_uri,
                issuer=asked.iss,
            )
        except Unproven as why:
            raise refused(why) from why
        return await self._log_in(method, claims)

    async def login(self, request: Request) -> Done:
        asked = request.read_body(shapes.LoginRequest)
        method = await self._method(asked.auth_method_name, AuthMethodType.JWT)
        try:
            claims = await self._proving().claims_of(method, asked.login_token)
        except Unproven as why:
            raise refused(why) from why
        return await self._log_in(method, claims)

    async def _method(self, name: str, kind: AuthMethodType) -> AuthMethod:
        await self._server.reader.catch_up()
        return logins.method_of_type(self._server.replica, name, kind)

    def _proving(self) -> Logins:
        if self._logins is None:
            access = self._server.access
            self._logins = Logins(self._server.world, access.keyring, access.providers)
        return self._logins

    async def _log_in(self, method: AuthMethod, claims: dict[str, object]) -> Done:
        mapped = map_claims(method.config, claims) if method.config is not None else None
        assert mapped is not None, "a method without a configuration proves nobody"
        if method.config is not None and method.config.verbose_logging:
            names = {"values": sorted(mapped.values), "lists": sorted(mapped.lists)}
            log.info("login by %s maps to %s", method.name, names)
        await self._secrets.begin()
        world = self._server.world
        accessor_id, secret = world.new_id(), world.new_secret()
        written = await self._server.writer.write(
            lambda snapshot, moment: logins.log_in(
                snapshot, method, mapped, accessor_id, self._secrets.seal(snapshot, accessor_id, secret), moment
            )
        )
        return Done(shown(self._server.replica, written.token, secret_id=secret), written.index)


def acts_of(server: Server) -> dict[str, Act]:
    acts = LoginActs(server)
    return {
        "acl.oidc.auth-url": acts.auth_url,
        "acl.oidc.complete": acts.complete,
        "acl.login": acts.login,
    }
