"""Endpoints by which others check the identities that we sign, and nodes are introduced."""

from typing import Final

from wharf.model import need
from wharf.wire import access as shapes
from wharf.wire.endpoints.endpoint import Endpoint, tells, writes

ROWS: Final[tuple[Endpoint, ...]] = (
    writes(
        "acl.identity.introduction", "/v1/acl/identity/client-introduction-token", need=need.WRITE_NODE,
        summary="Make a token with which a new node may join.",
        body=shapes.IntroductionRequest, body_optional=True, returns=shapes.IntroductionReply,
    ),
    tells(
        "identity.keys", "/.well-known/jwks.json", need=need.NOTHING,
        summary="The keys with which identities of workloads are checked.", returns=shapes.KeySetShown,
    ),
    tells(
        "identity.issuer", "/.well-known/openid-configuration", need=need.NOTHING,
        summary="Where those keys are, as providers of OpenID say it.", returns=shapes.IssuerShown,
    ),
)  # fmt: skip
