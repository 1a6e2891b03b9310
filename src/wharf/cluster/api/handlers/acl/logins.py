"""Login endpoints: they exchange the proof of an identity provider for a token."""

import asyncio
import logging
from collections.abc import Coroutine
from functools import cached_property
from typing import Final, TypeVar

from wharf.cluster.access import map_claims
from wharf.cluster.api.handlers.acl.binding_selectors import BindingRulesChanged, SelectorResults
from wharf.cluster.api.handlers.acl.tokens import TokenSecrets, build_token_view
from wharf.cluster.api.requests.body import ClientDisconnected
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult
from wharf.cluster.operations.acl import logins
from wharf.cluster.server.log.writer import MAX_ATTEMPTS, build_contention_refusal
from wharf.cluster.server.security.logins import LoginRejected, LoginVerifier, build_login_refusal
from wharf.cluster.server.server import Server
from wharf.contract.model.acl.auth_methods import AuthMethod, AuthMethodType
from wharf.contract.wire import acl as acl_wire
from wharf.world.tasks import run_until_first

T = TypeVar("T")
log = logging.getLogger(__name__)

MAX_VERIFICATION_S: Final = 25.0
"""How long a login waits for all replies of its identity provider together. Less than the 30 s that clients wait."""
LOGIN_ENDPOINTS: Final = frozenset(("acl.oidc.auth-url", "acl.oidc.complete", "acl.login"))
"""The endpoints that call identity providers. Their work ends if the client disconnects."""


class LoginActions:
    """Executes OIDC and JWT logins."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._secrets = TokenSecrets(server)

    async def build_auth_url(self, request: Request) -> ActionResult:
        """Return the URL of the identity provider at which the user logs in. Raises `Refusal`."""
        body = request.decode_body(acl_wire.AuthUrlRequest)
        method = await self._find_method(body.auth_method_name, AuthMethodType.OIDC)
        await self._secrets.ensure_sealing_key()
        try:
            url = await self._run_for_caller(
                request,
                self._verifier.build_auth_url(
                    self._server.replica, method, redirect_uri=body.redirect_uri, nonce=body.client_nonce
                ),
            )
        except LoginRejected as error:
            raise build_login_refusal(error) from error
        return ActionResult(acl_wire.AuthUrlReply(auth_url=url))

    async def complete_login(self, request: Request) -> ActionResult:
        """Verify the code that the identity provider gave to an OIDC user, and return a new token. Raises `Refusal`."""
        body = request.decode_body(acl_wire.CompleteAuthRequest)
        method = await self._find_method(body.auth_method_name, AuthMethodType.OIDC)
        try:
            claims = await self._run_for_caller(
                request,
                self._verifier.complete_login(
                    self._server.replica,
                    method,
                    state=body.state,
                    code=body.code,
                    nonce=body.client_nonce,
                    redirect_uri=body.redirect_uri,
                    issuer=body.iss,
                ),
            )
        except LoginRejected as error:
            raise build_login_refusal(error) from error
        return await self._create_token(method, claims)

    async def log_in(self, request: Request) -> ActionResult:
        """Verify the JWT of the body, and return a new token. Raises `Refusal`."""
        body = request.decode_body(acl_wire.LoginRequest)
        method = await self._find_method(body.auth_method_name, AuthMethodType.JWT)
        try:
            claims = await self._run_for_caller(request, self._verifier.verify_token(method, body.login_token))
        except LoginRejected as error:
            raise build_login_refusal(error) from error
        return await self._create_token(method, claims)

    async def _run_for_caller(self, request: Request, verifying: Coroutine[None, None, T]) -> T:
        """Return the result of the verification, which calls identity providers. End it if the client disconnects.

        Raises `ClientDisconnected`, and `LoginRejected` after `MAX_VERIFICATION_S`.
        """

        async def verify() -> T:
            async with asyncio.timeout(MAX_VERIFICATION_S):
                return await verifying

        if request.wait_for_disconnect is None:
            return await verify()
        result, _ = await run_until_first(
            self._server.world, verification=verify(), caller=request.wait_for_disconnect()
        )
        if result.cancelled():
            raise ClientDisconnected
        try:
            verified: T = result.result()
        except TimeoutError:
            text = f"the identity provider did not answer all requests within {MAX_VERIFICATION_S:g} s"
            raise LoginRejected(text) from None
        return verified

    @cached_property
    def _verifier(self) -> LoginVerifier:
        """The verifier of logins.

        Built on first use, because `access.providers` may be set after this object is created.
        """
        access = self._server.access
        return LoginVerifier(self._server.world, access.keyring, access.providers)

    async def _find_method(self, name: str, method_type: AuthMethodType) -> AuthMethod:
        """Return the auth method with the name or, if it is empty, the default method of the type. Raises `Refusal`."""
        await self._server.reader.catch_up()
        return logins.find_login_method(self._server.replica, name, method_type)

    async def _create_token(self, method: AuthMethod, claims: dict[str, object]) -> ActionResult:
        """Create the token that the binding rules grant for the verified claims. Raises `Refusal` if none match."""
        mapped = map_claims(method.config, claims) if method.config is not None else None
        assert mapped is not None, "an auth method that verified a login has a configuration"
        if method.config is not None and method.config.verbose_logging:
            log.info(
                "mapped login claims method=%s values=%s lists=%s",
                method.name,
                sorted(mapped.values),
                sorted(mapped.lists),
            )
        await self._secrets.ensure_sealing_key()
        world = self._server.world
        accessor_id, secret = world.new_id(), world.new_secret()
        selectors = SelectorResults(self._server, method, mapped)
        for _ in range(MAX_ATTEMPTS):
            await selectors.evaluate()
            try:
                result = await self._server.writer.execute(
                    lambda snapshot, context: logins.create_login_token(
                        snapshot,
                        method,
                        mapped,
                        accessor_id,
                        self._secrets.seal_secret(snapshot, accessor_id, secret),
                        context,
                        owns_global_records=self._server.owns_global_records,
                        matches=selectors.matches,
                    )
                )
            except BindingRulesChanged:
                continue
            break
        else:
            raise build_contention_refusal()
        return ActionResult(build_token_view(self._server.replica, result.token, secret_id=secret), result.index)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = LoginActions(server)
    return {
        "acl.oidc.auth-url": actions.build_auth_url,
        "acl.oidc.complete": actions.complete_login,
        "acl.login": actions.log_in,
    }
