"""Endpoints by which others check the identities that we sign, and nodes are introduced."""

from typing import Final

from wharf.api.answers import Act, Done, Reading
from wharf.api.durations import read_duration_ns
from wharf.api.endpoints.acl.off import only_when_on
from wharf.api.request import Request
from wharf.model.node_pool import DEFAULT
from wharf.model.refusal import unknown
from wharf.operations.introductions import Introduction, lifetime_of
from wharf.server.server import Server
from wharf.wire import access as shapes

READS: Final[dict[str, Reading]] = {}


class IdentityActs:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def keys(self, _request: Request) -> Done:
        return Done(shapes.KeySetShown(self._server.access.identities.public_keys(self._server.replica)))

    async def issuer(self, _request: Request) -> Done:
        issuer = self._server.access.settings.issuer
        if not issuer:
            raise unknown("OIDC Discovery endpoint disabled: server.oidc_issuer is not set")
        return Done(
            shapes.IssuerShown(
                issuer=issuer,
                jwks_uri=f"{issuer.rstrip('/')}/.well-known/jwks.json",
                response_types_supported=["code"],
                subject_types_supported=["public"],
                id_token_signing_alg_values_supported=self._server.access.identities.algorithms(self._server.replica),
            )
        )

    async def introduce(self, request: Request) -> Done:
        asked = request.read_body(shapes.IntroductionRequest) if request.body else shapes.IntroductionRequest()
        ttl_ns = lifetime_of(read_duration_ns(asked.ttl, field="TTL"))
        server = self._server
        await server.access.begin_ring(server.replica, server.leader)
        introduction = Introduction(asked.node_name, asked.node_pool or DEFAULT)
        signed = server.access.identities.sign_introduction(
            server.replica, introduction, server.writer.moment(), ttl_ns=ttl_ns
        )
        return Done(shapes.IntroductionReply(jwt=signed))


def acts_of(server: Server) -> dict[str, Act]:
    acts = IdentityActs(server)
    return {
        "acl.identity.introduction": only_when_on(server, acts.introduce),
        "identity.keys": acts.keys,
        "identity.issuer": acts.issuer,
    }
