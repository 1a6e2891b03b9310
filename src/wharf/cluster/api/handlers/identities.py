"""Endpoints to verify signed identities (keys and issuer), and to create introduction tokens for new nodes."""

from typing import Final

from wharf.cluster.api.handlers.acl.disabled import require_acl_enabled
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.values import parse_duration_field
from wharf.cluster.api.results import ActionHandler, ActionResult
from wharf.cluster.operations.nodes.introductions import Introduction, resolve_introduction_ttl
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import KEYRING
from wharf.contract.model.node_pools import DEFAULT_NODE_POOL
from wharf.contract.model.refusal import not_found
from wharf.contract.wire import identities
from wharf.contract.wire.nodes import messages

KEY_SET_MAX_AGE_S: Final = 60
"""How long verifiers may cache the key set. Limits how long they refuse identities that a new key has signed."""


class IdentityActions:
    """Reports the public keys and the issuer of identities, and signs introduction tokens."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def list_public_keys(self, _request: Request) -> ActionResult:
        """Return the public keys that verify signed identities, as a JSON Web Key set.

        The index of the reply is that of the last change of the keyring.
        """
        replica = self._server.replica
        return ActionResult(
            identities.KeySetView(self._server.access.identity_signer.list_public_keys(replica)),
            index=replica.get_last_change(KEYRING),
            headers=((b"cache-control", f"max-age={KEY_SET_MAX_AGE_S}".encode()),),
        )

    async def read_issuer(self, _request: Request) -> ActionResult:
        """Return the OIDC discovery document of this issuer. Raises `Refusal` if no issuer is configured."""
        issuer = self._server.access.settings.issuer
        if not issuer:
            raise not_found("OIDC Discovery endpoint disabled: server.oidc_issuer is not set")
        return ActionResult(
            identities.IssuerView(
                issuer=issuer,
                jwks_uri=f"{issuer.rstrip('/')}/.well-known/jwks.json",
                response_types_supported=["code"],
                subject_types_supported=["public"],
                id_token_signing_alg_values_supported=self._server.access.identity_signer.list_algorithms(
                    self._server.replica
                ),
            )
        )

    async def create_introduction(self, request: Request) -> ActionResult:
        """Return a signed introduction token, with which a new node may register."""
        body = request.decode_body(messages.IntroductionRequest) if request.body else messages.IntroductionRequest()
        ttl_ns = resolve_introduction_ttl(parse_duration_field(body.ttl, field="TTL"))
        server = self._server
        await server.access.ensure_active_key(server.replica, server.leader)
        introduction = Introduction(body.node_name, body.node_pool or DEFAULT_NODE_POOL)
        token = server.access.identity_signer.sign_introduction(
            server.replica, introduction, server.writer.read_clock(), ttl_ns=ttl_ns
        )
        return ActionResult(messages.IntroductionReply(jwt=token))


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = IdentityActions(server)
    return {
        "acl.identity.introduction": require_acl_enabled(server, actions.create_introduction),
        "identity.keys": actions.list_public_keys,
        "identity.issuer": actions.read_issuer,
    }
